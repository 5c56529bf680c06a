"""The blocking form of `HistoryOperations`, `SurveyOperations`, `BucketOperations`, `CreditOperations`,
`EntityOperations`.

Written by ``python -m tools.faces``: change the async classes, not this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.validation import UNSET
from ..repository.buckets import MAX_RECORDS
from ..runtime.blocking import run

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime
    from typing import Any

    from ..core.limit import Limit
    from ..core.reports import BucketOperationResult, BucketState
    from ..core.usage import Survey, UsageSnapshot, UsageSummary
    from ..core.validation import Unset
    from ..core.values import AuditEvent, Entity
    from ..repository.buckets import BucketOperations, SurveyOperations
    from ..repository.credits import CreditOperations
    from ..repository.entities import EntityOperations
    from ..repository.history import HistoryOperations


class SyncHistoryOperations:
    """Read audit events and usage."""

    _inner: HistoryOperations

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


class SyncSurveyOperations:
    """Read the buckets of a whole namespace."""

    _inner: SurveyOperations

    def survey_buckets(self, resource: str | None = None, max_records: int = MAX_RECORDS) -> Survey:
        """Return the present load of every bucket of a resource, or of the namespace.

        A bucket is shown under the limits of its last charge: no config is read.
        At most ``max_records`` records are read: on DynamoDB about one read unit per bucket and shard.
        """
        return run(self._inner.survey_buckets(resource, max_records))


class SyncBucketOperations:
    """Read and delete buckets."""

    _inner: BucketOperations

    def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        """Return the stored buckets of an entity, for one resource or all, as they were last written.

        They are not refilled to now, and have the limits of their last charge; `available` and `get_status` show
        balances under the limits in force.
        A limit that has credit and was never charged is full, under the config; without config its numbers are 0.
        """
        return run(self._inner.get_buckets(entity_id, resource))

    def get_bucket(self, entity_id: str, resource: str, limit_name: str) -> BucketState | None:
        """Return one limit of a stored bucket, not refilled to now; None if it was never used."""
        return run(self._inner.get_bucket(entity_id, resource, limit_name))

    def get_or_create_bucket(self, entity_id: str, resource: str, limit: Limit) -> BucketState:
        """Return one limit of a stored bucket, or a full one if it was never used, which need not be stored."""
        return run(self._inner.get_or_create_bucket(entity_id, resource, limit))

    def get_resource_buckets(self, resource: str, limit_name: str | None = None) -> list[BucketState]:
        """Return the stored buckets of all entities for a resource, not refilled to now.

        ``limit_name`` is the one limit to return; None for all.
        """
        return run(self._inner.get_resource_buckets(resource, limit_name))


class SyncCreditOperations(SyncBucketOperations):
    """Top up and reset buckets."""

    _inner: CreditOperations

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

        Slots of concurrency limits are freed: their holders lose them.

        ``limits`` are the names of the limits to fill up; None for all, which also repairs a damaged bucket.
        With the same ``idempotency_key`` it is done only once within three days at least: then the result of the first
        time is returned.
        """
        return run(self._inner.reset_bucket(entity_id, resource, limits, principal, idempotency_key))


class SyncEntityOperations(SyncCreditOperations):
    """Create, change, read and delete entities."""

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
        """Create an entity and return it. Raise `EntityExistsError` if the id is taken.

        ``name`` is for people; ``parent_id`` is the entity above it, which must exist; with ``cascade`` an acquire also
        charges the parent, and so on up; ``metadata`` is anything that JSON can represent.
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

        Raise `EntityNotFoundError` if one of them does not exist.
        """
        return run(self._inner.set_parent(entity_id, parent_id, principal=principal))

    def get_children(self, parent_id: str) -> list[Entity]:
        """Return the entities whose parent is ``parent_id``, sorted by id."""
        return run(self._inner.get_children(parent_id))

    def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        """Delete an entity, its limits, buckets and idempotency keys. Raise `ValidationError` if it has children."""
        run(self._inner.delete_entity(entity_id, principal))
