"""The Redis of the tests: it does what it says, it comes up quickly, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    ConnectionError as Disconnected,
    ResponseError,
    TimeoutError as TooLate,
    TryAgainError,
)
from redis.retry import Retry

from tests.stores.redis.support import in_a_fork
from tests.support.paths import CERTIFICATE, ROOT
from tests.support.redis import shared
from tests.support.redis.cluster import SLOTS, Cluster, spans
from tests.support.redis.line import NAMELESS
from tests.support.redis.proxy import Proxy
from tests.support.redis.sentinel import Sentinels
from tests.support.redis.server import DoesNotStart, Server
from tests.support.waiting import until


@contextlib.contextmanager
def client(url: str, **options: Any) -> Iterator[redis.Redis]:
    """A client that asks once and says no more than it is told to."""
    options = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "socket_timeout": 5, **NAMELESS, **options}
    with contextlib.closing(redis.Redis.from_url(url, **options)) as made:
        yield made


@pytest.fixture
def server() -> Iterator[Server]:
    """A server for one test."""
    with Server() as started:
        yield started


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of it."""
    with Proxy(server) as started:
        yield started


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return False
        return True
    return state in "ZX"


# One server


def test_a_server_answers_on_its_port_and_its_socket(server: Server) -> None:
    assert server.command("SET", "a", "ä") == "OK"
    for url in (server.url, server.unix_url):
        with client(url) as asked:
            assert asked.get("a") == "ä".encode()
    server.flush()
    assert server.command("DBSIZE") == 0


def test_the_socket_of_a_server_in_a_deep_folder_has_a_short_path(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    with Server(folder) as started:
        socket_folder = started.socket.parent
        with client(started.unix_url) as asked:
            assert asked.ping()
    assert (folder / "redis.conf").exists()
    assert not socket_folder.exists()


def test_options_are_directives_or_lines() -> None:
    with Server(options={"maxmemory": "3mb", "save": ""}) as started:
        assert started.command("CONFIG", "GET", "maxmemory") == ["maxmemory", str(3 << 20)]
    with Server(options=["requirepass s3:cret", "maxclients 7"]) as started:
        assert started.command("CONFIG", "GET", "maxclients") == ["maxclients", "7"]
        with client(started.unix_url) as asked:
            assert asked.ping()


def test_a_restart_keeps_the_port_and_forgets_the_data(server: Server) -> None:
    server.command("SET", "a", "1")
    url = server.url
    server.restart()
    assert server.url == url
    assert server.command("GET", "a") is None


def test_a_durable_server_loses_nothing_by_being_killed() -> None:
    with Server(durable=True) as started:
        started.command("SET", "a", "1")
        started.kill()
        with pytest.raises(Disconnected):
            started.command("GET", "a")
        started.start()
        assert started.command("GET", "a") == "1"


def test_a_frozen_server_answers_when_it_is_thawed(server: Server) -> None:
    with client(server.url, socket_timeout=0.05) as asked:
        assert asked.ping()
        server.freeze()
        server.freeze()
        with pytest.raises(TooLate):
            asked.ping()
        server.thaw()
        assert server.command("PING") == "PONG"


def test_statistics_count_what_others_ask_and_what_scripts_call(server: Server) -> None:
    assert server.command_stats() == {}
    with client(server.url) as asked:
        asked.eval("return redis.call('SET', 'a', 1)", 0)
        asked.config_get("port")
    server.command("GET", "a")
    assert server.command_stats() == {"eval": 1, "set": 1, "config": 1, "get": 1}
    server.reset_stats()
    assert server.command_stats() == {}


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(DoesNotStart, match="no-such-directive"), Server(options={"no-such-directive": "1"}):
        pass


def test_a_free_port_that_was_taken_meanwhile_is_exchanged_for_another() -> None:
    made = Server()
    with socket.create_server(("127.0.0.1", made.port)) as taken, made:
        assert made.port != taken.getsockname()[1]
        assert made.command("PING") == "PONG"
        with pytest.raises(DoesNotStart, match="in use"), Server(port=made.port):
            pass


def test_a_fork_has_a_connection_of_its_own_and_leaves_the_server_alone(server: Server) -> None:
    assert server.command("ECHO", "parent") == "parent"

    def child() -> None:
        assert server.command("ECHO", "child") == "child"
        server.close()

    assert in_a_fork(child)
    assert server.running
    assert server.command("ECHO", "parent") == "parent"


def test_a_run_that_is_killed_leaves_nothing_behind() -> None:
    code = (
        "from tests.support.redis.server import Server\n"
        "s = Server(); s.start(); print(s.pid, s.folder, flush=True); input()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        assert not gone(int(pid))
        run.send_signal(signal.SIGKILL)
    until(lambda: gone(int(pid)), "the server ends with the run")
    until(lambda: not Path(folder).exists(), "its folder is removed")


# A cluster


@pytest.fixture
def cluster() -> Cluster:
    """The shared one, empty."""
    found = shared.cluster()
    found.flush()
    return found


@contextlib.contextmanager
def cluster_client(cluster: Cluster) -> Iterator[Any]:
    """A client that follows redirections."""
    node = cluster.nodes[0]
    with contextlib.closing(RedisCluster(host="127.0.0.1", port=node.port, decode_responses=True)) as made:
        yield made


def test_a_cluster_has_its_slots_on_three_masters(cluster: Cluster) -> None:
    counts = [span.last - span.first + 1 for span in spans(cluster.nodes[0])]
    assert sum(counts) == SLOTS
    assert max(counts) - min(counts) <= 1
    assert [cluster.node_of_slot(slot) for slot in (0, SLOTS // 2, SLOTS - 1)] == cluster.nodes
    assert cluster.url == "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


def test_a_cluster_serves_clients_and_sums_its_statistics(cluster: Cluster) -> None:
    keys = ["a", "b", "c", "d"]
    cluster.reset_stats()
    with cluster_client(cluster) as asked:
        for key in keys:
            asked.set(key, key)
        assert [cluster.node_of(key).command("GET", key) for key in keys] == keys
    assert len({cluster.node_of(key).port for key in keys}) > 1
    stats = cluster.command_stats()
    assert (stats["set"], stats["get"]) == (4, 4)
    cluster.flush()
    assert [node.command("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


def test_in_the_middle_of_a_move_a_node_asks_to_ask_the_other(cluster: Cluster) -> None:
    slot = cluster.slot_of("{x}")
    source = cluster.node_of_slot(slot)
    target = next(node for node in cluster.nodes if node is not source)
    with cluster_client(cluster) as asked:
        asked.mset({"{x}1": "1", "{x}2": "2"})
        cluster.begin_move(slot, target, keys=1)
        assert target.command("ASKING") == "OK"
        with pytest.raises(TryAgainError):
            target.command("MGET", "{x}1", "{x}2")
        with pytest.raises(AskError) as redirection:
            source.command("GET", "{x}3")
        assert redirection.value.port == target.port
        asked.set("{x}3", "3")
        cluster.end_move(slot, target)
        assert cluster.node_of_slot(slot) is target
        assert target.command("MGET", "{x}1", "{x}2", "{x}3") == ["1", "2", "3"]
        cluster.move_slot(slot, source)
        assert source.command("MGET", "{x}1", "{x}2", "{x}3") == ["1", "2", "3"]


def test_a_replica_takes_the_place_of_its_master() -> None:
    with Cluster(replicas=1, options={"cluster-node-timeout": "500"}) as started:
        slot = started.slot_of("a")
        master = started.node_of_slot(slot)
        master.kill()
        started.settle()
        assert started.node_of_slot(slot) is started.nodes[started.nodes.index(master) + 3]
        master.start()
        started.settle()
        assert master.command("ROLE")[0] == "slave"


# Sentinel


def test_a_failover_exchanges_master_and_replica() -> None:
    with Sentinels() as started:
        master, replica = started.master, started.replica
        assert started.url == f"redis+sentinel://127.0.0.1:{started.sentinel.port}/mymaster/0"
        with pytest.raises(ResponseError, match="read only replica"):
            replica.command("SET", "a", "1")
        started.fail_over()
        assert (started.master, started.replica) == (replica, master)
        assert started.master.command("SET", "a", "1") == "OK"


# A proxy


def test_a_proxy_counts_commands_and_connections(proxy: Proxy) -> None:
    with client(proxy.url) as asked, asked.pipeline(transaction=False) as pipeline:
        pipeline.set("a", "1")
        pipeline.get("a")
        pipeline.get("a")
        assert pipeline.execute() == [True, b"1", b"1"]
    assert proxy.commands == {"set": 1, "get": 2}
    assert (proxy.requests, proxy.accepted) == (3, 1)


def test_a_cut_request_has_been_executed_and_not_answered(server: Server, proxy: Proxy) -> None:
    with client(proxy.url) as asked:
        proxy.cut_after_request()
        with pytest.raises(Disconnected):
            asked.append("a", "1")
        assert server.command("GET", "a") == "1"
        proxy.cut_after_request(2, only="APPEND")
        assert asked.append("a", "2") == 2
        assert asked.get("a") == b"12"
        with pytest.raises(Disconnected):
            asked.append("a", "3")
        assert asked.get("a") == b"123"


def test_a_proxy_refuses_until_it_accepts(proxy: Proxy) -> None:
    with client(proxy.url) as asked, client(proxy.url) as newcomer:
        assert asked.ping()
        proxy.refuse()
        for caller in (asked, newcomer, asked):
            with pytest.raises(Disconnected):
                caller.ping()
        proxy.accept()
        assert asked.ping()


@pytest.mark.parametrize("deliver", [True, False])
def test_held_answers_come_late_or_never(proxy: Proxy, deliver: bool) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as asked:
        proxy.hold()
        asked.sendall(b"ECHO first\r\n")
        until(lambda: proxy.held == 1, "the server has answered")
        proxy.release(deliver=deliver)
        asked.sendall(b"*2\r\n$4\r\nECHO\r\n$6\r\nsecond\r\n")
        expected = b"$5\r\nfirst\r\n" * deliver + b"$6\r\nsecond\r\n"
        assert asked.recv(len(expected), socket.MSG_WAITALL) == expected


def test_a_proxy_without_a_server_closes(server: Server, proxy: Proxy) -> None:
    server.kill()
    with client(proxy.url) as asked, pytest.raises(Disconnected):
        asked.ping()


def test_a_proxy_speaks_tls(server: Server) -> None:
    with Proxy(server, tls=True) as secure:
        with client(secure.url) as stranger, pytest.raises(Disconnected, match="certificate"):
            stranger.ping()
        with client(secure.url, ssl_ca_certs=str(CERTIFICATE)) as asked:
            assert asked.set("a", "1" * 100_000)
            secure.cut_after_request()
            with pytest.raises(Disconnected):
                asked.append("a", "2")
            assert asked.strlen("a") == 100_001


# What tests share


def test_the_shared_server_is_the_same_for_all() -> None:
    assert shared.server() is shared.server()
    assert shared.server().command("PING") == "PONG"
    assert shared.cluster() is shared.cluster()


def test_a_server_named_by_the_environment_is_shared_as_it_is(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared.URL, server.url.replace("redis://", "valkey://").removesuffix("0") + "3")
    found = shared.server.__wrapped__()
    with contextlib.closing(found):
        found.command("SET", "a", "1")
        server.command("SET", "b", "1")
        assert found.port == server.port
        found.flush()
        assert (found.command("DBSIZE"), server.command("DBSIZE")) == (0, 1)
        assert not hasattr(found, "kill")
