"""Concurrency limits in the stream: the time for which slots were held exactly once, and the peak of every window."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from tests.aggregator.streams import StreamedStore, aggregator, place, snapshots
from zae_limiter import Limit, RateLimitExceeded, UsageSnapshot
from zae_limiter.records import keys, usage
from zae_limiter.records.level import ANCHOR
from zae_limiter.records.slots import count_slots
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.testing import Fault, ManualClock
from zae_limiter_aggregator import upkeep

if TYPE_CHECKING:
    from tests.aggregator.streams import Record
    from zae_limiter import Lease
    from zae_limiter.records.algebra import Image, Key

HOUR = 3_600
START = 1_790_000_000_000 // 3_600_000 * 3_600_000
PARALLEL = Limit.concurrent("parallel", 40, ttl=HOUR)


class Held:
    """A bucket of a table with a stream, and clients that hold slots of it."""

    def __init__(self, *limits: Limit, clients: int = 1) -> None:
        self.clock = ManualClock(START)
        self.store = StreamedStore(self.clock)
        self.limits = limits or (PARALLEL,)
        self.clients = [BlockingRateLimiter(BlockingRepository(self.store)) for _ in range(clients)]

    async def _take(self, client: int, cost: dict[str, int]) -> Lease:
        lease: Lease = self.clients[client].acquire("key", "gpt-4", cost, limits=self.limits)
        return await lease.__aenter__()

    def take(self, count: int = 1, client: int = 0, **cost: int) -> list[Lease]:
        return [run(self._take(client, cost)) for _ in range(count)]

    def end(self, *leases: Lease) -> None:
        for lease in leases:
            run(lease.__aexit__(None, None, None))

    def advance(self, seconds: float) -> None:
        """Let time pass, and let all clients renew what is due then."""
        self.clock.advance(seconds)
        for client in self.clients:
            for _ in range(4):  # what a split has moved is due at once
                run(client.renew_slots())

    def changes(self) -> list[Record]:
        return [each for each in self.store.records if each["dynamodb"]["Keys"]["SK"]["S"] == keys.STATE]

    def shards(self) -> dict[Key, Image]:
        return {key: image for key, image in self.store.kept.items() if key.sk == keys.STATE}

    def split(self) -> int:
        """Split the first shard, as the aggregator does under load; return how many shards there are."""
        key = keys.bucket(next(iter(self.shards())).pk.partition("/")[0], "key", "gpt-4")
        image = self.store.kept[key]
        level = upkeep.level_of(self.store, key, image)
        run(upkeep.split_busy_shard(self.store, level, image, {"parallel": 1_000}))
        return len(self.shards())

    def usage(self, window: str = "hourly") -> list[UsageSnapshot]:
        found = [usage.decode(image) for image in snapshots(self.store).values()]
        return sorted([each for each in found if each.window_type == window], key=lambda each: each.window_start)

    def peaks(self, window: str = "hourly") -> list[int]:
        return [each.in_flight["parallel"].peak for each in self.usage(window)]


def test_peak_and_average_beside_tokens() -> None:
    held = Held(PARALLEL, Limit.per_minute("tpm", 1_000))
    leases = held.take(3, tpm=100)
    held.advance(600)
    held.end(*leases[1:])
    held.advance(1_800)
    held.end(leases[0])
    aggregator(held.store).process(held.changes())
    for window in usage.WINDOWS:
        (found,) = held.usage(window)
        slots = found.in_flight["parallel"]
        assert (found.counters, slots.peak, slots.slot_seconds) == ({"tpm": 300}, 3, 3_600)
    assert held.usage()[0].in_flight["parallel"].average == 1.0


def test_a_bucket_that_has_nothing_but_slots() -> None:
    held = Held()
    taken = held.take(2)
    aggregator(held.store).process(held.changes())
    assert [(each.counters, each.total_events) for each in held.usage()] == [({}, 2)]
    assert held.peaks() == [2], "also before anybody has held one for a while"
    held.end(*taken)


def test_slots_that_are_held_across_the_turn_of_an_hour_are_in_flight_in_both() -> None:
    held = Held()
    leases = held.take(3)
    for ended in (leases[0], leases[1]):
        held.advance(HOUR - 1_500)
        held.advance(1_500)
        held.end(ended)
    aggregator(held.store).process(held.changes())
    assert held.peaks() == [3, 3, 2], "those that ended with an hour were in flight in the next"
    assert held.peaks("daily") == [3]
    held.end(leases[2])


def test_a_lower_peak_changes_nothing_and_asks_nothing() -> None:
    held, function = Held(), None
    held.end(*held.take(5))
    function = aggregator(held.store)
    function.process(held.changes())
    seen = len(held.changes())
    leases = held.take(2)
    held.advance(10)
    held.end(*leases)
    before = held.store.calls.copy()
    function.process(held.changes()[seen:])
    assert held.store.calls - before == {"commit": len(usage.WINDOWS)}, "one write for each window"
    assert held.peaks() == [5]


def test_peaks_of_shards_are_added_up() -> None:
    held = Held()
    leases = held.take(8)
    assert held.split() == 2
    leases += held.take(2, client=0)
    aggregator(held.store).process(held.changes())
    (peak,) = held.peaks()
    assert 8 <= peak <= 10, "not the eight of the whole bucket and those of its halves"
    assert sum(count_slots(image) for image in held.shards().values()) == 10
    held.advance(60)
    held.end(*leases)
    aggregator(held.store).process(held.changes())
    assert held.usage()[0].in_flight["parallel"].slot_seconds == 600


def test_slots_that_move_with_several_splits_are_held_on() -> None:
    """Also where their holder has taken others in the shards that these came by."""
    held = Held(Limit.concurrent("parallel", 200, ttl=60), clients=2)
    leases = held.take(8)
    for shards in (2, 4):
        held.split()
        root = next(key for key in held.shards() if key.pk.endswith("#0"))
        run(upkeep.spread(held.store, upkeep.level_of(held.store, root, held.store.kept[root])))
        assert len(held.shards()) == shards
    leases += held.take(30)
    for _ in range(4):
        held.advance(30)
    assert not any(lease.lost for lease in leases)
    assert sum(held.clients[0].held_slots.values()) == 38
    held.end(*leases)


def test_a_bucket_with_few_slots_is_not_split() -> None:
    held = Held(Limit.concurrent("parallel", 7, ttl=60))
    (lease,) = held.take()
    assert held.split() == 1
    ((key, image),) = held.shards().items()
    assert upkeep.level_of(held.store, key, image).limits == (Limit.concurrent("parallel", 7, ttl=60),)
    held.end(lease)


def test_a_far_anchor_is_moved_and_slots_stay_as_they_are() -> None:
    held = Held(Limit.concurrent("parallel", 7, ttl=60), Limit.custom("tpm", 10**12, 10**12, 1))
    held.take(2, tpm=1)
    leases = held.take(2)
    held.clock.advance(30)
    run(held.clients[0].renew_slots())
    ((key, image),) = held.shards().items()
    assert run(upkeep.refill(held.store, upkeep.level_of(held.store, key, image), image, held.clock.now_ms())) == 1
    ((_, after),) = held.shards().items()
    assert after[ANCHOR] > image[ANCHOR]
    assert {attr for attr in image if attr.startswith(("s_", "f_"))} <= after.keys()
    held.end(*leases)
    assert count_slots(held.shards()[key]) == 2


class Traffic(Held):
    """Clients at random, and an account of the slots that were held, and of the most at once by hour."""

    def __init__(self, chance: random.Random, slots: int) -> None:
        super().__init__(Limit.concurrent("parallel", slots, ttl=HOUR), clients=3)
        self.chance = chance
        self.leases: list[Lease] = []
        self.held_ms = 0
        self.most: defaultdict[int, int] = defaultdict(int)

    def note(self) -> None:
        hour = self.clock.now_ms() // (HOUR * 1000)
        self.most[hour] = max(self.most[hour], len(self.leases))

    def happen(self, steps: int) -> None:
        chance = self.chance
        for _ in range(steps):
            chosen = chance.random()
            self.note()
            if chosen < 0.5:
                with contextlib.suppress(RateLimitExceeded):
                    self.leases += self.take(1, chance.randrange(3))
            elif chosen < 0.8 and self.leases:
                self.end(self.leases.pop(chance.randrange(len(self.leases))))
            else:
                seconds = chance.choice([1, 600, 1_300])
                self.held_ms += 1_000 * seconds * len(self.leases)
                self.advance(seconds)
            self.note()
        self.end(*self.leases)


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("slots", [10, 40])
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_usage_is_what_was_held_whatever_is_delivered_again(slots: int, faults: bool, seed: int) -> None:
    """Of a bucket with so many slots that it is split, only the time can be told exactly."""
    traffic = Traffic(random.Random(seed), slots)
    traffic.happen(40)
    chance, changes, read = traffic.chance, traffic.changes(), 0
    function = aggregator(traffic.store)
    while read < len(changes):
        begin = max(0, read - chance.choice([0, 0, 1, 5]))
        batch = changes[begin : begin + chance.choice([1, 3, 20])]
        if faults and chance.random() < 0.5:
            traffic.store.inject(chance.choice([Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.REFUSE]), verb="commit")
            traffic.store.inject(chance.choice([Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.REFUSE]), verb="commit")
        read = max(read, begin + place(batch, function.process(batch)))
        traffic.store.heal()
    found = [each.in_flight["parallel"] for each in traffic.usage() if "parallel" in each.in_flight]
    assert sum(each.slot_seconds for each in found) == traffic.held_ms // 1000
    if len(traffic.shards()) == 1:
        assert [each.peak for each in found if each.peak] == [most for _, most in sorted(traffic.most.items()) if most]
