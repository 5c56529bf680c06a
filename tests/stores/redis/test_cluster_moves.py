"""Slots that move from node to node, at rest and under load: calls follow them, and every grant is charged once."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.stores.redis.test_cluster import LIMIT, MODES, RESOURCE, apart, errors, key_of, left, line, opened, store_of
from tests.stores.redis.test_cluster_laws import took
from tests.support.redis.cluster import Cluster
from zae_limiter import Limit, RateLimiterUnavailable
from zae_limiter.records import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.redis.server import Server
    from zae_limiter import RateLimiter
    from zae_limiter.testing import Harness


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three masters whose slots nobody else is using."""
    with Cluster() as started:
        yield started


class Place:
    """A key, its slot, and another node to which the slot can go, which is not that of a second key."""

    def __init__(self, cluster: Cluster, key: str, other: str) -> None:
        self.cluster = cluster
        self.key = key
        self.slot = cluster.slot_of(key)
        self.source: Server = cluster.node_of_slot(self.slot)
        busy = (self.source, cluster.node_of(other))
        self.target: Server = next(node for node in cluster.nodes if node not in busy)

    @contextlib.contextmanager
    def moving(self, count: int | None = None) -> Iterator[None]:
        """Meanwhile the slot is migrating, and all of its keys or only some are at the target; then it is there."""
        self.cluster.begin_move(self.slot, self.target, keys=count)
        try:
            yield
        finally:
            self.cluster.end_move(self.slot, self.target)


async def settled(harness: Harness, cluster: Cluster) -> tuple[RateLimiter, list[str], Place]:
    """A limiter, an entity and its parent that it has charged twice, and the place of the parent's bucket.

    So every node with a bucket knows the script that makes one and the script of the acquires that follow.
    """
    limiter = harness.limiter(refusal_ttl=0)
    names = await apart(limiter, cluster, 2)
    await line(limiter, names)
    await limiter.set_system_defaults([LIMIT])
    for _ in range(2):
        assert await took(limiter, names[0], 1)
    return limiter, names, Place(cluster, await key_of(limiter, names[1]), await key_of(limiter, names[0]))


async def tried(limiter: RateLimiter, entity_id: str, cost: int = 1) -> bool:
    """Whether an acquire was granted; that a slot is between two nodes is the only excuse."""
    try:
        return await took(limiter, entity_id, cost)
    except RateLimiterUnavailable as error:
        if "being moved" not in str(error):
            raise
        return False


async def listed(harness: Harness) -> list[str]:
    """The entities that have a bucket, as a client finds them that has not been there before."""
    capacity = await harness.limiter().get_resource_capacity(RESOURCE, "rpm")
    return [each.entity_id for each in capacity.entities]


@MODES
def test_a_slot_that_has_moved_is_followed_once_and_then_found_at_once(cluster: Cluster, blocking: bool) -> None:
    async def work(harness: Harness) -> None:
        limiter, names, place = await settled(harness, cluster)
        cluster.move_slot(place.slot, place.target)
        place.target.aside("SCRIPT", "FLUSH")
        cluster.reset_stats()
        assert await took(limiter, names[0], 1)
        assert errors(cluster)["MOVED"] <= 2, "the script, and once more its whole text"
        assert (errors(cluster)["NOSCRIPT"], cluster.command_stats()["eval"]) == (1, 1)
        cluster.reset_stats()
        for _ in range(5):
            assert await took(limiter, names[0], 1)
        assert cluster.command_stats()["evalsha"] == 5 * len(names)
        assert "asking" not in cluster.command_stats()
        assert not errors(cluster) & Counter(MOVED=1, ASK=1, NOSCRIPT=1)
        assert await left(limiter, names) == [92, 92]
        assert await listed(harness) == sorted(names)

    with opened(cluster.url, blocking=blocking) as harness:
        harness.run(work(harness))


@MODES
def test_in_the_middle_of_a_move_each_key_is_asked_for_where_it_is(cluster: Cluster, blocking: bool) -> None:
    async def work(harness: Harness) -> None:
        limiter, names, place = await settled(harness, cluster)
        place.target.aside("SCRIPT", "FLUSH")
        cluster.reset_stats()
        with place.moving(0):
            assert await took(limiter, names[0], 1)
            assert not errors(cluster), "the source has the key and serves it"
            assert place.source.aside("MIGRATE", "127.0.0.1", place.target.port, place.key, 0, 5000) == "OK"
            for _ in range(3):
                assert await took(limiter, names[0], 1)
            assert errors(cluster)["ASK"] >= 3, "the source has given it away and says to whom"
            assert errors(cluster)["NOSCRIPT"] == cluster.command_stats()["eval"] == 1
            assert await left(limiter, names) == [94, 94]
            assert await listed(harness) == sorted(names)
        assert await took(limiter, names[0], 1)
        assert await left(limiter, names) == [93, 93]

    with opened(cluster.url, blocking=blocking) as harness:
        harness.run(work(harness))


@MODES
def test_what_cannot_be_done_between_two_nodes_is_unavailable_and_charges_nothing(
    cluster: Cluster, blocking: bool
) -> None:
    """A new bucket needs several keys at once, which a slot on its way may not have together."""

    async def work(harness: Harness) -> None:
        limiter, (low, top), place = await settled(harness, cluster)
        await limiter.reset_bucket(top, RESOURCE)
        granted = 0
        with place.moving():
            for _ in range(4):
                granted += await tried(limiter, low)
        assert granted or errors(cluster)["TRYAGAIN"] > 0
        assert await took(limiter, low, 1)
        assert await left(limiter, [low, top]) == [97 - granted, 99 - granted]

    cluster.reset_stats()
    with opened(cluster.url, blocking=blocking) as harness:
        harness.run(work(harness))


@MODES
def test_limits_that_are_on_their_way_are_unavailable_or_right(cluster: Cluster, blocking: bool) -> None:
    """A client that knows nothing yet reads limits from the slot of the namespace, which is moving."""

    async def work(harness: Harness) -> None:
        limiter, (low, top), _ = await settled(harness, cluster)
        ns, layout = await limiter._backend.ns(limiter._backend.deadline()), store_of(limiter).layout
        config = keys.system_config(ns)
        place = Place(cluster, layout.records[layout.cell(config)] % config, await key_of(limiter, low))
        fresh = harness.limiter()
        granted = 0
        with place.moving():
            for _ in range(3):
                granted += await tried(fresh, low)
        assert await took(fresh, low, 1)
        assert await left(limiter, [low, top]) == [97 - granted] * 2

    with opened(cluster.url, blocking=blocking) as harness:
        harness.run(work(harness))


@MODES
def test_under_load_a_moving_slot_costs_no_token_and_mints_none(cluster: Cluster, blocking: bool) -> None:
    """The bucket goes from node to node while it is charged; time stands still, so the tokens can be counted."""

    async def load(harness: Harness) -> None:
        limiter, names, place = await settled(harness, cluster)
        await limiter.set_system_defaults([Limit("rpm", 10_000, 60, 60)])
        for number in range(1000):  # so that the move takes a while
            place.source.aside("SET", f"{place.key}-{number}", "x")
        before = await left(limiter, names)
        cluster.reset_stats()
        mover = threading.Thread(target=cluster.move_slot, args=(place.slot, place.target))
        mover.start()
        granted = dict.fromkeys(names, 0)
        while mover.is_alive():
            for name in names:
                granted[name] += await tried(limiter, name)
        mover.join(60)
        for name in names:
            granted[name] += await tried(limiter, name)
        assert errors(cluster)["ASK"] + errors(cluster)["MOVED"] > 0
        low, top = granted.values()
        assert await left(limiter, names) == [before[0] - low, before[1] - low - top]

    with opened(cluster.url, blocking=blocking) as harness:
        harness.run(load(harness))
