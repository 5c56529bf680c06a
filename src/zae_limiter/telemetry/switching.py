"""Switching the measuring of a limiter on and off."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, finalize

from ..core.errors import ValidationError
from ..limiter.limiter import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from opentelemetry.metrics import MeterProvider

    from ..sync import SyncRateLimiter
    from .instruments import Instruments
    from .tally import Tally

L = TypeVar("L", RateLimiter, "SyncRateLimiter")

LABELS = ("resource", "entity_id")


class Switched(NamedTuple):
    """What is to be undone for a limiter that is measured."""

    tally: Tally
    leaving: finalize[[int], RateLimiter]


_MEASURED: WeakKeyDictionary[RateLimiter, Switched] = WeakKeyDictionary()


def instrument(limiter: L, *, meter_provider: MeterProvider | None = None, labels: Collection[str] = ()) -> L:
    """Measure a limiter from now on, and return it. Doing it again changes the options and counts nothing twice.

    ``meter_provider`` is where the instruments are created, unless told otherwise the application's, which may be set
    up later. ``labels`` adds attributes to the metrics of decisions and estimates. Each value of a label is a time
    series of its own for every outcome, kept in memory by the SDK and, mostly, paid for where they are stored:

    - ``"resource"``: one series per resource name. Fine for a few models or routes; not where names come from clients.
    - ``"entity_id"``: one series per entity. Never for API keys or addresses; for a handful of known tenants it can be.
    """
    inner = _inner(limiter)
    _check(labels)
    instruments = _instruments(meter_provider)
    uninstrument(limiter)
    from .sources import join

    tally = instruments.tally
    for (place, name), seam in zip(_places(inner), _seams(inner, instruments, frozenset(labels)), strict=True):
        setattr(place, name, seam)
    leaving = finalize(inner, tally.leave, *join(tally, inner._backend))
    leaving.atexit = False
    _MEASURED[inner] = Switched(tally, leaving)
    return limiter


def uninstrument(limiter: RateLimiter | SyncRateLimiter) -> None:
    """Measure a limiter no more; it is then as it was before. What was counted stays counted."""
    inner = _inner(limiter)
    switched = _MEASURED.pop(inner, None)
    if switched is not None:
        for place, name in _places(inner):
            delattr(place, name)
        switched.leaving()
        switched.tally.part()


def _places(limiter: RateLimiter) -> tuple[tuple[object, str], ...]:
    """The methods that are measured: whoever calls them finds what stands in for them on the object itself."""
    taking = ("_take_now", "_take", "_check", "_settle")
    return *((limiter, name) for name in taking), (limiter._lines, "stand")


def _seams(limiter: RateLimiter, instruments: Instruments, labels: frozenset[str]) -> tuple[Callable[..., Any], ...]:
    """What stands in for them."""
    from .measuring import Meter, stand

    meter = Meter(limiter, instruments, labels)
    return meter.take_now, meter.take, meter.check, meter.settle, partial(stand, limiter._lines.stand)


def _inner(limiter: object) -> RateLimiter:
    inner = getattr(limiter, "_inner", limiter)
    if not isinstance(inner, RateLimiter):
        raise ValidationError("limiter", limiter, "must be a RateLimiter or a SyncRateLimiter")
    return inner


def _check(labels: object) -> None:
    if isinstance(labels, str) or not isinstance(labels, (list, tuple, set, frozenset)):
        raise ValidationError("labels", labels, f"must be a list of names out of {', '.join(LABELS)}")
    for label in labels:
        if label not in LABELS:
            raise ValidationError("labels", label, f"is no label; there are {' and '.join(LABELS)}")


def _instruments(provider: MeterProvider | None) -> Instruments:
    try:
        from .instruments import instruments_of
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise ImportError('instrument() needs OpenTelemetry: pip install "zae-limiter[otel]"') from None
    return instruments_of(provider)
