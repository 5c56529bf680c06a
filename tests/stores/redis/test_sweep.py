"""Sweeping: what the index says of records that have expired is taken away in passing, and nothing else is."""

from __future__ import annotations

import pytest

from tests.stores.redis.support import RPM, Driven, contents
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import Limit
from zae_limiter.records.algebra import NEVER, Committed, Key, Query, Write
from zae_limiter.stores.redis.index import BATCH
from zae_limiter.stores.redis.store import RedisStore
from zae_limiter.testing import ManualClock

LIFE_MS = 10_000
PER_RECORD = 3
"""Index entries of each record here: by its key, by GSI2, by GSI4."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(mode: Driven, server: Server, clock: ManualClock) -> RedisStore:
    return mode.store(server.url, clock=clock)


def key_of(number: int) -> Key:
    return Key(f"p{number}", "#1")


def write_of(number: int, clock: ManualClock, life_ms: int = LIFE_MS) -> Write:
    """A write that creates a record which expires."""
    put = {"n": number, "GSI2PK": "all", "GSI2SK": f"{number:06d}", "GSI4PK": "ns", "GSI4SK": f"{number:06d}"}
    return Write(key_of(number), (), put, expires_at_ms=clock.now_ms() + life_ms)


def sizes(server: Server, store: RedisStore) -> tuple[int, int]:
    """The entries of the index, and the records that it knows to expire."""
    return server.aside("ZCARD", store.layout.indexes[0]), server.aside("ZCARD", store.layout.expiries[0])


def sweep(mode: Driven, store: RedisStore) -> int:
    """Sweep once, now."""
    return mode.run(store._sweeper.sweep(0, store.client.deadline(None)))


def records(server: Server) -> int:
    return sum(key.endswith("\t#1") for key in server.aside("KEYS", "*"))


def test_records_that_have_expired_leave_the_index(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock
) -> None:
    mode.run(store.commit([write_of(number, clock) for number in range(5)]))
    mode.run(store.commit([write_of(number, clock, 2 * LIFE_MS) for number in range(5, 8)]))
    assert sizes(server, store) == (8 * PER_RECORD, 8)
    assert sweep(mode, store) == 0
    clock.advance_ms(LIFE_MS)
    assert sweep(mode, store) == 5
    assert (sizes(server, store), records(server)) == ((3 * PER_RECORD, 3), 3)
    assert [key for key, _ in mode.run(store.query(Query("all", gsi="GSI2"))).items] == [key_of(n) for n in (5, 6, 7)]
    clock.advance_ms(LIFE_MS)
    assert sweep(mode, store) == 3
    assert contents(server) == {}, "nothing at all is left"


def test_a_record_whose_expiry_was_put_off_stays(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock
) -> None:
    mode.run(store.commit([write_of(1, clock), write_of(2, clock)]))
    clock.advance_ms(LIFE_MS // 2)
    mode.run(store.commit([Write(key_of(1), (("n", "=", 1),), expires_at_ms=clock.now_ms() + LIFE_MS)]))
    clock.advance_ms(LIFE_MS // 2)
    assert sweep(mode, store) == 1
    assert sizes(server, store) == (PER_RECORD, 1)
    assert mode.run(store.read([key_of(1)])) != [None]
    clock.advance_ms(LIFE_MS)
    assert sweep(mode, store) == 1
    assert contents(server) == {}


def test_a_record_that_no_longer_expires_stays(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock
) -> None:
    mode.run(store.commit([write_of(1, clock)]))
    mode.run(store.commit([Write(key_of(1), (("n", "=", 1),), expires_at_ms=NEVER)]))
    clock.advance_ms(10 * LIFE_MS)
    assert sweep(mode, store) == 0
    assert sizes(server, store) == (PER_RECORD, 0)
    assert mode.run(store.query(Query("all", gsi="GSI2"))).items


def test_a_record_that_begins_to_expire_leaves_the_index_too(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock
) -> None:
    """A bucket under limits of its own does not expire; under the default limits again it does."""
    mode.run(store.commit([write_of(1, clock)._replace(expires_at_ms=None)]))
    mode.run(store.commit([Write(key_of(1), (("n", "=", 1),), add={"n": 1}, expires_at_ms=clock.now_ms() + LIFE_MS)]))
    clock.advance_ms(LIFE_MS)
    sweep(mode, store)
    assert contents(server) == {}


def test_a_bucket_whose_own_limits_have_ended_leaves_the_index(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock
) -> None:
    limiter = mode.limiter(store, bucket_ttl_refill_multiplier=1)
    mode.run(limiter.set_system_defaults(RPM))
    mode.run(limiter.set_limits("key", [Limit.per_hour("rpm", 50)], "gpt-4"))
    assert mode.take(limiter, limits=None) == "granted"
    mode.run(limiter.delete_limits("key", "gpt-4"))
    assert mode.take(limiter, limits=None) == "granted"
    clock.advance(365 * 86_400)
    sweep(mode, store)
    left = server.aside("ZRANGE", store.layout.indexes[0], 0, -1)
    assert not [entry for entry in left if "BUCKET#key" in entry]


def test_a_record_that_comes_back_before_the_sweep_stays(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock
) -> None:
    mode.run(store.commit([write_of(1, clock)]))
    clock.advance_ms(LIFE_MS)
    moved = write_of(1, clock)
    moved = moved._replace(put={**moved.put, "GSI2SK": "elsewhere"})
    mode.run(store.commit([moved]))
    assert sweep(mode, store) == 0
    assert [image["GSI2SK"] for _, image in mode.run(store.query(Query("all", gsi="GSI2"))).items] == ["elsewhere"]
    clock.advance_ms(LIFE_MS)
    sweep(mode, store)
    assert contents(server) == {}


def test_the_index_is_bounded_under_a_flood_of_new_keys(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock
) -> None:
    """Every new key lives for ten seconds, and a hundred come a second: never many more than a thousand are known."""
    most = 0
    for number in range(2000):
        mode.run(store.commit([write_of(number, clock)]))
        clock.advance_ms(10)
        if number % 100 == 0:
            most = max(most, sizes(server, store)[1])
    assert most <= 1000 + 2 * BATCH
    clock.advance_ms(LIFE_MS)
    while sweep(mode, store):
        pass
    assert contents(server) == {}


def test_a_client_that_creates_nothing_sweeps_now_and_then(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode.run(store.commit([write_of(number, clock) for number in range(50)]))
    mode.run(store.commit([Write(Key("kept", "#1"), (), {"n": 1})]))
    clock.advance_ms(LIFE_MS)
    monkeypatch.setattr(store._sweeper, "due", 0.0)
    mode.run(store.commit([Write(Key("kept", "#1"), (("n", "=", 1),), add={"n": 1})]))
    assert sizes(server, store) == (1, 0)


def test_what_goes_wrong_with_a_sweep_is_not_told(
    mode: Driven, server: Server, store: RedisStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode.run(store.commit([Write(Key("kept", "#1"), (), {"n": 1})]))
    server.aside("SET", store.layout.expiries[0], "something else")
    monkeypatch.setattr(store._sweeper, "due", 0.0)
    found = mode.run(store.commit([Write(Key("kept", "#1"), (("n", "=", 1),), add={"n": 1})]))
    assert found == Committed(({"n": 2},))


def test_what_the_server_drops_by_itself_leaves_the_index(mode: Driven, server: Server) -> None:
    store = mode.store(server.url)
    mode.run(store.read([key_of(1)]))
    soon = Write(key_of(1), (), {"n": 1, "GSI2PK": "all"}, expires_at_ms=store.clock.now_ms() + 1)
    mode.run(store.commit([soon]))
    until(lambda: not server.aside("EXISTS", store.layout.records[0] % key_of(1)), "it is dropped", seconds=5)
    until(lambda: sweep(mode, store) == 1, "its index entries are taken away", seconds=5)
    assert contents(server) == {}


@pytest.mark.parametrize("foreign", ["garbage", "[1]", '["a", "b", 1]'])
def test_a_member_that_is_none_of_ours_does_not_stand_in_the_way(mode: Driven, server: Server, foreign: str) -> None:
    clock = ManualClock()
    store = mode.store(server.url, clock=clock)
    key = Key("ns/P", "#1")
    mode.run(store.commit([Write(key, (), {"n": 1}, expires_at_ms=clock.now_ms() + 1_000)]))
    server.command("ZADD", "zae:{0}:expiries", "1", foreign)
    clock.advance(10)
    assert mode.run(store._sweeper.sweep(0, store.client.deadline(None))) >= 1
    assert contents(server) == {}


def test_something_else_at_the_key_of_an_expired_record_is_left_alone(mode: Driven, server: Server) -> None:
    clock = ManualClock()
    store = mode.store(server.url, clock=clock)
    keys = [Key("ns/P", f"#{number}") for number in range(3)]
    mode.run(store.commit([Write(key, (), {"n": 1}, expires_at_ms=clock.now_ms() + 1_000) for key in keys]))
    server.command("DEL", "zae:{0}:ns/P\t#1")
    server.command("RPUSH", "zae:{0}:ns/P\t#1", "mine")
    clock.advance(10)
    assert mode.run(store._sweeper.sweep(0, store.client.deadline(None))) == 3
    assert list(contents(server)) == ["zae:{0}:ns/P\t#1"]
