"""Tokens that are drawn in advance, on the real code in virtual time: many processes, one bucket, a slow network.

Each process is a limiter of its own; all it shares with the others is the store, calls of which take 2 to 16 ms.
Checked: how many calls there are, how much of what is due is granted, law 1 by the instants as of which the tokens are
decided and by the clock on the wall, and that nobody is refused while a token is held that may be granted.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.support.virtual_time import Distant, VirtualLoop, run_virtually
from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.core.advance import Advance
from zae_limiter.limiter.prefetch.batches import PrefetchedBatch
from zae_limiter.limiter.prefetch.bucket import PrefetchedBucket, Taken
from zae_limiter.records.charging import LAG_MS
from zae_limiter.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from zae_limiter.limiter.grant import ShardCharge
    from zae_limiter.limiter.prefetch.batches import WriteUnderWay
    from zae_limiter.records.algebra import Image

LIMIT = Limit.per_second("rps", 1_000)
SECONDS = 20
PREFETCH = 0.5


@dataclass
class Outcome:
    """What happened in one run. A grant is when it was given, and as of which instants its tokens were decided."""

    grants: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)
    """Those that were not given back."""
    given_back: int = 0
    refused: int = 0
    refused_while_held: int = 0
    calls: int = 0
    consumed: int = 0
    """What the bucket has counted in the end, in millitokens."""

    @property
    def calls_per_decision(self) -> float:
        return self.calls / (len(self.grants) + self.given_back + self.refused)


def decided(lease: Lease) -> list[tuple[int, int]]:
    """The instants as of which the millitokens of a lease are decided. An exact write may be a moment in the past."""
    grant = lease._grant
    assert grant is not None
    if grant.prefetched is None:
        return [(grant.now_ms - LAG_MS, 1_000)]
    (taken,) = grant.prefetched
    assert isinstance(taken, Taken)
    found = []
    for batch, amounts, left in taken.pieces:
        advance, amount = batch.advances["rps"], amounts["rps"]
        first = counted = advance.size - left["rps"] - amount
        instant = advance.grantable_from(first + 1)
        while counted < first + amount:
            grantable = min(first + amount, advance.grantable(instant))
            found.append((instant, grantable - counted))
            counted, instant = grantable, instant + 1
    return found


async def simulate(
    processes: int,
    load: float,
    prefetch: float = PREFETCH,
    per_process: float = 0,
    seconds: float = SECONDS,
    given_back: float = 0,
    seed: int = 1,
) -> Outcome:
    """Run processes that ask for ``load`` times the limit together; give that part of it back a moment later."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    rng, outcome, shared = random.Random(f"{processes} {load} {seed}"), Outcome(), MemoryStore(loop)
    random.seed(1)
    await Repository(shared).set_system_defaults([LIMIT])
    stores = [Distant(shared, rng) for _ in range(processes)]
    limiters = [RateLimiter(Repository(store), prefetch=prefetch) for store in stores]

    async def request(limiter: RateLimiter) -> None:
        try:
            async with limiter.acquire("key", "gpt-4", {"rps": 1}) as lease:
                grant = (shared.clock.now_ms(), decided(lease))
                if rng.random() < given_back:
                    await asyncio.sleep(rng.uniform(0, 2 * PREFETCH))
                    outcome.given_back += 1
                    await lease.release(rps=1)
                else:
                    outcome.grants.append(grant)
        except RateLimitExceeded:
            outcome.refused += 1
            for bucket in limiter._prefetcher.active() if limiter._prefetcher else ():
                outcome.refused_while_held += bucket.count_ready(shared.clock.now_ms()).get("rps", 0) >= 1_000

    async def process(limiter: RateLimiter, store: Distant) -> None:
        await limiter.available("key", "gpt-4")
        store.calls.clear()
        under_way = []
        while loop.time() < seconds:
            await asyncio.sleep(1 / per_process if per_process else rng.expovariate(load * LIMIT.capacity / processes))
            under_way.append(asyncio.create_task(request(limiter)))
        await asyncio.gather(*under_way)

    await asyncio.gather(*map(process, limiters, stores))
    outcome.calls = sum(store.calls.total() for store in stores)
    for limiter in limiters:
        await limiter.close()
    (state,) = await Repository(shared).get_buckets("key")
    outcome.consumed = state.total_consumed_milli
    return outcome


def lowest_level(taken: list[tuple[int, int]], more_ms: int = 0) -> int:
    """The lowest level of an exact bucket from which tokens are taken in the order of their instants.

    It is never below zero exactly if every window keeps to capacity + rate x (window + ``more_ms``).
    """
    rate = LIMIT.refill_amount
    top = level = lowest = LIMIT.capacity * 1_000 + more_ms * rate
    before = min(instant for instant, _ in taken)
    for instant, amount in sorted(taken):
        level = min(top, level + (instant - before) * rate) - amount
        lowest, before = min(lowest, level), instant
    return lowest


def check_law_1(outcome: Outcome) -> None:
    """By the instants as of which the tokens are decided, none of which is granted before."""
    assert lowest_level([piece for _, pieces in outcome.grants for piece in pieces]) >= 0
    assert all(instant <= now_ms for now_ms, pieces in outcome.grants for instant, _ in pieces)


FEW = [(8, 0.3, 0.1, 1), (8, 0.9, 0.1, 1), (8, 1.5, 0.1, 1), (8, 3.0, 0.1, 1)]
MANY = [(64, 0.9, 0.25, 1), (64, 1.5, 0.25, 1), (64, 1.5, 0.25, 2), (64, 3.0, 0.25, 1)]


@pytest.mark.parametrize(("processes", "load", "most_calls", "seed"), [*FEW, *MANY])
def test_few_calls_for_all_that_is_due(processes: int, load: float, most_calls: float, seed: int) -> None:
    """What processes hold in the end is due as well, and not granted."""
    outcome = run_virtually(simulate(processes, load, seed=seed))
    assert outcome.calls_per_decision <= most_calls
    due = min(LIMIT.capacity + LIMIT.refill_rate * SECONDS, len(outcome.grants) + outcome.refused)
    assert len(outcome.grants) >= 0.97 * due
    check_law_1(outcome)
    assert lowest_level([(now_ms, 1_000) for now_ms, _ in outcome.grants], round(PREFETCH * 1_000)) >= 0
    assert outcome.refused_while_held == 0
    assert outcome.consumed == 1_000 * len(outcome.grants)


@pytest.mark.parametrize(("processes", "load"), [(8, 3.0), (32, 1.5)])
def test_what_is_given_back_is_granted_to_others_and_never_more(processes: int, load: float) -> None:
    """Buckets that were drawn ahead fill up by give-backs meanwhile: a grant still comes in time."""
    outcome = run_virtually(simulate(processes, load, seconds=6, given_back=0.5))
    assert outcome.given_back > 1_000
    assert lowest_level([(now_ms, 1_000) for now_ms, _ in outcome.grants], round(PREFETCH * 1_000)) >= 0
    assert outcome.consumed == 1_000 * len(outcome.grants)


@pytest.mark.parametrize("processes", [1, 8])
def test_what_is_asked_for_now_and_then_takes_one_call_each(processes: int) -> None:
    outcome = run_virtually(simulate(processes, 0, per_process=0.5))
    asked = len(outcome.grants)
    assert outcome.refused == 0
    assert asked == processes * round(SECONDS / 2)
    assert outcome.calls == asked + lost_races(processes)


def lost_races(processes: int) -> int:
    """Of those who make the bucket at the same moment all but one lose, in the exact mode too."""
    exact = run_virtually(simulate(processes, 0, prefetch=0, per_process=0.5))
    return exact.calls - len(exact.grants)


def grant_at_once(self: Advance, now_ms: int) -> int:
    """Say that all tokens are there as soon as they are drawn."""
    return self.size if now_ms >= self.drawn_ms else 0


def find_more(self: PrefetchedBucket, part: ShardCharge, image: Image, write: WriteUnderWay) -> None:
    """Take the bucket for fuller than it was."""
    KEEP(self, part, {**image, "b_rps_tk": image["b_rps_tk"] + 100_000}, write)


def return_all(self: PrefetchedBatch) -> dict[str, int]:
    """Return what was granted too."""
    back = {name: -advance.size for name, advance in self.advances.items()} if any(self.left.values()) else {}
    self.left = dict.fromkeys(self.left, 0)
    return back


KEEP = PrefetchedBucket.keep


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (Advance, "grantable", grant_at_once),
        (PrefetchedBucket, "keep", find_more),
        (PrefetchedBatch, "take_back", return_all),
    ],
)
def test_the_checks_notice_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, wrong: Callable[..., object]
) -> None:
    monkeypatch.setattr(kind, name, wrong)
    outcome = run_virtually(simulate(8, 1.5, seconds=4))
    with pytest.raises(AssertionError):
        check_law_1(outcome)
        assert outcome.consumed == 1_000 * len(outcome.grants)
