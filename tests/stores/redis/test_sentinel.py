"""Behind sentinels: the master is whoever they name, and a limiter follows it without anybody's help."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.stores.redis.support import RPM, Driven, Scripted, contents
from tests.support.ports import free_port
from tests.support.redis.cluster import in_step
from tests.support.redis.proxy import Proxy
from tests.support.redis.sentinel import NAME, Sentinels
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import InfrastructureError, RateLimiterUnavailable, SyncRateLimiter
from zae_limiter.records.algebra import Committed, Key, Write
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.redis.settings import Address
from zae_limiter.stores.redis.topology import Sentinels as Topology

ONE = Key("p", "#1")


@pytest.fixture(scope="module")
def started() -> Iterator[Sentinels]:
    with Sentinels() as made:
        yield made


@pytest.fixture
def sentinels(started: Sentinels) -> Sentinels:
    started.master.flush()
    return started


@pytest.fixture
def own() -> Iterator[Sentinels]:
    """For a failover: it takes long until the next one is possible."""
    with Sentinels() as made:
        yield made


def fail_over(own: Sentinels) -> None:
    """Exchange master and replica. The sentinel would demote the old master only after ten seconds."""
    old = own.master
    own.fail_over()
    old.aside("REPLICAOF", "127.0.0.1", own.master.port)
    old.aside("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: in_step(old), "the old master is a replica")


def hosts(*ports: int) -> str:
    """A URL with several sentinels."""
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{NAME}/0"


def test_the_master_is_found(mode: Driven, sentinels: Sentinels) -> None:
    limiter = mode.limiter(sentinels.url)
    assert mode.take(limiter) == "granted"
    assert mode.left(sentinels.master.url) == 99


def test_the_sentinels_are_asked_once(mode: Driven, sentinels: Sentinels) -> None:
    with Proxy(sentinels.sentinel) as proxy:
        limiter = mode.limiter(hosts(proxy.port))
        for _ in range(5):
            assert mode.take(limiter) == "granted"
        assert proxy.commands["sentinel"] == 1


def test_a_limiter_follows_a_failover(mode: Driven, own: Sentinels) -> None:
    limiter = mode.limiter(own.url)
    assert mode.take(limiter) == "granted"
    until(lambda: contents(own.replica) == contents(own.master), "the replica knows of it")
    old = own.master
    fail_over(own)
    assert own.master is not old
    until(lambda: mode.take(limiter, timeout=1) == "granted", "the limiter has found the new master")
    assert mode.left(own.master.url) == 98
    assert mode.take(limiter) == "granted"


def test_a_demoted_master_makes_the_client_ask_again_at_once(mode: Driven, sentinels: Sentinels) -> None:
    """READONLY says that nothing was carried out: the call is made at the new master, and its caller sees no error."""
    store = mode.store(sentinels.url)
    mode.run(store.commit([Write(ONE, (), {"n": 1})]))
    topology = store.client.topology
    assert isinstance(topology, Topology)
    topology.master = Address("127.0.0.1", sentinels.replica.port)
    assert mode.run(store.commit([Write(ONE, add={"n": 1})])) == Committed(({"n": 2},))
    assert topology.master == Address("127.0.0.1", sentinels.master.port)


def test_a_master_that_is_gone_makes_the_client_ask_again_at_once(mode: Driven, sentinels: Sentinels) -> None:
    """A connection that was refused carried nothing."""
    store = mode.store(sentinels.url)
    mode.run(store.commit([Write(ONE, (), {"n": 1})]))
    topology = store.client.topology
    assert isinstance(topology, Topology)
    topology.master = Address("127.0.0.1", free_port())
    assert mode.run(store.commit([Write(ONE, add={"n": 1})])) == Committed(({"n": 2},))


def test_a_lost_answer_is_not_sent_to_the_next_master(mode: Driven, sentinels: Sentinels) -> None:
    with Proxy(sentinels.master) as proxy:
        store = mode.store(sentinels.url)
        mode.run(store.commit([Write(ONE, (), {"n": 1})]))
        topology = store.client.topology
        assert isinstance(topology, Topology)
        topology.master = Address("127.0.0.1", proxy.port)
        proxy.cut_after_request(only="evalsha")
        with pytest.raises(RateLimiterUnavailable, match="unknown"):
            mode.run(store.commit([Write(ONE, add={"n": 1})]))
        assert mode.run(store.commit([Write(ONE, add={"n": 1})])) == Committed(({"n": 3},))
        assert proxy.commands["evalsha"] == 1, "the next one has asked the sentinels"


def test_a_master_that_is_killed_is_replaced(mode: Driven, own: Sentinels) -> None:
    limiter = mode.limiter(own.url)
    assert mode.take(limiter) == "granted"
    old = own.master
    old.kill()
    assert mode.take(limiter, timeout=0.2) == "unavailable"
    assert mode.take(limiter, timeout=0.2, on_unavailable="allow") == "degraded"
    until(lambda: mode.take(limiter, timeout=1) == "granted", "the replica has taken over")
    assert own.master is not old


def test_threads_that_lose_their_master_all_find_the_next_one(own: Sentinels) -> None:
    over = threading.Event()

    def work(limiter: SyncRateLimiter, number: int) -> None:
        """Acquire all the time; an outage is what may happen, anything else is not."""
        while not over.is_set():
            try:
                with limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 0}, RPM):
                    pass
            except RateLimiterUnavailable:
                continue

    with SyncRateLimiter(own.url) as limiter, ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(work, limiter, number) for number in range(8)]
        try:
            fail_over(own)
        finally:
            over.set()
        for future in futures:
            future.result()
        last = limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM)
        with suppress(RateLimiterUnavailable), last:  # a slow sentinel demotes the old master again, and cuts it once
            return
        with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM):
            pass


class Knowing:
    """A sentinel that answers at once."""

    async def call(self, address: Address, command: Sequence[str], deadline: float) -> list[bytes]:
        """Who is the master."""
        return [b"127.0.0.1", b"6379"]


def test_threads_that_ask_at_the_same_time_all_get_an_answer() -> None:
    topology = Topology([Address("a", 1)], NAME, Knowing())  # type: ignore[arg-type]  # all it needs

    def ask(_: int) -> bool:
        return all(run(topology.locate("key", math.inf)) == Address("127.0.0.1", 6379) for _ in range(500))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(8)))
    finally:
        sys.setswitchinterval(interval)


# Sentinels that do not help


def test_a_sentinel_that_is_down_is_passed_over(mode: Driven, sentinels: Sentinels) -> None:
    limiter = mode.limiter(hosts(free_port(), sentinels.sentinel.port))
    assert mode.take(limiter) == "granted"
    topology = limiter._backend.store.client.topology  # type: ignore[attr-defined]  # a Redis store has one
    assert topology._sentinels[0].port == sentinels.sentinel.port, "the one that knew is asked first the next time"


def test_no_sentinel_at_all_is_an_outage(mode: Driven) -> None:
    ports = free_port(), free_port()
    limiter = mode.limiter(hosts(*ports))
    with pytest.raises(RateLimiterUnavailable, match=f"no Sentinel names a master.*{ports[0]}.*{ports[1]}"):
        mode.run(limiter.get_entity("key"))
    assert mode.take(limiter, on_unavailable="allow") == "degraded"


def test_sentinels_that_are_gone_are_not_missed_while_the_master_is_there(mode: Driven, sentinels: Sentinels) -> None:
    with Proxy(sentinels.sentinel) as proxy:
        limiter = mode.limiter(hosts(proxy.port))
        assert mode.take(limiter) == "granted"
        proxy.refuse()
        assert mode.take(limiter) == "granted"


def test_an_unknown_name_is_named(mode: Driven, sentinels: Sentinels) -> None:
    url = sentinels.url.replace(NAME, "nobody")
    with pytest.raises(RateLimiterUnavailable, match=f"127.0.0.1:{sentinels.sentinel.port} does not know 'nobody'"):
        mode.run(mode.limiter(url).get_entity("key"))


def test_a_server_that_is_no_sentinel_says_so(mode: Driven, sentinels: Sentinels) -> None:
    with pytest.raises(InfrastructureError, match="it is not a Sentinel"):
        mode.run(mode.limiter(hosts(sentinels.master.port)).get_entity("key"))


def test_a_sentinel_is_no_server(mode: Driven, sentinels: Sentinels) -> None:
    with pytest.raises(Exception, match=f"127.0.0.1:{sentinels.sentinel.port}"):
        mode.run(mode.limiter(f"redis://127.0.0.1:{sentinels.sentinel.port}/0").get_entity("key"))


def test_a_sentinel_that_does_not_answer_takes_no_longer_than_the_call_has(mode: Driven, sentinels: Sentinels) -> None:
    with Proxy(sentinels.sentinel) as proxy:
        limiter = mode.limiter(f"{hosts(proxy.port)}?timeout=600&connect_timeout=600")
        proxy.hold()
        assert mode.take(limiter, timeout=0.2) == "unavailable"
        proxy.release()
        assert mode.take(limiter) == "granted"


def test_one_sentinel_that_does_not_answer_does_not_use_up_the_time_for_the_others(
    mode: Driven, sentinels: Sentinels
) -> None:
    with Proxy(sentinels.sentinel) as proxy:
        proxy.hold()
        limiter = mode.limiter(f"{hosts(proxy.port, sentinels.sentinel.port)}?connect_timeout=0.2&timeout=2")
        assert mode.take(limiter) == "granted"


def test_a_master_that_is_no_master_ends_in_an_error(mode: Driven, sentinels: Sentinels) -> None:
    """Sentinels that name a replica, as they do in the middle of a failover, are asked a few times and no more."""
    with Server(options={"replicaof": f"127.0.0.1 {sentinels.master.port}"}) as replica:
        until(lambda: in_step(replica), "the replica is in step")
        answer = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(replica.port))}\r\n{replica.port}\r\n".encode()
        with Scripted(answer) as liar:
            limiter = mode.limiter(hosts(int(liar.url.split(":")[2].split("/")[0])))
            with pytest.raises(RateLimiterUnavailable, match="read-only replica"):
                mode.run(limiter.create_entity("key"))
            assert 1 <= len(liar.asked) <= 10
