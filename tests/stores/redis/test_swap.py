"""Swapping: a commit replaces records as a whole, but only while they are what this client last saw of them."""

from __future__ import annotations

import threading
from hashlib import sha1

import pytest
from hypothesis import given, strategies as st

from tests.stores.redis.support import Driven, bucket_key
from tests.support.redis.server import Server
from zae_limiter import CorruptRecordError, Limit, SyncRateLimiter
from zae_limiter.records.algebra import ABSENT, TTL, Committed, Conflict, Image, Key, Write, apply_write
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.redis import images, resp
from zae_limiter.stores.redis.images import encode
from zae_limiter.stores.redis.resp import Reader
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis
from zae_limiter.testing import ManualClock

KEY = Key("ns/BUCKET#key#gpt-4#0", "#STATE")
PARENT = Key("ns/BUCKET#parent#gpt-4#0", "#STATE")
Outcome = Committed | Conflict


def scripts_run(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that a store runs from now on, by name."""
    names = {resp.SWAP: "swap", resp.COMMIT: "commit"}
    ran: list[str] = []
    original = store.client.run

    async def noting(key: str, command: bytes, deadline: float, script: resp.Script) -> object:
        ran.append(names[script])
        return await original(key, command, deadline, script)

    monkeypatch.setattr(store.client, "run", noting)
    return ran


def made(mode: Driven, store: RedisStore, put: Image, key: Key = KEY, expires_at_ms: int | None = None) -> Image:
    """A new record, as the store shows it."""
    outcome = mode.run(store.commit([Write(key, (ABSENT,), put, expires_at_ms=expires_at_ms)]))
    assert isinstance(outcome, Committed)
    assert outcome.images[0] is not None
    return outcome.images[0]


def add(mode: Driven, store: RedisStore, seen: Image | None, amount: int) -> Outcome:
    return mode.run(store.commit([Write(KEY, (("n", ">=", -1000),), add={"n": amount}, seen=seen)]))


def image_of(outcome: Outcome) -> Image:
    assert isinstance(outcome, Committed)
    assert outcome.images[0] is not None
    return outcome.images[0]


def test_what_was_seen_last_is_replaced(mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = mode.store(server.url)
    seen = made(mode, store, {"n": 1, "name": "ä=\n", "m": 2})
    ran = scripts_run(store, monkeypatch)
    assert add(mode, store, seen, 4) == Committed(({"n": 5, "name": "ä=\n", "m": 2},), undisturbed=True)
    assert ran == ["swap"]
    assert mode.run(store.read([KEY])) == [{"n": 5, "name": "ä=\n", "m": 2}]


def test_a_number_that_is_put_and_added_to_is_replaced_once(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mode.store(server.url)
    seen = made(mode, store, {"n": 1, "m": 5})
    ran = scripts_run(store, monkeypatch)
    after = image_of(mode.run(store.commit([Write(KEY, put={"n": 0, "m": 6}, add={"n": 1000}, seen=seen)])))
    assert image_of(add(mode, store, after, 1)) == {"n": 1001, "m": 6}
    assert ran == ["swap", "swap"]
    assert mode.run(store.read([KEY])) == [{"n": 1001, "m": 6}]


def test_several_records_are_replaced_with_one_call(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mode.store(server.url)
    before = [made(mode, store, {"n": 1, "name": "é"}, key) for key in (KEY, PARENT)]
    ran = scripts_run(store, monkeypatch)
    writes = [Write(key, add={"n": 10}, seen=seen) for key, seen in zip((KEY, PARENT), before, strict=True)]
    after = {"n": 11, "name": "é"}
    assert mode.run(store.commit(writes)) == Committed((after, after), undisturbed=True)
    assert ran == ["swap"]
    assert mode.run(store.read([KEY, PARENT])) == [after, after]


def test_of_several_none_is_replaced_if_one_is_another_and_the_guards_do_not_hold(mode: Driven, server: Server) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    before = [made(mode, one, {"n": 1}, key) for key in (KEY, PARENT)]
    add(mode, other, None, 10)
    pairs = zip((KEY, PARENT), before, strict=True)
    writes = [Write(key, (("n", "<", 5),), add={"n": 1}, seen=seen) for key, seen in pairs]
    assert mode.run(one.commit(writes)) == Conflict({KEY: {"n": 11}, PARENT: {"n": 1}})
    assert mode.run(other.read([KEY, PARENT])) == [{"n": 11}, {"n": 1}]


def test_guards_that_hold_for_what_somebody_else_has_written_are_decided_in_the_same_commit(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    seen = made(mode, one, {"n": 1})
    add(mode, other, None, 10)
    ran = scripts_run(one, monkeypatch)
    assert add(mode, one, seen, 1) == Committed(({"n": 12},))
    assert ran == ["swap", "commit"]


def test_guards_that_do_not_hold_are_refused_although_nobody_else_has_written(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mode.store(server.url)
    seen = made(mode, store, {"n": 1, "m": 7})
    ran = scripts_run(store, monkeypatch)
    for guard in (("n", ">", 1), ("n", "between", (2, 9)), ("m", "=", 8), ("x", ">=", 0), ("", "absent", None)):
        write = Write(KEY, (("n", "=", 1), guard), add={"n": 1}, seen=seen)
        assert mode.run(store.commit([write])) == Conflict({KEY: {"n": 1, "m": 7}}), guard
    assert set(ran) == {"commit"}
    assert mode.run(store.read([KEY])) == [{"n": 1, "m": 7}]


def test_guards_that_do_not_hold_for_what_was_seen_are_decided_by_what_is_there(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    seen = made(mode, one, {"n": 1})
    add(mode, other, None, 10)
    ran = scripts_run(one, monkeypatch)
    write = Write(KEY, (("n", ">", 5),), add={"n": 1}, seen=seen)
    assert mode.run(one.commit([write])) == Committed(({"n": 12},))
    assert ran == ["commit"]


def test_who_is_alone_again_swaps_again(mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    seen = made(mode, one, {"n": 1})
    add(mode, other, None, 10)
    ran = scripts_run(one, monkeypatch)
    for _ in range(images.FULL_COMMITS + 1):
        seen = image_of(add(mode, one, seen, 1))
    assert ran == ["swap", *["commit"] * images.FULL_COMMITS, "swap"]
    assert seen == {"n": 12 + images.FULL_COMMITS}


def test_a_write_of_somebody_else_in_between_starts_the_count_again(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    seen = made(mode, one, {"n": 1})
    add(mode, other, None, 10)
    ran = scripts_run(one, monkeypatch)
    for turn in range(3 * images.FULL_COMMITS):
        if turn % 10 == 0:
            add(mode, other, None, 1)
        seen = image_of(add(mode, one, seen, 1))
    assert ran.count("swap") == 1


def test_a_lost_race_for_a_contended_record_keeps_the_count(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    seen = made(mode, one, {"n": 1})
    add(mode, other, None, 10)
    seen = image_of(add(mode, one, seen, 1))
    ran = scripts_run(one, monkeypatch)
    lost = mode.run(one.commit([Write(KEY, (("n", ">", 50),), add={"n": 1}, seen=seen)]))
    assert isinstance(lost, Conflict)
    add(mode, one, lost.images[KEY], 1)
    assert ran == ["commit", "commit"]


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
def test_a_record_that_is_gone_or_another_is_not_replaced(mode: Driven, server: Server, gone: Write) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    seen = made(mode, one, {"n": 1})
    mode.run(other.commit([gone]))
    before = mode.run(other.read([KEY]))
    assert add(mode, one, seen, 1) == Conflict({KEY: before[0]})
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


@pytest.mark.parametrize(
    "write",
    [
        Write(KEY, put={"n": 2**53 + 1}),
        Write(KEY, put={"n": 0.5}),
        Write(KEY, put={"n": "1"}),
        Write(KEY, put={"m": 1}),
        Write(KEY, put={"n": True}),
        Write(KEY, add={"m": 1}),
        Write(KEY, remove=("n",)),
        Write(KEY, delete=True),
        Write(KEY, (("n", "=", 7),)),
        Write(KEY, expires_at_ms=4_000_000_000_000),
    ],
)
def test_only_whole_numbers_that_are_exact_are_swapped(
    mode: Driven, server: Server, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mode.store(server.url)
    seen = made(mode, store, {"n": 7})
    ran = scripts_run(store, monkeypatch)
    assert isinstance(mode.run(store.commit([write._replace(seen=seen)])), Committed)
    assert ran == ["commit"]


@pytest.mark.parametrize("value", [2**53 + 2, "text", None, 1.5])
def test_what_nothing_can_be_added_to_is_refused(mode: Driven, server: Server, value: object) -> None:
    store = mode.store(server.url)
    seen = made(mode, store, {"n": value})
    with pytest.raises(CorruptRecordError):
        mode.run(store.commit([Write(KEY, add={"n": 2**53}, seen=seen)]))
    assert mode.run(store.read([KEY])) == [{"n": value}]


def test_the_expiry_is_put_off_with_it(mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = mode.store(server.url)
    now_ms = store.clock.now_ms()
    seen = made(mode, store, {"n": 1}, expires_at_ms=now_ms + 60_000)
    ran = scripts_run(store, monkeypatch)
    write = Write(KEY, add={"n": 1}, expires_at_ms=(seen[TTL] + 600) * 1000, seen=seen)
    assert mode.run(store.commit([write])) == Committed(({"n": 2, TTL: seen[TTL] + 600},), undisturbed=True)
    (key,) = [name for name in server.command("KEYS", "zae:*") if "\t" in name]
    assert 600 < int(server.command("TTL", key)) <= 662
    nearer = Write(KEY, add={"n": 1}, expires_at_ms=now_ms + 1000, seen=mode.run(store.read([KEY]))[0])
    assert mode.run(store.commit([nearer])) == Committed(({"n": 3, TTL: seen[TTL] + 600},), undisturbed=True)
    assert 600 < int(server.command("TTL", key)) <= 662
    assert ran == ["swap", "commit", "swap"]


def test_a_record_that_has_expired_is_not_replaced(mode: Driven, server: Server) -> None:
    clock = ManualClock()
    store = mode.store(server.url, clock=clock)
    seen = made(mode, store, {"n": 1}, expires_at_ms=clock.now_ms() + 10_000)
    clock.advance(11)
    assert add(mode, store, seen, 1) == Conflict({KEY: None})


def test_a_successor_that_has_expired_is_not_shown(mode: Driven, server: Server) -> None:
    clock = ManualClock()
    one, other = mode.store(server.url, clock=clock), mode.store(server.url, clock=clock)
    seen = made(mode, one, {"n": 1}, expires_at_ms=clock.now_ms() + 60_000)
    mode.run(other.commit([Write(KEY, delete=True)]))
    made(mode, other, {"n": 2}, expires_at_ms=clock.now_ms() + 10_000)
    clock.advance(11)
    assert add(mode, one, seen, 1) == Conflict({KEY: None})


numbers = st.integers(-(2**54), 2**54) | st.integers(-3, 3)
values = numbers | st.booleans() | st.none() | st.just("text") | st.floats(-2, 2)
names = st.sampled_from(["n", "m", "name", TTL, "new"])


@given(
    stored=st.dictionaries(names, values),
    put=st.dictionaries(names, values, max_size=2),
    add=st.dictionaries(names, numbers, max_size=2),
    remove=st.lists(names, max_size=1),
    expires_at_ms=st.none() | st.integers(0, 3_000),
    further=st.dictionaries(names, numbers, max_size=2),
)
def test_a_swap_leaves_the_image_and_the_text_of_the_write(
    stored: Image,
    put: Image,
    add: dict[str, int],
    remove: list[str],
    expires_at_ms: int | None,
    further: dict[str, int],
) -> None:
    if type(stored.get(TTL, 0)) is not int or type(put.get(TTL, 0)) is not int:
        return
    seen: Image | None = images.decode_image(Write(KEY), _text(stored), committed=True)
    write = Write(KEY, (), put, add, tuple(remove), expires_at_ms)
    for following in (write, Write(KEY, add=further), write):  # the form of the text is found once and then kept
        seen = seen and _swap(seen, following._replace(seen=seen))


def _swap(seen: Image, write: Write) -> Image | None:
    """Check what a swap sends and shows, if the write can be one."""
    swap = images.plan_swap(write, "zae:%s:%s", expire=True)
    after = None
    if swap is not None:
        name, arguments, after = swap
        assert after == apply_write(seen, write)
        ((key, digest, numbers, tail),) = Reader().feed(b"*4\r\n" + name + arguments)
        kept, *expires = numbers.split()
        assert key.decode() == f"zae:{KEY.pk}:{KEY.sk}"
        assert _text(seen).encode()[: int(kept)] + tail == _text(after).encode()
        assert images.decode_image(Write(KEY), _text(after), committed=True) == after
        assert expires == ([] if after.get(TTL) == seen.get(TTL) else [b"%d" % after[TTL]])
        assert digest.decode() == sha1(_text(seen).encode()).hexdigest()
    return after


def _text(image: Image) -> str:
    return "\n" + "".join(f"{attr}={encode(value)}\n" for attr, value in image.items())


@given(steps=st.lists(st.tuples(st.sampled_from(["seen", "commit", "look"]), st.integers(0, 1), st.integers(-5, 5))))
def test_in_any_order_nothing_is_lost_or_counted_twice(
    running: Server, steps: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "FULL_COMMITS", 0)
    running.flush()
    clients = [open_redis(parse(running.url), blocking=True) for _ in range(2)]
    seen: list[Image | None] = [None, None]
    run(clients[0].commit([Write(KEY, (), {"n": 0})]))
    total = 0
    for what, who, amount in steps:
        store = clients[who]
        if what == "look":
            (seen[who],) = run(store.read([KEY]))
            assert seen[who] == {"n": total}
        else:
            before = seen[who] if what == "seen" else None
            outcome = run(store.commit([Write(KEY, add={"n": amount}, seen=before)]))
            assert not (isinstance(outcome, Committed) and outcome.undisturbed) or before == {"n": total}
            total += amount
            seen[who] = image_of(outcome)
            assert seen[who] == {"n": total}
    for store in clients:
        assert run(store.read([KEY])) == [{"n": total}]
        run(store.close())


def test_threads_that_swap_the_same_record_count_each_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "FULL_COMMITS", 0)
    store = open_redis(parse(server.url), blocking=True)
    run(store.commit([Write(KEY, (), {"n": 0})]))
    ran = scripts_run(store, monkeypatch)

    def work() -> None:
        (seen,) = run(store.read([KEY]))
        for _ in range(100):
            seen = image_of(run(store.commit([Write(KEY, add={"n": 1}, seen=seen)])))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run(store.read([KEY])) == [{"n": 400}]
    assert ran.count("swap") == 400
    run(store.close())


def test_a_steady_acquire_sends_what_changes_and_not_what_stays(server: Server) -> None:
    """What never changes stands first in a record, so that it is not sent: 402 bytes both ways, 450 at most."""

    def count_bytes() -> int:
        lines = server.aside("INFO", "stats").splitlines()
        return sum(int(line.partition(":")[2]) for line in lines if line.startswith("total_net_"))

    with SyncRateLimiter(server.url) as limiter:
        limiter.set_system_defaults([Limit.per_minute("rpm", 1_000_000)])
        for _ in range(20):
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
        first, second = count_bytes(), count_bytes()
        for _ in range(100):
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
        taken = count_bytes() - second - (second - first)
    assert 100 * 300 < taken <= 100 * 450
