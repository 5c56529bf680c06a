"""One of several processes on one key: ``python -m bench.contender RIVAL MODE URL DEMAND``.

It says that it is ready, is told when to begin and whether it takes the first token, and answers with its log.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from bench.demands import COST, DEMANDS, KEY, Demand
from bench.hammering import Log, hammer, hammer_async
from bench.rivals import RESERVING, RIVALS
from bench.rivals.port import Rival


def told(demand: Demand) -> tuple[bool, int, int]:
    """Whether to take the first token, and from when until when to ask."""
    print(json.dumps("ready"), flush=True)
    start, first = json.loads(sys.stdin.readline())
    time.sleep(max(0, start - time.monotonic_ns()) / 1e9)
    return bool(first and demand.quiet_s), *demand.window(start)


def blocking(rival: Rival, url: str, demand: Demand) -> Log:
    """In a thread."""
    taker = rival.open(url, [demand.quota])
    taker.take("warm", COST)
    first, start_ns, until_ns = told(demand)
    if first:
        taker.take(KEY, COST)
    log = hammer(lambda: taker.take(KEY, COST), start_ns, until_ns)
    taker.close()
    return log


async def waiting(rival: Rival, url: str, demand: Demand) -> Log:
    """In an event loop."""
    taker = await rival.open_async(url, [demand.quota])
    await taker.take("warm", COST)
    first, start_ns, until_ns = told(demand)
    if first:
        await taker.take(KEY, COST)
    log = await hammer_async(lambda: taker.take(KEY, COST), start_ns, until_ns)
    await taker.close()
    return log


def main(name: str, mode: str, url: str, demand: str) -> None:
    """Take part once."""
    rival, wanted = (RIVALS | RESERVING)[name], DEMANDS[demand]
    log = asyncio.run(waiting(rival, url, wanted)) if mode == "async" else blocking(rival, url, wanted)
    print(json.dumps(log))


if __name__ == "__main__":
    main(*sys.argv[1:])
