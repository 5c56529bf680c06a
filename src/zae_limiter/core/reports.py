"""Values of the public API that are seldom needed: reports.

Nothing that an acquire loads imports this at once: creating these classes would take a good part of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import ClassVar

from .limit import Limit, as_int
from .production import MILLI, Rule
from .validation import ValidationError
from .values import LimitStatus


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot of a concurrency limit that is taken: since when and, unless renewed, until when, in ms since 1970."""

    number: int
    since_ms: int
    until_ms: int
    holder: str | None = None
    """The name that the holder gave itself."""


@dataclass(frozen=True, slots=True)
class LevelStatus(LimitStatus):
    """A `LimitStatus` as `get_status` returns it; ``source`` is the level that the limit comes from.

    ``slots`` are those of a concurrency limit that are taken, the longest first.
    """

    source: str = ""
    slots: tuple[SlotState, ...] = ()

    @property
    def capacity(self) -> int:
        """The ceiling of the bucket."""
        return self.limit.capacity


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a request of an entity for a resource would be granted at an instant; nothing was taken.

    Attributes:
        entity_id: The entity.
        resource: The resource.
        checked_at_ms: The instant, in milliseconds since the epoch.
        statuses: Every limit of every level, the entity itself first; none where it is disabled.
        bypassed: Whether a switch admits it at one of the levels without asking the limits.
        disabled: Whether a switch refuses it.
    """

    entity_id: str
    resource: str
    checked_at_ms: int
    statuses: tuple[LimitStatus, ...]
    bypassed: bool = False
    disabled: bool = False

    def status(self, limit_name: str) -> LimitStatus | None:
        """Return the status of a limit at the level that refuses, or has the least of it; None if there is none."""
        found = [status for status in self.statuses if status.limit_name == limit_name]
        return min(found, key=lambda status: (not status.exceeded, status.available), default=None)

    @property
    def limits(self) -> list[Limit]:
        """The limits of the entity itself, or of those above it that it charges where it has none."""
        first = self.statuses[0].entity_id if self.statuses else None
        return [status.limit for status in self.statuses if status.entity_id == first]

    @property
    def available(self) -> dict[str, int]:
        """The whole tokens that are left by limit, beyond the floors of the priority: the least over all levels."""
        left: dict[str, int] = {}
        for status in self.statuses:
            here = status.available - status.floor
            left[status.limit_name] = min(here, left.get(status.limit_name, here))
        return left

    @property
    def needed(self) -> dict[str, int]:
        """The tokens that were asked about, by limit."""
        return {status.limit_name: status.requested for status in self.statuses}

    @property
    def allowed(self) -> bool:
        """Return whether an acquire would be granted."""
        return not self.disabled and not any(status.exceeded for status in self.statuses)

    @property
    def exceeded(self) -> list[str]:
        """The names of the limits that refuse, without repetition."""
        return list(dict.fromkeys(status.limit_name for status in self.statuses if status.exceeded))

    @property
    def deficit(self) -> dict[str, int]:
        """The tokens that are missing of the limits that refuse: the most over all levels."""
        missing: dict[str, int] = {}
        for status in self.statuses:
            if status.exceeded:
                missing[status.limit_name] = max(status.deficit, missing.get(status.limit_name, 0))
        return missing

    @property
    def retry_after_seconds(self) -> float | None:
        """The seconds until all of it fits, if nobody else consumes; None if it never does or is disabled."""
        waits = [status.retry_after_seconds for status in self.statuses if status.exceeded]
        known = [wait for wait in waits if wait is not None]
        return None if self.disabled or len(known) < len(waits) else max(known, default=0.0)


@dataclass(frozen=True, slots=True)
class Credit:
    """A lot of credit: ``tokens_milli`` that expire at ``expires_ms``, in milliseconds since the epoch, or never."""

    tokens_milli: int
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BucketState:
    """One limit of a bucket as it is stored, not refilled to now.

    ``tokens_milli`` is the balance as of ``last_refill_ms``: the balance at a later instant ``t`` is
    ``min(capacity_milli, tokens_milli + produced(t) - produced(last_refill_ms))``. Of a quota, ``calendar`` says which
    windows it has, and ``refill_period_ms`` is 1: one of them. Of a quota whose window begins with its first use,
    ``window_start_ms`` is when that was. ``credits`` are spent after it, in their order.
    ``total_overdrawn_milli`` is the part of ``total_consumed_milli`` that was beyond a soft or bypassed limit.

    Of a concurrency limit, ``tokens_milli`` are the slots that are free at ``last_refill_ms``, ``ttl_ms`` is the time
    to live of one, and ``slots`` are those that are taken, the longest first. ``total_consumed_milli`` counts for how
    long slots were held, in milliseconds, ``total_overdrawn_milli`` how many were taken beyond a soft limit.
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
    calendar: str | None = None
    window_start_ms: int | None = None
    credits: tuple[Credit, ...] = ()
    total_overdrawn_milli: int = 0
    ttl_ms: int = 0
    slots: tuple[SlotState, ...] = ()

    @classmethod
    def from_limit(cls, entity_id: str, resource: str, limit: Limit, now_ms: int) -> BucketState:
        """Return the full bucket of a limit as of ``now_ms``."""
        if not isinstance(limit, Limit):
            raise ValidationError("limit", limit, "must be a Limit")
        if as_int(now_ms) is None:
            raise ValidationError("now_ms", now_ms, "must be a whole number of milliseconds since 1970")
        capacity, amount, period_ms, *_ = Rule.of(limit)
        calendar = limit.calendar
        text, start_ms = (None, None) if calendar is None else (calendar.text, calendar.phase_ms)
        whose = (entity_id, resource, limit.name)
        return cls(*whose, capacity, now_ms, capacity, amount, period_ms, 0, text, start_ms, ttl_ms=limit.ttl * MILLI)

    @property
    def in_flight(self) -> int | None:
        """How many slots of a concurrency limit are taken; None for other limits."""
        return len(self.slots) if self.ttl_ms else None

    @property
    def tokens(self) -> int:
        """The whole tokens as they are stored, rounded down."""
        return self.tokens_milli // MILLI

    @property
    def capacity(self) -> int:
        """The ceiling in whole tokens."""
        return self.capacity_milli // MILLI


@dataclass(frozen=True, slots=True)
class BucketOperationResult:
    """The result of `top_up` and `reset_bucket`.

    Attributes:
        entity_id: The entity.
        resource: The resource.
        shards: How many records the bucket is split over.
        amounts: The whole tokens by limit that were added: as credit, or to fill the bucket up; of a concurrency limit
            the slots that were freed.
    """

    entity_id: str
    resource: str
    shards: int
    amounts: Mapping[str, int]


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
class CacheStats:
    """Statistics of the config cache of a repository."""

    hits: int = 0
    misses: int = 0
    size: int = 0
    """Of how many entities something is remembered, also that they have nothing."""
    ttl_seconds: float = 0
    local_rejections: int = 0
    """Always 0: refusals that need no call are not counted."""

    def as_dict(self) -> dict[str, float]:
        """Return a form for JSON, with ``ttl`` for ``ttl_seconds``."""
        return {name.removesuffix("_seconds"): value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class PrefetchStats:
    """What prefetching has done so far, in this process: `BackendStats.prefetch`."""

    held: int = 0
    """Tokens that are held at the moment, of all limits."""
    granted: int = 0
    """Grants of a level without a write of their own."""
    returned: int = 0
    """Tokens that were given back unused."""
    spared_writes: int = 0
    """Writes that these grants would have cost beyond those that were made for them."""
    lost: int = 0
    """Corrections that could not be written."""

    @classmethod
    def sum_up(cls, several: Sequence[PrefetchStats]) -> PrefetchStats:
        """Return what several limiters have done together."""
        return cls(*(sum(getattr(each, kind.name) for each in several) for kind in fields(cls)))


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
    prefetch: PrefetchStats = PrefetchStats()
    """What prefetching limiters on this repository have done."""

    @property
    def total_calls(self) -> int:
        """Requests sent, of all operations."""
        return sum(self.calls.values())


@dataclass(frozen=True, slots=True)
class LimiterInfo:
    """A deployed limiter, as discovery finds it: its stack, region, stack status, versions, and times as RFC 3339."""

    stack_name: str
    region: str
    status: str
    version: str | None = None
    schema_version: str | None = None
    creation_time: str = ""
    last_updated_time: str | None = None
    stack_type: ClassVar[str | None] = None
    """There is one kind of stack."""

    @property
    def user_name(self) -> str:
        """The name that a user gave it, which is that of its stack."""
        return self.stack_name

    @property
    def stack_status(self) -> str:
        """The status of its stack."""
        return self.status

    @property
    def lambda_version(self) -> str | None:
        """The version that deployed the aggregator; `Repository.status` tells that of its code."""
        return self.version

    @property
    def is_healthy(self) -> bool:
        """Whether the last operation on the stack has succeeded."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE")

    @property
    def is_in_progress(self) -> bool:
        """Whether an operation is in progress."""
        return "IN_PROGRESS" in self.status

    @property
    def is_failed(self) -> bool:
        """Whether the last operation has failed or was rolled back."""
        return "FAILED" in self.status or "ROLLBACK" in self.status


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
        eviction_policy: The ``maxmemory-policy`` of Redis; limits may vanish unless it is ``noeviction``. None on other
            stores, and where the server does not say.
        name: The name of the DynamoDB table and of its stack. This and all below are None on other stores, and where
            these credentials may not look or nobody answers in time.
        region: The AWS region.
        stack_status: The status of the stack, as CloudFormation calls it; None for a table without one.
        table_status: The status of the table, as DynamoDB calls it.
        aggregator_enabled: Whether the stack has an aggregator; False where that is not known.
        lambda_version: The version of the aggregator that was deployed.
        table_item_count: About how many items the table has; DynamoDB counts them every six hours.
        table_size_bytes: About how many bytes these have.
        app_role_arn: The role of applications, if the stack has roles.
        admin_role_arn: The role of administrators.
        readonly_role_arn: The role of those who only read.
    """

    available: bool
    backend: str
    latency_ms: float | None
    namespace: str
    schema_version: str | None
    client_version: str
    clock_skew_ms: int = 0
    reason: str | None = None
    name: str | None = None
    region: str | None = None
    stack_status: str | None = None
    table_status: str | None = None
    aggregator_enabled: bool = False
    lambda_version: str | None = None
    table_item_count: int | None = None
    table_size_bytes: int | None = None
    app_role_arn: str | None = None
    admin_role_arn: str | None = None
    readonly_role_arn: str | None = None
    eviction_policy: str | None = None
