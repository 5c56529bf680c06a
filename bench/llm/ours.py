"""Sides that make LLM calls with ours, by its public API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

from bench.llm.cases import ORGANISATION, RPM, SPENT, Case, Counting
from bench.timing import Side
from zae_limiter import RateLimiter, RateLimitExceeded, SyncRateLimiter

RESOURCE = "gpt-4"
WARM_UP = 100
_NUMBER = count()


def place(url: str) -> str:
    """The URL of a place of its own on a server."""
    return f"{url}?prefix=llm-{next(_NUMBER)}"


@contextmanager
def blocking(case: Case, url: str, calls: int) -> Iterator[Side]:
    """Ours in a thread, warm, ready for so many calls."""
    with SyncRateLimiter(url, observer=Counting() if case.observed else None) as limiter:
        limiter.set_system_defaults(list(case.limits))
        for entity, parent in case.parents(calls + WARM_UP):
            if limiter.get_entity(entity) is None:
                limiter.create_entity(entity, parent_id=parent, cascade=parent is not None)
        if case.end == "refused":
            limiter.set_limits(ORGANISATION, [RPM, SPENT])
        side = _BLOCKING[case.end](limiter, case)
        side(WARM_UP)
        yield side


def _unsettled(limiter: SyncRateLimiter, case: Case) -> Side:
    keys, estimate, acquire = case.asked(), case.estimate, limiter.acquire

    def side(calls: int) -> int:
        for key in islice(keys, calls):
            with acquire(key, RESOURCE, estimate):
                pass
        return calls

    return side


def _settled(limiter: SyncRateLimiter, case: Case) -> Side:
    keys, estimate, used, acquire = case.asked(), case.estimate, case.used, limiter.acquire

    def side(calls: int) -> int:
        for key in islice(keys, calls):
            with acquire(key, RESOURCE, estimate) as lease:
                lease.settle(tpm=used)
        return calls

    return side


def _refused(limiter: SyncRateLimiter, case: Case) -> Side:
    keys, estimate, acquire = case.asked(), case.estimate, limiter.acquire

    def side(calls: int) -> int:
        granted = 0
        for key in islice(keys, calls):
            try:
                with acquire(key, RESOURCE, estimate):
                    granted += 1
            except RateLimitExceeded:
                pass
        return granted

    return side


_BLOCKING = {"": _unsettled, "settled": _settled, "refused": _refused}


@contextmanager
def in_loop(case: Case, url: str, calls: int, runner: asyncio.Runner) -> Iterator[Side]:
    """Ours in an event loop, warm, ready for so many calls."""
    limiter = RateLimiter(url, observer=Counting() if case.observed else None)

    async def prepare() -> None:
        await limiter.set_system_defaults(list(case.limits))
        for entity, parent in case.parents(calls + WARM_UP):
            if await limiter.get_entity(entity) is None:
                await limiter.create_entity(entity, parent_id=parent, cascade=parent is not None)
        if case.end == "refused":
            await limiter.set_limits(ORGANISATION, [RPM, SPENT])

    runner.run(prepare())
    work = _ASYNC[case.end](limiter, case)
    runner.run(work(WARM_UP))
    yield lambda calls: runner.run(work(calls))
    runner.run(limiter.close())


def _unsettled_async(limiter: RateLimiter, case: Case) -> Callable[[int], Any]:
    keys, estimate, acquire = case.asked(), case.estimate, limiter.acquire

    async def work(calls: int) -> int:
        for key in islice(keys, calls):
            async with acquire(key, RESOURCE, estimate):
                pass
        return calls

    return work


def _settled_async(limiter: RateLimiter, case: Case) -> Callable[[int], Any]:
    keys, estimate, used, acquire = case.asked(), case.estimate, case.used, limiter.acquire

    async def work(calls: int) -> int:
        for key in islice(keys, calls):
            async with acquire(key, RESOURCE, estimate) as lease:
                await lease.settle(tpm=used)
        return calls

    return work


def _refused_async(limiter: RateLimiter, case: Case) -> Callable[[int], Any]:
    keys, estimate, acquire = case.asked(), case.estimate, limiter.acquire

    async def work(calls: int) -> int:
        granted = 0
        for key in islice(keys, calls):
            try:
                async with acquire(key, RESOURCE, estimate):
                    granted += 1
            except RateLimitExceeded:
                pass
        return granted

    return work


_ASYNC = {"": _unsettled_async, "settled": _settled_async, "refused": _refused_async}
