"""Everything that can go wrong, as types.

    ZAELimiterError
    ├── RateLimitError
    │   ├── RateLimitExceeded            not yet: carries when
    │   │   └── CapacityExceeded         never: carries the maximum, no retry-after
    │   └── LeaseExpiredError
    ├── InfrastructureError
    │   ├── RateLimiterUnavailable       the store did not answer
    │   ├── AccessDeniedError            the store knows us, and says no: never mistaken for an outage
    │   ├── CorruptRecordError           the store answered with something that is no record of ours
    │   ├── StackOperationError
    │   │   └── StackAlreadyExistsError
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
    └── ValidationError                  bad input: field, value, reason
        ├── InvalidIdentifierError
        └── InvalidNameError

A refusal is never a failure and a failure never a refusal: ``except RateLimitExceeded`` catches
only "the numbers say no", ``except RateLimiterUnavailable`` only "nobody knows".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .durations import spell_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .values import LimitStatus


def quote(error: object) -> str:
    """The text of another error without the full stop at its end, for a sentence that has one of its own.

    >>> quote(OSError("Connection refused."))
    'Connection refused'
    """
    return str(error).rstrip(" .")


class ZAELimiterError(Exception):
    """Root of every error this package raises on purpose."""


class RateLimitError(ZAELimiterError):
    """Something about a limit or a lease, with the store working."""


class RateLimitExceeded(RateLimitError):
    """Not now: at least one limit of one level cannot take the cost yet.

    ``statuses`` are the limits of all levels, or a function that makes them when somebody looks.
    """

    def __init__(self, statuses: Sequence[LimitStatus] | Callable[[], Sequence[LimitStatus]]) -> None:
        self._statuses = statuses

    @property
    def statuses(self) -> tuple[LimitStatus, ...]:
        """Every limit of every level, violated or not, as the deciding operation saw it."""
        known = self._statuses
        if type(known) is not tuple:
            self._statuses = known = tuple(known() if callable(known) else known)
        return known

    def __str__(self) -> str:
        return self._describe()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.statuses)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.statuses,)

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
    def retry_after_seconds(self) -> float | None:
        """Seconds after which the same request fits, if nobody else spends."""
        primary = self.primary_violation
        return 0.0 if primary is None else primary.retry_after_seconds

    @property
    def retry_after_header(self) -> str | None:
        """``Retry-After`` as HTTP wants it: whole seconds, rounded up, at least 1."""
        seconds = self.retry_after_seconds
        return None if seconds is None else str(max(1, -int(-seconds // 1)))

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form for an API answer."""
        seconds = self.retry_after_seconds
        return {
            "error": "rate_limit_exceeded",
            "message": str(self),
            "retry_after_seconds": seconds,
            "retry_after_ms": None if seconds is None else round(seconds * 1000),
            "limits": [status.as_dict() for status in self.statuses],
        }

    def _describe(self) -> str:
        primary = self.primary_violation
        if primary is None:
            return "Rate limit exceeded."
        seconds = primary.retry_after_seconds
        wait = "" if seconds is None else f"; retry in {spell_duration(seconds)}"
        more = len(self.violations) - 1
        others = f" (and {more} more)" if more else ""
        return (
            f"Rate limit exceeded for {primary.entity_id!r} on {primary.resource!r}: {primary.limit_name} "
            f"has {primary.available} of {primary.limit.capacity}, {primary.requested} requested{others}{wait}."
        )


class CapacityExceeded(RateLimitExceeded):
    """Never: the cost is above what the bucket can hold, so waiting does not help."""

    @property
    def primary_violation(self) -> LimitStatus | None:
        """The first limit whose capacity is too small for the cost."""
        return next((s for s in self.violations if s.requested > s.limit.capacity), None)

    @property
    def retry_after_seconds(self) -> None:
        """There is no moment at which this fits."""
        return

    def as_dict(self) -> dict[str, Any]:
        """As for `RateLimitExceeded`, with its own ``error`` word."""
        return {**super().as_dict(), "error": "capacity_exceeded"}

    def _describe(self) -> str:
        status = self.primary_violation
        if status is None:
            return "The cost is above the capacity."
        return (
            f"{status.requested} of {status.limit_name} can never fit for {status.entity_id!r} on "
            f"{status.resource!r}: the capacity is {status.limit.capacity}. Ask for less or raise the limit."
        )


class LeaseExpiredError(RateLimitError):
    """The lease was used after its block had ended."""


class InfrastructureError(ZAELimiterError):
    """The store or what surrounds it, not the limits."""


class RateLimiterUnavailable(InfrastructureError):
    """The store failed or did not answer in time, so no decision could be made."""

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        stack_name: str | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.entity_id = entity_id
        self.resource = resource
        self.stack_name = stack_name


class AccessDeniedError(InfrastructureError):
    """No valid credentials, or not the right to do this: a matter of configuration, which no outage policy covers."""


class CorruptRecordError(InfrastructureError):
    """A stored record cannot be read as what its key says it is. It never counts as unlimited."""


class StackOperationError(InfrastructureError):
    """A CloudFormation operation failed."""


class StackAlreadyExistsError(StackOperationError):
    """The stack is already there."""


class InfrastructureNotFoundError(InfrastructureError):
    """The table or stack that the name points to does not exist."""


class NamespaceNotFoundError(InfrastructureError):
    """No namespace of this name or id is registered."""


class NamespaceStateError(InfrastructureError):
    """The namespace is not in the state that the operation needs."""


class EntityError(ZAELimiterError):
    """Something about an entity."""


class EntityNotFoundError(EntityError):
    """No such entity."""

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"Entity {entity_id!r} does not exist. Create it first with create_entity().")
        self.entity_id = entity_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entity_id,)


class EntityExistsError(EntityError):
    """An entity of this id is there already."""

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"Entity {entity_id!r} exists already. Use update_entity() to change it.")
        self.entity_id = entity_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entity_id,)


class EntityVersionError(EntityError):
    """The entity was changed by somebody else since it was read."""

    def __init__(self, entity_id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"Entity {entity_id!r} is at version {actual}, not {expected}: read it again and repeat the change."
        )
        self.entity_id = entity_id
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entity_id, self.expected, self.actual)


class VersionError(ZAELimiterError):
    """Client and stored data do not fit together."""


class VersionMismatchError(VersionError):
    """The stored schema needs an upgrade, or the client does."""


class IncompatibleSchemaError(VersionError):
    """The stored schema cannot be read by this client."""


class RateLimiterClosedError(ZAELimiterError, RuntimeError):
    """A limiter or a repository was used after `close`: no store is asked, and no outage policy covers it."""

    def __init__(self) -> None:
        super().__init__("The limiter is closed: close() was called on it or on its repository. Open a new one.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class ValidationError(ZAELimiterError, ValueError):
    """Input that cannot be right, found before any I/O."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = f"{shown[:60]}... ({len(shown)} characters)"
        super().__init__(f"{field} = {shown}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.reason)


class InvalidIdentifierError(ValidationError):
    """An entity id that cannot be stored."""


class InvalidNameError(ValidationError):
    """A resource, limit, namespace or stack name that breaks its rules."""
