"""Whose time it is: the server's, however wrong the clocks of its clients are."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest

from tests.stores.redis.support import Driven, attributes, bucket_key
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import Limit
from zae_limiter.records.algebra import Key
from zae_limiter.stores.redis.store import RedisStore

OFF_MS = 5000
LIMITS = [Limit.per_second("rpm", 50, burst=500)]
SLOW = [Limit.per_hour("rpm", 100)]


class Shifted:
    """A host's clock that is off."""

    def __init__(self, off_ms: int) -> None:
        self.off_ms = off_ms

    def now_ms(self) -> int:
        """What this host believes."""
        return time.time_ns() // 1_000_000 + self.off_ms


def shifted(mode: Driven, url: str, off_ms: int) -> RedisStore:
    return mode.store(url, host_clock=Shifted(off_ms))


def error_ms(server: Server, store: RedisStore) -> int:
    """How far a client is ahead of the server; what the question takes is on top."""
    before = store.clock.now_ms()
    seconds, microseconds = map(int, server.aside("TIME"))
    after = store.clock.now_ms()
    theirs = seconds * 1000 + microseconds // 1000
    return max(0, before - theirs - 1) or min(0, after - theirs + 1)


@pytest.mark.parametrize("off_ms", [OFF_MS, -OFF_MS, 10**11, -(10**11), 300, -300])
def test_the_first_call_tells_the_time(mode: Driven, server: Server, off_ms: int) -> None:
    """Within what the call itself took: the best of a few, as this machine may be busy with something else."""
    errors = []
    for _ in range(5):
        store = shifted(mode, server.url, off_ms)
        mode.run(store.read([Key("p", "#1")]))
        errors.append(abs(error_ms(server, store)))
    assert min(errors) <= 5


def test_clients_whose_clocks_are_off_see_the_same_bucket(mode: Driven, server: Server) -> None:
    ahead, behind, right = (mode.limiter(shifted(mode, server.url, off_ms)) for off_ms in (OFF_MS, -OFF_MS, 0))
    assert mode.take(right, 60, limits=SLOW) == "granted"
    left = 40
    for limiter in (ahead, behind, right, behind, ahead):
        assert mode.take(limiter, 50, limits=SLOW) == "refused", "five seconds mint nothing"
        assert mode.take(limiter, limits=SLOW) == "granted"
        left -= 1
        assert mode.run(limiter.available("key", "gpt-4", SLOW)) == {"rpm": left}


def test_clients_whose_clocks_are_off_neither_mint_nor_drain(mode: Driven, server: Server) -> None:
    """They take turns on an empty bucket as fast as they can: they get what its rate produces meanwhile.

    Nobody knows the time better than to the duration of a call, which may be long where this machine is busy.
    """
    clients = [mode.limiter(shifted(mode, server.url, off_ms)) for off_ms in (OFF_MS, -OFF_MS)]
    (limit,) = LIMITS
    before = time.monotonic()
    assert mode.take(clients[0], limit.capacity, limits=LIMITS) == "granted"
    begun, granted = time.monotonic(), 0
    instants = [before, begun]
    while time.monotonic() < begun + 1.0:
        for limiter in clients:
            granted += mode.take(limiter, limits=LIMITS) == "granted"
            instants.append(time.monotonic())
    least = limit.refill_rate * (time.monotonic() - begun)
    left = mode.run(clients[1].available("key", "gpt-4", LIMITS))["rpm"]
    most = limit.refill_rate * (time.monotonic() - before)
    slack = limit.refill_rate * max(later - earlier for earlier, later in pairwise(instants))
    assert least - 2 - slack <= granted + left <= most + 1 + slack


def test_a_bucket_of_a_client_that_is_ahead_is_of_the_servers_time(mode: Driven, server: Server) -> None:
    for off_ms in (OFF_MS, -OFF_MS):
        server.flush()
        assert mode.take(mode.limiter(shifted(mode, server.url, off_ms)), limits=SLOW) == "granted"
        seconds = int(server.aside("TIME")[0])
        anchor = int(attributes(server, bucket_key(server))["rf"]) // 1000
        assert abs(anchor - seconds) <= 2


def test_a_clock_that_is_stepped_is_found_out(mode: Driven, server: Server) -> None:
    """The server's time is asked for again after a second, and whenever the host's is not what it could be."""
    host = Shifted(0)
    store = mode.store(server.url, host_clock=host)
    mode.run(store.read([Key("p", "#1")]))
    for step in (OFF_MS, -2 * OFF_MS):
        host.off_ms += step
        _ask_until_told(mode, server, store)
        assert abs(error_ms(server, store)) <= 1000


def _ask_until_told(mode: Driven, server: Server, store: RedisStore) -> None:
    """Ask until the server's time has come along."""

    def told() -> bool:
        server.reset_stats()
        mode.run(store.read([Key("p", "#1")]))
        return "time" in server.command_stats()

    until(told, "the time is told", seconds=3)


def test_the_time_is_asked_for_once_a_second_and_not_more(mode: Driven, server: Server) -> None:
    store = mode.store(server.url)
    mode.run(store.read([Key("p", "#1")]))
    server.reset_stats()
    begun = time.monotonic()
    for _ in range(50):
        mode.run(store.read([Key("p", "#1")]))
    assert server.command_stats().get("time", 0) <= time.monotonic() - begun + 1


def test_a_skew_is_reported(mode: Driven, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    limiter = mode.limiter(shifted(mode, server.url, OFF_MS))
    mode.run(limiter.get_entity("key"))
    mode.run(limiter.get_entity("key"))
    assert abs(limiter.repository.clock_skew_ms - OFF_MS) <= 1000
    (told,) = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert re.search(r"\+(4\.9|5\.[01]) s off Redis's", told)
