"""Sides that make LLM calls with rivals: they take from each level, and never settle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from bench.llm.cases import ESTIMATE, ORGANISATION, PROJECT, Case
from bench.llm.ours import WARM_UP
from bench.rivals.limits_library import FIXED_WINDOW, async_hit_of, hit_of, items_of
from bench.rivals.port import AsyncTaker, Rival, Taker
from bench.timing import Side
from bench.workloads import RPM, TPM

QUOTAS = (RPM, TPM)


def hits(case: Case, url: str) -> Side:
    """The hits of `limits` that people write for a call, in a thread: both limits of each level."""
    hit, items = hit_of(FIXED_WINDOW, url), items_of(QUOTAS)
    keys, above, rpm, tpm, tokens = case.asked(), _above(case), items["rpm"], items["tpm"], ESTIMATE["tpm"]

    def side(calls: int) -> int:
        for key in islice(keys, calls):
            for entity in (key, *above):
                hit(rpm, "rpm", entity)
                hit(tpm, "tpm", entity, cost=tokens)
        return calls

    side(WARM_UP)
    return side


def hits_in_loop(case: Case, url: str, runner: asyncio.Runner) -> Side:
    """The same in an event loop."""
    hit, items = async_hit_of(FIXED_WINDOW, url), items_of(QUOTAS)
    keys, above, rpm, tpm, tokens = case.asked(), _above(case), items["rpm"], items["tpm"], ESTIMATE["tpm"]

    async def work(calls: int) -> int:
        for key in islice(keys, calls):
            for entity in (key, *above):
                await hit(rpm, "rpm", entity)
                await hit(tpm, "tpm", entity, cost=tokens)
        return calls

    runner.run(work(WARM_UP))
    return lambda calls: runner.run(work(calls))


def _above(case: Case) -> tuple[str, ...]:
    return (PROJECT, ORGANISATION)[: case.depth - 1]


@contextmanager
def takes(rival: Rival, url: str) -> Iterator[Side]:
    """Any rival in a thread: it takes from each of three levels, and never settles."""
    taker: Taker = rival.open(url, QUOTAS)
    take, levels = taker.take, ("key-0", PROJECT, ORGANISATION)
    yield lambda calls: sum([take(entity, ESTIMATE) for _ in range(calls) for entity in levels]) // len(levels)
    taker.close()


@contextmanager
def takes_in_loop(rival: Rival, url: str, runner: asyncio.Runner) -> Iterator[Side]:
    """The same in an event loop."""

    async def opened() -> AsyncTaker:
        return await rival.open_async(url, QUOTAS)

    taker = runner.run(opened())
    take, levels = taker.take, ("key-0", PROJECT, ORGANISATION)

    async def work(calls: int) -> int:
        return sum([await take(entity, ESTIMATE) for _ in range(calls) for entity in levels]) // len(levels)

    yield lambda calls: runner.run(work(calls))
    runner.run(taker.close())
