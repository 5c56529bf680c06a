"""Who is let in: users, passwords and permissions, the least that they need; databases, Unix sockets and TLS."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from urllib.parse import quote

import pytest

from tests.stores.redis.support import RPM, Driven, Scripted, contents, driven
from tests.support.paths import CERTIFICATE, ROOT
from tests.support.redis.cluster import Cluster
from tests.support.redis.proxy import Proxy
from tests.support.redis.sentinel import Sentinels
from tests.support.redis.server import Server
from zae_limiter import AccessDeniedError, InfrastructureError, RateLimiter
from zae_limiter.records.algebra import ABSENT, Key, Query, Write
from zae_limiter.testing import ManualClock

COMMANDS = (
    "evalsha", "eval", "get", "set", "del", "expireat", "time", "info",
    "zadd", "zrem", "zrangebylex", "zrevrangebylex", "zrangebyscore",
)  # fmt: skip
"""All that a user needs on a server; the keys are those of the prefix."""
CLUSTER_COMMANDS = ("cluster|slots", "asking")
SENTINEL_COMMANDS = ("sentinel|get-master-addr-by-name",)

SECRET = "correct-horse"
ODD = ["a:b@c/d?e#f", "100%", "ü ß+&=", "[x]{y}", '"quoted"', "%41"]


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    running.flush()
    yield running
    running.aside("SCRIPT", "FLUSH")
    running.aside("ACL", "LOG", "RESET")
    for name in set(running.aside("ACL", "USERS")) - {"default"}:
        running.aside("ACL", "DELUSER", name)


def admit(server: Server, *rules: str, name: str = "app", password: str = SECRET, keys: str = "~zae:*") -> str:
    """Make a user who may do only this; returns the URL for him."""
    server.aside("ACL", "SETUSER", name, "reset", "on", f">{password}", keys, "-@all", *rules)
    return f"redis://{quote(name, safe='')}:{quote(password, safe='')}@127.0.0.1:{server.port}/0"


def allowing(commands: tuple[str, ...]) -> list[str]:
    return [f"+{command}" for command in commands]


def denied(server: Server) -> set[str]:
    """What anybody was refused."""
    log = server.aside("ACL", "LOG")
    return {dict(zip(entry[::2], entry[1::2], strict=True))["object"] for entry in log}


async def tour(limiter: RateLimiter) -> None:
    """Everything that a limiter does, so that every command is needed."""
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("parent")
    await limiter.create_entity("child", parent_id="parent", cascade=True)
    await limiter.set_limits("child", RPM, "gpt-4")
    for entity in ("child", "key"):
        async with limiter.acquire(entity, "gpt-4", {"rpm": 1}) as lease:
            await lease.adjust(rpm=1)
    await limiter.get_buckets("child")
    await limiter.get_resource_capacity("gpt-4", "rpm")
    await limiter.get_audit_events("child")
    await limiter.delete_limits("child", "gpt-4")
    await limiter.reset_bucket("key", "gpt-4")
    await limiter.delete_entity("child")


def upkeep(mode: Driven, url: str) -> None:
    """What happens only now and then: a sweep that finds something, and a range backwards."""
    clock = ManualClock()
    store = mode.store(url, clock=clock)
    mode.run(store.commit([Write(Key("p", "#1"), (ABSENT,), {"n": 1}, expires_at_ms=clock.now_ms() + 1)]))
    clock.advance(10)
    mode.run(store._sweeper.sweep(0, store.client.deadline(None)))
    mode.run(store.query(Query("p", descending=True)))


# The least


def test_a_user_needs_no_more_than_is_published(mode: Driven, server: Server) -> None:
    url = admit(server, *allowing(COMMANDS))
    mode.run(tour(mode.limiter(url)))
    upkeep(mode, url)
    assert denied(server) == set()
    assert all(key.startswith("zae:") for key in contents(server))


def test_what_is_published_is_what_is_tested() -> None:
    page = (ROOT / "docs" / "guide" / "stores" / "redis.md").read_text(encoding="utf-8")
    (rule,) = re.findall(r"^ACL SETUSER limiter (.*)$", page, re.MULTILINE)
    words = rule.split()
    assert words[:4] == ["on", ">secret", "-@all", "~zae:*"]
    assert sorted(words[4:]) == sorted(f"+{command}" for command in COMMANDS)
    for command in (*CLUSTER_COMMANDS, *SENTINEL_COMMANDS):
        assert f"`+{command}`" in page


@pytest.mark.parametrize("missing", COMMANDS)
def test_a_user_needs_everything_that_is_published(server: Server, missing: str) -> None:
    """What is missing is an error of its own kind and no outage, also inside a script.

    Only a sweep fails silently, and the question whether the server evicts records.
    """
    with driven("blocking") as mode:
        url = admit(server, *allowing(COMMANDS), f"-{missing}")
        server.aside("SCRIPT", "FLUSH")
        expected: AbstractContextManager[object] = pytest.raises(AccessDeniedError, match="permission")
        with suppress(AccessDeniedError) if missing in ("zrangebyscore", "info") else expected:
            mode.run(tour(mode.limiter(url, on_unavailable="allow")))
            upkeep(mode, url)
        assert denied(server) == {missing}


def test_other_peoples_keys_are_out_of_reach(mode: Driven, server: Server) -> None:
    url = admit(server, *allowing(COMMANDS), keys="~mine:*")
    mode.run(tour(mode.limiter(f"{url}?prefix=mine")))
    with pytest.raises(AccessDeniedError, match="permission"):
        mode.run(mode.limiter(f"{url}?prefix=yours").get_entity("key"))
    with pytest.raises(AccessDeniedError, match="permission"):
        mode.take(mode.limiter(url, on_unavailable="allow"))


def test_who_chooses_a_database_needs_the_permission_for_it(mode: Driven, server: Server) -> None:
    url = admit(server, *allowing(COMMANDS)).removesuffix("0") + "3"
    with pytest.raises(AccessDeniedError, match="select"):
        mode.run(mode.limiter(url).get_entity("key"))
    admit(server, *allowing(COMMANDS), "+select")
    assert mode.take(mode.limiter(url)) == "granted"


def test_who_names_himself_needs_the_permission_for_it(mode: Driven, server: Server) -> None:
    url = f"{admit(server, *allowing(COMMANDS))}?client_name=mine"
    with pytest.raises(AccessDeniedError, match="client"):
        mode.run(mode.limiter(url).get_entity("key"))
    admit(server, *allowing(COMMANDS), "+client|setname")
    limiter = mode.limiter(url)
    mode.run(limiter.get_entity("key"))
    assert " name=mine " in server.aside("CLIENT", "LIST")


def test_behind_sentinels_there_are_two_users(mode: Driven) -> None:
    with Sentinels() as started:
        for server in started.servers:
            admit(server, *allowing(COMMANDS))
        admit(started.sentinel, *allowing(SENTINEL_COMMANDS), name="watcher", password="other", keys="resetkeys")
        login = f"app:{SECRET}@"
        url = f"{started.url.replace('://', '://' + login)}?sentinel_username=watcher&sentinel_password="
        mode.run(tour(mode.limiter(f"{url}other")))
        assert denied(started.sentinel) == denied(started.master) == set()
        with pytest.raises(AccessDeniedError, match=f"127.0.0.1:{started.sentinel.port}.*user or password is wrong"):
            mode.run(mode.limiter(f"{url}wrong").get_entity("key"))
        admit(started.sentinel, name="watcher", password="other", keys="resetkeys")
        with pytest.raises(AccessDeniedError, match=f"127.0.0.1:{started.sentinel.port}.*permission"):
            mode.run(mode.limiter(f"{url}other").get_entity("key"))


def test_in_a_cluster_a_user_needs_two_more() -> None:
    with Cluster() as started, driven("async") as mode:
        for node in started.nodes:
            admit(node, *allowing(COMMANDS + CLUSTER_COMMANDS))
        url = started.url.replace("://", f"://app:{SECRET}@")
        mode.run(tour(mode.limiter(url)))
        assert set.union(*(denied(node) for node in started.nodes)) == set()
        for node in started.nodes:
            admit(node, *allowing(COMMANDS))
        with pytest.raises(AccessDeniedError, match="permission"):
            mode.run(mode.limiter(url).get_entity("key"))


# Not let in


def test_a_missing_password_is_said_to_be_missing(mode: Driven) -> None:
    with Server(options=["requirepass hush"]) as server:
        limiter = mode.limiter(f"redis://127.0.0.1:{server.port}/0", on_unavailable="allow")
        with pytest.raises(AccessDeniedError, match="requires a password"):
            mode.take(limiter)
        assert mode.take(mode.limiter(server.url)) == "granted"


def test_a_password_that_is_asked_for_later_is_said_to_be_missing(mode: Driven) -> None:
    with Scripted(b"-NOAUTH Authentication required.\r\n") as server:
        limiter = mode.limiter(server.url, on_unavailable="allow")
        with pytest.raises(AccessDeniedError, match="requires a password"):
            mode.take(limiter)


@pytest.mark.parametrize("name", ["app", "somebody-else", ""])
def test_a_wrong_password_is_told_without_showing_it(mode: Driven, server: Server, name: str) -> None:
    admit(server, *allowing(COMMANDS))
    if not name:
        server.aside("CONFIG", "SET", "requirepass", "")
    url = f"redis://{name}:wrong-horse@127.0.0.1:{server.port}/0"
    with pytest.raises(AccessDeniedError, match=r"password") as caught:
        mode.take(mode.limiter(url, on_unavailable="allow"))
    assert "wrong-horse" not in "".join(traceback.format_exception(caught.value))


def test_a_user_who_is_let_in_again_needs_no_new_limiter(mode: Driven, server: Server) -> None:
    limiter = mode.limiter(admit(server, *allowing(COMMANDS)))
    assert mode.take(limiter) == "granted"
    server.aside("ACL", "DELUSER", "app")
    with pytest.raises(InfrastructureError):
        mode.run(limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
    with pytest.raises(AccessDeniedError):
        mode.take(limiter)
    admit(server, *allowing(COMMANDS))
    assert mode.take(limiter) == "granted"


@pytest.mark.parametrize("odd", ODD)
def test_names_and_passwords_may_contain_anything(mode: Driven, server: Server, odd: str) -> None:
    name = odd.replace(" ", "")
    server.aside("ACL", "SETUSER", name, "reset", "on", f">{odd}", "~zae:*", "-@all", *allowing(COMMANDS))
    quoted = quote(name, safe=""), quote(odd, safe="")
    for url in (
        f"redis://{quoted[0]}:{quoted[1]}@127.0.0.1:{server.port}/0",
        f"redis://127.0.0.1:{server.port}/0?username={quoted[0]}&password={quoted[1]}",
    ):
        assert mode.take(mode.limiter(url)) == "granted"


# Where


def test_a_database_is_chosen_by_path_or_option(mode: Driven, server: Server) -> None:
    for url in (f"redis://127.0.0.1:{server.port}/3", f"redis://127.0.0.1:{server.port}?db=3"):
        assert mode.take(mode.limiter(url), 60) in ("granted", "refused")
    assert mode.take(mode.limiter(server.url), 60) == "granted", "database 0 knows nothing of it"
    assert "db3:keys=" in server.aside("INFO", "keyspace")


def test_a_database_that_does_not_exist_is_no_outage(mode: Driven, server: Server) -> None:
    limiter = mode.limiter(f"redis://127.0.0.1:{server.port}/99", on_unavailable="allow")
    with pytest.raises(InfrastructureError, match="out of range"):
        mode.take(limiter)


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_a_server_is_found_by_either_name(mode: Driven, server: Server, scheme: str) -> None:
    assert mode.take(mode.limiter(f"{scheme}://127.0.0.1:{server.port}/0")) == "granted"
    assert mode.take(mode.limiter(f"{scheme.upper()}://localhost:{server.port}")) == "granted"


def test_a_unix_socket_is_a_place(mode: Driven, server: Server) -> None:
    assert mode.take(mode.limiter(f"unix://{server.socket}")) == "granted"
    assert mode.left(server.url) == 99
    assert mode.take(mode.limiter(f"unix://{server.socket}?db=3"), 100) == "granted"
    admit(server, *allowing(COMMANDS))
    assert mode.take(mode.limiter(f"unix://app:{SECRET}@{server.socket}?prefix=zae:2")) == "granted"


# TLS


@pytest.fixture(scope="module")
def secure(running: Server) -> Iterator[Proxy]:
    with Proxy(running, tls=True) as started:
        yield started


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls_with_a_trusted_certificate(mode: Driven, server: Server, secure: Proxy, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{secure.port}/0?ssl_ca_certs={quote(str(CERTIFICATE))}"
    assert mode.take(mode.limiter(url)) == "granted"
    assert mode.left(server.url) == 99


def test_tls_checks_the_certificate_unless_told_not_to(mode: Driven, server: Server, secure: Proxy) -> None:
    with pytest.raises(InfrastructureError, match="certificate"):
        mode.run(mode.limiter(secure.url).get_entity("key"))
    assert mode.take(mode.limiter(f"{secure.url}?ssl_cert_reqs=none")) == "granted"


def test_tls_checks_the_name_in_the_certificate(mode: Driven, server: Server, secure: Proxy) -> None:
    """The certificate is for 127.0.0.1, written in this way only."""
    url = f"rediss://127.1:{secure.port}/0?ssl_ca_certs={quote(str(CERTIFICATE))}"
    with pytest.raises(InfrastructureError, match=r"certificate.*127\.1"):
        mode.run(mode.limiter(url).get_entity("key"))
    assert mode.take(mode.limiter(url.split("?")[0] + "?ssl_cert_reqs=none")) == "granted"


def test_a_lost_answer_over_tls_is_charged_once(mode: Driven, server: Server, secure: Proxy) -> None:
    limiter = mode.limiter(f"{secure.url}?ssl_ca_certs={quote(str(CERTIFICATE))}")
    assert [mode.take(limiter) for _ in range(2)] == ["granted", "granted"]
    secure.cut_after_request(only="evalsha")
    assert [mode.take(limiter) for _ in range(2)] == ["unavailable", "granted"]
    assert mode.left(server.url) == 96
