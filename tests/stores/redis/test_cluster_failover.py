"""A node of a cluster is lost and its replica takes over: the same limiter goes on, and grants no more than is left."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.stores.redis.test_cluster import LIMIT, apart, line, opened
from tests.stores.redis.test_cluster_laws import took
from tests.support.deadlines import PATIENCE
from tests.support.redis.cluster import Cluster
from tests.support.waiting import until
from zae_limiter import RateLimiterUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.redis.server import Server
    from zae_limiter import RateLimiter
    from zae_limiter.testing import Harness

BOTH = (False, True)
BEFORE = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three masters with a replica each. The tests lose different ones."""
    with Cluster(replicas=1) as started:
        yield started


def caught_up(master: Server) -> bool:
    """Whether the replica of a master has all that the master has."""
    told = master.aside("INFO", "replication")
    at = re.search(r"master_repl_offset:(\d+)", told)
    replica = re.search(r"slave0:.*state=online,offset=(\d+)", told)
    return at is not None and replica is not None and at[1] == replica[1]


def meet(barrier: threading.Barrier) -> None:
    """Wait for the others."""
    barrier.wait(PATIENCE)


def pause() -> None:
    """Let the cluster do something."""
    time.sleep(0.02)


async def recovered(limiter: RateLimiter, entity_id: str) -> bool:
    """Ask for a token until the store answers; callers hear that it is unavailable and nothing else."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(RateLimiterUnavailable):
            return await took(limiter, entity_id, 1)
        pause()
    return False


async def story(harness: Harness, cluster: Cluster, barrier: threading.Barrier) -> int:
    """Take some of what there is on three nodes, lose one, and take what is left then; how much it was in all."""
    limiter = harness.limiter(refusal_ttl=0)
    names = await apart(limiter, cluster, 3)
    await line(limiter, names)
    await limiter.set_system_defaults([LIMIT])
    for _ in range(BEFORE):
        assert await took(limiter, names[0], 1)
    meet(barrier)
    meet(barrier)
    assert await recovered(limiter, names[0])
    granted = BEFORE + 1
    while await took(limiter, names[0], 1):
        granted += 1
    return granted


def lose(cluster: Cluster, master: Server, away: Callable[[], None]) -> list[int]:
    """What a limiter of each mode grants before and after a master is lost that both are using."""
    barrier = threading.Barrier(1 + len(BOTH))
    with contextlib.ExitStack() as stack:
        url = f"{cluster.url}?timeout=0.5"
        harnesses = [stack.enter_context(opened(url, blocking=blocking)) for blocking in BOTH]
        pool = stack.enter_context(ThreadPoolExecutor(len(BOTH)))
        stack.callback(barrier.abort)
        told = [pool.submit(harness.run, story(harness, cluster, barrier)) for harness in harnesses]
        meet(barrier)
        until(lambda: caught_up(master), "the replica has all that was granted")
        away()
        meet(barrier)
        return [each.result(2 * PATIENCE) for each in told]


def check(granted: list[int]) -> None:
    """Never more than there was. What was being given back at the wrong moment may be missing, which is little."""
    assert max(granted) <= LIMIT.capacity
    assert min(granted) >= LIMIT.capacity - 10


def test_a_node_that_is_killed_is_replaced_by_its_replica(cluster: Cluster) -> None:
    master = cluster.node_of_slot(0)
    check(lose(cluster, master, master.kill))
    cluster.settle()


def test_a_node_that_hangs_is_replaced_by_its_replica(cluster: Cluster) -> None:
    """Its connections stay and nobody answers; other nodes have to be asked where the slots are now."""
    master = cluster.node_of_slot(8000)
    try:
        check(lose(cluster, master, master.freeze))
    finally:
        master.thaw()
