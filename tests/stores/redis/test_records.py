"""Records in Redis: the algebra as their oracle, exact integers, foreign data at our keys, and whose keys are whose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.stores.redis.support import RPM, Driven, bucket_key, contents
from tests.support.redis import shared
from tests.support.redis.server import Server
from zae_limiter import CorruptRecordError, Limit, RateLimiter, RateLimiterUnavailable
from zae_limiter.records.algebra import (
    ABSENT,
    NEVER,
    PRESENT,
    TTL,
    Committed,
    Conflict,
    Guard,
    Image,
    Key,
    Query,
    Write,
    apply_write,
    holds,
    is_live,
)
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.redis.images import encode
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis
from zae_limiter.testing import ManualClock

ONE, TWO = Key("p", "#1"), Key("p", "#2")
TOP = 2**53
COUNT = iter(range(10**9))


@pytest.fixture
def store() -> Iterator[RedisStore]:
    """A blocking store on a manual clock, with keys of its own in the server that all share."""
    settings_ = parse(f"{shared.server().url}?prefix=records-{next(COUNT)}")
    made = open_redis(settings_, blocking=True, clock=ManualClock())
    yield made
    run(made.close())


# The algebra

NUMBERS = st.integers(-3, 3) | st.sampled_from([10**15, TOP - 1, 1 - TOP])
TEXTS = st.text(max_size=6)
VALUES = NUMBERS | TEXTS | st.booleans() | st.lists(NUMBERS, max_size=2) | st.dictionaries(TEXTS, TEXTS, max_size=2)
NAMES = st.sampled_from(["n", "m", "nm", "b_n_tk", "b_n", "ttlx"])
COUNTED = st.sampled_from(["c", "cc", "b_c", "d"])
GUARDS = st.one_of(
    st.builds(Guard, COUNTED, st.sampled_from(["=", "<", "<=", ">", ">="]), NUMBERS),
    st.builds(Guard, COUNTED, st.just("between"), st.tuples(NUMBERS, NUMBERS)),
    st.builds(Guard, NAMES, st.just("="), VALUES),
    st.sampled_from([PRESENT, ABSENT]),
)
WRITES = st.builds(
    Write,
    st.just(ONE),
    st.lists(GUARDS, max_size=2).map(tuple),
    st.dictionaries(NAMES, VALUES, max_size=2)
    | st.dictionaries(COUNTED, st.integers(-3, 3), max_size=2)
    | st.fixed_dictionaries({"GSI1PK": TEXTS, "GSI1SK": TEXTS}),
    st.dictionaries(COUNTED, st.integers(-3, 3), max_size=3),
    st.lists(NAMES | COUNTED, max_size=2, unique=True).map(tuple),
    st.sampled_from([None, NEVER, 5_000, 15_000]),
    st.integers(0, 5).map(lambda chance: chance == 0),
    st.none(),
)
IMAGES = st.none() | st.builds(
    lambda plain, counted: {**plain, **counted},
    st.dictionaries(NAMES, VALUES),
    st.dictionaries(COUNTED, st.integers(-(10**15), 10**15)),
)


def fresh(count: int = 1) -> list[Key]:
    """Keys that no other example uses."""
    partition = f"p{next(COUNT)}"
    return [Key(partition, f"#{number:03d}") for number in range(count)]


def stored_text(image: Image) -> str:
    """A record as it is stored."""
    return "\n" + "".join(f"{attr}={encode(value)}\n" for attr, value in image.items())


@settings(max_examples=250)
@given(WRITES, IMAGES, st.sampled_from([None, -5, 10]), st.booleans(), st.sampled_from(["never", "now", "before"]))
@example(Write(ONE, add={"d": 1, "c": 1, "cc": 1}), {"c": 1, "cc": 2, "d": 3}, None, False, "never")
@example(Write(ONE, add={"cc": 1, "b_c": 1, "c": 1}), {"c": 1}, None, False, "never")
@example(Write(ONE, add={"d": 1, "c": 1}, expires_at_ms=15_000), {"c": 1, "d": 3}, 10, False, "now")
@example(Write(ONE, add={"d": 1, "c": 1}, expires_at_ms=15_000), {"c": 1, "d": 3}, 10, True, "before")
def test_every_write_does_what_the_algebra_says(
    store: RedisStore, write: Write, image: Image | None, life: int | None, beside: bool, seen: str
) -> None:
    """On a record that is missing, live or expired, alone or beside another one, seen as it is, as it was or never."""
    key, other = fresh(2)
    now_ms = store.clock.now_ms()
    if image is not None:
        image = {**image, "there": 1, **({} if life is None else {TTL: now_ms // 1000 + life})}
        older = {**image, "there": 0, "c": 3} if seen == "before" else image
        for text in (stored_text(older), stored_text(image)):
            shared.server().aside("SET", store.layout.records[0] % key, text)
            if seen != "never" and text == stored_text(older):
                run(store.read([key]))
    live = image if is_live(image, now_ms) else None
    write = write._replace(key=key, expires_at_ms=write.expires_at_ms and now_ms + write.expires_at_ms)
    expected = (live if write.is_check else apply_write(live, write)) if holds(live, write.guards) else live
    company = [Write(other, (), {"n": 1})] if beside else []
    found = run(store.commit([*company, write]))
    assert isinstance(found, Committed) is holds(live, write.guards)
    told = found.images[-1] if isinstance(found, Committed) else found.images[key]
    assert told == expected
    assert run(store.read([key])) == [expected if is_live(expected, now_ms) else None]


@given(values=st.lists(VALUES, min_size=1, max_size=4))
def test_values_come_back_as_they_were(store: RedisStore, values: list[Any]) -> None:
    (key,) = fresh()
    image = {f"a{place}": value for place, value in enumerate(values)}
    assert run(store.commit([Write(key, (), image)])) == Committed((image,))
    again = open_redis(parse(f"{shared.server().url}?prefix={store.layout.prefix}"), blocking=True, clock=store.clock)
    found = run(again.read([key]))[0]
    run(again.close())
    assert found == image
    assert [type(value) for value in found.values()] == [type(value) for value in values]


# Integers

SUMS = [
    (TOP - 2, 1, TOP - 1),
    (2 - TOP, -1, 1 - TOP),
    (TOP - 1, 1 - TOP, 0),
    (TOP - 1, -1, TOP - 2),
    (1 - TOP, TOP - 1, 0),
    (123456789012345, 987654321098765, 1111111110111110),
    (999999999999999, 1, 10**15),
    (-999999999999999, -1, -(10**15)),
]


@pytest.mark.parametrize(("first", "amount", "total"), SUMS)
def test_sums_are_exact_up_to_the_last_integer(store: RedisStore, first: int, amount: int, total: int) -> None:
    run(store.commit([Write(ONE, (), {"n": first})]))
    assert run(store.commit([Write(ONE, add={"n": amount})])) == Committed(({"n": total},))


BEYOND = [
    (TOP - 1, 2), (TOP - 1, TOP - 1), (TOP, 1), (TOP + 2, 1), (1 - TOP, -2), (-TOP, -1), (2**60, 1), (10**30, 1),
    (1, TOP + 1),
]  # fmt: skip


@pytest.mark.parametrize(("first", "amount"), BEYOND)
def test_a_sum_beyond_the_exact_integers_is_refused_without_a_change(
    store: RedisStore, first: int, amount: int
) -> None:
    run(store.commit([Write(ONE, (), {"n": first}), Write(TWO, (), {"n": 1})]))
    before = shared.server().aside("GET", store.layout.records[0] % ONE)
    with pytest.raises(CorruptRecordError, match="nothing was changed"):
        run(store.commit([Write(TWO, add={"n": 1}), Write(ONE, add={"n": amount})]))
    assert shared.server().aside("GET", store.layout.records[0] % ONE) == before
    assert run(store.read([ONE, TWO])) == [{"n": first}, {"n": 1}]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [15, 16, 17, 40])
def test_integers_of_any_size_are_compared_exactly(store: RedisStore, size: int, sign: int) -> None:
    value = sign * (10**size - 3)
    run(store.commit([Write(ONE, (), {"n": value})]))
    for offset in (-1, 0, 1):
        for op in ("=", "<", "<=", ">", ">="):
            guard = Guard("n", op, value + offset)
            found = run(store.commit([Write(ONE, (guard,))]))
            assert isinstance(found, Committed) is holds({"n": value}, (guard,)), guard
        for bounds in ((value + offset, value + 1), (value - 1, value + offset), (value, value + offset)):
            guard = Guard("n", "between", bounds)
            found = run(store.commit([Write(ONE, (guard,))]))
            assert isinstance(found, Committed) is holds({"n": value}, (guard,)), guard


def test_the_largest_limits_are_counted_exactly(mode: Driven, server: Server) -> None:
    most = 1_000_000_000_000
    limits = [Limit("rpm", capacity=most, refill_amount=1, refill_period_seconds=86_400)]
    limiter = mode.limiter(server.url)
    assert mode.take(limiter, most - 1, limits=limits) == "granted"
    assert mode.run(limiter.available("key", "gpt-4", limits)) == {"rpm": 1}
    assert mode.take(limiter, 2, limits=limits) == "refused"
    assert mode.take(limiter, 1, limits=limits) == "granted"


# What is not ours

FOREIGN: dict[str, tuple[str | bytes, ...]] = {
    "list": ("LPUSH", "1"),
    "hash": ("HSET", "a", "b"),
    "set": ("SADD", "1"),
    "text": ("SET", "hello"),
    "empty text": ("SET", ""),
    "number": ("SET", "17"),
    "bytes": ("SET", b"\xff\xfe"),
    "no last line break": ("SET", "\nn=1"),
    "an expiry that is no number": ("SET", "\nn=1\nttl=soon\n"),
}
DAMAGED: dict[str, tuple[str | bytes, ...]] = {
    "bytes in a line": ("SET", b"\nn=\xff\n"),
    "zero byte": ("SET", b"\nn=1\n\0\nm=1\n"),
    "a line without a value": ("SET", "\nn\n"),
    "an empty value": ("SET", "\nn=\n"),
    "half a value": ("SET", '\nn={"a":\n'),
}
"""What looks like a record from outside."""


@pytest.mark.parametrize("command", FOREIGN.values(), ids=FOREIGN)
def test_foreign_data_at_a_key_are_said_to_be_foreign_and_left_alone(
    mode: Driven, server: Server, command: tuple[str | bytes, ...]
) -> None:
    store = mode.store(server.url)
    mode.run(store.commit([Write(TWO, (), {"n": 1})]))
    server.aside(command[0], store.layout.records[0] % ONE, *command[1:])
    before = server.aside("DUMP", store.layout.records[0] % ONE), server.aside("GET", store.layout.records[0] % TWO)
    at_ms = store.clock.now_ms() + 60_000
    for write in (
        Write(ONE),
        Write(ONE, (PRESENT,)),
        Write(ONE, add={"n": 1}),
        Write(ONE, (), {"n": 1}, expires_at_ms=at_ms),
        Write(ONE, (ABSENT,), {"n": 1}),
    ):
        with pytest.raises(CorruptRecordError, match=r"prefix|Delete"):
            mode.run(store.commit([Write(TWO, add={"n": 1}), write]))
    after = server.aside("DUMP", store.layout.records[0] % ONE), server.aside("GET", store.layout.records[0] % TWO)
    assert after == before


@pytest.mark.parametrize("command", (FOREIGN | DAMAGED).values(), ids=FOREIGN | DAMAGED)
def test_a_bucket_that_is_no_record_is_neither_an_outage_nor_unlimited(
    mode: Driven, server: Server, command: tuple[str | bytes, ...]
) -> None:
    limiter = mode.limiter(server.url, on_unavailable="allow")
    assert mode.take(limiter) == "granted"
    key = bucket_key(server)
    server.aside("DEL", key)
    server.aside(command[0], key, *command[1:])
    for someone in (limiter, mode.limiter(server.url, on_unavailable="allow")):
        with pytest.raises(CorruptRecordError, match=r"prefix|Delete"):
            mode.take(someone)
    if command[0] == "SET":
        mode.run(limiter.reset_bucket("key", "gpt-4"))
    else:
        server.aside("DEL", key)
    assert mode.take(limiter) == "granted", "whoever deletes it repairs it"


@pytest.mark.parametrize("which", ["indexes", "expiries"])
def test_foreign_data_at_the_index_change_nothing_else(mode: Driven, server: Server, which: str) -> None:
    limiter = mode.limiter(server.url)
    mode.run(limiter.create_entity("there"))
    store = mode.store(server.url)
    name = getattr(store.layout, which)[0]
    server.aside("DEL", name)
    server.aside("SET", name, "mine")
    before = contents(server)
    at_ms = store.clock.now_ms() + 60_000
    with pytest.raises(CorruptRecordError, match="prefix"):
        mode.run(store.commit([Write(ONE, (ABSENT,), {"n": 1, "GSI1PK": "a"}, expires_at_ms=at_ms)]))
    with pytest.raises(CorruptRecordError, match="prefix"):
        mode.run(limiter.create_entity("new"))
    with pytest.raises(CorruptRecordError, match="prefix"):
        mode.take(limiter)
    assert contents(server) == before


# Whose keys are whose


def test_a_prefix_keeps_two_limiters_apart(mode: Driven, server: Server) -> None:
    one, two = (mode.limiter(f"{server.url}?prefix={prefix}") for prefix in ("app", "app:2"))
    for limiter in (one, two):
        mode.run(limiter.create_entity("key"))
        assert mode.take(limiter, 60) == "granted"
    assert mode.take(one, 60) == "refused"
    mode.run(one.delete_entity("key"))
    assert mode.run(two.get_entity("key")) is not None
    assert mode.run(two.available("key", "gpt-4", RPM)) == {"rpm": 40}
    starts = {key.split("{")[0] for key in server.aside("KEYS", "*")}
    assert starts == {"app:", "app:2:"}


ODD = ["{0}", "}{", "{", "a{b}c", "user@example.com", "ü/ß", "*", "a b", "[x]?", "'quoted'"]


@pytest.mark.parametrize("entity", ODD)
def test_odd_names_are_names(mode: Driven, server: Server, entity: str) -> None:
    limiter = mode.limiter(server.url)
    mode.run(limiter.create_entity(entity, name="a=b {}"))
    assert mode.take(limiter, 7, entity) == "granted"
    fresh_one = mode.limiter(server.url)
    assert mode.run(fresh_one.available(entity, "gpt-4", RPM)) == {"rpm": 93}
    assert mode.run(_listed(fresh_one, entity)) == [entity]
    found = mode.run(fresh_one.get_entity(entity))
    assert found is not None
    assert found.name == "a=b {}"


async def _listed(limiter: RateLimiter, entity: str) -> list[str]:
    return [state.entity_id for state in await limiter.get_buckets(entity)]


def test_an_index_entry_without_its_record_is_passed_over(mode: Driven, server: Server) -> None:
    store = mode.store(server.url)
    keys = [Key("p", f"#{number}") for number in range(5)]
    mode.run(store.commit([Write(key, (), {"n": 1, "GSI2PK": "g", "GSI2SK": key.sk}) for key in keys]))
    server.aside("DEL", store.layout.records[0] % keys[0], store.layout.records[0] % keys[2])
    for query in (Query("p"), Query("g", gsi="GSI2"), Query("p", limit=2), Query("g", gsi="GSI2", limit=1)):
        found, after = [], None
        while True:
            page = mode.run(store.query(query._replace(after=after)))
            found += [key for key, _ in page.items]
            after = page.cursor
            if after is None:
                break
        assert found == [keys[1], keys[3], keys[4]], query


def test_an_error_in_the_middle_of_many_is_no_conflict(mode: Driven, server: Server) -> None:
    """Nothing that a server refuses is ever taken for a lost race."""
    store = mode.store(server.url)
    server.aside("LPUSH", store.layout.records[0] % ONE, "1")
    with pytest.raises(CorruptRecordError) as caught:
        mode.run(store.commit([Write(ONE, (ABSENT,), {"n": 1})]))
    assert not isinstance(caught.value, RateLimiterUnavailable | Conflict)
    assert store.stats().conflicts == 0


def test_a_bucket_of_a_wrong_type_can_be_reset(mode: Driven, server: Server) -> None:
    limiter = mode.limiter(server.url)
    assert mode.take(limiter) == "granted"
    key = bucket_key(server, "key")
    server.command("DEL", key)
    server.command("RPUSH", key, "something")
    with pytest.raises(CorruptRecordError, match="prefix"):
        mode.take(limiter)
    mode.run(limiter.reset_bucket("key", "gpt-4"))
    assert mode.take(limiter) == "granted"
