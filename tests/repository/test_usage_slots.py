"""Usage of concurrency limits: the peak and the average in flight of every window."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.backends import KEEPING, Backend
from tests.support.meddler import Meddler
from zae_limiter import InFlight, Lease, Limit, RateLimiter, RateLimitExceeded
from zae_limiter.core.change import Change
from zae_limiter.records import keys
from zae_limiter.records.algebra import Committed
from zae_limiter.records.charging import write_of
from zae_limiter.records.level import HOUR_MS
from zae_limiter.records.slot_table import SlotTable
from zae_limiter.records.slots import SeenSlots, renew_slots
from zae_limiter.testing import FaultyStore, Harness

HOUR = HOUR_MS // 1000
EXAMPLES = {"memory": 60, "sqlite": 8, "redis": 5, "redis-cluster": 3}
PARALLEL = Limit.concurrent("parallel", 10, ttl=HOUR)


@pytest.fixture(params=KEEPING, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """A store whose writes keep usage, and a mode."""
    found: Backend = request.param
    return found


async def open_limiter(harness: Harness, *limits: Limit) -> RateLimiter:
    limiter = harness.limiter()
    await limiter.set_system_defaults(limits or (PARALLEL,))
    return limiter


async def take(limiter: RateLimiter) -> Lease:
    """A lease that holds a slot until it is told to end."""
    lease: Lease = limiter.acquire("key", "gpt-4", {})
    return await lease.__aenter__()


async def end(*leases: Lease) -> None:
    for lease in leases:
        await lease.__aexit__(None, None, None)


async def read(limiter: RateLimiter, window: str = "hourly") -> list[tuple[int, float, int]]:
    """Peak, average and slot-seconds of every window, oldest first."""
    found, _ = await limiter.get_usage_snapshots("key", window_type=window)
    assert all(each.counters == {} for each in found), "slot-seconds are no tokens"
    rows = [each.in_flight["parallel"] for each in reversed(found)]
    return [(row.peak, row.average, row.slot_seconds) for row in rows]


async def test_peak_and_average_of_an_hour(harness: Harness) -> None:
    limiter = await open_limiter(harness)
    leases = [await take(limiter) for _ in range(3)]
    harness.clock.advance(900)
    await end(*leases[1:])
    harness.clock.advance(900)
    await end(leases[0])
    await end(await take(limiter))
    assert await read(limiter) == await read(limiter) == [(3, 1.0, 3_600)]
    summary = await limiter.get_usage_summary("key")
    assert (summary.total, summary.in_flight) == ({}, {"parallel": InFlight(3, 1.0, 3_600)})


async def test_slots_that_are_held_across_the_turn_of_an_hour_are_in_flight_in_both(harness: Harness) -> None:
    limiter = await open_limiter(harness)
    first, second = await take(limiter), await take(limiter)
    harness.clock.advance(HOUR - 1)
    await limiter.renew_slots()
    harness.clock.advance(1)
    await end(first)
    harness.clock.advance(60)
    await end(second, await take(limiter))
    harness.clock.advance(HOUR)
    await end(await take(limiter))
    assert [row[0] for row in await read(limiter)] == [2, 2, 1]


async def test_the_day_and_the_month_have_the_highest_peak_of_their_hours(harness: Harness) -> None:
    limiter = await open_limiter(harness)
    for count in (2, 7, 4):
        leases = [await take(limiter) for _ in range(count)]
        harness.clock.advance(60)
        await end(*leases)
        await read(limiter)
        harness.clock.advance(HOUR)
    assert [row[0] for row in await read(limiter)] == [2, 7, 4]
    for window in ("daily", "monthly"):
        assert [(peak, seconds) for peak, _, seconds in await read(limiter, window)] == [(7, 13 * 60)]
    assert (await limiter.get_usage_summary("key")).in_flight["parallel"].peak == 7


async def test_a_bucket_that_is_made_anew_lowers_no_peak(harness: Harness) -> None:
    limiter = await open_limiter(harness)
    for count in (5, 2):
        leases = [await take(limiter) for _ in range(count)]
        harness.clock.advance(10)
        await end(*leases)
        await limiter.reset_bucket("key", "gpt-4")
    assert [(peak, seconds) for peak, _, seconds in await read(limiter)] == [(5, 70)]


async def test_a_slot_that_nobody_gives_back_was_in_flight(harness: Harness) -> None:
    """The process that took it is gone: its time is not counted, the peak is."""
    limiter, gone = await open_limiter(harness, Limit.concurrent("parallel", 10, ttl=60)), harness.limiter()
    kept = [await take(gone) for _ in range(4)]
    harness.clock.advance(2 * HOUR)
    await end(await take(limiter))
    assert [row[0] for row in await read(limiter)] == [4, 1]
    assert all(lease.lost for lease in kept)


async def test_renewals_count_time_and_no_events(harness: Harness) -> None:
    limiter = await open_limiter(harness, Limit.concurrent("parallel", 10, ttl=60))
    lease = await take(limiter)
    for _ in range(6):
        harness.clock.advance(20)
        await limiter.renew_slots()
    (hour,), _ = await limiter.get_usage_snapshots("key", window_type="hourly")
    assert (hour.total_events, hour.in_flight["parallel"].slot_seconds) == (1, 120)
    await end(lease)


async def test_a_release_that_meets_a_renewal_counts_no_time_twice(harness: Harness) -> None:
    store = Meddler(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([PARALLEL])
    lease = await take(limiter)
    assert lease._holder is not None
    (slot,) = lease._holder.slots
    harness.clock.advance(30)

    async def renew() -> None:
        key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
        (image,) = await store.inner.read([key])
        assert image is not None
        renewal = Change()
        renew_slots(SeenSlots(image, SlotTable.parse(image), harness.clock.now_ms()), renewal, [slot])
        assert isinstance(await store.inner.commit([write_of(renewal, key, None)]), Committed)

    store.before_commit = renew
    await end(lease)
    assert [seconds for _, _, seconds in await read(limiter)] == [30]


async def test_an_hour_with_slots_is_booked_by_no_call_of_its_own(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(harness.repository(store, config_cache_ttl=10 * HOUR))
    await limiter.set_system_defaults([PARALLEL])
    await end(await take(limiter))
    for _ in range(8):
        before = store.calls.copy()
        await end(await take(limiter))
        assert store.calls - before == {"commit": 2}, "one takes the slot and one frees it"
        harness.clock.advance(HOUR / 2)
    assert len(await read(limiter)) == 4


async def test_slots_beyond_a_soft_limit_are_overdrawn(harness: Harness) -> None:
    limiter = await open_limiter(harness, Limit.concurrent("parallel", 2, ttl=60, soft=True))
    leases = [await take(limiter) for _ in range(5)]
    harness.clock.advance(10)
    await end(*leases)
    (hour,), _ = await limiter.get_usage_snapshots("key", window_type="hourly")
    assert (hour.overdrawn, hour.in_flight["parallel"].peak) == ({"parallel": 3}, 5)


async def test_a_limit_may_become_one_of_slots_and_one_of_tokens_again(harness: Harness) -> None:
    """What was used of it stays what it was, and the bucket keeps nothing of the other kind."""
    tokens = Limit.per_minute("parallel", 10)
    limiter = await open_limiter(harness, tokens)
    async with limiter.acquire("key", "gpt-4", {"parallel": 3}):
        pass
    await limiter.set_system_defaults([PARALLEL])
    held = await take(limiter)
    harness.clock.advance(20)
    await end(held)
    held = await take(limiter)
    await limiter.set_system_defaults([tokens])
    async with limiter.acquire("key", "gpt-4", {"parallel": 4}) as lease:
        harness.clock.advance(10)
        await lease.adjust(parallel=1)
    await end(held)
    (hour,), _ = await limiter.get_usage_snapshots("key", window_type="hourly")
    assert hour.counters == {"parallel": 8}
    assert hour.in_flight == {"parallel": InFlight(1, 20 / HOUR, 20)}, "what was held across the change is not counted"
    async with limiter.acquire("key", "gpt-4", {"parallel": 1}):
        key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
        (image,) = await harness.store().read([key])
    assert image is not None
    assert not [attr for attr in image if attr.startswith(("s_", "f_", "b_parallel_tl", "b_parallel_pk"))]


class Traffic:
    """Clients that take, renew and free slots, and an account of what was in flight in every hour."""

    def __init__(self, harness: Harness, seed: int, clients: int) -> None:
        self.harness = harness
        self.chance = random.Random(seed)
        self.clients = [harness.limiter() for _ in range(clients)]
        self.held: list[Lease] = []
        self.peaks: defaultdict[int, int] = defaultdict(int)
        self.held_ms = 0

    def note(self) -> None:
        hour = self.harness.clock.now_ms() // HOUR_MS
        self.peaks[hour] = max(self.peaks[hour], len(self.held))

    async def step(self, pauses: tuple[int, ...]) -> None:
        client, chosen = self.chance.choice(self.clients), self.chance.random()
        self.note()
        if chosen < 0.45:
            with contextlib.suppress(RateLimitExceeded):
                self.held.append(await take(client))
        elif chosen < 0.8 and self.held:
            await end(self.held.pop(self.chance.randrange(len(self.held))))
        else:
            seconds = self.chance.choice(pauses)
            self.harness.clock.advance(seconds)
            self.held_ms += len(self.held) * seconds * 1000
            for each in self.clients:
                await each.renew_slots()
        self.note()

    async def run(self, steps: int, pauses: tuple[int, ...]) -> list[tuple[int, float, int]]:
        await self.clients[0].set_system_defaults([PARALLEL])
        for _ in range(steps):
            await self.step(pauses)
            if self.chance.random() < 0.1:
                await read(self.chance.choice(self.clients))
        await end(*self.held)
        found = await read(self.clients[0])
        total = (await self.clients[0].get_usage_summary("key")).in_flight.get("parallel", InFlight(0, 0, 0))
        assert total.slot_seconds == self.held_ms // 1000
        return found


@pytest.mark.parametrize(("clients", "pauses"), [(1, (1, 600, 1_500)), (3, (1, 2, 3))])
def test_peaks_are_exact(backend: Backend, tmp_path: Path, clients: int, pauses: tuple[int, ...]) -> None:
    """Over any number of hours for what one process does; of several processes, as long as the hour lasts."""

    @settings(max_examples=EXAMPLES[backend.kind])
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        with backend.harness(tmp_path) as harness:
            traffic = Traffic(harness, seed, clients)
            found = harness.run(traffic.run(40, pauses))
            peaks = [peak for _, peak in sorted(traffic.peaks.items()) if peak]
            assert [peak for peak, _, _ in found if peak] == peaks

    check()
