"""The rivals at work: opened, warm, and ready to be asked for so many decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice

from bench.rivals import RIVALS
from bench.rivals.port import AsyncTaker, Rival, Taker
from bench.timing import Side
from bench.workloads import Workload


@contextmanager
def at_work(work: Workload, mode: str, url: str, rivals: Mapping[str, Rival] = RIVALS) -> Iterator[dict[str, Side]]:
    """Every rival on a store, in one mode; each has done the work already."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        sides: dict[str, Side] = {}
        for name, rival in rivals.items():
            opened = _async(rival, work, url, runner) if mode == "async" else _blocking(rival, work, url)
            sides[name] = stack.enter_context(opened)
            sides[name](work.warm_up)
        yield sides


@contextmanager
def _blocking(rival: Rival, work: Workload, url: str) -> Iterator[Side]:
    taker: Taker = rival.open(url, work.quotas)
    keys, cost, take = work.asked(), work.cost, taker.take
    yield lambda decisions: sum([take(key, cost) for key in islice(keys, decisions)])
    taker.close()


@contextmanager
def _async(rival: Rival, work: Workload, url: str, runner: asyncio.Runner) -> Iterator[Side]:
    async def opened() -> AsyncTaker:
        return await rival.open_async(url, work.quotas)

    taker = runner.run(opened())
    keys, cost, take = work.asked(), work.cost, taker.take

    async def caller(decisions: int) -> int:
        return sum([await take(key, cost) for key in islice(keys, decisions)])

    async def callers(decisions: int) -> int:
        return sum(await asyncio.gather(*(caller(decisions // work.callers) for _ in range(work.callers))))

    yield lambda decisions: runner.run(caller(decisions) if work.callers == 1 else callers(decisions))
    runner.run(taker.close())
