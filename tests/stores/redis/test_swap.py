"""Swapping: a record is replaced as a whole, but only while it is what this client last saw of it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, strategies as st

from tests.stores.redis.support import Driven, bucket_key
from tests.support.redis.server import Server
from zae_limiter import CorruptRecordError
from zae_limiter.records.algebra import TTL, Committed, Conflict, Image, Key, Write
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.redis import mirror
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis
from zae_limiter.testing import ManualClock

KEY = Key("ns/BUCKET#key#gpt-4#0", "#STATE")


def added(image: Image, amount: int) -> Image:
    return {**image, "n": image["n"] + amount}


def swapped(mode: Driven, store: RedisStore, amount: int) -> Image | Conflict | None:
    return mode.run(store.swap(KEY, store.clock.now_ms(), None, added, amount))


def test_what_was_seen_last_is_replaced(mode: Driven, server: Server) -> None:
    store = mode.store(server.url)
    assert swapped(mode, store, 1) is None  # never seen
    mode.run(store.commit([Write(KEY, (), {"n": 1, "name": "ä=\n"})]))
    assert swapped(mode, store, 4) == {"n": 5, "name": "ä=\n"}
    assert mode.run(store.read([KEY])) == [{"n": 5, "name": "ä=\n"}]


def test_what_somebody_else_has_written_is_not_and_is_seen_then(mode: Driven, server: Server) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    mode.run(one.commit([Write(KEY, (), {"n": 1})]))
    mode.run(other.commit([Write(KEY, add={"n": 10})]))
    assert swapped(mode, one, 1) == Conflict({KEY: {"n": 11}})
    server.reset_stats()
    assert swapped(mode, one, 1) is None  # it is in doubt now, which costs no call
    assert "evalsha" not in server.command_stats()
    assert mode.run(one.read([KEY])) == [{"n": 11}]


def test_who_is_alone_again_swaps_again(mode: Driven, server: Server) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    mode.run(one.commit([Write(KEY, (), {"n": 1})]))
    mode.run(other.commit([Write(KEY, add={"n": 10})]))
    assert isinstance(swapped(mode, one, 1), Conflict)
    for _ in range(mirror._PROOFS):
        assert swapped(mode, one, 1) is None
        mode.run(one.commit([Write(KEY, add={"n": 1})]))
    assert swapped(mode, one, 1) == {"n": 12 + mirror._PROOFS}


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_clients_that_take_turns_pay_one_call_each_time(mode: Driven, server: Server, turns: int) -> None:
    limiters = [mode.limiter(server.url) for _ in range(2)]
    for limiter in limiters:
        assert [mode.take(limiter) for _ in range(2)] == ["granted", "granted"]
    server.reset_stats()
    for turn in range(40):
        assert mode.take(limiters[turn // turns % 2]) == "granted"
    assert server.command_stats()["evalsha"] <= 40 + 4


@pytest.mark.parametrize("gone", [Write(KEY, delete=True), Write(KEY, (), {"m": 1}, remove=("n",))])
def test_a_record_that_is_gone_or_another_is_not(mode: Driven, server: Server, gone: Write) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    mode.run(one.commit([Write(KEY, (), {"n": 1})]))
    mode.run(other.commit([gone]))
    before = mode.run(other.read([KEY]))
    assert swapped(mode, one, 1) == Conflict({KEY: before[0]})
    assert mode.run(other.read([KEY])) == before


@pytest.mark.parametrize("foreign", ["=", "!", "", "\n", "hello"])
def test_what_is_no_record_is_said_to_be_none(mode: Driven, server: Server, foreign: str) -> None:
    limiter = mode.limiter(server.url)
    assert mode.take(limiter) == "granted"
    server.command("SET", bucket_key(server, "key"), foreign)
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            mode.take(limiter)
    mode.run(limiter.reset_bucket("key", "gpt-4"))
    assert mode.take(limiter) == "granted"


@pytest.mark.parametrize("change", [{"n": 2**53 + 1}, {"n": 0.5}, {"n": "1"}, {"n": 1, "m": 1}, {}])
def test_only_whole_numbers_that_are_exact_are_changed(mode: Driven, server: Server, change: Image) -> None:
    store = mode.store(server.url)
    mode.run(store.commit([Write(KEY, (), {"n": 7})]))
    assert mode.run(store.swap(KEY, store.clock.now_ms(), None, lambda _: change)) is None
    assert mode.run(store.read([KEY])) == [{"n": 7}]


def test_the_expiry_is_put_off_with_it(mode: Driven, server: Server) -> None:
    store = mode.store(server.url)
    now_ms = store.clock.now_ms()
    mode.run(store.commit([Write(KEY, (), {"n": 1}, expires_at_ms=now_ms + 60_000)]))
    (image,) = mode.run(store.read([KEY]))
    assert image is not None
    later = image[TTL] + 600
    assert mode.run(store.swap(KEY, now_ms, None, lambda seen: {**seen, TTL: later})) is not None
    (key,) = [name for name in server.command("KEYS", "zae:*") if "\t" in name]
    assert 600 < int(server.command("TTL", key)) <= 662


def test_a_record_that_has_expired_is_not(mode: Driven, server: Server) -> None:
    clock = ManualClock()
    store = mode.store(server.url, clock=clock)
    mode.run(store.commit([Write(KEY, (), {"n": 1}, expires_at_ms=clock.now_ms() + 10_000)]))
    clock.advance(11)
    assert swapped(mode, store, 1) is None
    assert mode.run(store.read([KEY])) == [None]


@given(steps=st.lists(st.tuples(st.sampled_from(["swap", "commit", "look"]), st.integers(0, 1), st.integers(-5, 5))))
def test_in_any_order_nothing_is_lost_or_counted_twice(
    running: Server, steps: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror.Mirror, "doubt", lambda *_: None)
    running.flush()
    clients = [open_redis(parse(running.url), blocking=True) for _ in range(2)]
    run(clients[0].commit([Write(KEY, (), {"n": 0})]))
    total = 0
    for what, who, amount in steps:
        store = clients[who]
        if what == "swap":
            found = run(store.swap(KEY, 0, None, added, amount))
            total += amount if isinstance(found, dict) else 0
            assert found in (None, {"n": total}, Conflict({KEY: {"n": total}}))
        elif what == "commit":
            total += amount
            outcome = run(store.commit([Write(KEY, add={"n": amount})]))
            assert outcome == Committed(({"n": total},))
        else:
            assert run(store.read([KEY])) == [{"n": total}]
    for store in clients:
        assert run(store.read([KEY])) == [{"n": total}]
        run(store.close())


def test_threads_that_swap_the_same_record_count_each_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror.Mirror, "doubt", lambda *_: None)
    store = open_redis(parse(server.url), blocking=True)
    run(store.commit([Write(KEY, (), {"n": 0})]))
    done: list[int] = []

    def work() -> None:
        done.extend(1 for _ in range(100) if isinstance(run(store.swap(KEY, 0, None, added, 1)), dict))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run(store.read([KEY])) == [{"n": len(done)}]
    assert len(done) > 100
    run(store.close())
