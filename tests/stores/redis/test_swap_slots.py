"""Swapping buckets with slots: what changes is sent, the slots of others stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from tests.stores.redis.support import Driven, bucket_key
from tests.stores.redis.test_swap import made, scripts_run
from tests.support.redis.server import Server
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.records.algebra import (
    MISSING_OR_AT_MOST,
    Committed,
    Conflict,
    Guard,
    Image,
    Key,
    Write,
    apply_write,
    holds,
)
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.redis import images
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis

KEY = Key("ns/BUCKET#key#gpt-4#0", "#STATE")
NOW = 1_000
LIMITS = [Limit.concurrent("slots", 100, ttl=600)]
EMPTY = {"rf": 1, "sl": 1, "b_slots_cp": 100_000, "b_slots_tn": 0, "b_slots_tc": 0, "name": "ä"}


def take(image: Image, *numbers: int, ownership_token: str = "1.a") -> Write:
    """A write that takes slots."""
    put = {
        attr: value for n in numbers for attr, value in ((f"s_slots_{n}", NOW + 500), (f"f_slots_{n}", ownership_token))
    }
    guards = tuple(Guard(f"s_slots_{n}", MISSING_OR_AT_MOST, NOW) for n in numbers)
    return Write(KEY, guards, put, {"b_slots_tn": len(numbers)}, seen=image)


def release(image: Image, *numbers: int, ownership_token: str = "1.a") -> Write:
    """A write that frees slots."""
    attrs = tuple(f"{prefix}_slots_{n}" for n in numbers for prefix in ("s", "f"))
    guards = tuple(Guard(f"f_slots_{n}", "=", ownership_token) for n in numbers)
    return Write(KEY, guards, add={"b_slots_tc": 7}, remove=attrs, seen=image)


def renew(image: Image, *numbers: int, until: int = NOW + 900, ownership_token: str = "1.a") -> Write:
    """A write that holds slots for longer."""
    guards = tuple(Guard(f"f_slots_{n}", "=", ownership_token) for n in numbers)
    return Write(KEY, guards, {f"s_slots_{n}": until for n in numbers}, {"b_slots_tc": 9}, seen=image)


def commit(store: RedisStore, mode: Driven, write: Write) -> Image:
    outcome = mode.run(store.commit([write]))
    assert isinstance(outcome, Committed)
    (image,) = outcome.images
    assert image is not None
    assert image == mode.run(store.read([KEY]))[0]
    return image


def test_slots_are_taken_renewed_and_freed_by_swaps(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mode.store(server.url)
    image = made(mode, store, EMPTY)
    ran = scripts_run(store, monkeypatch)
    steps = [
        (take, (1, 2)), (take, (3,)), (renew, (2,)), (release, (1,)), (take, (1,)), (release, (2, 3)), (release, (1,)),
    ]  # fmt: skip
    for step, numbers in steps:
        write = step(image, *numbers)
        expected = apply_write(image, write)
        image = commit(store, mode, write)
        assert image == expected
    assert image == {**EMPTY, "b_slots_tn": 4, "b_slots_tc": 30}
    assert [name for name in ran if name == "swap"] == ["swap"] * len(steps)


def test_an_expired_slot_is_taken_by_a_swap(mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = mode.store(server.url)
    gone = {"s_slots_1": NOW - 1, "f_slots_1": "0.b", "s_slots_2": NOW + 1, "f_slots_2": "0.c"}
    image = made(mode, store, {**EMPTY, **gone})
    ran = scripts_run(store, monkeypatch)
    image = commit(store, mode, take(image, 1))
    assert image == {**EMPTY, **gone, "s_slots_1": NOW + 500, "f_slots_1": "1.a", "b_slots_tn": 1}
    assert ran[0] == "swap"


@pytest.mark.parametrize(
    "meanwhile",
    [
        {"s_slots_2": NOW + 600, "f_slots_2": "2.b", "b_slots_tn": 2},
        {"s_slots_1": NOW + 600, "b_slots_tc": 1},
        {"name": "ö"},
    ],
    ids=["another slot is taken", "a slot is renewed", "something else is written"],
)
def test_a_bucket_that_others_have_written_is_decided_by_its_guards(
    mode: Driven, server: Server, meanwhile: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = mode.store(server.url), mode.store(server.url)
    image = commit(one, mode, take(made(mode, one, EMPTY), 1))
    mode.run(other.commit([Write(KEY, put=meanwhile)]))
    ran = scripts_run(one, monkeypatch)
    after = commit(one, mode, take(image, 3))
    assert after == apply_write({**image, **meanwhile}, take(image, 3))
    assert ran[:2] == ["swap", "commit"]
    ran.clear()
    outcome = mode.run(one.commit([take(after, 3)]))
    assert outcome == Conflict({KEY: after})


def test_a_slot_that_changed_hands_is_not_freed(mode: Driven, server: Server) -> None:
    """The new holder's slot stands where ours stood, and the counters are as they were."""
    one = mode.store(server.url)
    image = commit(one, mode, take(made(mode, one, EMPTY), 1, 2))
    server.command("SET", bucket_key(server), images_text({**image, "f_slots_1": "1.z"}))
    for step in (release, renew):
        outcome = mode.run(one.commit([step(image, 1)]))
        assert outcome == Conflict({KEY: {**image, "f_slots_1": "1.z"}})


def images_text(image: Image) -> str:
    return "\n" + "".join(f"{attr}={images.encode(value)}\n" for attr, value in image.items())


def test_rows_between_other_lines_are_put_behind_them(
    mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mode.store(server.url)
    image = commit(store, mode, take(made(mode, store, EMPTY), 1))
    image = commit(store, mode, Write(KEY, put={"later": "x"}, seen=image))
    assert server.command("GET", bucket_key(server)).endswith('f_slots_1="1.a"\nlater="x"\n')
    ran = scripts_run(store, monkeypatch)
    image = commit(store, mode, take(image, 2))
    lines = server.command("GET", bucket_key(server)).split("\n")
    assert lines.index('later="x"') < lines.index('f_slots_1="1.a"') < lines.index('f_slots_2="1.a"')
    image = commit(store, mode, release(image, 1))
    assert [name for name in ran if name == "swap"] == ["swap", "swap"]
    assert image == {
        **EMPTY,
        "later": "x",
        "b_slots_tn": 2,
        "b_slots_tc": 7,
        "s_slots_2": NOW + 500,
        "f_slots_2": "1.a",
    }


def test_many_slots_at_once_are_swapped_as_well(mode: Driven, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = mode.store(server.url)
    numbers = range(images.MOST_ROWS + 1)
    image = commit(store, mode, take(made(mode, store, EMPTY), *numbers))
    ran = scripts_run(store, monkeypatch)
    image = commit(store, mode, renew(image, *numbers))
    image = commit(store, mode, release(image, 1))
    assert [name for name in ran if name == "swap"] == ["swap", "swap"]
    assert len(image) == len(EMPTY) + 2 * images.MOST_ROWS


def test_one_slot_among_thousand_sends_no_more_than_among_none(server: Server) -> None:
    """A digest, the head from the first number on, and two lines: not the slots of others."""

    def count_bytes() -> int:
        lines = server.aside("INFO", "stats").splitlines()
        return sum(int(line.partition(":")[2]) for line in lines if line.startswith("total_net_"))

    def measure(limiter: SyncRateLimiter, held: int) -> int:
        limits = [Limit.concurrent("slots", 1_000, ttl=600)]
        leases = [limiter.acquire("key", "gpt-4", {"slots": 50}, limits) for _ in range(held // 50)]
        for lease in leases:
            lease.__enter__()
        for _ in range(4):
            with limiter.acquire("key", "gpt-4", {"slots": 1}, limits):
                pass
        first, second = count_bytes(), count_bytes()
        for _ in range(20):
            with limiter.acquire("key", "gpt-4", {"slots": 1}, limits):
                pass
        sent = count_bytes() - second - (second - first)
        for lease in leases:
            lease.__exit__(None, None, None)
        return sent

    with SyncRateLimiter(server.url) as limiter:
        alone, among_many = measure(limiter, 0), measure(limiter, 950)
    assert alone <= 20 * 2_000
    assert among_many <= 1.1 * alone


# Any order of anything.

NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True)
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["take", "release", "renew", "look", "free", "put"]), NUMBERS),
    max_size=12,
)


@pytest.fixture(scope="module")
def clients(running: Server) -> Iterator[list[RedisStore]]:
    """Two clients of one server."""
    found = [open_redis(parse(running.url), blocking=True) for _ in range(2)]
    yield found
    for client in found:
        run(client.close())


@settings(max_examples=150)
@given(steps=STEPS)
def test_clients_that_swap_the_same_bucket_do_what_the_algebra_says(
    running: Server,
    clients: list[RedisStore],
    steps: list[tuple[int, str, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of two clients plans from what it has seen last, which may be old, and writes what the guards allow."""
    monkeypatch.setattr(images, "FULL_COMMITS", 0)
    running.flush()
    there = shown(run(clients[0].commit([Write(KEY, put=EMPTY)])))
    seen = [there, there]
    for place, (who, step, numbers) in enumerate(steps):
        write = plan(step, seen[who], numbers, f"{who}.{place}")
        outcome = run(clients[who].commit([write]))
        assert isinstance(outcome, Committed) is holds(there, write.guards)
        if isinstance(outcome, Committed) and not write.is_check:
            after = apply_write(there, write)
            assert after is not None
            there = after
        seen[who] = shown(outcome)
        assert seen[who] == there
        assert run(clients[0].read([KEY])) == [there]


def plan(step: str, image: Image, numbers: list[int], ownership_token: str) -> Write:
    """A write of a client that has seen ``image``."""
    if step == "take":
        return take(image, *numbers, ownership_token=ownership_token)
    if step in ("release", "renew"):
        ownership_token = image.get(f"f_slots_{numbers[0]}", "none")
        return (release if step == "release" else renew)(image, *numbers, ownership_token=ownership_token)
    if step == "free":
        return Write(KEY, remove=tuple(f"{kind}_slots_{numbers[0]}" for kind in ("s", "f")), seen=image)
    return Write(KEY, put={"name": ownership_token, f"later{numbers[0]}": 1} if step == "put" else {}, seen=image)


def shown(outcome: Committed | Conflict) -> Image:
    """The image that an outcome shows."""
    image = outcome.images[0] if isinstance(outcome, Committed) else outcome.images[KEY]
    assert image is not None
    return image
