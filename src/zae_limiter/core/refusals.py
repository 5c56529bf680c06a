"""Refusals: a limit does not have what a request needs, now or ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from .limit import Limit
from .validation import ZAELimiterError
from .values import LimitStatus

if TYPE_CHECKING:
    from datetime import datetime


StatusFields: TypeAlias = tuple[str, str, str, Limit, int, int, bool, float | None, int, int, int]
"""The fields of a `LimitStatus`, in order."""

_read_fields = attrgetter(*LimitStatus.__match_args__)


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
        named, has, unit = "Rate", primary.available, ""
        if primary.in_flight is not None:
            named, has, unit = "Concurrency", primary.in_flight, " in flight"
            wait += " at the latest" if wait else ""
        return (
            f"{named} limit exceeded for {primary.entity_id!r} on {primary.resource!r}: {primary.limit_name} "
            f"has {has} of {primary.limit.capacity}{unit}, {primary.requested} requested{kept}{others}{wait}."
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
