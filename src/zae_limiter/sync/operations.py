"""The operations that repository and limiter share, blocking: one line per method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.names import DEFAULT_RESOURCE
from ..core.validation import UNSET, Unset
from ..runtime.blocking import run
from .stacks import SyncStackOperations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from ..core.limit import Limit
    from ..core.reports import BucketOperationResult, BucketState
    from ..core.usage import UsageSnapshot, UsageSummary
    from ..core.values import Access, AuditEvent, Entity, OnUnavailable
    from ..limiter.limiter import RateLimiter
    from ..repository.repository import Repository


class SyncOperations(SyncStackOperations):
    """Entities, limits and history, blocking."""

    _inner: Repository | RateLimiter

    def create_entity(
        self,
        entity_id: str,
        name: str | None = None,
        parent_id: str | None = None,
        cascade: bool = False,
        metadata: Mapping[str, Any] | None = None,
        principal: str | None = None,
    ) -> Entity:
        """Create an entity and return it. Raise `EntityExistsError` if the id is taken.

        ``name`` is for people; ``parent_id`` is the entity above it, which must exist; with ``cascade`` an acquire also
        charges the parent, and so on up; ``metadata`` is anything that JSON can represent; ``principal`` says in the
        audit log who did it.
        """
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
        """Change the fields that are passed and return the entity; ``name`` and ``parent_id`` may be None.

        Raise `EntityNotFoundError` if it does not exist and `EntityVersionError` if its version is not
        ``expected_version``. ``metadata`` replaces all of the old; the fields are those of `create_entity`.
        """
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

    def get_entity(self, entity_id: str, *, consistent_read: bool = True) -> Entity | None:
        """Return the entity, or None if it was never created. Every read is consistent, whatever is asked for."""
        return run(self._inner.get_entity(entity_id, consistent_read=consistent_read))

    def set_parent(self, entity_id: str, parent_id: str | None, *, principal: str | None = None) -> int:
        """Move an entity below another one, or (None) to the top. Return how many records of buckets it has.

        Raise `EntityNotFoundError` if one of them does not exist. ``principal`` says in the audit log who did it.
        """
        return run(self._inner.set_parent(entity_id, parent_id, principal=principal))

    def get_children(self, parent_id: str) -> list[Entity]:
        """Return the entities whose parent is ``parent_id``, sorted by id."""
        return run(self._inner.get_children(parent_id))

    def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        """Delete an entity with its limits, buckets and idempotency keys. Raise `ValidationError` if it has children.

        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.delete_entity(entity_id, principal))

    def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        """Return the stored buckets of an entity, for one resource or all, as they were last written.

        They are not refilled to now, and have the limits of their last charge; `available` and `get_status` show
        balances under the limits in force.
        A limit that has credit and was never charged is full, under the config; without config its numbers are 0.
        """
        return run(self._inner.get_buckets(entity_id, resource))

    def get_bucket(self, entity_id: str, resource: str, limit_name: str) -> BucketState | None:
        """Return one limit of a stored bucket, not refilled to now; None if nobody has used it."""
        return run(self._inner.get_bucket(entity_id, resource, limit_name))

    def get_or_create_bucket(self, entity_id: str, resource: str, limit: Limit) -> BucketState:
        """Return one limit of a stored bucket, or if nobody has used it a full one, which need not be stored."""
        return run(self._inner.get_or_create_bucket(entity_id, resource, limit))

    def get_resource_buckets(self, resource: str, limit_name: str | None = None) -> list[BucketState]:
        """Return the stored buckets of all entities for a resource, not refilled to now.

        ``limit_name`` is the one limit to return; None for all.
        """
        return run(self._inner.get_resource_buckets(resource, limit_name))

    def top_up(
        self,
        entity_id: str,
        resource: str,
        amounts: Mapping[str, int],
        *,
        expires_at: datetime | str | None = None,
        idempotency_key: str | None = None,
        principal: str | None = None,
    ) -> BucketOperationResult:
        """Give an entity credit: tokens that are spent when the allowance of a limit is used up.

        ``amounts`` are whole tokens by limit name. ``expires_at`` is when they expire, a datetime with a time zone or a
        text such as 2026-12-31T00:00:00Z; None for never. With the same ``idempotency_key`` it is done only once within
        three days at least: then the result of the first time is returned, whatever ``expires_at`` is by now.
        ``principal`` goes into the audit log.
        """
        return run(
            self._inner.top_up(
                entity_id,
                resource,
                amounts,
                expires_at=expires_at,
                idempotency_key=idempotency_key,
                principal=principal,
            )
        )

    def reset_bucket(
        self,
        entity_id: str,
        resource: str,
        limits: Collection[str] | None = None,
        principal: str | None = None,
        idempotency_key: str | None = None,
    ) -> BucketOperationResult:
        """Fill a bucket up, all its shards at once; credits stay as they are.

        Slots of concurrency limits are freed: whoever holds one loses it.

        ``limits`` are the names of the limits to fill up; None for all, which also repairs a damaged bucket.
        ``principal`` goes into the audit log. With the same ``idempotency_key`` it is done only once within three days
        at least: then the result of the first time is returned.
        """
        return run(self._inner.reset_bucket(entity_id, resource, limits, principal, idempotency_key))

    def set_system_defaults(
        self, limits: Sequence[Limit], on_unavailable: OnUnavailable | str | None = None, principal: str | None = None
    ) -> None:
        """Set the ``limits`` that apply where nothing more specific is stored.

        ``on_unavailable`` is what an acquire does when the store is unavailable; None keeps the stored value.
        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.set_system_defaults(limits, on_unavailable, principal))

    def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        """Return the system limits and what an acquire does when the store is unavailable."""
        return run(self._inner.get_system_defaults())

    def get_system_limits(self) -> list[Limit]:
        """Return the system limits."""
        return run(self._inner.get_system_limits())

    def resolve_on_unavailable(self) -> OnUnavailable:
        """Return what acquires do when the store is unavailable, as stored, else that they block.

        It is read once per cache time, as all config that acquires need.
        """
        return run(self._inner.resolve_on_unavailable())

    def delete_system_defaults(self, principal: str | None = None) -> None:
        """Delete the system limits, if there are any, and what is stored with them for an unavailable store.

        ``principal`` goes into the audit log.
        """
        return run(self._inner.delete_system_defaults(principal))

    def set_resource_defaults(
        self,
        resource: str,
        limits: Sequence[Limit],
        principal: str | None = None,
        *,
        disabled: bool | str | Unset | None = UNSET,
        cascade: bool | Unset | None = UNSET,
    ) -> None:
        """Set the ``limits`` of a resource for entities without their own. ``principal`` goes into the audit log.

        ``disabled`` (True, False, ``"bypass"``) and ``cascade`` set its switch and its cascade policy in the same step;
        None removes them, and without them they stay.
        """
        return run(self._inner.set_resource_defaults(resource, limits, principal, disabled=disabled, cascade=cascade))

    def get_resource_defaults(self, resource: str) -> list[Limit]:
        """Return the limits stored for a resource."""
        return run(self._inner.get_resource_defaults(resource))

    def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        """Delete the limits of a resource, if it has any. ``principal`` goes into the audit log."""
        return run(self._inner.delete_resource_defaults(resource, principal))

    def list_resources_with_defaults(self) -> list[str]:
        """Return the names of resources that have limits of their own, sorted."""
        return run(self._inner.list_resources_with_defaults())

    def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = DEFAULT_RESOURCE,
        principal: str | None = None,
        *,
        disabled: bool | str | Unset | None = UNSET,
        cascade: bool | Unset | None = UNSET,
    ) -> None:
        """Set the ``limits`` of one entity, created or not, for a resource or (``_default_``) for all.

        ``principal`` says in the audit log who did it. ``disabled`` (True, False, ``"bypass"``) and ``cascade`` set the
        switch and the cascade policy of this level in the same step; None removes them, and without them they stay.
        """
        return run(self._inner.set_limits(entity_id, limits, resource, principal, disabled=disabled, cascade=cascade))

    def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        """Return the limits of the entity itself for a resource, or (``_default_``) for all resources."""
        return run(self._inner.get_limits(entity_id, resource))

    def delete_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None) -> None:
        """Delete the limits of the entity itself for a resource, or (``_default_``) those for all.

        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.delete_limits(entity_id, resource, principal))

    def disable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Refuse every request of an entity with `ResourceDisabled`, for one ``resource`` or (None) for all.

        It holds for those below it too that charge it. Other processes follow with their next write to one of its
        buckets. ``principal`` says in the audit log who did it.
        """
        return run(self._inner.disable_entity(entity_id, resource, principal))

    def enable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Let limits decide for an entity, for one ``resource`` or (None) for all, whatever the resource's switch says.

        Processes that have refused it follow when their cached config has expired, after 60 s unless
        ``config_cache_ttl`` of `SyncRepository` says otherwise. ``principal`` says in the audit log who did it.
        """
        return run(self._inner.enable_entity(entity_id, resource, principal))

    def bypass_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Admit every request of an entity, for one ``resource`` or (None) for all; what it uses is still counted.

        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.bypass_entity(entity_id, resource, principal))

    def disable_resource(self, resource: str, principal: str | None = None) -> None:
        """Refuse every request for a resource with `ResourceDisabled`, except for entities with a switch of their own.

        Other processes follow when their cached config has expired, after 60 s unless ``config_cache_ttl`` of
        `SyncRepository` says otherwise. ``principal`` says in the audit log who did it.
        """
        return run(self._inner.disable_resource(resource, principal))

    def enable_resource(self, resource: str, principal: str | None = None) -> None:
        """Let limits decide for a resource. ``principal`` says in the audit log who did it."""
        return run(self._inner.enable_resource(resource, principal))

    def bypass_resource(self, resource: str, principal: str | None = None) -> None:
        """Admit every request for a resource, but for entities with a switch of their own; usage is still counted.

        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.bypass_resource(resource, principal))

    def clear_entity_disabled(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Remove the switch of an entity, for one ``resource`` or (None) the one for all; a less specific one decides.

        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.clear_entity_disabled(entity_id, resource, principal))

    def clear_resource_disabled(self, resource: str, principal: str | None = None) -> None:
        """Remove the switch of a resource. ``principal`` says in the audit log who did it."""
        return run(self._inner.clear_resource_disabled(resource, principal))

    def get_entity_disabled(self, entity_id: str, resource: str | None = None) -> bool | str | None:
        """Return the switch of an entity for one ``resource`` or (None) the one for all, not that in force.

        True if it is disabled, False if enabled, ``"bypass"`` if bypassed, None without one.
        """
        return run(self._inner.get_entity_disabled(entity_id, resource))

    def get_resource_disabled(self, resource: str) -> bool | str | None:
        """Return the switch of a resource: True, False or ``"bypass"``; None without one."""
        return run(self._inner.get_resource_disabled(resource))

    def resolve_access(self, entity_id: str, resource: str) -> tuple[Access, str | None]:
        """Return the switch in force for an entity on a resource, and its level, one of `SOURCES` (None: none is set).

        Switches of entities above it are theirs: they count for it where it cascades to them.
        """
        return run(self._inner.resolve_access(entity_id, resource))

    def set_entity_cascade(
        self, entity_id: str, cascade: bool, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Decide whether an acquire of an entity charges its parent, for one ``resource`` or (None) for all.

        It counts more than the ``cascade`` of the entity and of the resource. Other processes follow with their next
        write to one of its buckets. ``principal`` says in the audit log who did it.
        """
        return run(self._inner.set_entity_cascade(entity_id, cascade, resource, principal))

    def clear_entity_cascade(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Remove what `set_entity_cascade` has set for one ``resource`` or (None) for all.

        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.clear_entity_cascade(entity_id, resource, principal))

    def get_entity_cascade(self, entity_id: str, resource: str | None = None) -> bool | None:
        """Return what `set_entity_cascade` has set for one ``resource`` or (None) for all; None if it has not."""
        return run(self._inner.get_entity_cascade(entity_id, resource))

    def set_resource_cascade(self, resource: str, cascade: bool, principal: str | None = None) -> None:
        """Decide whether an acquire of a resource charges parents, for entities without a policy of their own.

        It counts more than the ``cascade`` of the entity. ``principal`` says in the audit log who did it.
        """
        return run(self._inner.set_resource_cascade(resource, cascade, principal))

    def clear_resource_cascade(self, resource: str, principal: str | None = None) -> None:
        """Remove what `set_resource_cascade` has set. ``principal`` says in the audit log who did it."""
        return run(self._inner.clear_resource_cascade(resource, principal))

    def get_resource_cascade(self, resource: str) -> bool | None:
        """Return what `set_resource_cascade` has set; None if it has not."""
        return run(self._inner.get_resource_cascade(resource))

    def resolve_cascade(self, entity_id: str, resource: str) -> bool:
        """Return whether an acquire of an entity charges its parent on a resource, by the most specific policy."""
        return run(self._inner.resolve_cascade(entity_id, resource))

    def list_entities_with_custom_limits(
        self, resource: str = DEFAULT_RESOURCE, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Return entities with limits of their own, and a cursor where there are more than ``limit``.

        ``resource`` is the resource of the limits, ``_default_`` for those for all resources; ``limit`` is the size of
        a page, None for all of them at once; ``cursor`` is that of the previous page. The last page has none.
        """
        return run(self._inner.list_entities_with_custom_limits(resource, limit, cursor))

    def list_resources_with_entity_configs(self) -> list[str]:
        """Return the resources for which some entity has limits of its own."""
        return run(self._inner.list_resources_with_entity_configs())

    def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, str | None]:
        """Return the limits in force for an entity on a resource, the policy, and their level.

        The policy is what an acquire does when the store is unavailable, as stored; the level is one of `SOURCES`.
        """
        return run(self._inner.resolve_limits(entity_id, resource))

    def get_audit_events(self, entity_id: str, limit: int = 100, start_event_id: str | None = None) -> list[AuditEvent]:
        """Return at most ``limit`` changes, newest first, older than ``start_event_id`` if given.

        ``entity_id`` is an entity, or one of the subjects ``$SYSTEM``, ``$RESOURCE:{name}`` and ``$NAMESPACE:{name}``.
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
        """Return one page of usage, and a cursor: by resource, kind of window and time, newest first.

        If the consuming writes keep usage, it is exact as of the first page; if a stream keeps it, as of what the
        stream has delivered.

        Args:
            entity_id: The entity; None for all entities of ``resource``.
            resource: The resource; None for all resources of ``entity_id``.
            window_type: ``hourly``, ``daily`` or ``monthly``; None for all.
            start_time: Only windows that start at this time or later, as a datetime or as RFC 3339.
            end_time: Only windows that start before this time.
            limit: The most snapshots of a page.
            next_key: The cursor of the previous page; None starts at the beginning. The last page returns None.
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
        """Return the sum and the average of all snapshots of one kind of window.

        The arguments are those of `get_usage_snapshots`; without ``window_type`` it is the finest kind that there is.
        """
        return run(self._inner.get_usage_summary(entity_id, resource, window_type, start_time, end_time))
