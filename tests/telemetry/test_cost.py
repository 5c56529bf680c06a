"""A limiter that is not measured pays nothing for it that there are metrics."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.metrics import Metrics
from zae_limiter import Limit, RateLimiter, Repository, SyncRateLimiter, SyncRepository, telemetry
from zae_limiter.telemetry import instrument, uninstrument
from zae_limiter.testing import ManualClock

LIMITS = [Limit.per_minute("rpm", 1_000)]
COST = {"rpm": 1}
MEASURING = str(Path(telemetry.__file__).parent)


def calls_of(work: Callable[[], None]) -> list[str]:
    """Every Python function that ``work`` calls, by file and name, in order."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")

    gc.collect()  # else what other tests have left may be cleared away, and finish, in between
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return called


def blocking() -> tuple[SyncRateLimiter, Callable[[], None]]:
    limiter = SyncRateLimiter(SyncRepository("memory://", clock=ManualClock()))
    limiter.set_system_defaults(LIMITS)

    def work() -> None:
        with limiter.acquire("key-1", "gpt-4", COST):
            pass
        with limiter.acquire("key-1", "gpt-4", COST) as lease:
            lease.adjust(rpm=1)

    return limiter, work


def awaited() -> tuple[RateLimiter, Callable[[], None]]:
    limiter = RateLimiter(Repository("memory://", clock=ManualClock()))
    asyncio.run(limiter.set_system_defaults(LIMITS))

    async def take() -> None:
        async with limiter.acquire("key-1", "gpt-4", COST):
            pass
        async with limiter.acquire("key-1", "gpt-4", COST) as lease:
            await lease.adjust(rpm=1)

    asyncio.run(take())  # what is known by now needs no event loop

    def work() -> None:
        coroutine = take()
        with pytest.raises(StopIteration):
            coroutine.send(None)  # in memory nothing suspends: no event loop among the calls

    return limiter, work


@pytest.mark.parametrize("opened", [blocking, awaited], ids=["blocking", "async"])
def test_an_acquire_that_is_not_measured_calls_nothing_more(opened: Callable[[], Any]) -> None:
    metrics = Metrics()
    limiter, work = opened()
    work()
    never = calls_of(work)
    instrument(limiter, meter_provider=metrics.provider)
    work()
    during = calls_of(work)
    uninstrument(limiter)
    work()
    assert calls_of(work) == never
    assert [name for name in during if MEASURING in name], "else this would show nothing"
    assert not [name for name in during if "ObservedStore" in name], "nobody wants to know of store calls"
    unwanted = (MEASURING, "observer.py", "observers.py", "logs.py", "logging")
    assert not [name for name in never if any(part in name for part in unwanted)]
    assert metrics.counts("decisions", "outcome") == {"granted": 4}


def printed(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


TAKE = """
with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 5)]) as lease:
    lease.adjust(rpm=1)
"""


def test_an_application_without_metrics_loads_nothing_of_them() -> None:
    code = f"""
import sys
from zae_limiter import Limit, SyncRateLimiter
limiter = SyncRateLimiter("memory://")
{TAKE}
print([name for name in sys.modules if name.startswith(("opentelemetry", "zae_limiter.telemetry"))])
"""
    assert printed(code) == "[]"


def test_without_opentelemetry_the_error_names_the_remedy() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from zae_limiter import SyncRateLimiter
from zae_limiter.telemetry import instrument, uninstrument
limiter = SyncRateLimiter("memory://")
uninstrument(limiter)
try:
    instrument(limiter)
except ImportError as error:
    print(error)
"""
    assert printed(code) == 'instrument() needs OpenTelemetry: pip install "zae-limiter[otel]"'


def test_the_sdk_may_be_set_up_later_and_is_never_loaded_by_us() -> None:
    code = f"""
import sys
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.telemetry import instrument
limiter = instrument(SyncRateLimiter("memory://"))
{TAKE}
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
provider = MeterProvider([reader])
metrics.set_meter_provider(provider)
{TAKE}
instrument(limiter, meter_provider=provider)
instrument(limiter)
{TAKE}
(scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
found = {{metric.name: metric.data.data_points for metric in scope.metrics}}
stats = limiter.repository.get_cache_stats()
assert sum(point.value for point in found["zae_limiter.config.cache"]) == stats.hits + stats.misses > 0
print([point.value for point in found["zae_limiter.decisions"]], sorted(found))
"""
    names = ["config.cache", "decision.duration", "decisions", "estimate.error", "estimate.ratio"]
    assert printed(code) == f"[2] {[f'zae_limiter.{name}' for name in names]}"
