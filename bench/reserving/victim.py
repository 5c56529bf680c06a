"""A process that is killed in the middle of its calls: ``python -m bench.reserving.victim RIVAL URL WORK``.

``hold`` reserves once and works for ever, ``hammer`` makes one short call after the other.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

from bench.reserving.exactness import ESTIMATE, KEY, QUOTAS
from bench.rivals import RESERVING
from bench.rivals.port import AsyncCaller, Cost


async def main(name: str, url: str, work: str) -> None:
    """Call until the end."""
    caller = cast(AsyncCaller, await RESERVING[name].open_async(url, QUOTAS[work]))

    async def last() -> Cost:
        print(json.dumps("ready"), flush=True)
        await asyncio.sleep(3600)
        return ESTIMATE

    async def no_time() -> Cost:
        return {"rpm": 1, "tpm": 0}

    if work == "hold":
        await caller.call((KEY,), ESTIMATE, last)
    await caller.call((KEY,), ESTIMATE, no_time)
    print(json.dumps("ready"), flush=True)
    while True:
        await caller.call((KEY,), ESTIMATE, no_time)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
