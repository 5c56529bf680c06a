"""What a server says when it cannot serve, and what becomes of a call whose answer is lost: never charged twice."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.stores.redis.support import RPM, Driven, Scripted, contents
from tests.support.ports import free_port
from tests.support.redis.cluster import in_step
from tests.support.redis.line import Line
from tests.support.redis.proxy import Proxy
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import AccessDeniedError, InfrastructureError, RateLimiter, RateLimiterUnavailable
from zae_limiter.records.algebra import ABSENT, Committed, Key, Query, Write
from zae_limiter.stores.redis.wires import BlockingPool

ONE, TWO, THREE = (Key("p", f"#{number}") for number in (1, 2, 3))


def warm(mode: Driven, url: str, **options: Any) -> RateLimiter:
    """A limiter that has taken two tokens, of a server that knows all its scripts by then."""
    limiter = mode.limiter(url, **options)
    assert [mode.take(limiter) for _ in range(2)] == ["granted", "granted"]
    return limiter


# Lost answers


@pytest.mark.parametrize("times", [1, 3])
def test_a_call_whose_answer_is_lost_is_charged_at_most_once(
    mode: Driven, server: Server, proxy: Proxy, times: int
) -> None:
    limiter = warm(mode, proxy.url)
    proxy.commands.clear()
    for _ in range(times):
        proxy.cut_after_request(only="evalsha")
        with pytest.raises(RateLimiterUnavailable, match="unknown"):
            mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
    assert proxy.commands["evalsha"] == times
    left = mode.left(server.url)
    assert 98 - times <= left <= 97, "each at most once, and surely the first"
    assert mode.take(limiter) == "granted"
    assert mode.left(server.url) == left - 1


def test_a_lost_answer_to_a_whole_script_is_not_sent_again(mode: Driven, server: Server, proxy: Proxy) -> None:
    limiter = warm(mode, proxy.url)
    server.aside("SCRIPT", "FLUSH")
    proxy.commands.clear()
    proxy.cut_after_request(only="eval")
    assert mode.take(limiter) == "unavailable"
    assert proxy.commands == {"evalsha": 1, "eval": 1}
    assert mode.left(server.url) == 97


def test_a_lost_settlement_was_made_once(mode: Driven, server: Server, proxy: Proxy) -> None:
    limiter = warm(mode, proxy.url)

    async def settled() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 10}, RPM) as lease:
            await lease.adjust(rpm=5)
            proxy.cut_after_request(only="evalsha")

    with pytest.raises(RateLimiterUnavailable):
        mode.run(settled())
    assert mode.left(server.url) == 83


def test_a_lost_answer_under_allow_is_a_degraded_lease(mode: Driven, server: Server, proxy: Proxy) -> None:
    limiter = warm(mode, proxy.url, on_unavailable="allow")
    proxy.cut_after_request(only="evalsha")
    assert [mode.take(limiter) for _ in range(2)] == ["degraded", "granted"]
    assert mode.left(server.url) == 96


def test_a_connection_that_was_cut_while_idle_costs_nothing(mode: Driven, server: Server, proxy: Proxy) -> None:
    """Whoever looks before sending need not wonder whether it was carried out. It looks if there was time for that."""
    store = mode.store(proxy.url)
    mode.run(store.commit([Write(ONE, (), {"n": 1})]))
    proxy.refuse()
    proxy.accept()
    for pools in store.client.nodes.values():
        pool = pools.here() if mode.blocking else None
        for link in pool._idle if isinstance(pool, BlockingPool) else ():
            link.idle_since -= 1
    if not mode.blocking:
        mode.run(_turn())
    assert mode.run(store.commit([Write(ONE, add={"n": 1})])) == Committed(({"n": 2},))


async def _turn() -> None:
    """Let the loop notice what has happened."""
    for _ in range(3):
        await asyncio.sleep(0)


# No answer


def test_a_frozen_server_is_given_up_in_time_and_nothing_is_replayed(mode: Driven) -> None:
    with Server() as server:
        limiter = warm(mode, f"{server.url}?timeout=600&connect_timeout=600")
        server.reset_stats()
        server.freeze()
        with pytest.raises(RateLimiterUnavailable, match="in time"):
            mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM, timeout=0.2).__aenter__())
        assert mode.take(limiter, timeout=0.2, on_unavailable="allow") == "degraded", "on a new connection"
        server.thaw()
        until(lambda: server.command_stats().get("evalsha"), "the server gets to what it had before it froze")
        assert mode.left(server.url) == 97
        assert mode.take(limiter) == "granted"
        assert mode.left(server.url) == 96


def test_all_that_is_settled_on_a_frozen_server_takes_one_timeout(mode: Driven) -> None:
    """A lease that took tokens six times settles six times; each of them alone would wait as long."""
    with Server() as server:
        limiter = warm(mode, f"{server.url}?timeout=600&connect_timeout=600")

        async def settled() -> None:
            async with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM, timeout=1) as lease:
                for _ in range(5):
                    await lease.consume(rpm=1)
                await lease.release(rpm=6)
                server.freeze()

        started = time.monotonic()
        with pytest.raises(RateLimiterUnavailable):
            mode.run(settled())
        assert time.monotonic() - started < 4
        server.thaw()


def test_a_frozen_server_costs_one_caller_its_timeout_where_others_may_go_on(mode: Driven) -> None:
    with Server() as server:
        limiter = warm(mode, f"{server.url}?timeout=600&connect_timeout=600", on_unavailable="allow", timeout=1)
        server.freeze()
        started = time.monotonic()
        assert {mode.take(limiter) for _ in range(200)} == {"degraded"}
        assert time.monotonic() - started < 30
        server.thaw()
        until(lambda: mode.take(limiter) == "granted", "the store is asked again")


def test_the_timeout_of_the_url_holds_where_the_call_has_none(mode: Driven) -> None:
    with Server() as server:
        limiter = mode.limiter(f"{server.url}?timeout=0.2")
        assert mode.take(limiter, timeout=60) == "granted"
        server.freeze()
        assert mode.take(limiter) == "unavailable"
        server.thaw()


def test_no_server_at_all_is_an_outage_that_ends_when_there_is_one(mode: Driven) -> None:
    server = Server(port=free_port())
    limiter = mode.limiter(server.url)
    with pytest.raises(RateLimiterUnavailable, match=f"cannot be reached.*127.0.0.1:{server.port}"):
        mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
    assert mode.take(limiter, on_unavailable="allow") == "degraded"
    with server:
        assert mode.take(limiter) == "granted"


@pytest.mark.parametrize("url", ["redis://nobody.invalid:6379/0", "unix:///nobody/is/here.sock"])
def test_a_place_that_does_not_exist_is_an_outage(mode: Driven, url: str) -> None:
    with pytest.raises(RateLimiterUnavailable, match=r"nobody"):
        mode.run(mode.limiter(url).get_entity("key"))


# A server that takes no writes


def small_changes(store_now_ms: int) -> dict[str, list[Write]]:
    """Commits that write, delete, or both."""
    return {
        "an add": [Write(ONE, add={"n": 1})],
        "a new record": [Write(THREE, (ABSENT,), {"n": 1}, expires_at_ms=store_now_ms + 60_000)],
        "a delete and a new record": [Write(ONE, delete=True), Write(THREE, (ABSENT,), {"n": 1})],
        "a delete and an add": [Write(ONE, delete=True), Write(TWO, add={"n": 1})],
        "a move in the index": [Write(TWO, (), {"GSI1SK": "elsewhere"})],
        "a new expiry": [Write(ONE, expires_at_ms=store_now_ms + 60_000)],
    }


@pytest.mark.parametrize("change", small_changes(0))
def test_out_of_memory_changes_nothing_and_is_over_when_there_is_memory(
    mode: Driven, server: Server, change: str
) -> None:
    store = mode.store(server.url)
    mode.run(store.commit([Write(key, (), {"n": 1, "GSI1PK": "g", "GSI1SK": key.sk}) for key in (ONE, TWO)]))
    writes = small_changes(store.clock.now_ms())[change]
    before = contents(server)
    server.aside("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(RateLimiterUnavailable, match="out of memory"):
            mode.run(store.commit(writes))
        assert contents(server) == before
        assert mode.run(store.read([ONE])) != [None], "one can still read"
    finally:
        server.aside("CONFIG", "SET", "maxmemory", "0")
    assert isinstance(mode.run(store.commit(writes)), Committed)
    assert contents(server) != before


STATES = {
    "out of memory": ("maxmemory", "1", "0"),
    "too few replicas": ("min-replicas-to-write", "1", "0"),
}


@pytest.mark.parametrize(("reason", "setting"), STATES.items(), ids=STATES)
def test_a_server_that_takes_no_writes_is_an_outage_until_it_does(
    mode: Driven, server: Server, reason: str, setting: tuple[str, str, str]
) -> None:
    name, bad, good = setting
    limiter = mode.limiter(server.url)
    assert mode.take(limiter) == "granted"
    server.aside("CONFIG", "SET", name, bad)
    try:
        with pytest.raises(RateLimiterUnavailable, match=reason):
            mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
        assert mode.take(limiter, on_unavailable="allow") == "degraded"
    finally:
        server.aside("CONFIG", "SET", name, good)
    assert mode.take(limiter) == "granted"
    assert mode.left(server.url) == 98


def test_a_server_that_cannot_save_is_an_outage_until_it_can(mode: Driven) -> None:
    with Server(options=["save 3600 1", "dbfilename dump.rdb"]) as server:
        limiter = mode.limiter(server.url)
        assert mode.take(limiter) == "granted"
        (server.folder / "dump.rdb").mkdir()
        server.aside("BGSAVE")
        until(lambda: "rdb_last_bgsave_status:err" in server.aside("INFO", "persistence"), "the save fails")
        with pytest.raises(RateLimiterUnavailable, match="cannot save to its disk"):
            mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
        shutil.rmtree(server.folder / "dump.rdb")
        server.aside("BGSAVE")
        until(lambda: "rdb_last_bgsave_status:ok" in server.aside("INFO", "persistence"), "the save succeeds")
        assert mode.take(limiter) == "granted"
        assert mode.left(server.url) == 98


def test_a_server_that_is_busy_with_a_script_is_an_outage_until_it_is_done(mode: Driven) -> None:
    with Server(options={"lua-time-limit": "1"}) as server:
        limiter = mode.limiter(server.url)
        assert mode.take(limiter) == "granted"
        endless = threading.Thread(target=_endless, args=(server,))
        endless.start()
        try:
            until(lambda: mode.take(limiter, timeout=0.2) == "unavailable", "the script runs")
            with pytest.raises(RateLimiterUnavailable, match="another client's script"):
                mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
        finally:
            _kill_script(server)
            endless.join()
        assert mode.take(limiter) == "granted"


def _endless(server: Server) -> None:
    with pytest.raises(ResponseError, match="killed"):
        server.aside("EVAL", "while true do end", 0)


def _kill_script(server: Server) -> None:
    """Over a connection of its own: the other one waits for the script."""
    line = Line(server.url)
    until(lambda: line.ask("SCRIPT", "KILL") == "OK", "the script is killed")
    line.close()


def test_a_read_only_replica_is_said_to_be_one(mode: Driven, server: Server) -> None:
    with Server(options={"replicaof": f"127.0.0.1 {server.port}"}) as replica:
        until(lambda: in_step(replica), "the replica is in step")
        assert mode.take(mode.limiter(server.url)) == "granted"
        limiter = mode.limiter(replica.url)
        with pytest.raises(RateLimiterUnavailable, match="read-only replica; name the master"):
            mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
        replica.aside("REPLICAOF", "NO", "ONE")
        assert mode.take(limiter) == "granted", "it is a master now"


# Whatever a server may say

ANSWERS: dict[bytes, tuple[type[InfrastructureError], str]] = {
    b"-LOADING Redis is loading the dataset in memory\r\n": (RateLimiterUnavailable, "loading its data"),
    b"-MISCONF Redis is configured to save RDB snapshots\r\n": (RateLimiterUnavailable, "cannot save"),
    b"-MASTERDOWN Link with MASTER is down\r\n": (RateLimiterUnavailable, "lost its master"),
    b"-CLUSTERDOWN The cluster is down\r\n": (RateLimiterUnavailable, "cluster is down"),
    b"-MOVED 1 10.0.0.1:6379\r\n": (InfrastructureError, r"redis\+cluster://"),
    b"-ERR something new\r\n": (InfrastructureError, "something new"),
    b"-WEIRD\r\n": (InfrastructureError, "WEIRD"),
    b"-NOSCRIPT No matching script\r\n": (RateLimiterUnavailable, "does not know the script"),
    b"HTTP/1.1 400 Bad Request\r\n\r\n": (RateLimiterUnavailable, "outcome is unknown"),
    b"+OK\r\n": (InfrastructureError, "."),
    b":17\r\n": (InfrastructureError, "."),
    b"$-1\r\n": (InfrastructureError, "."),
    b"$4\r\n1\xff\xfe\0\r\n": (InfrastructureError, "."),
}


@pytest.mark.parametrize(("answer", "meaning"), ANSWERS.items(), ids=map(repr, ANSWERS))
def test_every_answer_is_an_error_of_ours_and_nothing_is_asked_twice(
    mode: Driven, answer: bytes, meaning: tuple[type[InfrastructureError], str]
) -> None:
    kind, words = meaning
    with Scripted(answer) as server:
        limiter = mode.limiter(server.url)
        with pytest.raises(kind, match=words):
            mode.run(limiter.get_entity("key"))
        assert server.asked in (["evalsha"], ["evalsha", "eval"] if b"NOSCRIPT" in answer else [])
        with pytest.raises(kind):
            mode.run(limiter.get_entity("key"))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(b"-LOADING dataset in memory\r\n", RateLimiterUnavailable), (b"-NOAUTH needed\r\n", AccessDeniedError)],
)
def test_a_listing_fails_with_an_error_of_ours_too(
    mode: Driven, answer: bytes, kind: type[InfrastructureError]
) -> None:
    with Scripted(answer) as server, pytest.raises(kind):
        mode.run(mode.store(server.url).query(Query("ns/P")))


def test_a_server_with_too_many_clients_is_an_outage(mode: Driven) -> None:
    with Server() as server:
        limiter = mode.limiter(server.url)
        server.aside("CONFIG", "SET", "maxclients", "1")
        assert mode.take(limiter) == "unavailable"
        server.aside("CONFIG", "SET", "maxclients", "100")
        assert mode.take(limiter) == "granted"
