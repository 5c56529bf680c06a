"""Unused tokens come back in full: long LLM calls get what the plain model delivers, on every store."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.laws.returns_model import WORKLOADS, Delivered, PlainBucket, StrictBucket, Workload, simulate
from tests.support.backends import BACKENDS
from zae_limiter import Lease, Limit, RateLimitExceeded

if TYPE_CHECKING:
    from zae_limiter.testing import Harness

START_MS = 1_800_000_000_000


class LimitedBucket:
    """A bucket of the real limiter, in blocking code, by a manual clock."""

    def __init__(self, harness: Harness, load: Workload) -> None:
        self.harness = harness
        self.limits = [Limit("tpm", load.capacity, load.rate, 1)]
        self.limiter = harness.limiter()
        harness.clock.set_ms(START_MS)

    def pass_time(self, now: float) -> None:
        self.harness.clock.set_ms(START_MS + round(now * 1000))

    def take(self, now: float, amount: int) -> Lease | None:
        lease = self.limiter.acquire("key", "gpt-4", {"tpm": amount}, limits=self.limits)
        try:
            self.harness.run(lease.__aenter__())
        except RateLimitExceeded:
            return None
        return lease

    def give_back(self, now: float, receipt: Lease, amount: int) -> None:
        self.harness.run(receipt.adjust(tpm=-amount))
        self.harness.run(receipt.__aexit__(None, None, None))


@cache
def plain(load: Workload) -> Delivered:
    return simulate(PlainBucket(load.capacity, load.rate), load)


@pytest.mark.parametrize(
    ("name", "used", "best_if_strict"),
    [
        ("chat, 5 s, 4.6k for 0.9k, 60k/min", 0.98, 0.98),
        ("long chat, 25 s, 4.6k for 0.9k, 60k/min", 0.90, 0.62),
        ("reasoning, 60 s, 16k for 4k, 200k/min", 0.87, 0.48),
        ("small burst, 5 s, 4k for 0.8k, 1k/s + 10k", 0.95, 0.47),
    ],
)
def test_the_model_that_chose_plain_adds(name: str, used: float, best_if_strict: float) -> None:
    """With a quarter of the clients, the strict rule over a quarter of the time, so that it takes a moment only.

    No token that was kept was ever beyond capacity + rate x window, under either rule.
    """
    load = WORKLOADS[name]._replace(clients=WORKLOADS[name].clients // 4)
    found = plain(load)
    assert found.used == pytest.approx(used, abs=0.02)
    assert found.excess <= 0
    short = load._replace(seconds=load.seconds / 4)
    strict = simulate(StrictBucket(short.capacity, short.rate), short)
    assert strict.used <= best_if_strict
    assert strict.used <= plain(short).used
    assert strict.excess <= 1e-9


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each.blocking], ids=str)
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_long_calls_get_what_the_plain_model_delivers(harness: Harness, name: str) -> None:
    """The workloads at a tenth of their length and an eighth of their clients, through the real limiter."""
    load = WORKLOADS[name]
    load = load._replace(seconds=load.seconds / 10, clients=load.clients // 8)
    bucket = LimitedBucket(harness, load)
    found = simulate(bucket, load, pass_time=bucket.pass_time)
    assert found.used >= 0.97 * plain(load).used
