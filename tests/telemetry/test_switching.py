"""Switching the measuring of a limiter on, over and off, and what cannot be measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.metrics import Metrics
from zae_limiter import Limit, Observer, RateLimiter, SyncRateLimiter, ValidationError
from zae_limiter.telemetry import instrument, uninstrument

RPM = [Limit.per_minute("rpm", 10)]


class Silent(Observer):
    """An observer of the application's own."""


def open_async(url: str) -> tuple[RateLimiter, Callable[[], Awaitable[None]]]:
    limiter = RateLimiter(url)

    async def take() -> None:
        async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM):
            pass

    return limiter, take


def open_blocking(url: str) -> tuple[SyncRateLimiter, Callable[[], Awaitable[None]]]:
    limiter = SyncRateLimiter(url)

    async def take() -> None:
        with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM):
            pass

    return limiter, take


@pytest.mark.parametrize("opened", [open_async, open_blocking], ids=["async", "blocking"])
async def test_switching_on_twice_and_off(opened: Callable[[str], Any]) -> None:
    limiter, take = opened("memory://")
    metrics, other = Metrics(), Metrics()
    uninstrument(limiter)  # nothing to undo yet
    own = Silent()
    limiter.observers = (own,)

    assert instrument(limiter, meter_provider=metrics.provider) is limiter
    await take()
    instrument(limiter, meter_provider=metrics.provider, labels=["resource"])
    await take()
    instrument(limiter, meter_provider=other.provider)
    await take()
    uninstrument(limiter)
    uninstrument(limiter)
    await take()
    granted = [(given.get("resource"), point.value) for given, point in metrics.lines("decisions")]
    assert granted == [(None, 1), ("gpt-4", 1)]
    assert other.counts("decisions", "outcome") == {"granted": 1}
    assert limiter.observers == (own,), "those of the application stay"


@pytest.mark.parametrize(
    ("limiter", "labels", "field"),
    [
        (None, (), "limiter"),
        ("memory://", (), "limiter"),
        (SyncRateLimiter("memory://").repository, (), "limiter"),
        (SyncRateLimiter("memory://"), "resource", "labels"),
        (SyncRateLimiter("memory://"), ["limit"], "labels"),
        (SyncRateLimiter("memory://"), 5, "labels"),
        (SyncRateLimiter("memory://"), [["resource"]], "labels"),
    ],
    ids=["nothing", "url", "repository", "text", "unknown", "number", "nested"],
)
def test_bad_input(limiter: Any, labels: Any, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        instrument(limiter, labels=labels)
    assert caught.value.field == field
    if field == "limiter":
        with pytest.raises(ValidationError):
            uninstrument(limiter)
