"""The instruments, created once for each meter provider."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from .._version import __version__
from ..limiter.limiter import RateLimiter
from ..repository.repository import Repository
from ..sync import SyncRateLimiter, SyncRepository
from .tally import Held, Tally

_SECONDS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
)  # fmt: skip
"""From an acquire in memory to one that a distant store answers late."""
_WAIT_SECONDS = (0.001, 0.01, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKENS = (0, 1, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000)
_RATIO = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4, 10)

_HISTOGRAMS = {
    "decision.duration": ("s", "Time to a decision, without the time in line", _SECONDS),
    "wait.duration": ("s", "Time in line of acquires with max_wait", _WAIT_SECONDS),
    "estimate.error": ("{token}", "Tokens by which an estimate was corrected", _TOKENS),
    "estimate.ratio": ("1", "Tokens used for each one estimated", _RATIO),
}
_COUNTED = {
    "config.cache": ("{lookup}", "Look-ups of stored limits in the cache"),
    "backend.calls": ("{call}", "Requests sent to the store"),
    "backend.conflicts": ("{write}", "Writes whose guards did not hold"),
    "backend.retries": ("{call}", "Requests sent again"),
    "backend.throttled": ("{call}", "Requests that the store refused for being too many"),
    "backend.bytes": ("By", "Bodies of requests to the store and of its answers"),
    "backend.units": ("{unit}", "Capacity units that the store says it charged"),
    "prefetch.grants": ("{grant}", "Grants of a level from tokens that were drawn in advance"),
    "prefetch.returned": ("{token}", "Tokens drawn in advance that were given back unused"),
    "prefetch.spared": ("{write}", "Writes that prefetching has spared"),
    "prefetch.lost": ("{correction}", "Corrections gathered by prefetching that could not be written"),
}


class Instruments:
    """The instruments of one meter provider, and the tally behind those that are read when metrics are collected."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = metrics.get_meter("zae_limiter", __version__, provider)
        self.tally = Tally()
        counter, sum_now = meter.create_counter, meter.create_observable_up_down_counter
        self.decisions = counter("zae_limiter.decisions", "{decision}", "Decisions by outcome")
        self.overdrawn = counter(
            "zae_limiter.overdrawn", "{decision}", "Decisions that exceeded a soft or bypassed limit"
        )
        self.lost = counter("zae_limiter.slots.lost", "{slot}", "Slots lost while their calls went on")
        self.alerts = counter("zae_limiter.alerts", "{alert}", "Thresholds of limits that were crossed")
        self.held: Held[RateLimiter | SyncRateLimiter] = Held()
        sum_now("zae_limiter.slots.held", [partial(_read_held, self.held)], "{slot}", "Slots held by this process")
        self.prefetched: Held[Repository | SyncRepository] = Held()
        ahead = [partial(_read_held, self.prefetched)]
        sum_now("zae_limiter.prefetch.held", ahead, "{token}", "Tokens drawn in advance")
        self.duration, self.wait, self.error, self.ratio = (
            meter.create_histogram(f"zae_limiter.{name}", unit, what, explicit_bucket_boundaries_advisory=bounds)
            for name, (unit, what, bounds) in _HISTOGRAMS.items()
        )
        for name, (unit, description) in _COUNTED.items():
            read = [partial(_read_tally, self.tally, name)]
            meter.create_observable_counter(f"zae_limiter.{name}", read, unit, description)


def _read_held(held: Held[Any], _: CallbackOptions) -> Iterator[Observation]:
    for attributes, count in held.totals().items():
        yield Observation(count, dict(attributes))


def _read_tally(tally: Tally, metric: str, _: CallbackOptions) -> Iterator[Observation]:
    for attributes, count in tally.totals(metric).items():
        yield Observation(count, {f"zae_limiter.{name}": value for name, value in attributes})


_LOCK = threading.Lock()
_OF: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()
_OF_THE_APPLICATION: list[Instruments] = []


def find_instruments(provider: MeterProvider | None) -> Instruments:
    """Return the instruments of a provider, made on first use; None: the application's, now or later."""
    with _LOCK:
        current = metrics.get_meter_provider()
        wanted = current if provider is None else provider
        found = _OF.get(wanted)
        if found is None and wanted is current and _OF_THE_APPLICATION:
            found = _OF_THE_APPLICATION[0]  # made before there was a provider: what they measure goes to it now
        if found is None:
            found = Instruments(wanted)
        if provider is None and not _OF_THE_APPLICATION:
            _OF_THE_APPLICATION.append(found)
        _OF[wanted] = found
        return found
