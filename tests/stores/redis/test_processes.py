"""Processes on one Redis, really in parallel and in real time: what they get together is the limit, and no more."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.laws.test_shards_simulation import worst_balance
from tests.stores.dynamodb.test_processes import LIMIT, PROCESSES
from tests.support.deadlines import PATIENCE
from tests.support.redis import shared
from tests.support.redis.server import Server
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.core.production import Rule
from zae_limiter.records.charging import LAG_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

ALONE_SECONDS = 6
CASCADE_SECONDS = 3
ORG = LIMIT
KEY = Limit.per_second("rps", 30, burst=10)

CLIENT = """
import json, sys
from zae_limiter import RateLimitExceeded, SyncRateLimiter
from zae_limiter.records.algebra import Committed

def bound(write):
    for attr, op, value in write.guards:
        if attr == "b_rps_tk":
            return value[1] if op == "between" else value

url, seconds, entity = sys.argv[1:]
with SyncRateLimiter(url, timeout=60) as limiter:
    store = limiter._inner._backend.store
    clock, commit, bounds = store.clock, store.commit, {}

    async def logged(writes, **options):
        outcome = await commit(writes, **options)
        if isinstance(outcome, Committed):
            bounds.update((write.key.pk.split("#")[1], bound(write)) for write in writes)
        return outcome

    store.commit = logged
    limiter.available(entity, "gpt-4")
    print("ready", flush=True)
    sys.stdin.readline()
    end_ms = clock.now_ms() + int(seconds) * 1000
    granted = []
    while clock.now_ms() < end_ms:
        bounds.clear()
        try:
            with limiter.acquire(entity, "gpt-4", {"rps": 1}, max_wait=1) as lease:
                anchors = {image["entity_id"]: image["rf"] for image in lease._grant.images}
                granted.append((lease._grant.now_ms, anchors, dict(bounds)))
        except RateLimitExceeded:
            pass
print(json.dumps(granted))
"""


class Grant(NamedTuple):
    """A grant: when it was decided, and per entity the anchor of its bucket and the bound that was put on its tokens.

    A crowded full bucket is charged as of an instant a little before that, which the bound tells. There is none where
    the bucket was made or replaced as a whole.
    """

    now_ms: int
    anchors: dict[str, int]
    bounds: dict[str, int | None]

    def made(self, entity: str, rule: Rule) -> int:
        """What the rate had produced by the instant as of which a bucket was charged."""
        bound = self.bounds.get(entity)
        if bound is None:
            return rule.produced(self.now_ms)
        return rule.produced(self.anchors[entity]) + rule.capacity - bound - 1


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the test."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def together(url: str, seconds: int, entities: list[str]) -> list[list[Grant]]:
    """Start a client for each entity, let them go at once, and collect what each was granted."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(started([sys.executable, "-c", CLIENT, url, str(seconds), entity]))
            for entity in entities
        ]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        told = [client.communicate(timeout=PATIENCE + seconds)[0] for client in clients]
    return [[Grant(*row) for row in json.loads(each)] for each in told]


def check_never_above(granted: list[Grant], entity: str, limit: Limit) -> None:
    """In no window was more granted than the limit allows, by the instants as of which the bucket was charged.

    By the moments at which that was done there may be as much more as comes in between the two.
    """
    rule = Rule.of(limit)
    charged = sorted(grant.made(entity, rule) for grant in granted)
    balance, before = rule.capacity, charged[0]
    for made in charged:
        balance = min(rule.capacity, balance + made - before) - 1000
        before = made
        assert balance >= 0
    assert worst_balance([(grant.now_ms, 1) for grant in granted], limit) >= -LAG_MS * limit.refill_rate


@pytest.mark.alone
def test_eight_processes_get_what_the_limit_allows_and_no_more() -> None:
    url = f"{shared.server().url}?prefix=eight-{uuid.uuid4().hex[:8]}"
    with SyncRateLimiter(url) as limiter:
        limiter.set_limits("key", [LIMIT])
    told = together(url, ALONE_SECONDS, ["key"] * PROCESSES)
    granted = [grant for each in told for grant in each]
    check_never_above(granted, "key", LIMIT)
    instants = sorted(grant.now_ms for grant in granted)
    allowed = LIMIT.capacity + LIMIT.refill_rate * (instants[-1] - instants[0]) / 1000
    assert 0.98 * allowed <= len(granted) <= allowed + 1
    assert instants[-1] - instants[0] >= 0.9 * ALONE_SECONDS * 1000


def test_eight_processes_on_a_cluster_never_get_more_than_any_level_allows() -> None:
    url = f"{shared.cluster().url}?prefix=eight-{uuid.uuid4().hex[:8]}"
    entities = [f"key-{number % 4}" for number in range(PROCESSES)]
    with SyncRateLimiter(url) as limiter:
        limiter.create_entity("org")
        limiter.set_limits("org", [ORG])
        for entity in sorted(set(entities)):
            limiter.create_entity(entity, parent_id="org", cascade=True)
            limiter.set_limits(entity, [KEY])
    told = together(url, CASCADE_SECONDS, entities)
    for entity in set(entities):
        mine = [grant for name, each in zip(entities, told, strict=True) for grant in each if name == entity]
        check_never_above(mine, entity, KEY)
    granted = [grant for each in told for grant in each]
    check_never_above(granted, "org", ORG)
    assert len(granted) > ORG.refill_rate * CASCADE_SECONDS / 2


FULL = """
import sys
from zae_limiter import Limit, SyncRateLimiter

url, acquires = sys.argv[1:]
limits = [Limit.per_second("rps", 1_000_000)]
with SyncRateLimiter(url, timeout=60) as limiter:
    for turn in range(int(acquires) + 2):
        if turn == 2:
            print("ready", flush=True)
            sys.stdin.readline()
        with limiter.acquire("key", "gpt-4", {"rps": 1}, limits=limits):
            pass
"""


@pytest.mark.parametrize("processes", [2, 4, 6])
def test_processes_on_a_full_bucket_hardly_ever_need_a_second_call(server: Server, processes: int) -> None:
    acquires = 300
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", FULL, server.url, str(acquires)]
        clients = [stack.enter_context(started(command)) for _ in range(processes)]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        server.reset_stats()
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        for client in clients:
            client.communicate(timeout=PATIENCE)
            assert client.returncode == 0
    assert processes * acquires <= server.command_stats()["evalsha"] <= 1.1 * processes * acquires
