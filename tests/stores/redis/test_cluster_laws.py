"""Levels in different slots: what one of them refuses the others give back, and nothing is minted or lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.stores.redis.test_cluster import LIMIT, MODES, RESOURCE, apart, errors, left, line, opened, store_of
from tests.support.ports import free_port, listener
from tests.support.redis import shared
from tests.support.redis.server import Server
from zae_limiter import (
    InfrastructureError,
    Limit,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from zae_limiter import RateLimiter
    from zae_limiter.testing import Harness

REFUSALS = (ValidationError, InfrastructureError)


async def took(limiter: RateLimiter, entity_id: str, cost: int, *, atomic: bool | None = None) -> bool:
    """Whether an acquire was granted rather than refused."""
    try:
        async with limiter.acquire(entity_id, RESOURCE, {"rpm": cost}, atomic=atomic):
            return True
    except RateLimitExceeded:
        return False


async def prepared(harness: Harness, depth: int, **options: Any) -> tuple[RateLimiter, list[str]]:
    """A limiter, and entities in a line whose buckets exist and are on different nodes."""
    limiter = harness.limiter(**options)
    names = await apart(limiter, shared.cluster(), depth)
    await line(limiter, names)
    await limiter.set_system_defaults([LIMIT])
    assert await took(limiter, names[0], 0)
    return limiter, names


@MODES
@pytest.mark.parametrize("drained", [0, 1, 2], ids=["below", "in-between", "above"])
def test_after_a_refusal_every_level_has_what_it_had(drained: int, blocking: bool) -> None:
    """The limiter does not know that somebody else has emptied one level, so it writes to all of them."""

    async def work(harness: Harness) -> None:
        limiter, names = await prepared(harness, 3)
        other = harness.limiter()
        async with other.acquire(names[drained], RESOURCE, {"rpm": 95}):
            pass
        before = await left(other, names)
        calls = store_of(limiter).stats().calls["EVALSHA"]
        assert not await took(limiter, names[0], 6)
        assert store_of(limiter).stats().calls["EVALSHA"] > calls, "it has asked"
        assert await left(other, names) == before
        assert await took(limiter, names[0], 5)
        assert await left(other, names) == [have - 5 for have in before]

    with opened(shared.cluster().url, blocking=blocking) as harness:
        harness.run(work(harness))


@MODES
def test_a_refusal_by_buckets_that_nobody_has_seen_leaves_them_full(blocking: bool) -> None:
    async def work(harness: Harness) -> None:
        limiter = harness.limiter()
        names = await apart(limiter, shared.cluster(), 3)
        await line(limiter, names)
        await limiter.set_system_defaults([LIMIT])
        await harness.limiter().set_limits(names[-1], [Limit("rpm", 10, 60, 60)])
        assert not await took(limiter, names[0], 11)
        assert await left(limiter, names) == [100, 100, 10]
        assert await took(limiter, names[0], 10)
        assert await left(limiter, names) == [90, 90, 0]

    with opened(shared.cluster().url, blocking=blocking) as harness:
        harness.run(work(harness))


async def contend(limiter: RateLimiter, names: list[str], seed: int, granted: dict[str, int]) -> None:
    """Ask for this and that, and note what was granted."""
    rng = random.Random(seed)
    for _ in range(40):
        name, cost = rng.choice(names), rng.randint(1, 9)
        if await took(limiter, name, cost):
            granted[name] += cost


def run_all(harness: Harness, works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run several at once: in one loop, or each in a thread of its own."""

    async def together() -> None:
        await asyncio.gather(*works)

    if not harness.blocking:
        harness.run(together())
        return
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(harness.run, work) for work in works]:
            done.result(60)


@MODES
@pytest.mark.parametrize("seed", range(3))
def test_clients_that_race_over_several_slots_neither_mint_nor_lose(seed: int, blocking: bool) -> None:
    """Time stands still, so what is left is what was there less what was granted, at every level, to the token."""

    async def begin(harness: Harness) -> tuple[RateLimiter, list[str]]:
        limiter, names = await prepared(harness, 3, refusal_ttl=0)
        await limiter.create_entity("sibling", parent_id=names[-1], cascade=True)
        assert await took(limiter, "sibling", 0)
        return limiter, names

    with opened(shared.cluster().url, blocking=blocking) as harness:
        limiter, (low, middle, top) = harness.run(begin(harness))
        clients = [limiter, *(harness.limiter(refusal_ttl=0) for _ in range(3))]
        tallies = [dict.fromkeys((low, middle, "sibling"), 0) for _ in clients]
        pairs = enumerate(zip(clients, tallies, strict=True), start=10 * seed)
        run_all(harness, [contend(client, list(tally), number, tally) for number, (client, tally) in pairs])
        total = {name: sum(tally[name] for tally in tallies) for name in tallies[0]}
        at_middle = total[low] + total[middle]
        assert at_middle + total["sibling"] > 90, "the bucket that all share was drained"
        assert sum(store_of(client).stats().conflicts for client in clients) > 0, "races were lost"
        expected = [total[low], at_middle, at_middle + total["sibling"], total["sibling"]]
        assert harness.run(left(limiter, [low, middle, top, "sibling"])) == [100 - spent for spent in expected]


@MODES
def test_an_atomic_acquire_over_several_slots_is_an_error_before_anything_is_charged(blocking: bool) -> None:
    async def work(harness: Harness) -> None:
        limiter, names = await prepared(harness, 2)
        before = store_of(limiter).stats().calls["EVALSHA"]
        for policy in ("block", "allow"):
            with pytest.raises(REFUSALS, match=r"(?i)cluster") as raised:
                async with limiter.acquire(names[0], RESOURCE, {"rpm": 1}, atomic=True, on_unavailable=policy):
                    pass
            assert not isinstance(raised.value, RateLimiterUnavailable), "it would never become possible"
        assert store_of(limiter).stats().calls["EVALSHA"] == before
        assert await left(limiter, names) == [100, 100]
        with pytest.raises(REFUSALS, match=r"(?i)cluster"):
            async with harness.limiter(atomic=True).acquire(names[0], RESOURCE, {"rpm": 1}):
                pass

    with opened(shared.cluster().url, blocking=blocking) as harness:
        harness.run(work(harness))


def test_an_atomic_acquire_that_cannot_be_had_does_not_harm_those_beside_it() -> None:
    async def work(harness: Harness) -> None:
        limiter, names = await prepared(harness, 2)
        wishes = [False, False, True, False]
        results = await asyncio.gather(
            *(took(limiter, names[0], 1, atomic=atomic) for atomic in wishes), return_exceptions=True
        )
        assert [isinstance(result, REFUSALS) for result in results] == wishes, results
        assert await left(limiter, names) == [97, 97]

    with opened(shared.cluster().url, blocking=False) as harness:
        harness.run(work(harness))


@MODES
def test_nodes_that_have_forgotten_the_script_are_told_it_once(blocking: bool) -> None:
    cluster = shared.cluster()

    async def work(harness: Harness) -> None:
        limiter, names = await prepared(harness, 3)
        for node in cluster.nodes:
            node.aside("SCRIPT", "FLUSH")
        cluster.reset_stats()
        for _ in range(3):
            assert await took(limiter, names[0], 1)
        assert cluster.command_stats()["eval"] == errors(cluster)["NOSCRIPT"] == 3, "once at each node"
        assert await left(limiter, names) == [97] * 3

    with opened(cluster.url, blocking=blocking) as harness:
        harness.run(work(harness))


async def use(harness: Harness) -> None:
    """A few acquires on every node."""
    limiter, names = await prepared(harness, 3)
    assert await took(limiter, names[0], 1)
    assert await left(limiter, names) == [99] * 3


@MODES
def test_one_seed_that_answers_is_enough(blocking: bool) -> None:
    live = shared.cluster().nodes[1].port
    for url in (f"redis+cluster://127.0.0.1:{live}", f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{live}"):
        with opened(url, blocking=blocking) as harness:
            harness.run(use(harness))


@MODES
def test_a_seed_that_hangs_leaves_time_for_the_others(blocking: bool) -> None:
    with listener() as silent:
        hangs, live = silent.getsockname()[1], shared.cluster().nodes[1].port
        url = f"redis+cluster://127.0.0.1:{hangs},127.0.0.1:{live}?timeout=1"
        with opened(url, blocking=blocking) as harness:
            harness.run(use(harness))


@MODES
def test_a_cluster_of_which_no_seed_answers_is_unavailable_and_named(blocking: bool) -> None:
    seeds = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    async def work(harness: Harness) -> None:
        limiter = harness.limiter()
        with pytest.raises(RateLimiterUnavailable) as raised:
            await limiter.set_system_defaults([LIMIT])
        assert all(seed in str(raised.value) for seed in seeds)

    with opened(f"redis+cluster://{','.join(seeds)}", blocking=blocking) as harness:
        harness.run(work(harness))


@MODES
def test_a_single_server_that_is_taken_for_a_cluster_says_so(blocking: bool) -> None:
    async def work(harness: Harness) -> None:
        with pytest.raises(InfrastructureError, match=r"cluster support disabled|no cluster"):
            await harness.limiter().set_system_defaults([LIMIT])

    with Server() as single, opened(f"redis+cluster://127.0.0.1:{single.port}", blocking=blocking) as harness:
        harness.run(work(harness))


@MODES
def test_a_node_of_a_cluster_that_is_taken_for_a_single_server_says_so(blocking: bool) -> None:
    """The node that has the one slot of a single server's layout can do all of it, so it is left out."""
    cluster = shared.cluster()

    async def work(harness: Harness) -> None:
        with pytest.raises(InfrastructureError, match=r"redis\+cluster://"):
            await harness.limiter().set_system_defaults([LIMIT])

    home = cluster.node_of("{0}")
    for node in cluster.nodes:
        if node is not home:
            with opened(node.url, blocking=blocking) as harness:
                harness.run(work(harness))


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads are interrupted all the time."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_threads_find_their_nodes_while_others_lose_theirs() -> None:
    """What one thread has to find out anew is no reason for another one to fail."""
    cluster = shared.cluster()
    failures: list[BaseException] = []
    over = threading.Event()

    def ask(limiter: SyncRateLimiter, name: str) -> None:
        try:
            while not over.is_set():
                limiter.available(name, RESOURCE)
        except BaseException as error:
            failures.append(error)

    with SyncRateLimiter(f"{cluster.url}?prefix=threads") as limiter:
        limiter.set_system_defaults([LIMIT])
        topology = store_of(limiter._inner).client.topology
        threads = [threading.Thread(target=ask, args=(limiter, f"e{number}")) for number in range(6)]
        for thread in threads:
            thread.start()
        with contextlib.ExitStack() as stack:
            stack.callback(over.set)
            for number in range(600):
                topology.relocate(f"{{{number % 64}}}", None)
                limiter.available("mine", RESOURCE)
        for thread in threads:
            thread.join(60)
    assert failures == []
