"""Reservations whose call is cancelled, and those whose process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

from bench.partner import Partner
from bench.rivals.port import AsyncCaller, Cost, Quota, Rival
from bench.workloads import RPM, TPM

KEY, ESTIMATE = "key", {"rpm": 1, "tpm": 10}
SLOW = (Quota("rpm", 100_000, 3600), Quota("tpm", 10_000, 3600))
"""Hardly anything comes back by itself while it is measured."""
QUOTAS = {"hold": SLOW, "hammer": (RPM, TPM)}
CANCELLED, CRASHES = 200, 6
WORK_S, REST_S = 0.001, 1.0
LONG_S = 1.0
"""After a wait that is longer than this, nothing worse is looked for."""


async def left(rival: Rival, caller: Any) -> int:
    """Return the tokens of `tpm` that can still be taken."""
    if rival.waits:
        return int(await caller.left(KEY))
    found, amount = 0, 8192
    while amount:
        if await caller.take(KEY, {"tpm": amount}):
            found += amount
        else:
            amount //= 2
    return found


async def _work() -> Cost:
    await asyncio.sleep(WORK_S)
    return {"rpm": 1, "tpm": 0}


async def cancelled(rival: Rival, url: str) -> int:
    """Return the tokens that stay taken when many calls are cancelled, each at some moment between begin and end."""
    caller = cast(AsyncCaller, await rival.open_async(url, SLOW))
    began = time.perf_counter()
    for _ in range(10):
        await caller.call((KEY,), ESTIMATE, _work)
    usual_s, chance = (time.perf_counter() - began) / 10, random.Random(0)
    for _ in range(CANCELLED):
        task = asyncio.ensure_future(caller.call((KEY,), ESTIMATE, _work))
        await asyncio.sleep(chance.uniform(0, usual_s))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await asyncio.sleep(REST_S)
    kept = SLOW[1].amount - await left(rival, caller)
    await caller.close()
    return kept


async def crashed(rival: Rival, url: str) -> int:
    """Return the tokens that stay taken when a process is killed in the middle of one call."""
    with victim(rival, url, "hold"):
        pass
    caller = cast(AsyncCaller, await rival.open_async(url, SLOW))
    kept = SLOW[1].amount - await left(rival, caller)
    await caller.close()
    return kept


async def delayed(rival: Rival, url: str) -> float:
    """Return the longest time in which another process gets nothing after one that calls is killed, in seconds."""
    caller = cast(AsyncCaller, await rival.open_async(url, QUOTAS["hammer"]))
    await caller.take(KEY, ESTIMATE)
    longest, chance = 0.0, random.Random(0)
    for _ in range(CRASHES):
        with victim(rival, url, "hammer"):
            time.sleep(chance.uniform(0.05, 0.15))  # noqa: ASYNC251 - nobody else is in this loop
        began = time.perf_counter()
        while True:
            with contextlib.suppress(Exception):
                if await caller.take(KEY, ESTIMATE):
                    break
        longest = max(longest, time.perf_counter() - began)
        if longest > LONG_S:
            break
    await caller.close()
    return round(longest, 1)


@contextlib.contextmanager
def victim(rival: Rival, url: str, work: str) -> Iterator[None]:
    """A process that is killed at the end of the block."""
    with Partner(sys.executable, "-m", "bench.reserving.victim", rival.name, url, work) as process:
        process.hear()
        yield
        process.kill()
