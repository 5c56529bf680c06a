"""The Redis store on a real server: what it asks, how it loads its script, and when its keys expire."""

from __future__ import annotations

import pytest

from tests.stores.redis.support import Driven, attributes, bucket_key, contents, expires_at
from tests.support.redis.proxy import Proxy
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.records.algebra import NEVER, TTL, Committed, Conflict, Guard, Key, Write
from zae_limiter.records.ledger import kept_ms
from zae_limiter.records.usage import USAGE_RETENTION_DAYS
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.redis import resp
from zae_limiter.stores.redis.resp import Script
from zae_limiter.stores.redis.store import RedisStore
from zae_limiter.testing import ManualClock

TWO = [Limit.per_hour("rpm", 100), Limit.per_hour("tpm", 1000)]
SCRIPTS = [script for script in vars(resp).values() if isinstance(script, Script)]
ONE_SCRIPT = {"evalsha": 1, "get": 1, "set": 1}
"""What one server is asked for an acquire, with what the script itself calls."""


@pytest.fixture
def server(running: Server) -> Server:
    """The server of this module, empty and with everything forgotten that could be remembered."""
    running.flush()
    running.aside("SCRIPT", "FLUSH")
    return running


async def use(limiter: RateLimiter, entity: str = "key", adjust: int = 0, rpm: int = 1) -> None:
    """One acquire of both limits, settled by ``adjust``."""
    async with limiter.acquire(entity, "gpt-4", {"rpm": rpm, "tpm": 10}) as lease:
        if adjust:
            await lease.adjust(tpm=adjust)


def ready(mode: Driven, server: Server) -> RateLimiter:
    """A limiter that knows all there is to know, on a server that knows its scripts and whose counters are at 0."""
    limiter = mode.limiter(server.url)
    mode.run(limiter.set_system_defaults(TWO))
    for _ in range(2):
        mode.run(use(limiter))
    server.reset_stats()
    return limiter


def asked(server: Server) -> dict[str, int]:
    """The calls since the last look, without what is done once a second: the time, and putting expiries off."""
    stats = server.command_stats()
    server.reset_stats()
    return {name: count for name, count in stats.items() if name not in ("time", "expireat")}


# One round trip


def test_an_acquire_of_two_limits_is_one_script_call(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    for _ in range(3):
        mode.run(use(limiter))
        assert asked(server) == ONE_SCRIPT


def test_nothing_else_is_sent_and_on_one_connection(mode: Driven, server: Server) -> None:
    with Proxy(server) as proxy:
        ready(mode, server)
        limiter = mode.limiter(proxy.url)
        mode.run(use(limiter))
        proxy.commands.clear()
        for _ in range(5):
            mode.run(use(limiter))
        assert proxy.commands == {"evalsha": 5}
        assert proxy.accepted == 1


def test_a_cascade_over_two_levels_is_one_script_call(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    mode.run(limiter.create_entity("parent"))
    mode.run(limiter.create_entity("child", parent_id="parent", cascade=True))
    mode.run(use(limiter, "child"))
    server.reset_stats()
    for _ in range(3):
        mode.run(use(limiter, "child"))
        assert asked(server) == {"evalsha": 1, "get": 2, "set": 2}
    assert mode.run(limiter.available("parent", "gpt-4")) == {"rpm": 96, "tpm": 960}


def test_a_settlement_is_one_more(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    mode.run(use(limiter, adjust=5))
    assert asked(server) == {"evalsha": 2, "get": 2, "set": 2}


def test_repeated_refusals_ask_nothing(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    for _ in range(10):
        with pytest.raises(RateLimitExceeded):
            mode.run(use(limiter, rpm=100))
    assert asked(server) == {}


def test_a_refusal_that_has_to_ask_is_one_script_call_that_writes_nothing(mode: Driven, server: Server) -> None:
    ready(mode, server)
    limiter = mode.limiter(server.url, refusal_ttl=0)
    mode.run(use(limiter))
    before, at = contents(server), expires_at(server, bucket_key(server))
    server.reset_stats()
    for _ in range(10):
        with pytest.raises(RateLimitExceeded):
            mode.run(use(limiter, rpm=100))
    stats = asked(server)
    assert stats.keys() == {"evalsha", "get"}
    assert stats["evalsha"] == stats["get"] == 10
    assert (contents(server), expires_at(server, bucket_key(server))) == (before, at)


def test_the_first_acquire_of_a_fresh_client_is_three_script_calls(mode: Driven, server: Server) -> None:
    ready(mode, server)
    mode.run(use(mode.limiter(server.url)))
    stats = asked(server)
    assert stats["evalsha"] == 3, "namespace; config and bucket; the acquire itself"
    assert stats.keys() == {"evalsha", "get", "set", "info"}
    assert stats["info"] == 1, "the greeting of the first connection"


def test_a_new_bucket_is_two_script_calls(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    mode.run(use(limiter, "another"))
    assert asked(server)["evalsha"] == 2, "is there anything about it; the acquire itself"


def test_calls_are_counted_by_the_client_too(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    before = limiter.repository.get_backend_stats().calls
    mode.run(use(limiter))
    after = limiter.repository.get_backend_stats().calls
    assert after["EVALSHA"] - before["EVALSHA"] == 1


def test_calls_that_are_made_in_the_background_are_counted_too(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    store = limiter.repository.store
    assert isinstance(store, RedisStore)
    before, aside = limiter.repository.get_backend_stats().total_calls, store.for_threads()
    assert run(aside.read([])) == []
    run(aside.read([Key("pk", "sk")]))
    assert limiter.repository.get_backend_stats().total_calls == before + 1
    if aside is not store:
        run(aside.close())


# The script


def test_a_server_that_has_forgotten_the_script_gets_it_once(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    for _ in range(2):
        server.aside("SCRIPT", "FLUSH")
        mode.run(use(limiter))
        assert asked(server) == {**ONE_SCRIPT, "eval": 1}
        mode.run(use(limiter))
        assert asked(server) == ONE_SCRIPT
    assert mode.run(limiter.available("key", "gpt-4")) == {"rpm": 94, "tpm": 940}


@pytest.mark.parametrize("kill", [False, True])
def test_a_server_that_was_started_anew_gets_every_script_once(mode: Driven, kill: bool) -> None:
    with Server(durable=True) as server:
        limiter = mode.limiter(server.url)
        assert mode.take(limiter) == "granted"
        if kill:
            server.kill()
            server.start()
        else:
            server.restart()
        until(lambda: mode.take(limiter) == "granted", "the limiter has found the new server")
        for _ in range(3):
            assert mode.take(limiter) == "granted"
        assert server.command_stats()["eval"] <= len(SCRIPTS)
        server.reset_stats()
        assert mode.take(limiter) == "granted"
        assert asked(server) == ONE_SCRIPT
        assert mode.left(server.url) == 94


def test_the_scripts_are_known_by_the_digest_that_the_server_makes_of_them(server: Server) -> None:
    for script in SCRIPTS:
        assert server.aside("SCRIPT", "LOAD", script.text) == script.digest


# Expiry


def test_a_bucket_expires_when_its_record_says(mode: Driven, server: Server) -> None:
    ready(mode, server)
    key = bucket_key(server)
    stored = int(attributes(server, key)[TTL])
    assert expires_at(server, key) == stored
    now = int(server.aside("TIME")[0])
    kept = kept_ms(USAGE_RETENTION_DAYS) // 1000
    assert kept - 60 <= stored - now <= kept + 1, "not before it is full and its usage forgotten, and not for ever"


def test_a_grant_puts_the_expiry_off_and_a_refusal_does_not(mode: Driven, server: Server) -> None:
    """A host's clock that jumps stands in for time that passes: the limiter decides before it learns the truth."""
    host = ManualClock()
    limiter = mode.limiter(mode.store(server.url, host_clock=host), refusal_ttl=0)
    mode.run(limiter.set_system_defaults(TWO))
    mode.run(use(limiter))
    key = bucket_key(server)
    first = expires_at(server, key)
    assert first is not None
    host.advance(30)
    with pytest.raises(RateLimitExceeded):
        mode.run(use(limiter, rpm=100))
    assert expires_at(server, key) == int(attributes(server, key)[TTL]) == first
    host.advance(30)
    mode.run(use(limiter))
    later = expires_at(server, key)
    assert later is not None
    assert later == int(attributes(server, key)[TTL])
    assert later >= first + 29


def test_an_idle_bucket_is_gone_by_itself_and_comes_back_full(mode: Driven, server: Server) -> None:
    limits = [Limit.per_second("rpm", 10)]
    limiter = mode.limiter(f"{server.url}?usage_retention_days=0", bucket_ttl_refill_multiplier=1)
    assert mode.take(limiter, 10, limits=limits) == "granted"
    key = bucket_key(server)
    until(lambda: not server.aside("EXISTS", key), "it is dropped", seconds=5)
    assert mode.take(limiter, 10, limits=limits) == "granted"
    assert server.aside("EXISTS", key)


def test_a_bucket_under_limits_of_its_own_does_not_expire(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    mode.run(limiter.create_entity("vip"))
    mode.run(limiter.set_limits("vip", TWO, "gpt-4"))
    mode.run(use(limiter, "vip"))
    key = bucket_key(server, "vip")
    assert (expires_at(server, key), attributes(server, key).get(TTL)) == (None, None)


def test_limits_of_its_own_take_the_expiry_away_and_their_end_brings_it_back(mode: Driven, server: Server) -> None:
    limiter = ready(mode, server)
    key = bucket_key(server)
    assert expires_at(server, key) is not None
    mode.run(limiter.set_limits("key", [Limit.per_hour("rpm", 50), TWO[1]], "gpt-4"))
    mode.run(use(limiter))
    assert (expires_at(server, key), attributes(server, key).get(TTL)) == (None, None)
    mode.run(limiter.delete_limits("key", "gpt-4"))
    mode.run(use(limiter))
    assert expires_at(server, key) == int(attributes(server, key)[TTL])


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"put": {"n": 2}}, 0),
        ({"add": {"n": 1}}, 0),
        ({"put": {"GSI1PK": "a", "GSI1SK": "b"}}, 0),
        ({"expires_at_ms": 60_000}, 60),
        ({"put": {"n": 3}, "expires_at_ms": 60_000}, 60),
        ({"add": {"n": 3}, "expires_at_ms": -60_000}, 0),
        ({"remove": ("n",), "expires_at_ms": 60_000}, 60),
        ({"expires_at_ms": NEVER}, None),
        ({"add": {"n": 1}, "expires_at_ms": NEVER}, None),
    ],
)
def test_key_and_record_have_the_same_expiry_after_every_write(
    mode: Driven, server: Server, change: dict[str, object], moved: int | None
) -> None:
    store = mode.store(server.url)
    key = Key("p", "#1")
    mode.run(store.read([key]))
    at_ms = (store.clock.now_ms() // 1000 + 1000) * 1000
    mode.run(store.commit([Write(key, (), {"n": 1}, expires_at_ms=at_ms)]))
    if change.get("expires_at_ms"):
        change = {**change, "expires_at_ms": at_ms + int(str(change["expires_at_ms"]))}
    refused = mode.run(store.commit([Write(key, (Guard("n", "=", 7),), **change)]))  # type: ignore[arg-type]  # a table
    assert isinstance(refused, Conflict)
    stored = store.layout.records[0] % key
    assert expires_at(server, stored) == at_ms // 1000
    assert isinstance(mode.run(store.commit([Write(key, (), **change)])), Committed)  # type: ignore[arg-type]  # a table
    expected = None if moved is None else at_ms // 1000 + moved
    assert expires_at(server, stored) == expected
    assert attributes(server, stored).get(TTL) == (None if expected is None else str(expected))


def test_a_record_written_past_its_time_is_not_there(mode: Driven, server: Server) -> None:
    store = mode.store(server.url)
    key = Key("p", "#1")
    mode.run(store.commit([Write(key, (), {"n": 1}, expires_at_ms=1000)]))
    assert mode.run(store.read([key])) == [None]
    assert not server.aside("EXISTS", store.layout.records[0] % key)
