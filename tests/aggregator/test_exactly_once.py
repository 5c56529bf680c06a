"""Usage equals what was consumed, to the millitoken, whatever is delivered again, cut up, delayed or interrupted."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from tests.aggregator.streams import WINDOWS, StreamedStore, aggregator, place, snapshots
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.limiter.dividing import divide
from zae_limiter.records import keys, usage
from zae_limiter.records.level import SHARDS
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.testing import Fault, ManualClock
from zae_limiter_aggregator.upkeep import level_of

if TYPE_CHECKING:
    from tests.aggregator.streams import Record
    from zae_limiter.records.algebra import Image, Key

NEAR_MONTH_END = int(datetime(2026, 1, 31, 23, 55, tzinfo=UTC).timestamp() * 1000)
LIMITS = (Limit.per_minute("rpm", 600), Limit.per_minute("tpm", 90_000), Limit.per_minute("ttl", 90_000))
ENTITIES = ("key-a", "key-b")


class _Broken(Exception):
    """The body of a lease fails."""


class Traffic:
    """Clients of one table, and an account of what they consumed in which window."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.clock = ManualClock(NEAR_MONTH_END)
        self.store = StreamedStore(self.clock)
        self.limiters = [BlockingRateLimiter(BlockingRepository(self.store)) for _ in range(2)]
        self.used: Counter[tuple[str, str, str, str]] = Counter()

    def note(self, entity: str, **amounts: int) -> None:
        """Account for consumption as of now."""
        for window in WINDOWS:
            start = usage.window_of(window, self.clock.now_ms()).start
            for name, amount in amounts.items():
                self.used[entity, window, start, name] += amount * 1000

    async def request(self) -> None:
        """One acquire of some shape, settled in some way, by some client."""
        chance, entity = self.chance, self.chance.choice(ENTITIES)
        cost = {"rpm": 1, "tpm": chance.choice([0, 3, 700, 2_001, 60_000]), "ttl": 7}
        more = chance.choice([0, 0, 1_501, -min(1, cost["tpm"]), -cost["tpm"]])
        broken = chance.random() < 0.2
        try:
            async with chance.choice(self.limiters).acquire(entity, "gpt-4", cost, limits=LIMITS) as lease:
                self.note(entity, **cost)
                self.clock.advance(chance.choice([0, 0, 0.4, 30]))
                await lease.adjust(tpm=more)
                if broken:
                    raise _Broken
        except RateLimitExceeded:
            return
        except _Broken:
            self.note(entity, **{name: -amount for name, amount in cost.items()})
            return
        self.note(entity, tpm=more)

    async def split(self) -> None:
        """Split a shard of a bucket, as a client or the aggregator does under load."""
        (ns,) = {key.pk.partition("/")[0] for key in self.buckets()} or {""}
        entity, shard = self.chance.choice(ENTITIES), self.chance.randrange(4)
        key = keys.bucket(ns, entity, "gpt-4", shard)
        (image,) = await self.store.read([key])
        if image is not None and image[SHARDS] < 8:
            await divide(self.store, level_of(self.store, key, image), image, 0, lambda *_: None)

    def buckets(self) -> list[Key]:
        return [key for key in self.store.kept if key.sk == keys.STATE]

    def happen(self, steps: int) -> None:
        """Requests, splits, and pauses after which buckets have expired."""
        for _ in range(steps):
            step = self.chance.random()
            if step < 0.8:
                run(self.request())
            elif step < 0.9:
                run(self.split())
            else:
                self.clock.advance(self.chance.choice([1, 60, 1_000, 4_000]))


class Shard:
    """A part of the stream, with all changes of some records in order, and how far a function has read it."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.read = 0


def shards_of(records: list[Record]) -> list[Shard]:
    parts: list[list[Record]] = [[], [], []]
    for record in records:
        if record["dynamodb"]["Keys"]["SK"]["S"] == keys.STATE:
            parts[hash_of(record) % 3].append(record)
    return [Shard(part) for part in parts]


def hash_of(record: Record) -> int:
    return sum(record["dynamodb"]["Keys"]["PK"]["S"].encode())


def deliver(traffic: Traffic, *, faults: bool) -> None:
    """All changes as Lambda delivers them: in order per shard, in batches of any size, and some of them again."""
    chance, store = traffic.chance, traffic.store
    shards = shards_of(list(store.records))
    function = aggregator(store)
    while any(shard.read < len(shard.records) for shard in shards):
        shard = chance.choice(shards)
        if shard.read and chance.random() < 0.4:
            begin = chance.randrange(shard.read)
            function.process(shard.records[begin : chance.randrange(begin, shard.read) + 1])
            continue
        batch = shard.records[shard.read : shard.read + chance.choice([1, 2, 5, 50])]
        if faults and chance.random() < 0.5:
            for _ in range(chance.randrange(1, 6)):
                store.inject(chance.choice([Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.REFUSE]), verb="commit")
        shard.read += place(batch, function.process(batch))
        store.heal()


def found(store: StreamedStore) -> Counter[tuple[str, str, str, str]]:
    counted: Counter[tuple[str, str, str, str]] = Counter()
    for image in snapshots(store).values():
        for name, milli in usage.counters_milli(image).items():
            counted[image["entity_id"], image["window"], image["window_start"], name] += milli
    return counted


def nonzero(counts: Counter[tuple[str, str, str, str]]) -> dict[tuple[str, str, str, str], int]:
    return {what: amount for what, amount in counts.items() if amount}


@pytest.mark.parametrize("faults", [False, True], ids=["smoothly", "with failures"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_usage_is_what_was_consumed_however_it_is_delivered(faults: bool, seed: int) -> None:
    traffic = Traffic(random.Random(seed))
    traffic.happen(40)
    deliver(traffic, faults=faults)
    assert nonzero(found(traffic.store)) == nonzero(traffic.used)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_delivering_everything_again_changes_no_snapshot(seed: int) -> None:
    traffic = Traffic(random.Random(seed))
    traffic.happen(40)
    stream = shards_of(list(traffic.store.records))
    function = aggregator(traffic.store)
    for shard in stream:
        function.process(shard.records)
    before = snapshots(traffic.store)
    for _ in range(2):
        traffic.chance.shuffle(stream)
        for shard in stream:
            pieces = [shard.records[n : n + 7] for n in range(0, len(shard.records), 7)]
            for piece in (*reversed(pieces), *pieces):
                assert function.process(piece) == {"batchItemFailures": []}
    assert snapshots(traffic.store) == before


def test_traffic_reaches_what_the_tests_are_about() -> None:
    """Else the properties above would hold for nothing."""
    seen: set[str] = set()
    for seed in range(12):
        traffic = Traffic(random.Random(seed))
        traffic.happen(40)
        for record in traffic.store.records:
            seen |= features(record)
        deliver(traffic, faults=False)
        seen |= {image["window_start"] for image in snapshots(traffic.store).values()}
    wanted = {"INSERT", "MODIFY", "split", "given back", "fraction", "made over remains"}
    assert wanted <= seen
    assert {"2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-01-31T23:00:00Z"} <= seen


def features(record: Record) -> set[str]:
    body = record["dynamodb"]
    if body["Keys"]["SK"]["S"] != keys.STATE:
        return set()
    old, new = (numbers(body.get(image)) for image in ("OldImage", "NewImage"))
    found = {record["eventName"]}
    used = new.get("b_tpm_tc", 0) - old.get("b_tpm_tc", 0)
    if new.get(SHARDS, 1) > 1:
        found.add("split")
    if used % 1000:
        found.add("fraction")
    if old and used < 0:
        found.add(
            "made over remains" if old.get("ttl", 0) * 1000 <= new["rf"] and old["rf"] != new["rf"] else "given back"
        )
    return found


def numbers(image: Image | None) -> dict[str, int]:
    return {name: int(value["N"]) for name, value in (image or {}).items() if "N" in value}
