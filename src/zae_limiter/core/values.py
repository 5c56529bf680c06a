"""The values of the public API that every use of a limiter needs: frozen and comparable. `reports` has the others."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from .limit import Limit
from .validation import ValidationError

if TYPE_CHECKING:
    from datetime import datetime


class OnUnavailable(enum.StrEnum):
    """What an acquire does when the store is unavailable."""

    ALLOW = "allow"
    BLOCK = "block"


class Access(enum.StrEnum):
    """Whether requests are let through: the most specific switch that is set decides, before any limit."""

    ENABLED = "enabled"
    """Limits decide, whatever a less specific switch says."""
    DISABLED = "disabled"
    """Every request is refused with `ResourceDisabled`."""
    BYPASSED = "bypassed"
    """Every request is admitted, and counted."""


class AuditAction(enum.StrEnum):
    """The kind of change that an audit event records."""

    ENTITY_CREATED = "entity_created"
    ENTITY_UPDATED = "entity_updated"
    ENTITY_DELETED = "entity_deleted"
    ENTITY_PARENT_CHANGED = "entity_parent_changed"
    """Of tables that 0.17 has written; here `ENTITY_UPDATED` says it."""
    LIMITS_SET = "limits_set"
    LIMITS_DELETED = "limits_deleted"
    LIMITS_APPLIED = "limits_applied"
    BUCKET_RESET = "bucket_reset"
    BUCKET_TOPPED_UP = "bucket_topped_up"
    ACCESS_CHANGED = "access_changed"
    LIMIT_ALERT = "limit_alert"
    CASCADE_CHANGED = "cascade_changed"
    NAMESPACE_REGISTERED = "namespace_registered"
    NAMESPACE_DELETED = "namespace_deleted"
    NAMESPACE_RECOVERED = "namespace_recovered"
    NAMESPACE_PURGED = "namespace_purged"


@dataclass(frozen=True, slots=True)
class Entity:
    """An API key, a project, a tenant: whoever is limited.

    Attributes:
        id: The id.
        name: A name for people; the id where it was given none.
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

    def __post_init__(self) -> None:
        if self.name is None:
            object.__setattr__(self, "name", self.id)

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
        limit: The limit; of a quota that begins with its first use, with the window of this bucket.
        available: The tokens that are left, credits included; negative means debt.
        requested: The tokens that the request costs.
        exceeded: Whether the limit refuses the request.
        retry_after_seconds: The seconds until the request fits, or None if it never does; of a concurrency limit until
            enough slots have come back by themselves, at the latest.
        floor: The tokens that a request of its priority has to leave.
        instant_ms: The instant of the decision, in milliseconds since the epoch.
        credit: The part of ``available`` that is credit.
    """

    entity_id: str
    resource: str
    limit_name: str
    limit: Limit
    available: int
    requested: int
    exceeded: bool
    retry_after_seconds: float | None
    floor: int = 0
    instant_ms: int = 0
    credit: int = 0

    @property
    def in_flight(self) -> int | None:
        """How many slots of a concurrency limit are taken; None for other limits."""
        return self.limit.capacity - self.available if self.limit.is_concurrency else None

    @property
    def overdrawn(self) -> bool:
        """Return whether more is granted than there is, because the limit is soft or bypassed."""
        return not self.exceeded and self.requested > max(self.available, 0)

    @property
    def resets_at(self) -> datetime | None:
        """When the next window of a quota begins, in its time zone; None for a rate.

        None also for a full quota that begins a window with its next use.
        """
        calendar, now_ms = self.limit.calendar, self.instant_ms
        if calendar is None or (calendar.is_idle(now_ms) and self.available >= self.limit.capacity):
            return None
        return calendar.moment(calendar.start(calendar.index(now_ms) + 1))

    @property
    def resets_at_ms(self) -> int | None:
        """The same in milliseconds since the epoch."""
        resets_at = self.resets_at
        return None if resets_at is None else round(resets_at.timestamp() * 1000)

    @property
    def soft(self) -> bool:
        """Return whether the limit only counts and never refuses."""
        return self.limit.soft

    @property
    def deficit(self) -> int:
        """The number of tokens that are missing; if the request is refused, of the cost and its floor together."""
        return max(0, self.requested + (self.floor if self.exceeded else 0) - self.available)

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
            "credit": self.credit,
            "requested": self.requested,
            "exceeded": self.exceeded,
            "retry_after_seconds": self.retry_after_seconds,
            "kind": self.limit.kind,
            "soft": self.limit.soft,
            "resets_at": None if self.resets_at is None else self.resets_at.isoformat(),
            "resets_at_ms": self.resets_at_ms,
            **({} if self.in_flight is None else {"in_flight": self.in_flight}),
            **({"floor": self.floor} if self.floor else {}),
        }


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A recorded change.

    Attributes:
        event_id: The id; later events have greater ones.
        timestamp: When it happened, as RFC 3339.
        action: An `AuditAction`.
        entity_id: The entity, or ``$SYSTEM``, ``$RESOURCE:{name}`` or ``$NAMESPACE:{name}``.
        principal: Who did it, as the caller said; else on DynamoDB the ARN of whose credentials were used.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, without those that are None or empty."""
        data = {name: getattr(self, name) for name in self.__match_args__} | {"details": dict(self.details)}
        return {name: value for name, value in data.items() if value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AuditEvent:
        """Return the event of a dictionary made by `to_dict`. Raise `ValidationError` if a field is missing."""
        if not isinstance(data, Mapping):
            raise ValidationError("data", data, "must be a dictionary made by AuditEvent.to_dict")
        for name in ("event_id", "timestamp", "action", "entity_id"):
            if not isinstance(data.get(name), str):
                reason = "must be a text; pass a dictionary made by AuditEvent.to_dict"
                raise ValidationError(name, data.get(name), reason)
        return cls(**{name: data[name] for name in cls.__match_args__ if data.get(name) is not None})


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

    @property
    def namespace_id(self) -> str:
        """The same as `id`."""
        return self.id

    def __getitem__(self, field: str) -> str | None:
        """Return a field by its name, as of the dictionaries of 0.17."""
        found: str | None = getattr(self, {"namespace": "name"}.get(field, field))
        return found


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

    supports_audit_logging: ClassVar[bool] = True
    """Every store keeps the audit log."""
    supports_batch_operations: ClassVar[bool] = True
    """Every store reads and writes several records at once."""

    @property
    def supports_usage_snapshots(self) -> bool:
        """Return whether usage is counted, by the writes that consume or by a stream."""
        return self.change_stream or self.usage_retention_days > 0

    @property
    def supports_change_streams(self) -> bool:
        """Return whether changes can be followed by a stream, so that a stack can be deployed for the store."""
        return self.change_stream

    supports_infrastructure_management = supports_change_streams
