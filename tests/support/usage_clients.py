"""Eight processes that consume and settle, and say what they have used: ``python -m tests.support.usage_clients URL``.

The clock runs so fast that hours pass: every process meets turns of the hour together with the others.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.support import deadlines
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.stores.opening import open_store
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import open_redis

if TYPE_CHECKING:
    from zae_limiter import Store

PROCESSES = 8
LEASES = 60
SPEED = 100_000
KEYS = ("key-0", "key-1", "key-2")
LIMITS = (Limit.per_second("rps", 30), Limit.per_second("tps", 9_000))


class FastClock:
    """The time of this machine since midnight, sped up: the same for every process."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        now = time.time()
        midnight = now - now % 86_400
        return int((midnight + (now - midnight) * SPEED) * 1000)


class _Broken(Exception):
    """The body of a lease fails."""


def opened(url: str) -> Store:
    """A client of the store; DynamoDB has a clock of its own, by which its stream is told too."""
    if url.startswith("redis"):
        return open_redis(parse(url), blocking=True, clock=FastClock())
    return open_store(url, blocking=True, clock=None if url.startswith("dynamodb") else FastClock())


def consume(limiter: SyncRateLimiter, seed: int) -> Counter[str]:
    """What one client does, and what it has used by its own account: by entity, limit and number of changes."""
    chance, used = random.Random(seed), Counter[str]()
    for _ in range(LEASES):
        key = chance.choice(KEYS)
        cost = {"rps": 1, "tps": chance.choice([0, 1, 250])}
        more = {"tps": chance.choice([0, 1_234, -cost["tps"]])}
        try:
            with limiter.acquire(key, "gpt-4", cost, max_wait=0.2) as lease:
                _note(used, key, cost)
                if chance.random() < 0.2:
                    raise _Broken
                lease.adjust(more)
        except RateLimitExceeded:
            continue
        except _Broken:
            more = {name: -amount for name, amount in cost.items()}
        _note(used, key, more)
    return used


def _note(used: Counter[str], key: str, amounts: dict[str, int]) -> None:
    for who in (key, "org"):
        for name, amount in amounts.items():
            used[f"{who} {name}"] += amount
        used[f"{who} changes"] += any(amounts.values())


def prepare(limiter: SyncRateLimiter) -> None:
    """Store the family and its limits."""
    limiter.set_system_defaults(LIMITS)
    limiter.create_entity("org")
    for key in KEYS:
        limiter.create_entity(key, parent_id="org", cascade=True)


def main(url: str) -> None:
    """Fork the clients, and print what each has used, a line of JSON each."""
    deadlines.lengthen()
    children = []
    for seed in range(PROCESSES):
        child = os.fork()
        if child == 0:
            with SyncRateLimiter(SyncRepository(opened(url))) as limiter:
                sys.stdout.write(json.dumps(consume(limiter, seed)) + "\n")
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main(sys.argv[1])
