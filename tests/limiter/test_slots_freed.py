"""A slot that was freed is free for everybody at once, whatever a client has seen of its bucket before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.redis import shared
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.clock import SystemClock

LIMITS = [Limit.concurrent("parallel", 2)]


def test_what_another_client_has_freed_is_found_at_once(tmp_path: Path) -> None:
    """That there was none says nothing of now: no refusal is repeated without asking."""
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRateLimiter(url) as holder, SyncRateLimiter(url) as other:
        held = [holder.acquire("ann", "api", {}, limits=LIMITS) for _ in range(2)]
        for lease in held:
            lease.enter()
        with pytest.raises(RateLimitExceeded), other.acquire("ann", "api", {}, limits=LIMITS):
            pass
        held[0].exit()
        with other.acquire("ann", "api", {}, limits=LIMITS):
            pass
        held[1].exit()


def test_a_slot_is_freed_although_an_older_image_was_seen_since(tmp_path: Path) -> None:
    """Answers of a store overtake each other, so what was last seen may be older than the slot."""
    with SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db") as limiter:
        with limiter.acquire("ann", "api", {}, limits=LIMITS):
            pass
        lease = limiter.acquire("ann", "api", {}, limits=LIMITS)
        lease.enter()
        assert lease._grant is not None
        assert lease._grant.parts is not None
        (part,) = lease._grant.parts
        image = part.shard.seen.image
        assert image is not None
        slots = {attr for slot in part.slots for attr in (slot.until_attr, slot.ownership_attr)}
        older = {attr: value for attr, value in image.items() if attr not in slots}
        part.shard.show(older, SystemClock().now_ms())
        lease.exit()
        assert (lease.holds_slots, lease.lost) == (False, False)
        assert limiter.available("ann", "api", limits=LIMITS) == {"parallel": 2}


def test_a_pool_that_keeps_to_the_limit_is_never_refused() -> None:
    """Also over a network, with threads that share clients."""
    limits = [Limit.concurrent("parallel", 5)]
    url = shared.server().url
    failures: list[BaseException] = []
    with SyncRateLimiter(url) as one, SyncRateLimiter(url) as other:

        def work(number: int) -> None:
            try:
                for turn in range(60):
                    with (one, other)[(number + turn) % 2].acquire("pool", "freed-slots", {}, limits=limits):
                        pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert one.available("pool", "freed-slots", limits=limits) == {"parallel": 5}
