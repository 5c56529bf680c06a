"""Callers who want the same work at once: one does it, the others wait in order and share what comes of it."""

from __future__ import annotations

import asyncio

import pytest

from zae_limiter import RateLimiterUnavailable
from zae_limiter.core.errors import ZAELimiterError
from zae_limiter.runtime.aio import AsyncioRuntime
from zae_limiter.runtime.deadline import Deadline
from zae_limiter.runtime.single_flight import Once, SingleFlight


class Work:
    """Work that ends when it is told to, and counts who does it."""

    def __init__(self) -> None:
        self.result: str | None = None
        self.failure: Exception | None = None
        self.begun = 0
        self.ready = asyncio.Event()

    def find(self) -> str | None:
        return self.result

    async def do(self) -> str:
        self.begun += 1
        await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        self.result = "done"
        return self.result


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_caller_works_and_the_others_find_its_result_in_the_order_of_their_coming() -> None:
    flights, work, served = SingleFlight(AsyncioRuntime()), Work(), []

    async def ask(name: int) -> None:
        assert await flights.run("key", work.find, work.do, None, "late") == "done"
        served.append(name)

    tasks = [asyncio.create_task(ask(name)) for name in range(5)]
    await turns()
    work.ready.set()
    await asyncio.gather(*tasks)
    assert (work.begun, served) == (1, [0, 1, 2, 3, 4])
    assert not flights.under_way


async def test_other_keys_do_not_wait_for_each_other() -> None:
    flights, stuck, free = SingleFlight(AsyncioRuntime()), Work(), Work()
    free.ready.set()
    task = asyncio.create_task(flights.run("stuck", stuck.find, stuck.do, None, "late"))
    await turns()
    assert await flights.run("free", free.find, free.do, None, "late") == "done"
    assert flights.is_under_way("stuck")
    assert not flights.is_under_way("free")
    stuck.ready.set()
    await task


@pytest.mark.parametrize("shares", [True, False])
async def test_an_error_is_shared_only_where_that_is_asked_for(shares: bool) -> None:
    flights, work = SingleFlight(AsyncioRuntime(), ZAELimiterError if shares else ()), Work()
    work.failure = RateLimiterUnavailable("broken")
    tasks = [asyncio.create_task(flights.run("key", work.find, work.do, None, "late")) for _ in range(3)]
    await turns()
    work.ready.set()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert failures == [work.failure] * 3
    assert work.begun == (1 if shares else 3)
    assert not flights.under_way


async def test_who_comes_after_a_shared_error_tries_again() -> None:
    work = Work()

    async def prepare() -> None:
        await work.do()

    once = Once(AsyncioRuntime(), prepare)
    work.failure = RateLimiterUnavailable("broken")
    work.ready.set()
    with pytest.raises(RateLimiterUnavailable):
        await once.finish()
    assert not once.done
    work.failure = None
    await once.finish()
    await once.finish()
    assert (once.done, work.begun) == (True, 2)


async def test_the_next_one_works_if_the_first_is_cancelled() -> None:
    flights, work = SingleFlight(AsyncioRuntime(), ZAELimiterError), Work()
    tasks = [asyncio.create_task(flights.run("key", work.find, work.do, None, "late")) for _ in range(3)]
    await turns()
    tasks[0].cancel()
    await turns()
    work.ready.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == ["done", "done"]
    assert work.begun == 2


async def test_who_has_waited_until_the_deadline_leaves_without_disturbing_the_others() -> None:
    flights, work = SingleFlight(AsyncioRuntime(), ZAELimiterError), Work()
    first = asyncio.create_task(flights.run("key", work.find, work.do, None, "late"))
    await turns()
    with pytest.raises(RateLimiterUnavailable, match="too late"):
        await flights.run("key", work.find, work.do, Deadline.begin(0.001), "too late")
    last = asyncio.create_task(flights.run("key", work.find, work.do, None, "late"))
    await turns()
    work.ready.set()
    assert [await first, await last] == ["done", "done"]
    assert work.begun == 1
