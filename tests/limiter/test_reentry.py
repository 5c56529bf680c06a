"""Code that runs in the middle of a call: the garbage collector closes generators at any moment."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.limiter import in_place
from zae_limiter.stores import memory

RPM = [Limit.per_day("rpm", 100)]


def abandon_stream(limiter: SyncRateLimiter) -> None:
    """Leave a generator behind that holds a lease, in a cycle that only the garbage collector finds."""

    def stream() -> Iterator[int]:
        with limiter.acquire("key", "gpt-4", {"rpm": 10}):
            yield 1

    chunks = stream()
    next(chunks)
    cycle: list[Any] = [chunks]
    cycle.append(cycle)


@pytest.mark.parametrize("where", ["draw", "commit"])
def test_a_lease_that_the_collector_ends_inside_of_a_call_does_not_stop_the_process(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = SyncRateLimiter("memory://")
    limiter.set_system_defaults(RPM)
    with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    abandon_stream(limiter)
    module: Any = in_place if where == "draw" else memory
    name = "draw_all" if where == "draw" else "holds"
    plain = getattr(module, name)

    def collect_first(*args: Any) -> Any:
        gc.collect()
        return plain(*args)

    monkeypatch.setattr(module, name, collect_first)
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        if where == "draw":
            with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
                assert lease.available == {"rpm": 88}, "what could not be returned stays charged"
        else:
            limiter.set_limits("other", RPM)
    monkeypatch.undo()
    (lost,) = [record for record in caplog.records if getattr(record, "zae_event", "") == "lease.return_lost"]
    assert vars(lost)["zae_tokens"] == {"rpm": -10}
    left = limiter.available("key", "gpt-4")
    assert left == {"rpm": 88 if where == "draw" else 89}
