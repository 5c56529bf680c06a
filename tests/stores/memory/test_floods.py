"""Floods of new keys: what a key costs does not depend on how many there are, and all that is remembered is bounded."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from bench import flood
from tests.limiter.test_concurrency import in_a_fork
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository, ValidationError
from zae_limiter.records import bucket, keys
from zae_limiter.records.algebra import Image, Query
from zae_limiter.runtime.blocking import run
from zae_limiter.stores import table
from zae_limiter.stores.bounded import BoundedMap
from zae_limiter.stores.eviction import MOST_LOOKS, Unbooked
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.table import Packer
from zae_limiter.testing import ManualClock

HOURLY = [Limit.per_hour("rpm", 100)]


def opened(store: MemoryStore | str, max_cached_keys: int = 10) -> SyncRateLimiter:
    """A limiter that remembers little, with limits that every key has."""
    limiter = SyncRateLimiter(SyncRepository(store, max_cached_keys=max_cached_keys))
    limiter.set_system_defaults(HOURLY)
    return limiter


def take(limiter: SyncRateLimiter, entity: str, amount: int = 1) -> bool:
    try:
        with limiter.acquire(entity, "gpt-4", {"rpm": amount}):
            return True
    except RateLimitExceeded:
        return False


def has_bucket(store: MemoryStore, entity: str) -> bool:
    found = run(store.read([keys.namespace("default")]))[0]
    assert found is not None
    return run(store.read([keys.bucket(found["namespace_id"], entity, "gpt-4")]))[0] is not None


def test_a_new_key_looks_at_a_few_buckets_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    full_at = bucket.full_at

    def counted(image: Image) -> int:
        nonlocal looks
        looks += 1
        return full_at(image)

    limiter = opened(MemoryStore(ManualClock(), max_buckets=500))
    for number in range(500):
        assert take(limiter, f"early-{number}")
    monkeypatch.setattr(bucket, "full_at", counted)
    for number in range(500):
        assert take(limiter, f"late-{number}")
    assert looks <= 3 * 500


def test_a_flood_leaves_nothing_that_the_collector_looks_at() -> None:
    assert in_a_fork(_count_new_objects)() < 100  # where no other thread makes any


def _count_new_objects() -> int:
    """How many more objects the collector looks at after 2,000 new keys."""
    limiter = opened(MemoryStore(ManualClock()))
    for number in range(100):
        take(limiter, f"early-{number}")
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2_000):
        take(limiter, f"late-{number}")
    gc.collect()
    return len(gc.get_objects()) - before


def test_a_flood_makes_no_cycles() -> None:
    limiter = opened(MemoryStore(ManualClock(), max_buckets=50))
    take(limiter, "first")
    gc.collect()
    gc.disable()
    try:
        for number in range(500):
            take(limiter, f"key-{number}", 1 if number % 2 else 101)
        assert gc.collect() < 50
    finally:
        gc.enable()


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_one_option_bounds_all_that_a_client_remembers_of_keys(scheme: str, tmp_path: Path) -> None:
    limiter = opened("memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/limits.db", max_cached_keys=5)
    for number in range(50):
        assert take(limiter, f"key-{number}", 60)
    inner = limiter._inner
    assert len(inner._chains._known) == len(inner._backend.last_seen) == 5
    # The memory store tells at once that an entity has no config, so nothing of it is cached.
    assert limiter.repository.get_cache_stats().size == (1 if scheme == "memory" else 5)
    for number in range(50):
        assert not take(limiter, f"key-{number}", 60), "what is forgotten is not handed out anew"
    limiter.close()


def test_what_was_put_in_longest_ago_is_forgotten_first() -> None:
    known: BoundedMap[str, int] = BoundedMap(3)
    for number, name in enumerate("abc"):
        known.put(name, number)
    known.put("a", 0)
    known.put("d", 3)
    assert [known.get(name) for name in "abcd"] == [0, None, 2, 3]
    assert known.get_or_make("c", int) == 2
    known.put("e", 4)
    known.put("f", 5)
    assert known.get("c") == 2, "what is asked for to be kept is the newest again"
    known.drop("c")
    assert len(known) == 2


def test_keys_under_the_same_limits_share_what_they_have_in_common() -> None:
    limiter = opened(MemoryStore(ManualClock()))
    with limiter.acquire("one", "gpt-4", {"rpm": 1}) as one, limiter.acquire("two", "gpt-4", {"rpm": 1}) as two:
        assert one._grant is not None
        assert two._grant is not None
        first, second = one._grant.chain.primary_shards[0].level, two._grant.chain.primary_shards[0].level
        assert first.limits is second.limits
        assert first.token_limits is second.token_limits


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_client_remembers_at_least_one_key(count: object) -> None:
    with pytest.raises(ValidationError, match="max_cached_keys"):
        SyncRepository("memory://", max_cached_keys=count)  # type: ignore[arg-type]


def test_records_that_were_packed_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_UNPACKED", 4)
    store = MemoryStore(ManualClock())
    limiter = opened(store)
    for entity in range(20):
        assert take(limiter, f"key-{entity}", entity)
    kept = store._table
    packed = [name for name in kept.names() if table.is_bucket(name) and name not in kept.images]
    assert len(packed) == 16
    for name in packed:
        assert isinstance(name, str)
        image = kept.get(name)
        assert kept.use(name) == image
        assert image is not None
        assert bucket.inspect(table.key_of(name), image) is image
        assert image["cascade"] is False
    for entity in range(20):
        assert limiter.available(f"key-{entity}", "gpt-4") == {"rpm": 100 - entity}
        assert take(limiter, f"key-{entity}", 80) == (entity <= 20)
        assert limiter.available(f"key-{entity}", "gpt-4") == {"rpm": 20 - entity}
    assert len(limiter.get_resource_capacity("gpt-4", "rpm").entities) == 20


def test_records_with_any_number_of_different_attributes_are_packed() -> None:
    packer = Packer()
    images = [{f"b_{number}_tk": number, "cascade": False, "name": "é\udc80", "none": None} for number in range(1_100)]
    packed = [packer.pack(image) for image in images]
    assert [packer.unpack(each) for each in packed if each is not None] == images
    assert len(packer._names) == 1_000, "the others keep their own"
    assert packer.pack({"what": object()}) is None


def test_an_exhausted_bucket_stays_though_everybody_has_come_again_since() -> None:
    clock = ManualClock()
    most = 2 * MOST_LOOKS
    store = MemoryStore(clock, max_buckets=most)
    limiter = opened(store)
    assert take(limiter, "attacker", 100)
    for number in range(most - 1):
        assert take(limiter, f"key-{number}")
    clock.advance(1_800)
    for number in range(most - 1):
        assert take(limiter, f"key-{number}", 2)
    for number in range(20):
        assert take(limiter, f"flood-{number}", 3)
        assert store._table.buckets <= most + 2
    assert store._table.buckets == most
    assert has_bucket(store, "attacker")
    assert not take(limiter, "attacker", 60), "it has half of its tokens again, and no more"


def test_a_bucket_that_got_its_tokens_back_goes_before_those_that_are_not_full() -> None:
    store = MemoryStore(ManualClock(), max_buckets=4)
    limiter = opened(store)
    for entity in ("a", "c", "d"):
        assert take(limiter, entity, 50)
    with pytest.raises(ZeroDivisionError), limiter.acquire("b", "gpt-4", {"rpm": 90}):
        raise ZeroDivisionError
    assert take(limiter, "e", 60)
    assert [entity for entity in "abcde" if has_bucket(store, entity)] == ["a", "c", "d", "e"]
    assert store.evicted_unfull == 0


def test_notes_of_buckets_that_are_gone_do_not_pile_up() -> None:
    store = MemoryStore(ManualClock())
    limiter = opened(store)
    for number in range(2 * MOST_LOOKS):
        assert take(limiter, "key", number % 100)
        limiter.reset_bucket("key", "gpt-4")
    assert len(store._queue) <= 2 + MOST_LOOKS + 1


def test_usage_of_forgotten_buckets_is_there_when_somebody_asks() -> None:
    store = MemoryStore(ManualClock(), max_buckets=60)
    limiter = opened(store)
    for number in range(75):
        assert take(limiter, f"key-{number}", 2)
    namespace = run(store.read([keys.namespace("default")]))[0]
    assert namespace is not None
    index = keys.gsi2_pk_resource(namespace["namespace_id"], "gpt-4")
    found = run(store.query(Query(index, "USAGE#", gsi="GSI2", limit=1_000))).items
    assert sorted(image["window"] for _, image in found) == ["daily"] * 15 + ["hourly"] * 15 + ["monthly"] * 15
    assert {image["rpm"] for _, image in found} == {2_000}
    assert len({key for key, _ in found}) == 45
    assert store.dropped_usage == 0


def test_usage_of_several_forgotten_buckets_of_one_entity_is_all_there() -> None:
    store = MemoryStore(ManualClock())
    limiter = opened(store)
    for resource in ("gpt-4", "gpt-5", "gpt-6"):
        with limiter.acquire("key", resource, {"rpm": 5}):
            pass
    buckets = {name: store._table.get(name) for name in store._table.names() if table.is_bucket(name)}
    for last in ("book", "drop"):
        unbooked = Unbooked(90, Packer())
        for name, image in buckets.items():
            assert isinstance(name, str)
            assert image is not None
            unbooked.add(name, image, None)
        assert unbooked.windows == 9
        (entity,) = unbooked.entities()
        if last == "drop":
            assert unbooked.drop_oldest() == 9
        else:
            writes = unbooked.book(entity)
            assert sorted(write.put["resource"] for write in writes) == [
                f"gpt-{n}" for n in (4, 4, 4, 5, 5, 5, 6, 6, 6)
            ]
            assert {write.add["rpm"] for write in writes} == {5_000}
        assert unbooked.windows == 0
        assert unbooked.book(entity) == []


def test_usage_of_those_who_come_again_outlasts_that_of_a_flood() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, max_buckets=30)
    limiter = opened(store)
    for _ in range(2):
        assert take(limiter, "customer", 90)
        clock.advance(3_600)
    for number in range(300):
        assert take(limiter, f"key-{number}")
    assert store.dropped_usage > 0
    monthly, _ = limiter.get_usage_snapshots("customer", window_type="monthly")
    assert [each.counters for each in monthly] == [{"rpm": 90}], "what was booked before the flood came"


@pytest.mark.parametrize("mode", ["blocking", "async"])
def test_the_flood_benchmark_measures(mode: str) -> None:
    figures = flood.measure(flood.Case(mode, 200, 50))
    assert figures["cpu_us"] > 0
    assert figures["longest_ms"] >= figures["cpu_us"] / 1_000


def test_there_are_never_more_buckets_than_may_be_and_a_few_are_forgotten_at_a_time() -> None:
    store = MemoryStore(ManualClock(), max_buckets=3_000)
    limiter = opened(store)
    counts = []
    for number in range(3_010):
        assert take(limiter, f"key-{number}")
        counts.append(store._table.buckets)
    assert max(counts) == 3_000
    assert min(counts[3_000:]) == 2_997


@pytest.mark.parametrize("cascade", [False, True])
def test_a_bucket_is_found_by_every_index_however_it_was_made(cascade: bool) -> None:
    limiter = opened(MemoryStore(ManualClock()))
    limiter.create_entity("org")
    limiter.create_entity("key/1", parent_id="org", cascade=cascade)  # a cascade is a commit, else it is made in place
    assert take(limiter, "key/1")
    assert [state.entity_id for state in limiter.get_buckets("key/1")] == ["key/1"]
    assert limiter.get_buckets("key") == []
    expected = {"key/1", "org"} if cascade else {"key/1"}
    assert {balance.entity_id for balance in limiter.get_resource_capacity("gpt-4", "rpm").entities} == expected
    assert {load.entity_id for load in limiter.repository.survey_buckets().loads} == expected
