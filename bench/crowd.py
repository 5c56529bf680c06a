"""``python -m bench.crowd``: how many calls an acquire needs when several processes share a full bucket in Redis."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack

from tests.support.redis.server import Server

from bench.partner import Partner
from zae_limiter import Limit, SyncRateLimiter

PROCESSES = (1, 2, 3, 4, 6)
PAUSES_MS = (0, 2, 20)
RATES = (1_000, 1_000_000)
ACQUIRES = {0: 600, 2: 300, 20: 100}
COST = {"rps": 1}


def calls_per_acquire(server: Server, processes: int, rate: int, pause_ms: int) -> float:
    """Return the calls per acquire of processes that each pause between two acquires."""
    server.flush()
    acquires = ACQUIRES[pause_ms]
    client = [sys.executable, "-m", "bench.crowd", server.url, str(rate), str(pause_ms), str(acquires)]
    with ExitStack() as stack:
        partners = [stack.enter_context(Partner(*client)) for _ in range(processes)]
        for partner in partners:
            partner.hear()
        server.reset_stats()
        for partner in partners:
            partner.tell("go")
        for partner in partners:
            partner.hear()
        return server.command_stats()["evalsha"] / processes / acquires


def take_part(url: str, rate: int, pause_ms: int, acquires: int) -> None:
    """Be one of the processes."""
    limits = [Limit.per_second("rps", rate)]
    with SyncRateLimiter(url) as limiter:
        for turn in range(acquires + 2):
            if turn == 2:
                print(json.dumps("ready"), flush=True)
                sys.stdin.readline()
            with limiter.acquire("key", "gpt-4", COST, limits=limits, max_wait=1):
                pass
            time.sleep(pause_ms / 1000)
    print(json.dumps("done"), flush=True)


def main() -> None:
    """Print a line for each rate and pause."""
    with Server() as server:
        for pause_ms in PAUSES_MS:
            for rate in RATES:
                found = [f"{each}: {calls_per_acquire(server, each, rate, pause_ms):.2f}" for each in PROCESSES]
                print(
                    f"{rate:,}/s, pause {pause_ms} ms, calls per acquire by processes: {', '.join(found)}", flush=True
                )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take_part(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        main()
