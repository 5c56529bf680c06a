"""The aggregator looks after busy buckets: it mints nothing, loses nothing, and leaves alone what needs no help."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from tests.aggregator.streams import StreamedStore, aggregator
from tests.support.charges import migrate
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.core.cron import parse_cron
from zae_limiter.limiter.dividing import divide
from zae_limiter.records import keys
from zae_limiter.records.algebra import Committed, Key
from zae_limiter.records.bucket import group_by_bucket, stored_balances
from zae_limiter.records.level import ANCHOR, SHARDS, parse_calendar
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator import upkeep
from zae_limiter_aggregator.stream import group_by_record, parse_change

if TYPE_CHECKING:
    from zae_limiter.records.algebra import Image

LIMITS = (Limit.per_second("rpm", 100_000), Limit.per_minute("tpm", 7_777_777))
HUGE = Limit.custom("tpm", capacity=10**12, refill_amount=10**12, refill_period_seconds=1)


class Busy:
    """A bucket in a table with a stream, and a client that spends from it."""

    def __init__(self, *limits: Limit) -> None:
        self.clock = ManualClock()
        self.store = StreamedStore(self.clock)
        self.limits = limits or LIMITS
        self.limiter = self.client()

    def client(self) -> BlockingRateLimiter:
        return BlockingRateLimiter(BlockingRepository(self.store))

    async def take(self, **cost: int) -> None:
        async with self.limiter.acquire("key", "gpt-4", cost or {"rpm": 1}, limits=self.limits):
            pass

    def spend(self, times: int, every_ms: float = 0) -> None:
        for _ in range(times):
            run(self.take())
            self.clock.advance(every_ms / 1000)

    def shards(self) -> dict[int, Image]:
        found = [key for key in self.store.kept if key.sk == keys.STATE]
        return {keys.parse_bucket_pk(key.pk).shard_id: self.store.kept[key] for key in found}

    def counts(self) -> list[int]:
        return [image[SHARDS] for _, image in sorted(self.shards().items())]

    def levels(self, after_ms: int = 0) -> dict[str, int]:
        """What the whole bucket holds of each limit, some time from now."""
        (group,) = group_by_bucket((key, image) for key, image in self.store.kept.items() if key.sk == keys.STATE)
        now_ms = self.clock.now_ms() + after_ms
        return {name: sum(pot.level(now_ms) for pot in stored_balances(group, name)) for name in ("rpm", "tpm")}

    def key(self, shard: int = 0) -> Key:
        (found,) = (key for key in self.store.kept if key.pk.endswith(f"#gpt-4#{shard}"))
        return found

    def split(self, shard: int) -> None:
        image = self.store.kept[self.key(shard)]
        level = upkeep.level_of(self.store, self.key(shard), image)
        assert run(divide(self.store, level, image, 0, lambda *_: None))


def maintain(busy: Busy) -> int:
    """How many records the aggregator changes when it is delivered everything that has happened."""
    before = len(busy.store.records)
    aggregator(busy.store, windows=()).process(list(busy.store.records))
    return len(busy.store.records) - before


def test_a_bucket_is_split_above_four_fifths_of_what_its_partition_takes() -> None:
    busy = Busy()
    busy.spend(1_300, every_ms=1 / 0.85)
    assert busy.counts() == [1], "clients wait longer than this"
    before = busy.levels()
    assert maintain(busy) == 2
    assert busy.counts() == [2, 2]
    assert busy.levels() == before


@pytest.mark.parametrize(("times", "every_ms"), [(3_000, 1 / 0.75), (700, 0)], ids=["steady", "one burst"])
def test_a_bucket_below_four_fifths_is_left_alone(times: int, every_ms: float) -> None:
    busy = Busy()
    busy.spend(times, every_ms)
    assert maintain(busy) == 0


def test_a_bucket_whose_shards_could_hold_few_requests_is_not_split() -> None:
    busy = Busy(Limit.per_second("rpm", 100_000), Limit.per_minute("tpm", 7_777_777))
    for _ in range(1_300):
        run(busy.take(rpm=1, tpm=1_000_000 if _ == 600 else 0))
        busy.clock.advance(1 / 850)
    assert maintain(busy) == 0


@pytest.mark.parametrize(("slots", "counts"), [(7, [1]), (8, [2, 2])])
def test_a_bucket_whose_shards_would_have_few_slots_is_not_split(slots: int, counts: list[int]) -> None:
    busy = Busy(*LIMITS, Limit.concurrent("parallel", slots))
    busy.spend(700, every_ms=1.9)  # a second write for each frees its slot
    before = busy.levels()
    maintain(busy)
    assert (busy.counts(), busy.levels()) == (counts, before)
    assert run(busy.client().available("key", "gpt-4", busy.limits))["parallel"] == slots


def test_a_refill_leaves_slots_with_their_holders() -> None:
    busy = Busy(Limit.per_second("rpm", 10), HUGE, Limit.concurrent("parallel", 3))

    async def work() -> None:
        async with busy.limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=busy.limits, holder="w"):
            busy.clock.advance(2)
            await busy.take(rpm=3, tpm=7)
            assert maintain(busy) == 1
            (state, *_) = await busy.limiter.repository.get_buckets("key")
            assert (state.limit_name, [slot.holder for slot in state.slots]) == ("parallel", ["w"])

    run(work())


def test_a_shard_other_than_the_first_is_split_after_the_first() -> None:
    busy = Busy()
    busy.spend(1)
    busy.split(0)
    second = busy.store.kept[busy.key(1)]
    level = upkeep.level_of(busy.store, busy.key(1), second)
    assert level.shard == 1
    pressed = busy.store.records
    changes = [
        change._replace(key=busy.key(1), old=second, new=_pressed(second)) for change in map(parse_change, pressed)
    ]
    assert run(upkeep.maintain(busy.store, changes[-1:])).splits == 1
    assert busy.counts() == [4, 2, 4], "the first shard knows the highest count"
    assert run(upkeep.maintain(busy.store, changes[-1:])).splits == 1
    assert busy.counts() == [4, 4, 4, 4]


def _pressed(image: Image) -> Image:
    """The image after a second of too many writes."""
    return image | {"b_wcu_tc": image["b_wcu_tc"] + 900_000, "b_wcu_fl": image["b_wcu_fl"] + 1_000}


def test_the_other_shards_follow_the_first() -> None:
    busy = Busy()
    busy.spend(3)
    for shard in (0, 0, 0):
        busy.split(shard)
    before = busy.levels(after_ms=1_234)
    assert sorted(busy.shards()) == [0, 1, 2, 4]
    assert busy.counts() == [8, 2, 4, 8]
    maintain(busy)
    assert busy.counts() == [8] * 8
    assert busy.levels(after_ms=1_234) == before
    assert maintain(busy) == 0, "delivered again it changes nothing"


def test_a_split_that_a_client_was_faster_with_is_as_good() -> None:
    busy = Busy()
    busy.spend(1_300, every_ms=1 / 0.85)
    changes = group_by_record(map(parse_change, busy.store.records))[busy.key()]
    busy.split(0)
    assert run(upkeep.maintain(busy.store, changes)) == upkeep.UpkeepResult()
    assert busy.counts() == [2, 2]


def far_from_its_anchor() -> Busy:
    """A bucket that produces so much that its numbers grow out of what doubles can hold within days."""
    busy = Busy(Limit.per_second("rpm", 10), HUGE)
    run(busy.take(rpm=3, tpm=5))
    busy.clock.advance(2)
    run(busy.take(rpm=3, tpm=7))
    return busy


def test_a_bucket_far_from_its_anchor_is_refilled() -> None:
    busy = far_from_its_anchor()
    anchor = busy.shards()[0][ANCHOR]
    later = [busy.levels(after_ms) for after_ms in (0, 1, 99, 1_000)]
    assert maintain(busy) == 1
    image = busy.shards()[0]
    assert image[ANCHOR] == busy.clock.now_ms() > anchor
    assert [busy.levels(after_ms) for after_ms in (0, 1, 99, 1_000)] == later
    assert maintain(busy) == 0, "near its anchor it is left alone"


def test_a_refill_loses_to_a_client_that_has_moved_the_anchor() -> None:
    busy = far_from_its_anchor()
    changes = group_by_record(map(parse_change, busy.store.records))[busy.key()]
    busy.limits = (Limit.per_second("rpm", 20), HUGE)
    run(busy.take(rpm=1))
    before = busy.shards()[0]
    assert run(upkeep.maintain(busy.store, changes)) == upkeep.UpkeepResult()
    assert busy.shards()[0] == before


@settings(max_examples=40, deadline=None)
@given(spent=st.lists(st.integers(0, 9), max_size=6), refills_after=st.integers(0, 6))
def test_a_refill_between_requests_changes_nothing_that_is_granted(spent: list[int], refills_after: int) -> None:
    plain, looked_after = far_from_its_anchor(), far_from_its_anchor()
    for n, amount in enumerate(spent):
        if n == refills_after:
            maintain(looked_after)
        for busy in (plain, looked_after):
            busy.clock.advance(0.3)
            try:
                run(busy.take(rpm=amount))
            except RateLimitExceeded as refused:
                assert amount
                busy.store.kept.setdefault(Key("refused", str(n)), {"after": refused.retry_after_seconds})
    assert plain.levels() == looked_after.levels()
    assert refusals(plain) == refusals(looked_after)


def refusals(busy: Busy) -> dict[Key, Image]:
    return {key: image for key, image in busy.store.kept.items() if key.pk == "refused"}


def test_refilling_every_active_bucket_would_cost_its_clients_a_call_each_time() -> None:
    """Why only those far from their anchor are refilled: a client knows what has refilled, and needs one call."""
    calls = {}
    for eager in (False, True):
        busy = Busy(Limit.per_second("rpm", 10), Limit.per_minute("tpm", 100))
        run(busy.take(rpm=10))
        made = 0
        for n in range(50):
            busy.clock.advance(0.1)
            if eager and n % 5 == 0:
                _refill(busy)
            before = busy.store.calls["commit"]
            run(busy.take(rpm=1))
            made += busy.store.calls["commit"] - before
        calls[eager] = made
    assert calls[False] == 50
    assert calls[True] == 60


def _refill(busy: Busy) -> None:
    """What the aggregator does to a bucket far from its anchor, to any."""
    image = busy.shards()[0]
    level = upkeep.level_of(busy.store, busy.key(), image)
    write = migrate(level, image, {}, busy.clock.now_ms())
    assert write is not None
    assert isinstance(run(busy.store.commit([write])), Committed)


def test_a_bucket_by_cron_is_left_to_its_clients_where_cronsim_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As inside Lambda: nothing is changed, and nothing is called a failure."""
    busy = Busy(Limit.quota("rpm", 10**9, cron="0 0 1 * *"))
    busy.spend(1_300, every_ms=1 / 0.85)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    parse_calendar.cache_clear()
    parse_cron.cache_clear()
    assert maintain(busy) == 0
    assert "not looked after" not in capsys.readouterr().out
    monkeypatch.undo()
    assert maintain(busy) == 2
