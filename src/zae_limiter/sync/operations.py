"""The groups of operations, blocking: one line per method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core import names
from ..repository.entities import UNSET, Unset
from ..repository.survey import MAX_RECORDS
from ..runtime.blocking import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from ..core.limit import Limit
    from ..core.survey import Survey
    from ..core.values import (
        AuditEvent,
        BucketState,
        Entity,
        LevelStatus,
        Namespace,
        OnUnavailable,
        ResourceCapacity,
        UsageSnapshot,
        UsageSummary,
    )
    from ..limiter.queries import QueryOperations
    from ..repository.configs import ConfigOperations
    from ..repository.entities import EntityOperations
    from ..repository.history import HistoryOperations
    from ..repository.namespaces import NamespaceOperations
    from ..repository.survey import SurveyOperations


class SyncEntityOperations:
    """`EntityOperations`, blocking."""

    _inner: EntityOperations

    def create_entity(
        self,
        entity_id: str,
        name: str | None = None,
        parent_id: str | None = None,
        cascade: bool = False,
        metadata: Mapping[str, Any] | None = None,
        principal: str | None = None,
    ) -> Entity:
        """Create an entity. With ``cascade`` every acquire also charges its parent, and so on up."""
        return run(self._inner.create_entity(entity_id, name, parent_id, cascade, metadata, principal))

    def update_entity(
        self,
        entity_id: str,
        *,
        name: str | Unset | None = UNSET,
        parent_id: str | Unset | None = UNSET,
        cascade: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset = UNSET,
        expected_version: int | None = None,
        principal: str | None = None,
    ) -> Entity:
        """Change what is given. With ``expected_version`` only if nobody has changed it since."""
        return run(
            self._inner.update_entity(
                entity_id,
                name=name,
                parent_id=parent_id,
                cascade=cascade,
                metadata=metadata,
                expected_version=expected_version,
                principal=principal,
            )
        )

    def get_entity(self, entity_id: str) -> Entity | None:
        """The entity, or None where it was never created."""
        return run(self._inner.get_entity(entity_id))

    def get_children(self, entity_id: str) -> list[Entity]:
        """The entities whose parent it is, by id."""
        return run(self._inner.get_children(entity_id))

    def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        """Delete an entity with its limits and buckets. One that has children is refused."""
        return run(self._inner.delete_entity(entity_id, principal))

    def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        """The stored buckets of an entity, one state per limit, not refilled to now."""
        return run(self._inner.get_buckets(entity_id, resource))

    def reset_bucket(self, entity_id: str, resource: str, principal: str | None = None) -> None:
        """Forget a bucket, damaged or not: the next acquire starts a full one."""
        return run(self._inner.reset_bucket(entity_id, resource, principal))


class SyncConfigOperations:
    """`ConfigOperations`, blocking."""

    _inner: ConfigOperations

    def set_system_defaults(
        self,
        limits: Sequence[Limit],
        on_unavailable: OnUnavailable | str | None = None,
        principal: str | None = None,
    ) -> None:
        """Set the limits that apply where nothing more specific is stored.

        ``on_unavailable`` None leaves what is stored of it.
        """
        return run(self._inner.set_system_defaults(limits, on_unavailable, principal))

    def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        """The system limits and what an acquire does when the store is unavailable."""
        return run(self._inner.get_system_defaults())

    def delete_system_defaults(self, principal: str | None = None) -> None:
        """Delete the system limits; deleting nothing is fine."""
        return run(self._inner.delete_system_defaults(principal))

    def set_resource_defaults(self, resource: str, limits: Sequence[Limit], principal: str | None = None) -> None:
        """Set the limits of a resource for all entities that have none of their own."""
        return run(self._inner.set_resource_defaults(resource, limits, principal))

    def get_resource_defaults(self, resource: str) -> list[Limit]:
        """The limits stored for a resource."""
        return run(self._inner.get_resource_defaults(resource))

    def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        """Delete the limits of a resource; deleting nothing is fine."""
        return run(self._inner.delete_resource_defaults(resource, principal))

    def list_resources_with_defaults(self) -> list[str]:
        """The resources that have limits of their own, by name."""
        return run(self._inner.list_resources_with_defaults())

    def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = names.DEFAULT_RESOURCE,
        principal: str | None = None,
    ) -> None:
        """Set the limits of one entity, for a resource or (``_default_``) for all of them."""
        return run(self._inner.set_limits(entity_id, limits, resource, principal))

    def get_limits(self, entity_id: str, resource: str = names.DEFAULT_RESOURCE) -> list[Limit]:
        """The limits stored for the entity itself."""
        return run(self._inner.get_limits(entity_id, resource))

    def delete_limits(
        self, entity_id: str, resource: str = names.DEFAULT_RESOURCE, principal: str | None = None
    ) -> None:
        """Delete the limits of one entity; deleting nothing is fine."""
        return run(self._inner.delete_limits(entity_id, resource, principal))

    def list_entities_with_custom_limits(
        self, resource: str = names.DEFAULT_RESOURCE, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Entities that have limits of their own for a resource, a page at a time."""
        return run(self._inner.list_entities_with_custom_limits(resource, limit, cursor))

    def list_resources_with_entity_configs(self) -> list[str]:
        """The resources for which at least one entity has limits of its own."""
        return run(self._inner.list_resources_with_entity_configs())

    def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, str | None]:
        """The limits in force, the stored unavailability policy, and the level they come from."""
        return run(self._inner.resolve_limits(entity_id, resource))


class SyncNamespaceOperations:
    """`NamespaceOperations`, blocking."""

    _inner: NamespaceOperations

    def register_namespace(self, name: str, principal: str | None = None) -> Namespace:
        """Register a namespace; one that exists is returned as it is."""
        return run(self._inner.register_namespace(name, principal))

    def register_namespaces(self, wanted: Iterable[str], principal: str | None = None) -> list[Namespace]:
        """Register several."""
        return run(self._inner.register_namespaces(wanted, principal))

    def get_namespace(self, name: str) -> Namespace:
        """The namespace of this name."""
        return run(self._inner.get_namespace(name))

    def list_namespaces(self) -> list[Namespace]:
        """All active namespaces, by name."""
        return run(self._inner.list_namespaces())

    def list_orphan_namespaces(self) -> list[Namespace]:
        """Deleted namespaces whose data are still there: recover or purge them by id."""
        return run(self._inner.list_orphan_namespaces())

    def delete_namespace(self, name: str, principal: str | None = None) -> Namespace:
        """Free the name; the data stay until `purge_namespace` and can be recovered until then."""
        return run(self._inner.delete_namespace(name, principal))

    def recover_namespace(self, namespace_id: str, principal: str | None = None) -> Namespace:
        """Bring a deleted namespace back under its name."""
        return run(self._inner.recover_namespace(namespace_id, principal))

    def purge_namespace(
        self,
        namespace_id: str,
        principal: str | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete all data of a deleted namespace for good; returns how many records went. Safe to repeat."""
        return run(self._inner.purge_namespace(namespace_id, principal, on_progress))


class SyncSurveyOperations:
    """`SurveyOperations`, blocking."""

    _inner: SurveyOperations

    def survey_buckets(self, resource: str | None = None, max_records: int = MAX_RECORDS) -> Survey:
        """What is left in every bucket now, of one resource or of the namespace, from at most ``max_records`` records.

        It reads each of them: on DynamoDB that costs about one read unit per bucket and shard.
        """
        return run(self._inner.survey_buckets(resource, max_records))


class SyncHistoryOperations:
    """`HistoryOperations`, blocking."""

    _inner: HistoryOperations

    def get_audit_events(self, entity_id: str, limit: int = 100, start_event_id: str | None = None) -> list[AuditEvent]:
        """Changes of one subject, newest first, older than ``start_event_id`` if given.

        Besides entity ids there are the subjects ``$SYSTEM``, ``$RESOURCE:{name}`` and ``$NAMESPACE:{name}``.
        """
        return run(self._inner.get_audit_events(entity_id, limit, start_event_id))

    def get_usage_snapshots(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str | None = None,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
        limit: int = 100,
        next_key: str | None = None,
    ) -> tuple[list[UsageSnapshot], str | None]:
        """Usage by entity or by resource, a page at a time: by resource, then by kind of window, the oldest first.

        A window is shown when it begins in ``[start_time, end_time)``. Where the writes that consume keep usage, it is
        exact up to the first page; where a stream does, up to what has come through that.
        """
        return run(
            self._inner.get_usage_snapshots(entity_id, resource, window_type, start_time, end_time, limit, next_key)
        )

    def get_usage_summary(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str | None = None,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
    ) -> UsageSummary:
        """All matching snapshots added up: those of one window type, without ``window_type`` of the finest there is."""
        return run(self._inner.get_usage_summary(entity_id, resource, window_type, start_time, end_time))


class SyncQueryOperations:
    """`QueryOperations`, blocking."""

    _inner: QueryOperations

    def available(self, entity_id: str, resource: str, limits: Sequence[Limit] | None = None) -> dict[str, int]:
        """Whole tokens left per limit, the least over all levels that an acquire would charge; may be negative."""
        return run(self._inner.available(entity_id, resource, limits))

    def time_until_available(
        self, entity_id: str, resource: str, needed: Mapping[str, int], limits: Sequence[Limit] | None = None
    ) -> float:
        """Seconds until ``needed`` fits at every level; `CapacityExceeded` where it never does.

        With ``limits`` it is counted as if the bucket had them from now on; nothing is written.
        """
        return run(self._inner.time_until_available(entity_id, resource, needed, limits))

    def get_status(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None = None,
        needed: Mapping[str, int] | None = None,
    ) -> list[LevelStatus]:
        """One row per level and limit, the entity itself first: what is left, and where the limit comes from.

        ``retry_after_seconds`` is the time until ``needed`` is there (one token of each limit if not given), or
        None where it never will be.
        """
        return run(self._inner.get_status(entity_id, resource, limits, needed))

    def get_resource_capacity(self, resource: str, limit_name: str, parents_only: bool = False) -> ResourceCapacity:
        """One limit of a resource over all entities that have a bucket for it."""
        return run(self._inner.get_resource_capacity(resource, limit_name, parents_only))

    def is_available(self, timeout: float = 1.0) -> bool:
        """Whether the store answers within ``timeout`` seconds."""
        return run(self._inner.is_available(timeout))
