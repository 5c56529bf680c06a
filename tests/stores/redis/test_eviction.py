"""A server that deletes records when its memory is full: opening warns once, `status` and `check` say so."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.cli.terminal import UNSET
from tests.stores.redis.support import Driven
from tests.support.redis.cluster import Cluster
from tests.support.redis.server import Server
from zae_limiter.cli.app import root
from zae_limiter.stores.redis.answers import read_eviction_policy


@pytest.fixture
def evicting(server: Server) -> Iterator[Server]:
    server.aside("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    yield server
    server.aside("CONFIG", "SET", "maxmemory-policy", "noeviction")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "zae_event", "") == "store.evicts"]


def test_opening_warns_once(mode: Driven, evicting: Server, caplog: pytest.LogCaptureFixture) -> None:
    """However many connections there are, in this store and in the one that it makes for threads."""
    store = mode.store(evicting.url)
    limiter = mode.limiter(store)
    for _ in range(3):
        assert mode.take(limiter) == "granted"
        store.client.nodes.close()
        store.client.nodes.opener.distrust(store.client.topology.masters()[0])
    aside = Driven("blocking")
    assert aside.take(aside.limiter(store.for_threads())) == "granted"
    aside.close()
    (told,) = warnings(caplog)
    assert "allkeys-lru" in told
    assert f"127.0.0.1:{evicting.port}" in told
    (record,) = [each for each in caplog.records if each.getMessage() == told]
    assert record.levelno == logging.WARNING
    assert vars(record)["zae_policy"] == "allkeys-lru"


def test_a_server_that_keeps_everything_is_not_warned_of(
    mode: Driven, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert mode.take(mode.limiter(server.url)) == "granted"
    assert warnings(caplog) == []
    assert mode.run(mode.limiter(server.url).repository.status()).eviction_policy == "noeviction"


def test_a_server_that_does_not_say_is_not_warned_of(
    mode: Driven, evicting: Server, caplog: pytest.LogCaptureFixture
) -> None:
    evicting.aside("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-info")
    limiter = mode.limiter(f"redis://app:secret@127.0.0.1:{evicting.port}/0")
    assert mode.take(limiter) == "granted"
    assert warnings(caplog) == []
    assert mode.run(limiter.repository.status()).eviction_policy is None


def test_status_and_check_report_it(evicting: Server) -> None:
    def told(*words: str) -> str:
        result = CliRunner(env=UNSET).invoke(root, ["--url", evicting.url, *words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert json.loads(told("--json", "status"))["eviction_policy"] == "allkeys-lru"
    checked = json.loads(told("--json", "check"))
    assert checked["maxmemory_policy"] == "allkeys-lru"
    assert "noeviction" in checked["warning"]
    for command in ("status", "check"):
        text = " ".join(told(command).split())
        assert "maxmemory-policy" in text
        assert "allkeys-lru" in text
        assert "set it to noeviction" in text


def test_every_node_of_a_cluster_is_asked(mode: Driven) -> None:
    with Cluster() as cluster:
        store = mode.store(cluster.url)
        assert mode.run(store.find_eviction_policy()) == "noeviction"
        cluster.nodes[1].aside("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        assert mode.run(store.find_eviction_policy()) == "noeviction, volatile-ttl"


@pytest.mark.parametrize("answer", [None, 1, [], b"", b"maxmemory_policy:", b"maxmemory_policy:\xff\r\n"])
def test_an_answer_that_does_not_tell_it_is_none(answer: object) -> None:
    assert read_eviction_policy(answer) is None
