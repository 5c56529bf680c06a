"""The memory store: what it forgets and what it must not, expiry, sharing, threads."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.records import keys
from zae_limiter.records.algebra import ABSENT, Committed, Conflict, Key, Query, Write
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.eviction import MOST_LOOKS
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.table import is_bucket, key_of
from zae_limiter.testing import ManualClock

HOURLY = [Limit.per_hour("rpm", 100)]


class Bounded:
    """A limiter on a small memory store."""

    def __init__(self, max_buckets: int = 16) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock, max_buckets=max_buckets)
        self.limiter = self.another()

    def another(self) -> SyncRateLimiter:
        return SyncRateLimiter(self.store)

    def take(self, entity: str, amount: int, limiter: SyncRateLimiter | None = None) -> bool:
        try:
            with (limiter or self.limiter).acquire(entity, "gpt-4", {"rpm": amount}, HOURLY):
                return True
        except RateLimitExceeded:
            return False

    def held(self) -> set[str]:
        """The entities that have a bucket."""
        return {key_of(name).pk.split("#")[1] for name in self.store._table.names() if is_bucket(name)}


def test_full_buckets_go_first_and_nothing_is_lost() -> None:
    here = Bounded()
    for number in range(10):
        assert here.take(f"full-{number}", 1)
    here.clock.advance(3_600)
    for number in range(6):
        assert here.take(f"empty-{number}", 100)
    for number in range(10):
        assert here.take(f"new-{number}", 50)
    assert {f"empty-{number}" for number in range(6)} <= here.held()
    assert {f"new-{number}" for number in range(10)} <= here.held()
    assert here.store.evicted_unfull == 0
    assert len(here.held()) <= 16


def test_a_flood_of_keys_does_not_wash_out_an_exhausted_bucket() -> None:
    here = Bounded(max_buckets=50)
    assert here.take("attacker", 100)
    for number in range(500):
        assert here.take(f"flood-{number}", 1)
    assert "attacker" in here.held()
    assert len(here.held()) <= 50
    assert not here.take("attacker", 1, here.another()), "a fresh bucket was handed out"


def test_when_none_is_full_the_fullest_go_and_are_counted() -> None:
    here = Bounded(max_buckets=4)
    for amount in (100, 10, 60, 30):
        assert here.take(f"took-{amount}", amount)
    assert here.take("newest", 90)
    assert here.held() == {"took-100", "took-60", "took-30", "newest"}
    assert here.store.evicted_unfull == 1


def test_only_buckets_are_evicted() -> None:
    here = Bounded(max_buckets=4)
    here.limiter.create_entity("org")
    here.limiter.set_limits("org", HOURLY)
    here.limiter.set_resource_defaults("gpt-5", HOURLY)
    for number in range(100):
        here.take(f"key-{number}", 1)
    assert here.limiter.get_entity("org") is not None
    assert here.limiter.get_limits("org") == HOURLY
    assert here.limiter.get_resource_defaults("gpt-5") == HOURLY
    assert len(here.limiter.get_audit_events("org")) == 2


def test_neither_records_nor_indexes_grow_without_bound() -> None:
    here = Bounded(max_buckets=10)
    here.take("key", 1)
    others = len(here.store) - 1
    for number in range(200):
        here.take(f"key-{number}", 1)
        assert len(here.store) <= others + 10 + 10, "buckets, and what those that went had used"
    assert here.store.dropped_usage > 0
    for groups in (here.store._table.partitions, *here.store._table._indexes.values()):
        assert len(groups._members) == len({group for group in groups._members if groups.get(group)}), (
            "an empty group stays"
        )
        assert sum(len(groups.get(group)) for group in groups._members) <= len(here.store)
    assert len(here.store._queue) <= 2 * 10 + MOST_LOOKS


@pytest.mark.parametrize("poison", ["lots", 0.5, None, True])
def test_a_poisoned_bucket_does_not_stop_the_eviction(poison: object) -> None:
    here = Bounded(max_buckets=8)
    here.take("sick", 1)
    sick = keys.bucket(namespace_id(here.store), "sick", "gpt-4")
    run(here.store.commit([Write(sick, put={"b_rpm_tk": poison})]))
    for number in range(40):
        assert here.take(f"key-{number}", 1)
    assert len(here.held()) <= 8


def namespace_id(store: MemoryStore) -> str:
    image = run(store.read([keys.namespace("default")]))[0]
    assert image is not None
    return str(image["namespace_id"])


def test_expired_records_are_absent_to_every_verb_and_dropped_when_met() -> None:
    clock = ManualClock(1_000_000)
    store = MemoryStore(clock)
    key, write = Key("p", "s"), Write(Key("p", "s"), (ABSENT,), {"n": 1, "GSI1PK": "g"}, expires_at_ms=1_005_000)
    assert isinstance(run(store.commit([write])), Committed)
    assert run(store.commit([write])) == Conflict({key: {"n": 1, "GSI1PK": "g", "ttl": 1005}})
    clock.set_ms(1_004_999)
    assert len(run(store.query(Query("g", gsi="GSI1"))).items) == 1
    clock.set_ms(1_005_000)
    assert run(store.query(Query("g", gsi="GSI1"))).items == ()
    assert run(store.read([key])) == [None]
    assert len(store) == 0
    assert run(store.commit([Write(key, add={"n": 5})])) == Committed(({"n": 5},)), "nothing of the old one is left"


def test_an_expired_bucket_starts_full_again() -> None:
    here = Bounded()
    assert here.take("key", 100)
    here.clock.advance(7 * 3_600 + 1)
    with here.limiter.acquire("key", "gpt-4", {"rpm": 1}, HOURLY) as lease:
        assert lease.available == {"rpm": 99}


def test_an_image_that_was_handed_out_never_changes() -> None:
    store, key = MemoryStore(ManualClock()), Key("p", "s")
    first = run(store.commit([Write(key, put={"n": 1})]))
    assert isinstance(first, Committed)
    seen = run(store.read([key]))[0]
    run(store.commit([Write(key, put={"m": 1}, add={"n": 5}, remove=("x",))]))
    assert seen == first.images[0] == {"n": 1}


def test_a_named_memory_store_lives_as_long_as_somebody_uses_it() -> None:
    url = "memory://test-memory-shared"
    one, two = SyncRateLimiter(url), SyncRateLimiter(SyncRepository(url))
    with one.acquire("key", "gpt-4", {"rpm": 60}, HOURLY):
        pass
    with pytest.raises(RateLimitExceeded), two.acquire("key", "gpt-4", {"rpm": 60}, HOURLY):
        pass
    one.close()
    del one
    assert two.available("key", "gpt-4", HOURLY) == {"rpm": 40}
    two.close()
    del two
    gc.collect()
    assert SyncRateLimiter(url).available("key", "gpt-4", HOURLY) == {"rpm": 100}


def test_threads_on_one_store_keep_records_and_indexes_whole() -> None:
    here = Bounded(max_buckets=40)
    workers, rounds = 8, 60
    together = threading.Barrier(workers)

    def work(worker: int) -> int:
        limiter = here.another()
        together.wait()
        passed = 0
        for number in range(rounds):
            limiter.create_entity(f"{worker}-{number}", parent_id=None)
            passed += here.take("shared", 1, limiter)
            here.take(f"flood-{worker}-{number}", 1, limiter)
            if number % 3 == 0:
                limiter.delete_entity(f"{worker}-{number}")
        return passed

    with ThreadPoolExecutor(workers) as pool:
        assert sum(pool.map(work, range(workers))) == 100
    table = here.store._table
    for attribute, groups in table._indexes.items():
        indexed = {name for group in groups._members for name in groups.get(group)}
        assert indexed == {name for name in table.names() if attribute in (table.get(name) or {})}
    partitioned = {name for group in table.partitions._members for name in table.partitions.get(group)}
    assert partitioned == {name for name in table.names() if not is_bucket(name)}
    assert table.buckets == len(here.held()) <= 40
    kept = {f"{worker}-{number}" for worker in range(workers) for number in range(rounds) if number % 3}
    assert all(here.limiter.get_entity(entity) is not None for entity in kept)


def test_a_commit_of_several_writes_is_all_or_nothing_under_threads() -> None:
    store = MemoryStore(ManualClock())
    pair = [Key("a", "s"), Key("b", "s")]
    run(store.commit([Write(key, put={"n": 0}) for key in pair]))
    torn: list[object] = []

    def write() -> None:
        for _ in range(500):
            run(store.commit([Write(key, add={"n": 1}) for key in pair]))

    def look() -> None:
        for _ in range(500):
            one, two = run(store.read(pair))
            if one != two:
                torn.append((one, two))

    threads = [threading.Thread(target=target) for target in (write, write, look, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torn == []
    assert run(store.read(pair)) == [{"n": 1_000}, {"n": 1_000}]
