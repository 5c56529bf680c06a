"""Whatever a server answers is an error of ours, in time: single servers, sentinels and clusters, in both modes.

Answers are generated: those of a real server with bytes changed, RESP of the wrong shape, and redirections to nowhere.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator

import pytest

from tests.stores.redis.support import Driven, Scripted
from zae_limiter import InfrastructureError, RateLimiterUnavailable
from zae_limiter.records.algebra import Key, Query, Write
from zae_limiter.stores.redis.store import RedisStore
from zae_limiter.testing import ManualClock

REQUESTS = int(os.environ.get("ZAE_ATTACK_REQUESTS", "500"))
SECONDS = 1.0
"""What a call has."""
STALL = 0.5
"""How much longer it may take on a busy machine."""

ADDRESSES = [
    b"*2\r\n$9\r\n127.0.0.1\r\n$1\r\nx\r\n",
    b"*2\r\n$9\r\n127.0.0.1\r\n$6\r\n999999\r\n",
    b"*2\r\n$9\r\n127.0.0.1\r\n$2\r\n-1\r\n",
    b"*1\r\n$9\r\n127.0.0.1\r\n",
    b"*2\r\n:1\r\n:1\r\n",
    b"*2\r\n$2\r\n\xff\xfe\r\n$4\r\n6379\r\n",
    b"*2\r\n$-1\r\n$4\r\n6379\r\n",
    b"*2\r\n$300\r\n" + b"a" * 300 + b"\r\n$4\r\n6379\r\n",
    b"*2\r\n$5\r\na b\0c\r\n$4\r\n6379\r\n",
    b"*2\r\n*0\r\n*0\r\n",
]
SLOTS = [
    b"*1\r\n*3\r\n:0\r\n:16383\r\n" + address for address in ADDRESSES
] + [
    b"*0\r\n",
    b"*1\r\n:1\r\n",
    b"*1\r\n*0\r\n",
    b"*1\r\n*2\r\n:0\r\n:16383\r\n",
    b"*1\r\n*3\r\n$1\r\n0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n",
    b"*1\r\n*3\r\n:16383\r\n:0\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n",
    b"*1\r\n*3\r\n:-1\r\n:99999\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n",
    b"$5\r\nhello\r\n",
    b":1\r\n",
]  # fmt: skip
REDIRECTIONS = [
    b"-%b%b\r\n" % (word, rest)
    for word in (b"MOVED", b"ASK")
    for rest in (
        b"",
        b" ",
        b" 1",
        b" 1 h",
        b" 1 h:",
        b" 1 h:x",
        b" 1 :99999",
        b" 1 h:-1",
        b" x \xff:1",
        b" 1 ?:0",
        b" 1 a b:0",
    )
]
SCRIPTS = [
    b"$1\r\n=\r\n",
    b"$5\r\n=x yz\r\n",
    b"$30\r\n=99999999999999999999 00000001\r\n",
    b"$4\r\n1\x00\x00\x00\r\n",
    b"$6\r\n1 x y\x00\r\n",
    b"$22\r\n1 1700000000 1\x00\na=1\nb\n\r\n",
    b"$25\r\n1 1700000000 1\x00\na=[[[[[[\n\r\n",
    b"$9\r\n-1 1 1\x00\n\n\r\n",
    b"*1\r\n$1\r\na\r\n",
    b"*2\r\n:1\r\n*1\r\n$-1\r\n",
    b"-ERR \xff\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
]
FORMS = {"redis": SCRIPTS, "redis+sentinel": ADDRESSES, "redis+cluster": SLOTS}


def changed(answer: bytes, chance: random.Random) -> bytes:
    """The answer with some bytes replaced, removed, doubled or cut off."""
    data = bytearray(answer)
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = bytes([chance.choice(b"\r\n*$:+-019 \0\xff=x")])
            case 1:
                del data[at : at + chance.randint(1, 4)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 20)]
            case _:
                del data[at:]
    return bytes(data)


def answers(scheme: str, seed: int) -> Iterator[bytes]:
    """Answers without end: each of the known ones as it is, then changed ones."""
    known = FORMS[scheme] + REDIRECTIONS + SCRIPTS
    yield from known
    chance = random.Random(seed)
    while True:
        yield changed(chance.choice(known), chance)


class Liar(Scripted):
    """A server that answers every command with the next of its lies and then closes the connection."""

    ends = True


async def read(store: RedisStore) -> object:
    return await store.read([Key("p", "#1")])


async def write(store: RedisStore) -> object:
    return await store.commit([Write(Key("p", "#1"), put={"a": 1})])


async def query(store: RedisStore) -> object:
    return await store.query(Query("p"))


async def query_index(store: RedisStore) -> object:
    return await store.query(Query("p", gsi="GSI2"))


async def sweep(store: RedisStore) -> object:
    return await store._sweeper.sweep(0, store.client.deadline(None))


VERBS = (read, write, query, query_index, sweep)


@pytest.mark.attack
@pytest.mark.parametrize("scheme", FORMS)
def test_every_answer_of_a_hostile_server_is_an_error_of_ours(mode: Driven, scheme: str) -> None:
    with Liar(b"") as server:
        path = "/mymaster" if "sentinel" in scheme else ""
        url = f"{scheme}://127.0.0.1:{server.port}{path}?timeout={SECONDS}&connect_timeout={SECONDS}"
        store = mode.store(url)
        for lie, verb in zip(itertools.islice(answers(scheme, 1), REQUESTS), itertools.cycle(VERBS), strict=False):
            server.answer = lie
            started = time.monotonic()
            try:
                mode.run(verb(store))
            except InfrastructureError:
                pass
            except Exception as error:
                raise AssertionError(f"{verb.__name__} of {lie!r}") from error
            assert time.monotonic() - started < SECONDS + STALL, lie


@pytest.mark.parametrize("lie", SLOTS, ids=repr)
def test_slots_that_make_no_sense_are_an_outage(mode: Driven, lie: bytes) -> None:
    with Liar(lie) as server, pytest.raises(RateLimiterUnavailable):
        mode.run(read(mode.store(f"redis+cluster://127.0.0.1:{server.port}?timeout={SECONDS}")))


@pytest.mark.parametrize("lie", ADDRESSES, ids=repr)
def test_a_master_that_makes_no_sense_is_an_outage(mode: Driven, lie: bytes) -> None:
    with Liar(lie) as server, pytest.raises(RateLimiterUnavailable):
        mode.run(read(mode.store(f"redis+sentinel://127.0.0.1:{server.port}/mymaster?timeout={SECONDS}")))


@pytest.mark.parametrize("lie", REDIRECTIONS, ids=repr)
def test_a_redirection_to_nowhere_is_an_outage(mode: Driven, lie: bytes) -> None:
    """The node that holds all slots redirects every command."""
    with Liar(lie) as server:
        port = str(server.port).encode()
        server.slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%b\r\n" % port
        with pytest.raises(RateLimiterUnavailable):
            mode.run(read(mode.store(f"redis+cluster://127.0.0.1:{server.port}?timeout={SECONDS}")))


@pytest.mark.parametrize("element", [b":1\r\n", b"$0\r\n\r\n", b"*0\r\n", b"$12\r\n" + b"x" * 12 + b"\r\n"], ids=repr)
def test_a_long_answer_ends_with_the_call(mode: Driven, element: bytes) -> None:
    count = 16 * 2**20 // len(element)
    with Scripted(b"*%d\r\n" % count + element * count) as server:
        store = mode.store(f"{server.url}?timeout={SECONDS}")
        started = time.monotonic()
        with pytest.raises(InfrastructureError):
            mode.run(read(store))
        assert time.monotonic() - started < SECONDS + STALL


@pytest.mark.parametrize("more", [b"$1\r\n=\r\n", b"$1", b"+"], ids=repr)
def test_more_than_was_asked_for_is_never_taken_for_the_next_answer(mode: Driven, more: bytes) -> None:
    """A second answer, or the beginning of one, ends the connection."""
    with Scripted(b"$2\r\n1\0\r\n" + more) as server:
        store = mode.store(server.url, clock=ManualClock())
        for _ in range(3):
            try:
                assert mode.run(read(store)) == [None]
            except RateLimiterUnavailable as error:
                assert "more than was asked for" in str(error)  # noqa: PT017  # the read may also succeed
        assert server.connections == 3
