"""The values of the public API: frozen and comparable."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .limit import as_int

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .limit import Limit


class OnUnavailable(enum.StrEnum):
    """What an acquire does when the store is unavailable."""

    ALLOW = "allow"
    BLOCK = "block"


class AuditAction(enum.StrEnum):
    """The kind of change that an audit event records."""

    ENTITY_CREATED = "entity_created"
    ENTITY_UPDATED = "entity_updated"
    ENTITY_DELETED = "entity_deleted"
    LIMITS_SET = "limits_set"
    LIMITS_DELETED = "limits_deleted"
    BUCKET_RESET = "bucket_reset"
    NAMESPACE_REGISTERED = "namespace_registered"
    NAMESPACE_DELETED = "namespace_deleted"
    NAMESPACE_RECOVERED = "namespace_recovered"
    NAMESPACE_PURGED = "namespace_purged"


@dataclass(frozen=True, slots=True)
class Entity:
    """An API key, a project, a tenant: whoever is limited.

    Attributes:
        id: The id.
        name: A name for people.
        parent_id: The entity above it.
        cascade: Whether an acquire also charges the parent.
        metadata: Anything that JSON can represent.
        created_at: When it was created, as RFC 3339.
        version: A number that every change raises.
    """

    id: str
    name: str | None = None
    parent_id: str | None = None
    cascade: bool = False
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    created_at: str = ""
    version: int = 1

    @property
    def is_child(self) -> bool:
        """Whether it has a parent."""
        return self.parent_id is not None

    @property
    def is_parent(self) -> bool:
        """Whether it is at the top of its hierarchy."""
        return self.parent_id is None


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit of one entity at the instant of a decision, in whole tokens, rounded down.

    Attributes:
        entity_id: The entity.
        resource: The resource.
        limit_name: The name of the limit.
        limit: The limit.
        available: The tokens that are left; negative means debt.
        requested: The tokens that the request costs.
        exceeded: Whether the limit refuses the request.
        retry_after_seconds: The seconds until the request fits, or None if it never does.
    """

    entity_id: str
    resource: str
    limit_name: str
    limit: Limit
    available: int
    requested: int
    exceeded: bool
    retry_after_seconds: float | None

    @property
    def deficit(self) -> int:
        """The number of tokens that are missing."""
        return max(0, self.requested - self.available)

    def as_dict(self) -> dict[str, Any]:
        """Return a form for JSON."""
        return {
            "entity_id": self.entity_id,
            "resource": self.resource,
            "limit_name": self.limit_name,
            "capacity": self.limit.capacity,
            "refill_amount": self.limit.refill_amount,
            "refill_period_seconds": self.limit.refill_period_seconds,
            "available": self.available,
            "requested": self.requested,
            "exceeded": self.exceeded,
            "retry_after_seconds": self.retry_after_seconds,
        }


@dataclass(frozen=True, slots=True)
class LevelStatus(LimitStatus):
    """A `LimitStatus` as `get_status` returns it; ``source`` is the level that the limit comes from."""

    source: str = ""

    @property
    def capacity(self) -> int:
        """The ceiling of the bucket."""
        return self.limit.capacity


@dataclass(frozen=True, slots=True)
class BucketState:
    """One limit of a bucket as it is stored, not refilled to now.

    ``tokens_milli`` is the balance as of ``last_refill_ms``: the balance at a later instant ``t`` is
    ``min(capacity_milli, tokens_milli + produced(t) - produced(last_refill_ms))``.
    """

    entity_id: str
    resource: str
    limit_name: str
    tokens_milli: int
    last_refill_ms: int
    capacity_milli: int
    refill_amount_milli: int
    refill_period_ms: int
    total_consumed_milli: int = 0


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A recorded change.

    Attributes:
        event_id: The id; later events have greater ones.
        timestamp: When it happened, as RFC 3339.
        action: An `AuditAction`.
        entity_id: The entity, or ``$SYSTEM``, ``$RESOURCE:{name}`` or ``$NAMESPACE:{name}``.
        principal: Who did it, as the caller said.
        resource: The resource of the limits or of the bucket.
        details: The new values.
    """

    event_id: str
    timestamp: str
    action: str
    entity_id: str
    principal: str | None = None
    resource: str | None = None
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """The consumption of an entity on a resource in one window.

    Attributes:
        entity_id: The entity.
        resource: The resource.
        window_start: The start of the window, as RFC 3339.
        window_end: Its end.
        window_type: ``hourly``, ``daily`` or ``monthly``.
        counters: The consumed tokens by limit.
        total_events: The number of grants and settlements.
    """

    entity_id: str
    resource: str
    window_start: str
    window_end: str
    window_type: str
    counters: Mapping[str, int]
    total_events: int


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """The sum of several snapshots.

    Attributes:
        snapshot_count: How many there are.
        total: The consumed tokens by limit.
        average: The average per snapshot by limit.
        min_window_start: The start of the first window, as RFC 3339.
        max_window_start: The start of the last one.
    """

    snapshot_count: int
    total: Mapping[str, int]
    average: Mapping[str, float]
    min_window_start: str | None
    max_window_start: str | None


@dataclass(frozen=True, slots=True)
class EntityCapacity:
    """One entity's part of a resource: its ``capacity``, the ``available`` tokens and the used share in percent."""

    entity_id: str
    capacity: int
    available: int
    utilization_pct: float


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """One limit of a resource over all ``entities`` that have a bucket for it, and their totals."""

    resource: str
    limit_name: str
    total_capacity: int
    total_available: int
    utilization_pct: float
    entities: tuple[EntityCapacity, ...]


@dataclass(frozen=True, slots=True)
class Namespace:
    """A registered namespace.

    Attributes:
        name: The name.
        id: The prefix of every key of its data.
        status: ``active``, ``deleted`` or ``purging``.
        created_at: When it was registered, as RFC 3339.
        deleted_at: When it was deleted.
    """

    name: str
    id: str
    status: str
    created_at: str
    deleted_at: str | None = None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Statistics of the config cache of a repository."""

    hits: int
    misses: int
    size: int
    """Of how many entities something is remembered, also that they have nothing."""
    ttl_seconds: float


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    """The declared properties of a store. The library decides by these, never by the store's name."""

    name: str
    instant: bool
    """Its verbs finish without suspending (and without any network), so no call is ever in flight."""
    free_atomic_commit: bool
    """A commit of several records is atomic at no extra cost."""
    own_clock: bool
    """All clients of the store decide by one clock that the store provides."""
    several_processes: bool
    """Other processes can share the data."""
    several_hosts: bool
    """Other machines can share the data."""
    change_stream: bool = False
    """Changes can be followed by a stream."""
    ttl: bool = True
    """Expired records vanish by themselves."""
    wide_commits: bool = True
    """A commit can change the buckets of several entities at once, so ``atomic=True`` can be had."""
    partition_writes: int = 0
    """How many writes a second one record can take before the store throttles them; 0 where that is no matter."""
    usage_retention_days: int = 0
    """For how long the writes that consume keep usage counters; 0 where they keep none: a stream does, or nobody."""
    timeout: float = 5.0
    """How many seconds a call of the library may take, over all that it asks of the store, unless told otherwise."""
    never_cancels: bool = False
    """Its verbs never cancel the asyncio task that they run in, as `asyncio.timeout` and task groups do. So an acquire
    needs no task of its own."""


@dataclass(frozen=True, slots=True)
class BackendStats:
    """The calls of a client to its backend since it was opened, and their cost as reported by the backend.

    A refused conditional write is billed too, but its answer does not say how much: it counts as one unit, two per item
    of a transaction.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    """Requests sent per operation, repeated ones included."""
    retries: int = 0
    conflicts: int = 0
    """Writes whose guards did not hold."""
    throttled: int = 0
    read_units: float = 0.0
    write_units: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0

    @property
    def total_calls(self) -> int:
        """Requests sent, of all operations."""
        return sum(self.calls.values())


@dataclass(frozen=True, slots=True)
class LimiterInfo:
    """A deployed limiter, as discovery finds it: its stack, region, stack status and versions."""

    stack_name: str
    region: str
    status: str
    version: str | None = None
    schema_version: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The health of a limiter's backend.

    Attributes:
        available: Whether the store answered.
        backend: The kind of store.
        latency_ms: How long a read took.
        namespace: The namespace.
        schema_version: The version of the stored data.
        client_version: The version of this library.
        clock_skew_ms: By how many ms this process's clock is ahead of the store's.
        reason: Why it is not available.
    """

    available: bool
    backend: str
    latency_ms: float | None
    namespace: str
    schema_version: str | None
    client_version: str
    clock_skew_ms: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The options of a CloudFormation deployment.

    Attributes:
        snapshot_windows: The kinds of usage windows, separated by commas: ``hourly``, ``daily``, ``monthly``.
        usage_retention_days: For how many days usage is kept.
        audit_retention_days: For how many days audit events stay in the table.
        enable_aggregator: Deploy the function that counts usage.
        pitr_recovery_days: Days of point-in-time recovery; None for none.
        log_retention_days: For how many days the function's log is kept.
        lambda_timeout: The function's timeout in seconds.
        lambda_memory: The function's memory in MB.
        enable_alarms: Deploy CloudWatch alarms.
        alarm_sns_topic: The ARN of the topic for alarms.
        lambda_duration_threshold_pct: Alarm when the function takes this percentage of its timeout.
        permission_boundary: The ARN of the permission boundary of all roles.
        role_name_format: The format of role names, e.g. ``team-{}``.
        policy_name_format: The format of policy names.
        enable_audit_archival: Archive expired audit events in S3.
        audit_archive_glacier_days: After how many days archived events move to Glacier.
        enable_tracing: Trace the function with X-Ray.
        create_iam_roles: Create roles for applications, administrators and readers.
        create_iam: Create policies, and the role of the function.
        aggregator_role_arn: The ARN of an existing role for the function.
        enable_deletion_protection: Protect the table against deletion.
        tags: Tags of the stack.
    """

    snapshot_windows: str = "hourly,daily"
    usage_retention_days: int = 90
    audit_retention_days: int = 90
    enable_aggregator: bool = True
    pitr_recovery_days: int | None = None
    log_retention_days: int = 30
    lambda_timeout: int = 60
    lambda_memory: int = 256
    enable_alarms: bool = True
    alarm_sns_topic: str | None = None
    lambda_duration_threshold_pct: int = 80
    permission_boundary: str | None = None
    role_name_format: str | None = None
    policy_name_format: str | None = None
    enable_audit_archival: bool = True
    audit_archive_glacier_days: int = 90
    enable_tracing: bool = False
    create_iam_roles: bool = False
    create_iam: bool = True
    aggregator_role_arn: str | None = None
    enable_deletion_protection: bool = False
    tags: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Convert whole numbers of any type to int. Invalid options are rejected on deployment."""
        for each in fields(self):
            number = as_int(getattr(self, each.name))
            if number is not None:
                object.__setattr__(self, each.name, number)
