"""Everything that can go wrong, as types.

    ZAELimiterError
    ├── RateLimitError
    │   ├── RateLimitExceeded            not yet: carries when
    │   │   └── CapacityExceeded         never: carries the maximum, no retry-after
    │   ├── ResourceDisabled             switched off: no retry-after
    │   ├── LeaseExpiredError
    │   └── SlotLostError                a block that was cancelled because its slot was lost
    ├── InfrastructureError
    │   ├── RateLimiterUnavailable       no decision: the store did not answer
    │   │   └── AccessDeniedError        the store says no to us: no outage, so no unavailability policy covers it
    │   ├── ConfigurationError           a wrong file or option of ours: no outage either
    │   ├── CorruptRecordError           the store answered with something that is no record of ours
    │   ├── StackOperationError
    │   ├── StackAlreadyExistsError
    │   ├── InfrastructureNotFoundError
    │   ├── NamespaceNotFoundError
    │   └── NamespaceStateError
    ├── EntityError
    │   ├── EntityNotFoundError
    │   ├── EntityExistsError
    │   └── EntityVersionError
    ├── VersionError
    │   ├── VersionMismatchError
    │   └── IncompatibleSchemaError
    ├── RateLimiterClosedError           used after close()
    ├── ValidationError                  bad input: field, value, reason
    │   ├── InvalidIdentifierError
    │   └── InvalidNameError
    ├── ManifestError                    a limits file with mistakes: all of them
    ├── PlanOutdatedError                others have changed what a plan is about
    └── FanoutIncomplete                 of 0.17, never raised

A refusal is never a failure and a failure never a refusal: ``except RateLimitExceeded`` catches
only "the numbers say no", ``except RateLimiterUnavailable`` only "nobody knows".
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from .validation import (
    InvalidIdentifierError as InvalidIdentifierError,
    InvalidNameError as InvalidNameError,
    ValidationError as ValidationError,
    ZAELimiterError as ZAELimiterError,
)
from .values import LimitStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from .limit import Limit

    StatusFields: TypeAlias = tuple[str, str, str, Limit, int, int, bool, float | None, int, int, int]
    """The fields of a `LimitStatus`, in order."""

_read_fields = attrgetter(*LimitStatus.__match_args__)


def quote(error: object) -> str:
    """Return the text of another error without its final full stop, to be quoted in a sentence.

    >>> quote(OSError("Connection refused."))
    'Connection refused'
    """
    return str(error).rstrip(" .")


def spell_duration(seconds: float) -> str:
    """Return a duration in two units, rounded up, so that a promised wait is never too short.

    >>> spell_duration(0.25), spell_duration(17_277.1), spell_duration(90_000)
    ('0.25 s', '4 h 48 min', '1 d 1 h')
    """
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"
    for size, unit, part, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(math.ceil(seconds / part), size // part)
            return f"{whole} {unit}" + (f" {rest} {small}" if rest else "")
    raise AssertionError  # 60 seconds or more have a unit above


class RateLimitError(ZAELimiterError):
    """An error about a limit or a lease; the store works."""


class RateLimitExceeded(RateLimitError):
    """At least one limit cannot grant the cost yet.

    ``statuses`` are the limits of all levels, or a function that makes their fields when somebody looks. ``contended``
    says that it was for lost races only; no limiter of this version refuses for that.
    """

    def __init__(
        self, statuses: Sequence[LimitStatus] | Callable[[], Sequence[StatusFields]], *, contended: bool = False
    ) -> None:
        self._statuses = statuses
        self.contended = contended

    @property
    def statuses(self) -> tuple[LimitStatus, ...]:
        """Every limit of every level, violated or not, as the deciding operation saw it."""
        known = self._statuses
        if type(known) is not tuple:
            self._statuses = known = tuple([LimitStatus(*each) for each in known()] if callable(known) else known)
        return known

    def list_fields(self) -> Sequence[StatusFields]:
        """Return the fields of each of `statuses`, in order; quicker where nobody has looked at these yet."""
        known = self._statuses
        return known() if callable(known) else [*map(_read_fields, known)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.statuses)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.statuses,), {"contended": self.contended}

    @property
    def violations(self) -> list[LimitStatus]:
        """The limits that refused."""
        return [status for status in self.statuses if status.exceeded]

    @property
    def passed(self) -> list[LimitStatus]:
        """The limits that would have allowed the cost."""
        return [status for status in self.statuses if not status.exceeded]

    @property
    def primary_violation(self) -> LimitStatus | None:
        """The violation that takes longest to clear."""
        return max(self.violations, key=lambda s: s.retry_after_seconds or 0.0, default=None)

    @property
    def kind(self) -> str:
        """``quota`` if it is refused until a window ends, ``concurrency`` until a slot is free, else ``rate``."""
        primary = self.primary_violation
        return "rate" if primary is None else primary.limit.kind

    @property
    def resets_at(self) -> datetime | None:
        """When the next window of the quota begins that refuses longest; None where a rate does."""
        primary = self.primary_violation
        return None if primary is None else primary.resets_at

    @property
    def retry_after_seconds(self) -> float | None:
        """Seconds after which the same request fits, if nobody else consumes."""
        primary = self.primary_violation
        return 0.0 if primary is None else primary.retry_after_seconds

    @property
    def at_latest(self) -> bool:
        """Whether it may fit earlier: slots come back by themselves then, and earlier when their holders are done."""
        primary = self.primary_violation
        return primary is not None and primary.limit.is_concurrency

    @property
    def retry_after_header(self) -> str | None:
        """The value of a ``Retry-After`` header: whole seconds, rounded up, at least 1."""
        seconds = self.retry_after_seconds
        return None if seconds is None else str(max(1, -int(-seconds // 1)))

    def as_dict(self) -> dict[str, Any]:
        """Return a form for JSON."""
        seconds = self.retry_after_seconds
        return {
            "error": "rate_limit_exceeded",
            "message": str(self),
            "contended": self.contended,
            "kind": self.kind,
            "resets_at": None if self.resets_at is None else self.resets_at.isoformat(),
            "retry_after_seconds": seconds,
            "retry_after_ms": None if seconds is None else round(seconds * 1000),
            "at_latest": self.at_latest,
            "limits": [status.as_dict() for status in self.statuses],
        }

    def __str__(self) -> str:
        primary = self.primary_violation
        if primary is None:
            return "Rate limit exceeded."
        seconds = primary.retry_after_seconds
        wait = "" if seconds is None else f"; retry in {spell_duration(seconds)}"
        more = len(self.violations) - 1
        others = f" (and {more} more)" if more else ""
        kept = f", {primary.floor} kept for others" if primary.floor else ""
        if primary.in_flight is not None:
            latest = f"{wait} at the latest" if wait else ""
            return (
                f"Concurrency limit exceeded for {primary.entity_id!r} on {primary.resource!r}: {primary.limit_name} "
                f"has {primary.in_flight} of {primary.limit.capacity} in flight, {primary.requested} requested"
                f"{kept}{others}{latest}."
            )
        return (
            f"Rate limit exceeded for {primary.entity_id!r} on {primary.resource!r}: {primary.limit_name} "
            f"has {primary.available} of {primary.limit.capacity}, {primary.requested} requested{kept}{others}{wait}."
        )


class CapacityExceeded(RateLimitExceeded):
    """The cost is above the capacity and what there is of credits, so that waiting does not help."""

    @property
    def primary_violation(self) -> LimitStatus | None:
        """The first limit that never has the cost: its capacity and its credits are too small."""
        return next((s for s in self.violations if s.retry_after_seconds is None), None)

    @property
    def retry_after_seconds(self) -> None:
        """Always None: the request never fits."""
        return

    def as_dict(self) -> dict[str, Any]:
        """Return a form for JSON, with ``capacity_exceeded`` as its ``error``."""
        return {**super().as_dict(), "error": "capacity_exceeded"}

    def __str__(self) -> str:
        status = self.primary_violation
        if status is None:
            return "The request costs more than the capacity; retrying will not help."
        most = status.limit.capacity - status.floor
        if status.requested > most + status.credit:  # else the credit expires before the rest is there
            most += status.credit
        elif status.requested <= most:
            return (
                f"The request of {status.entity_id!r} on {status.resource!r} never fits: by the time there are "
                f"{status.requested} {status.limit_name}, another limit has too little; retrying will not help."
            )
        kept = f" ({status.floor} kept for others)" if status.floor else ""
        return (
            f"The request of {status.entity_id!r} on {status.resource!r} costs {status.requested} {status.limit_name}, "
            f"above the maximum {most}{kept}; retrying will not help."
        )


class ResourceDisabled(RateLimitError):
    """Requests of an entity for a resource are switched off; a retry does not help until somebody switches them on.

    Attributes:
        entity_id: The entity, or the one above it that is switched off.
        resource: The resource.
        level: Where it is switched off: ``entity``, ``entity_default`` or ``resource``.
    """

    def __init__(self, entity_id: str, resource: str, level: str) -> None:
        what = f"Resource {resource!r}" if level == "resource" else f"Entity {entity_id!r}"
        where = f" on {resource!r}" if level == "entity" else ""
        super().__init__(f"{what} is disabled{where}.")
        self.entity_id = entity_id
        self.resource = resource
        self.level = level

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entity_id, self.resource, self.level)


class LeaseExpiredError(RateLimitError):
    """The lease was used after its block had ended."""


class SlotLostError(RateLimitError):
    """A block was cancelled because its lease has lost its slot, as it was asked for by ``on_lost="cancel"``."""


class _AboutSomething(ZAELimiterError):
    """An error with a message and fields: those of its class, which have a value also where nobody knows better.

    Args:
        message: The text of the error.
        **fields: Attributes of the class, by their names.
    """

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        for name, value in fields.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)


class InfrastructureError(_AboutSomething):
    """An error of the store or of its deployment, not of the limits."""

    stack_name: str | None = None
    """The DynamoDB stack; None where it is not known, or the store is another one."""

    @property
    def table_name(self) -> str | None:
        """The DynamoDB table, which is called like its stack."""
        return self.stack_name


class RateLimiterUnavailable(InfrastructureError):
    """The store failed or did not answer in time, so no decision could be made.

    Args:
        message: The text of the error.
        cause: The underlying error.
        entity_id: The entity of the acquire.
        resource: The resource of the acquire.
        stack_name: The DynamoDB stack.
    """

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        stack_name: str | None = None,
    ) -> None:
        super().__init__(message, stack_name=stack_name)
        self.cause = cause
        self.entity_id = entity_id
        self.resource = resource


class AccessDeniedError(RateLimiterUnavailable):
    """Credentials are missing, invalid or lack a permission, so no decision could be made.

    It is no outage: no unavailability policy covers it.
    """


class ConfigurationError(InfrastructureError):
    """A file or an option of the store is wrong, e.g. a certificate, so it cannot be used until somebody mends that.

    It is no outage: no unavailability policy covers it.
    """

    option: str | None = None
    """The option that is wrong, as the URL or the environment names it; None where it is not a single one."""


class CorruptRecordError(InfrastructureError):
    """A stored record is not what its key says. It never counts as unlimited."""


class StackOperationError(InfrastructureError):
    """A CloudFormation operation failed."""

    reason: str = ""
    """Why, as CloudFormation says it; empty where it says nothing."""
    events: Sequence[Mapping[str, Any]] = ()
    """The events of the failed operation, oldest first, by CloudFormation's names: ``LogicalResourceId``,
    ``ResourceType``, ``ResourceStatus``, ``ResourceStatusReason``, ``EventId``."""


class StackAlreadyExistsError(InfrastructureError):
    """The stack, or a resource of it, already exists."""


class InfrastructureNotFoundError(InfrastructureError):
    """The table or stack does not exist."""


class NamespaceNotFoundError(InfrastructureError):
    """No namespace of this name or id is registered."""

    namespace_name: str = ""
    """The name, or the id where it was looked for by that."""


class NamespaceStateError(InfrastructureError):
    """The namespace is not in a state that allows the operation."""

    namespace_name: str = ""
    """Its name."""
    state: str = ""
    """Its state as it was read: ``active``, ``deleted`` or ``purging``."""


class EntityError(ZAELimiterError):
    """An error about an entity."""


class EntityNotFoundError(EntityError):
    """The entity does not exist."""

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"Entity {entity_id!r} does not exist; create it first.")
        self.entity_id = entity_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entity_id,)


class EntityExistsError(EntityError):
    """An entity with this id already exists."""

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"Entity {entity_id!r} already exists; update it instead.")
        self.entity_id = entity_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entity_id,)


class EntityVersionError(EntityError):
    """Somebody else has changed the entity since it was read; ``expected`` and ``actual`` are versions."""

    def __init__(self, entity_id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"Entity {entity_id!r} is at version {actual}, not {expected}; read it again and repeat the change."
        )
        self.entity_id = entity_id
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entity_id, self.expected, self.actual)


class VersionError(_AboutSomething):
    """Client and stored data are not compatible."""

    client_version: str | None = None
    """The version of this library."""
    schema_version: str | None = None
    """The version of the stored data; None where they tell none."""


class VersionMismatchError(VersionError):
    """The stored data need an upgrade."""

    lambda_version: str | None = None
    """The version of the aggregator, where it is known."""
    can_auto_update: bool = False
    """Always False: no client upgrades data by itself, `zae-limiter upgrade` does."""


class IncompatibleSchemaError(VersionError):
    """This client cannot read the stored schema."""

    migration_guide_url: str | None = None
    """Where the way to it is described."""


class RateLimiterClosedError(ZAELimiterError, RuntimeError):
    """A limiter or a repository was used after `close`. No unavailability policy covers this."""

    def __init__(self) -> None:
        super().__init__("The limiter is closed: it or its repository was closed. Open a new one.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class FanoutIncomplete(ZAELimiterError):
    """Never raised: the error of 0.17 for a switch that is stored but not yet in every bucket, where none is here."""


PermissionDenied = AccessDeniedError
StackCreationError = StackOperationError
"""The names of 0.17 and of 0.10."""
