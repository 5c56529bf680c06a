"""Switching the measuring of a limiter on and off."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..core.errors import ValidationError
from ..limiter.limiter import RateLimiter
from ..sync import SyncRateLimiter
from .measuring import Meter

if TYPE_CHECKING:
    from collections.abc import Collection

    from opentelemetry.metrics import MeterProvider

    from .instruments import Instruments

L = TypeVar("L", RateLimiter, SyncRateLimiter)

LABELS = ("resource", "entity_id")


def instrument(limiter: L, *, meter_provider: MeterProvider | None = None, labels: Collection[str] = ()) -> L:
    """Measure a limiter from now on, and return it. Doing it again changes the options and counts nothing twice.

    ``meter_provider`` is where the instruments are created, unless told otherwise the application's, which may be set
    up later. ``labels`` adds attributes to the metrics of decisions and estimates. Each value of a label is a time
    series of its own for every outcome, kept in memory by the SDK and, mostly, paid for where they are stored:

    - ``"resource"``: one series per resource name. Fine for a few models or routes; not where names come from clients.
    - ``"entity_id"``: one series per entity. Never for API keys or addresses; for a handful of known tenants it can be.
    """
    _check_limiter(limiter)
    _check_labels(labels)
    instruments = _find_instruments(meter_provider)
    uninstrument(limiter)
    limiter.observers = (*limiter.observers, Meter(limiter.repository, instruments, frozenset(labels)))
    return limiter


def uninstrument(limiter: RateLimiter | SyncRateLimiter) -> None:
    """Measure a limiter no more; it is then as it was before. What was counted stays counted."""
    _check_limiter(limiter)
    meters = [observer for observer in limiter.observers if isinstance(observer, Meter)]
    if meters:
        limiter.observers = tuple([observer for observer in limiter.observers if observer not in meters])
    for meter in meters:
        meter.stop()


def _check_limiter(limiter: object) -> None:
    if not isinstance(limiter, (RateLimiter, SyncRateLimiter)):
        raise ValidationError("limiter", limiter, "must be a RateLimiter or a SyncRateLimiter")


def _check_labels(labels: object) -> None:
    if isinstance(labels, str) or not isinstance(labels, (list, tuple, set, frozenset)):
        raise ValidationError("labels", labels, f"must be a list of names out of {', '.join(LABELS)}")
    for label in labels:
        if label not in LABELS:
            raise ValidationError("labels", label, f"is no label; there are {' and '.join(LABELS)}")


def _find_instruments(provider: MeterProvider | None) -> Instruments:
    try:
        from .instruments import find_instruments
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise ImportError('instrument() needs OpenTelemetry: pip install "zae-limiter[otel]"') from None
    return find_instruments(provider)
