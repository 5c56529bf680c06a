"""A Redis Cluster carries out what one server does: every call stays inside one slot, over the whole API."""

from __future__ import annotations

import codecs
import contextlib
import functools
import itertools
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

import pytest
from redis.crc import key_slot

from tests.support.deadlines import PATIENCE
from tests.support.redis import shared
from zae_limiter import Limit
from zae_limiter.records import keys
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from tests.support.redis.cluster import Cluster
    from tests.support.redis.server import Server
    from zae_limiter import Clock, RateLimiter, Repository

MODES = pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
LIMIT = Limit("rpm", 100, 60, 60)
RESOURCE = "gpt-4"
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_COUNT = itertools.count()


@contextlib.contextmanager
def opened(url: str, *, blocking: bool) -> Iterator[Harness]:
    """A harness with a manual clock on keys of its own; every store that was opened is closed at the end."""
    settings = parse(f"{url}{'&' if '?' in url else '?'}prefix=c{os.getpid()}-{next(_COUNT)}")
    stores: list[RedisStore] = []

    def open_store(clock: Clock, blocking: bool) -> RedisStore:
        stores.append(open_redis(settings, blocking=blocking, clock=clock))
        return stores[-1]

    harness = Harness(open_store, blocking=blocking)
    try:
        yield harness
    finally:
        for store in stores:
            harness.run(store.close())


def store_of(user: RateLimiter | Repository) -> RedisStore:
    """The store below a limiter or a repository."""
    store = user._backend.store
    assert isinstance(store, RedisStore)
    return store


async def key_of(limiter: RateLimiter, entity_id: str) -> str:
    """The name of the key under which a bucket lies."""
    record = keys.bucket(await limiter._backend.ns(limiter._backend.deadline()), entity_id, RESOURCE)
    layout = store_of(limiter).layout
    return layout.records[layout.cell(record)] % record


async def apart(limiter: RateLimiter, cluster: Cluster, count: int) -> list[str]:
    """Entities whose buckets are on different nodes, in slots where nothing else is."""
    layout, ns = store_of(limiter).layout, await limiter._backend.ns(limiter._backend.deadline())
    taken = {layout.cell(key) for key in (keys.system_config(ns), keys.namespace("default"))}
    found: dict[int, str] = {}
    for name in map("entity-{}".format, itertools.count()):
        if layout.cell(keys.bucket(ns, name, RESOURCE)) not in taken:
            found.setdefault(cluster.node_of(await key_of(limiter, name)).port, name)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("names do not end")


async def line(limiter: RateLimiter, names: list[str]) -> None:
    """Create entities, each with the next one as its parent, all of them charged together."""
    for name, parent in reversed(list(itertools.zip_longest(names, names[1:]))):
        await limiter.create_entity(name, parent_id=parent, cascade=parent is not None)


async def left(limiter: RateLimiter, names: list[str]) -> list[int]:
    """What each of some entities has left, as the store has it now."""
    rows = [await limiter.get_status(name, RESOURCE) for name in names]
    return [status[0].available for status in rows]


def errors(cluster: Cluster) -> Counter[str]:
    """How often which error was answered since the statistics were reset, by the nodes that run."""
    found: Counter[str] = Counter()
    for node in cluster.nodes:
        if node.running:
            for row in re.findall(r"errorstat_(\w+):count=(\d+)", node.aside("INFO", "errorstats")):
                found[row[0]] += int(row[1])
    return found


class Command(NamedTuple):
    """A command that a node has carried out."""

    by_script: bool
    words: list[bytes]


class Call(NamedTuple):
    """A script call: the keys that it declared, and the keys that it touched."""

    declared: list[bytes]
    touched: list[bytes]


class Monitor:
    """What one node carries out, as it tells it itself."""

    def __init__(self, node: Server) -> None:
        self._node = node
        self._socket = socket.create_connection((node.host, node.port), timeout=PATIENCE)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def calls(self) -> list[Call]:
        """The script calls so far."""
        found: list[Call] = []
        for by_script, words in self._commands():
            if by_script and len(words) > 1:
                found[-1].touched.append(words[1])
            elif words[0].upper() in (b"EVAL", b"EVALSHA"):
                found.append(Call(words[3 : 3 + int(words[2])], []))
        return found

    def _commands(self) -> Iterator[Command]:
        end = f"end-{next(_COUNT)}"
        self._node.aside("ECHO", end)
        for told in self._lines:
            words = [codecs.escape_decode(word)[0] for word in _WORD.findall(told)]
            if words[-1:] == [end.encode()]:
                return
            yield Command(b" lua] " in told, words)


async def tour(harness: Harness) -> None:
    """Use every operation that there is, so that its calls can be looked at."""
    repository = harness.repository()
    await repository.register_namespaces(["one", "two"])
    limiter = harness.limiter(harness.repository(namespace="one"))
    await configure(limiter)
    await charge(harness, limiter)
    await look(limiter)
    await forget(limiter)
    await tenants(repository)
    await limiter.close()


async def configure(limiter: RateLimiter) -> None:
    """Entities in a line, and limits on every level."""
    await line(limiter, ["key", "team", "org"])
    for number in range(5):
        await limiter.create_entity(f"child-{number}", parent_id="org", metadata={"n": number})
    await limiter.update_entity("child-0", parent_id="team", name="moved", cascade=True)
    await limiter.set_system_defaults([LIMIT], on_unavailable="block")
    await limiter.set_resource_defaults(RESOURCE, [LIMIT, Limit("tpm", 1000, 1000, 60)])
    for number in range(5):
        await limiter.set_limits(f"child-{number}", [LIMIT], resource=RESOURCE)
    await limiter.set_limits("org", [LIMIT])


async def charge(harness: Harness, limiter: RateLimiter) -> None:
    """Leases of every kind, over one level and over three."""
    other = harness.limiter(harness.repository(namespace="one"))
    for user in (limiter, other):
        async with user.acquire("key", RESOURCE, {"rpm": 2}) as lease:
            await lease.consume(rpm=1)
            await lease.adjust(rpm=3)
        for number in range(5):
            async with user.acquire(f"child-{number}", RESOURCE, {"rpm": 1}) as lease:
                await lease.release(rpm=1)
        with contextlib.suppress(KeyError):
            async with user.acquire("key", RESOURCE, {"rpm": 1}):
                raise KeyError
    assert [row.available for row in await limiter.get_status("key", RESOURCE) if row.limit_name == "rpm"] == [88] * 3
    await other.close()


async def look(limiter: RateLimiter) -> None:
    """Questions, lists and their pages."""
    assert await limiter.is_available()
    assert (await limiter.available("key", RESOURCE))["rpm"] == 88
    assert await limiter.time_until_available("key", RESOURCE, {"rpm": 89}) == 1
    capacity = await limiter.get_resource_capacity(RESOURCE, "rpm")
    assert [each.entity_id for each in capacity.entities] == [*(f"child-{n}" for n in range(5)), "key", "org", "team"]
    assert [child.id for child in await limiter.get_children("org")] == [*(f"child-{n}" for n in range(1, 5)), "team"]
    assert (await limiter.resolve_limits("child-1", RESOURCE))[2] == "entity"
    assert await limiter.list_resources_with_defaults() == [RESOURCE]
    assert await limiter.list_resources_with_entity_configs() == ["_default_", RESOURCE]
    listed: list[str] = []
    cursor: str | None = None
    while not listed or cursor is not None:
        page, cursor = await limiter.list_entities_with_custom_limits(RESOURCE, 2, cursor)
        listed += page
    assert listed == [f"child-{number}" for number in range(5)]
    newest, second = await limiter.get_audit_events("child-0", limit=2)
    (oldest,) = await limiter.get_audit_events("child-0", limit=9, start_event_id=second.event_id)
    assert [event.action for event in (newest, second, oldest)] == ["limits_set", "entity_updated", "entity_created"]
    assert len(await limiter.get_buckets("key")) == 2
    (hour, *_), _ = await limiter.get_usage_snapshots("key", window_type="hourly")
    assert hour.counters["rpm"] == 12
    assert (await limiter.get_usage_summary(resource=RESOURCE)).total["rpm"] > 12


async def forget(limiter: RateLimiter) -> None:
    """Whatever was set goes again."""
    await limiter.reset_bucket("key", RESOURCE)
    assert all(state.tokens_milli >= state.capacity_milli for state in await limiter.get_buckets("key"))
    await limiter.delete_limits("org")
    await limiter.delete_resource_defaults(RESOURCE)
    assert await limiter.get_resource_defaults(RESOURCE) == []
    await limiter.delete_entity("child-1")
    assert await limiter.get_entity("child-1") is None
    assert await limiter.get_limits("child-1", RESOURCE) == []
    assert await limiter.get_buckets("child-1") == []
    await limiter.delete_system_defaults()
    assert await limiter.get_system_defaults() == ([], None)


async def tenants(repository: Repository) -> None:
    """The life of a namespace."""
    gone = await repository.delete_namespace("one")
    assert [found.id for found in await repository.list_orphan_namespaces()] == [gone.id]
    await repository.recover_namespace(gone.id)
    assert [found.name for found in await repository.list_namespaces()] == ["one", "two"]
    await repository.delete_namespace("one")
    assert await repository.purge_namespace(gone.id) > 20
    assert [found.name for found in await repository.list_namespaces()] == ["two"]
    assert (await repository.status()).available


@MODES
def test_every_script_call_of_the_whole_api_stays_inside_one_slot_and_touches_only_what_it_declares(
    blocking: bool,
) -> None:
    cluster = shared.cluster()
    cluster.reset_stats()
    with contextlib.ExitStack() as stack:
        harness = stack.enter_context(opened(cluster.url, blocking=blocking))
        monitors = [stack.enter_context(Monitor(node)) for node in cluster.nodes]
        harness.run(tour(harness))
        calls = [call for monitor in monitors for call in monitor.calls()]
    for declared, touched in calls:
        assert len(set(map(key_slot, declared))) == 1, declared
        assert set(touched) <= set(declared)
    assert sum(1 for call in calls if call.touched) > 100
    assert len({key_slot(call.declared[0]) for call in calls}) > 3
    assert not errors(cluster) & Counter(CROSSSLOT=1, MOVED=1, ASK=1)


@MODES
def test_all_buckets_of_an_entity_share_a_slot_and_entities_are_spread(blocking: bool) -> None:
    cluster = shared.cluster()

    async def work(harness: Harness) -> str:
        limiter = harness.limiter()
        await limiter.set_system_defaults([LIMIT])
        for number, resource in itertools.product(range(30), ("a", "b", "c")):
            async with limiter.acquire(f"e{number}", resource, {"rpm": 1}):
                pass
        return store_of(limiter).layout.prefix

    with opened(cluster.url, blocking=blocking) as harness:
        prefix = harness.run(work(harness))
    slots: dict[str, set[int]] = {}
    for node in cluster.nodes:
        for name in node.aside("KEYS", f"{prefix}:*#STATE"):
            slots.setdefault(name.split("#")[1], set()).add(key_slot(name.encode()))
    assert sorted(slots) == sorted(f"e{number}" for number in range(30))
    assert set(map(len, slots.values())) == {1}
    assert len(functools.reduce(set.union, slots.values())) > 10


@MODES
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_steady_acquire_is_one_script_call_per_level(depth: int, blocking: bool) -> None:
    cluster = shared.cluster()

    async def work(harness: Harness) -> None:
        limiter = harness.limiter()
        names = await apart(limiter, cluster, depth)
        await line(limiter, names)
        await limiter.set_system_defaults([LIMIT])
        for _ in range(2):
            async with limiter.acquire(names[0], RESOURCE, {"rpm": 1}):
                pass
        cluster.reset_stats()
        for _ in range(10):
            async with limiter.acquire(names[0], RESOURCE, {"rpm": 1}):
                pass
        calls = cluster.command_stats()
        assert calls.pop("get") == calls.pop("set") == calls.pop("evalsha") == 10 * depth
        assert not calls.keys() - {"client"}, "nothing else was asked"
        assert await left(limiter, names) == [88] * depth

    with opened(cluster.url, blocking=blocking) as harness:
        harness.run(work(harness))
