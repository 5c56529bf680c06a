"""The data plane client: one keep-alive connection at a time, in threads, loops and forks, over TLS and proxies."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.modes import MODES
from tests.support.paths import CERTIFICATE
from tests.support.scripted_server import CLOSE, FORMS, HANG, Driven, ScriptedServer, Step, driven, isolate, reply
from zae_limiter import ConfigurationError, RateLimiterUnavailable
from zae_limiter.runtime import blocking
from zae_limiter.stores import pools
from zae_limiter.stores.dynamodb.client import open_client
from zae_limiter.stores.outcomes import NotSent
from zae_limiter.stores.pools import ConnectionSlots


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as made:
        yield made


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def subject(mode: str, server: ScriptedServer) -> Iterator[Driven]:
    with driven(mode, server.url) as made:
        yield made


def test_a_request_is_what_the_json_api_wants(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(reply({"Attributes": {"PK": {"S": "ü🎈"}}}))
    answer = subject.call("UpdateItem", {"TableName": "t", "Key": {"PK": {"S": "ü🎈"}}})
    assert answer == {"Attributes": {"PK": {"S": "ü🎈"}}}
    (seen,) = server.seen
    assert seen.line == "POST / HTTP/1.1"
    assert seen.headers["x-amz-target"] == "DynamoDB_20120810.UpdateItem"
    assert seen.headers["host"] == f"127.0.0.1:{server.port}"
    assert seen.headers["accept-encoding"] == "identity"
    assert "/eu-west-1/dynamodb/aws4_request" in seen.headers["authorization"]
    assert json.loads(seen.body) == {"TableName": "t", "Key": {"PK": {"S": "ü🎈"}}}


def test_one_connection_serves_call_after_call(server: ScriptedServer, subject: Driven) -> None:
    for _ in range(10):
        subject.call()
    assert server.accepted == 1


def test_a_connection_that_the_server_closed_is_not_used(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(reply(headers=("Connection: close",), close=True))
    subject.call()
    subject.call("UpdateItem")
    server.script.append(reply(close=True))
    subject.call("UpdateItem")
    for thread in server._threads[2:3]:
        thread.join()
    subject.call("UpdateItem")
    assert server.accepted == 3


def test_an_old_idle_connection_is_not_used(
    server: ScriptedServer, subject: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.call()
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.0)
    subject.call()
    assert server.accepted == 2


def test_close_closes_and_the_next_call_opens_again(server: ScriptedServer, subject: Driven) -> None:
    subject.call()
    subject.run(subject.client.close())
    server._threads[1].join()
    subject.call()
    assert server.accepted == 2


def test_close_in_the_middle_of_a_call_keeps_nothing(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(Step(reply({"a": 1}).data, before=subject.client.connections.close))
    assert subject.call() == {"a": 1}
    server._threads[1].join()
    assert subject.call() == {}
    assert server.accepted == 2


@pytest.mark.parametrize("step", FORMS.values(), ids=FORMS)
def test_every_form_of_an_answer(server: ScriptedServer, subject: Driven, step: Step) -> None:
    server.script.append(step)
    assert subject.call() == {"a": "b"}
    assert subject.call() == {}
    assert server.accepted == (2 if step.close else 1)


def test_the_next_address_is_tried(server: ScriptedServer, subject: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as gone:
        dead = gone.port

    async def resolve(host: str, port: int, deadline: float) -> list[Any]:
        return [
            found for each in (dead, port) for found in socket.getaddrinfo("127.0.0.1", each, type=socket.SOCK_STREAM)
        ]

    monkeypatch.setattr(subject.client.connections.sockets, "resolve", resolve)
    assert subject.call("UpdateItem") == {}
    assert subject.client.stats.snapshot().retries == 0


def test_a_large_request_and_a_large_answer(server: ScriptedServer, subject: Driven) -> None:
    large = "x" * 3_000_000
    server.script.append(reply({"Items": [], "Blob": large}))
    assert subject.call("Query", {"Keys": large}) == {"Items": [], "Blob": large}
    assert json.loads(server.seen[0].body) == {"Keys": large}


def test_bytes_beyond_the_answer_end_the_connection(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(Step(reply({"a": 1}).data + b"HTTP/1.1 200 OK\r\n\r\n"))
    assert subject.call() == {"a": 1}
    assert subject.call() == {}
    assert server.accepted == 2


def test_cost_is_counted(server: ScriptedServer, subject: Driven) -> None:
    units = {"TableName": "t", "CapacityUnits": 1.5}
    server.script.append(reply({"ConsumedCapacity": units}))
    server.script.append(reply({"Responses": {}, "ConsumedCapacity": [units, units]}))
    server.script.append(reply({"Items": []}))
    subject.call("UpdateItem")
    subject.call("BatchGetItem", {"RequestItems": {}})
    subject.call("Query")
    stats = subject.client.stats.snapshot()
    assert (stats.write_units, stats.read_units) == (1.5, 3.0)
    assert (dict(stats.calls), stats.total_calls) == ({"UpdateItem": 1, "BatchGetItem": 1, "Query": 1}, 3)
    assert stats.bytes_sent > sum(len(seen.body) for seen in server.seen)
    assert stats.bytes_received > 100


def test_more_callers_than_connections_take_turns(server: ScriptedServer, mode: str) -> None:
    with driven(mode, server.url, max_connections=2) as subject:
        if mode == "async":

            async def work() -> None:
                await asyncio.gather(*(subject.client.call("GetItem", {}) for _ in range(20)))

            subject.run(work())
        else:
            threads = [threading.Thread(target=subject.call) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(server.seen) == 20
        assert server.accepted <= 2


def test_no_free_connection_in_time_was_not_sent(server: ScriptedServer, mode: str) -> None:
    with driven(mode, server.url, max_connections=1) as subject:
        subject.call()
        slots = subject.run(_slots(subject))
        subject.run(slots.take(1.0))
        told = r"it was not asked \(all 1 connections of this client were in use for [\d.]{1,6} s; \?max_connections="
        with pytest.raises(RateLimiterUnavailable, match=told) as caught:
            subject.call("UpdateItem", timeout=0.0212345)
        assert isinstance(caught.value.cause, NotSent)
        slots.give_back()
        assert subject.call() == {}


async def _slots(subject: Driven) -> ConnectionSlots:
    return subject.client.connections._pools.here().slots


def test_no_time_at_all_sends_nothing(server: ScriptedServer, subject: Driven) -> None:
    with pytest.raises(RateLimiterUnavailable):
        subject.call("UpdateItem", timeout=0)
    subject.call()
    with pytest.raises(RateLimiterUnavailable, match="no time was left"):
        subject.call("UpdateItem", timeout=0)
    assert len(server.seen) == 1


def test_threads_share_a_blocking_client(server: ScriptedServer) -> None:
    with driven("blocking", server.url) as subject:
        threads = [threading.Thread(target=lambda: [subject.call() for _ in range(20)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert subject.client.stats.snapshot().total_calls == len(server.seen) == 160
        assert server.accepted <= 8


def test_loops_one_after_the_other_and_at_once(server: ScriptedServer) -> None:
    clients = [open_client("t", blocking=False, region="eu-west-1", endpoint_url=server.url)]

    async def work() -> None:
        await asyncio.gather(*(clients[0].call("GetItem", {}) for _ in range(3)))

    for _ in range(3):
        asyncio.run(work())
    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.seen) == 21
    clients.clear()
    gc.collect()  # sockets of dead loops go silently: a warning would be an error here


def test_a_dead_loop_is_not_kept(server: ScriptedServer) -> None:
    client = open_client("t", blocking=False, region="eu-west-1", endpoint_url=server.url, max_connections=1)
    loops: list[weakref.ref[object]] = []

    async def work() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(client.call("GetItem", {}) for _ in range(5)))

    for _ in range(3):
        asyncio.run(work())
    gc.collect()
    assert [loop() is None for loop in loops[:2]] == [True, True]
    assert len(client.connections._pools._pools) <= 1


def test_a_cancelled_call_does_not_spoil_the_connection(server: ScriptedServer) -> None:
    with driven("async", server.url) as subject:

        async def work() -> None:
            await subject.client.call("GetItem", {})
            arrived = asyncio.Event()
            arrive = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, arrived.set)
            server.script.append(Step(hang=True, before=arrive))
            task = asyncio.ensure_future(subject.client.call("UpdateItem", {}))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await subject.client.call("GetItem", {}) == {}

        subject.run(work())
        assert server.accepted == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_shares_no_connection(server: ScriptedServer) -> None:
    with driven("blocking", server.url) as subject:
        subject.call()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                subject.call("PutItem")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        subject.call()
        assert server.accepted == 2, "the child opened one of its own, the parent kept its own"
        assert [seen.operation for seen in server.seen] == ["GetItem", "PutItem", "GetItem"]


def test_tls_and_its_distrust(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with ScriptedServer(tls=True) as server:
        with driven(mode, server.url) as subject:
            with pytest.raises(ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
                subject.call("UpdateItem")
            assert not server.seen
        monkeypatch.setenv("AWS_CA_BUNDLE", str(CERTIFICATE))
        accepted = server.accepted
        with driven(mode, server.url) as subject:
            for size in (1, 200_000):
                server.script.append(reply({"Blob": "y" * size}))
                assert subject.call("GetItem", {"Key": "x" * size}) == {"Blob": "y" * size}
            assert server.accepted == accepted + 1
            server.script.append(FORMS["until the end"])
            assert subject.call("UpdateItem") == {"a": "b"}
            server.script.append(CLOSE)
            with pytest.raises(RateLimiterUnavailable):
                subject.call("UpdateItem")
            server.script.append(HANG)
            with pytest.raises(RateLimiterUnavailable, match="in time"):
                subject.call("UpdateItem", timeout=0.2)


def test_a_tunnel_through_a_proxy(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(tls=True) as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(CERTIFICATE))
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{server.port}")
        with driven(mode, "https://localhost:9") as subject:
            subject.call()
            subject.call()
            assert [seen.line for seen in server.seen][:2] == ["CONNECT localhost:9 HTTP/1.1", "POST / HTTP/1.1"]
            assert server.seen[0].headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
            assert "proxy-authorization" not in server.seen[1].headers
            assert (len(server.seen), server.accepted) == (3, 1)
        server.script.extend([Step(b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n", close=True)] * 5)
        with driven(mode, "https://localhost:9") as subject, pytest.raises(RateLimiterUnavailable, match="407"):
            subject.call()


def test_a_plain_proxy(mode: str, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HTTP_PROXY", f"http://me:pass@127.0.0.1:{server.port}")
    with driven(mode, "http://dynamodb.internal:8000") as subject:
        subject.call()
    assert server.seen[0].line == "POST http://dynamodb.internal:8000/ HTTP/1.1"
    assert server.seen[0].headers["host"] == "dynamodb.internal:8000"
    assert server.seen[0].headers["proxy-authorization"] == "Basic bWU6cGFzcw=="
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with driven(mode, server.url) as subject:
        subject.call()
    assert server.seen[1].line == "POST / HTTP/1.1"


def test_a_blocking_client_needs_no_event_loop(server: ScriptedServer) -> None:
    client = open_client("t", blocking=True, region="eu-west-1", endpoint_url=server.url)
    assert blocking.run(client.call("GetItem", {})) == {}
    assert (client.table, client.region, client.settings.url) == ("t", "eu-west-1", server.url)


def test_opening_a_client_looks_nothing_up() -> None:
    code = (
        "import sys; from zae_limiter.stores.dynamodb.client import open_client; open_client('t', blocking=True); "
        "assert 'botocore' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
