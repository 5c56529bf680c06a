"""Law 7: cancelled at any await, the balance ends where it should be.

The harness cancels a task at its n-th suspension for n = 1, 2, 3, ... until the task finishes undisturbed, on
every store: the memory store made to suspend around each call as a network would, the same without free atomic
commits (independent writes with give-back), both also as stores that need no task of their own, and SQLite in its
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.deadlines import PATIENCE
from zae_limiter import BackendCapabilities, Limit, RateLimiter, RateLimitExceeded, Repository, Store
from zae_limiter.limiter.options import OnError
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import FaultyStore, ManualClock

LIMIT = Limit.per_day("rpm", 100)
PARALLEL = Limit.concurrent("parallel", 3)
Opener = Callable[[], Store]


class InTheCallersTask(FaultyStore):
    """Says of itself that it needs no task of its own; it waits for a future, as a network would make it."""

    @property
    def capabilities(self) -> BackendCapabilities:
        return dataclasses.replace(super().capabilities, never_cancels=True)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit(writes, timeout=timeout)
        loop = asyncio.get_running_loop()
        answered = loop.create_future()

        def answer() -> None:
            if not answered.done():
                answered.set_result(None)

        loop.call_soon(answer)
        await answered
        return outcome


@pytest.fixture(params=["memory", "independent", "sqlite", "memory-no-task", "independent-no-task"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    clock = ManualClock()
    if request.param == "sqlite":
        return lambda: FaultyStore(open_store(f"sqlite:///{tmp_path}/l.db", blocking=False, clock=clock), suspend=True)
    shared = MemoryStore(clock)
    kind = InTheCallersTask if request.param.endswith("no-task") else FaultyStore
    return lambda: kind(shared, suspend=True, free_atomic_commit=request.param.startswith("memory"))


class CancelAt:
    """Drives a coroutine and throws a cancellation into it at its n-th suspension, as a task would get it."""

    def __init__(self, work: Coroutine[Any, Any, None], step: int) -> None:
        self._work = work
        self._left = step
        self.hit = False

    def __await__(self) -> Any:
        steps = self._work.__await__()
        go_on: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            try:
                waiting = go_on(value)
            except StopIteration:
                return
            self._left -= 1
            if self._left == 0:
                self.hit = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                value = yield waiting
                go_on = steps.send
            except BaseException as error:
                value = error
                go_on = steps.throw


async def cancel_everywhere(
    opener: Opener,
    scenario: Callable[[RateLimiter, str], Coroutine[Any, Any, None]],
    spent: Callable[[bool], set[int]],
    resources: Sequence[str] = ("gpt-4",),
    limits: Sequence[Limit] = (LIMIT,),
) -> int:
    """Run the scenario afresh with a cancellation at each of its steps; returns how many steps there were.

    What is spent is the same of each resource. No slot is held afterwards.
    """
    step = 0
    while True:
        step += 1
        limiter = RateLimiter(Repository(opener()))
        who = f"key-{step}"
        await limiter.create_entity(f"org-{step}")
        await limiter.create_entity(who, parent_id=f"org-{step}", cascade=True)
        await limiter.set_system_defaults(limits)
        driven = CancelAt(scenario(limiter, who), step)

        async def drive(driven: CancelAt = driven) -> None:
            await driven

        (result,) = await asyncio.gather(asyncio.create_task(drive()), return_exceptions=True)
        completed = result is None
        for entity in (who, f"org-{step}"):
            found = [await limiter.available(entity, resource) for resource in resources]
            assert {each.get("parallel", 3) for each in found} == {3}, f"step {step}, {entity}: {found}, {result!r}"
            left = {each["rpm"] for each in found}
            assert len(left) == 1, f"step {step}, {entity}: {left} left"
            assert 100 - min(left) in spent(completed), f"step {step}, {entity}: {left} left, {result!r}"
        await limiter.close()
        if not driven.hit:
            assert completed
            return step


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, int]], int]:
    return asyncio.run


def test_cancelled_acquire(opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    async def scenario(limiter: RateLimiter, who: str) -> None:
        async with limiter.acquire(who, "gpt-4", {"rpm": 3}):
            pass

    steps = run(cancel_everywhere(opener, scenario, lambda completed: {3} if completed else {0}))
    assert steps > 3


def test_cancelled_body(opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    async def scenario(limiter: RateLimiter, who: str) -> None:
        async with limiter.acquire(who, "gpt-4", {"rpm": 3}) as lease:
            await lease.adjust(rpm=2)
            for _ in range(3):
                await asyncio.sleep(0)

    def spent(completed: bool) -> set[int]:
        return {5} if completed else {0, 5}  # cancelled in the settlement: the work was done, it is settled

    assert run(cancel_everywhere(opener, scenario, spent)) > 6


KEPT = [("keep", 5), ({"rpm": 2}, 2), ({"rpm": 9}, 9)]
"""What ``on_error`` says of a block that has taken 3 and was adjusted by 2, and what such a block is charged."""


@pytest.mark.parametrize(("on_error", "kept"), KEPT, ids=repr)
def test_cancelled_body_that_keeps_tokens(
    opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int], on_error: OnError, kept: int
) -> None:
    """Before the block nothing is charged, in the block what ``on_error`` says, on the way out what was used."""
    entered, adjusted = False, False

    async def scenario(limiter: RateLimiter, who: str) -> None:
        nonlocal entered, adjusted
        entered = adjusted = False
        async with limiter.acquire(who, "gpt-4", {"rpm": 3}, on_error=on_error) as lease:
            entered = True
            await asyncio.sleep(0)
            await lease.adjust(rpm=2)
            adjusted = True
            await asyncio.sleep(0)

    def spent(completed: bool) -> set[int]:
        if completed or not entered:
            return {5} if completed else {0}
        return {5, kept} if adjusted else {3 if on_error == "keep" else kept}

    assert run(cancel_everywhere(opener, scenario, spent, limits=(LIMIT, PARALLEL))) > 6


@pytest.mark.parametrize("on_error", ["give_back", "keep", {"rpm": 2}], ids=repr)
def test_cancelled_body_that_has_settled(
    opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int], on_error: OnError
) -> None:
    settled = False

    async def scenario(limiter: RateLimiter, who: str) -> None:
        nonlocal settled
        settled = False
        async with limiter.acquire(who, "gpt-4", {"rpm": 3}, on_error=on_error) as lease:
            await lease.settle(rpm=7)
            settled = True
            await asyncio.sleep(0)

    work = cancel_everywhere(opener, scenario, lambda _: {7} if settled else {0})
    assert run(work) > 6


def test_a_failure_that_is_cancelled_while_it_is_settled(
    opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]
) -> None:
    failed = False

    async def scenario(limiter: RateLimiter, who: str) -> None:
        nonlocal failed
        failed = False
        costs, kept = {"a": {"rpm": 3}, "b": {"rpm": 3}}, {"a": {"rpm": 2}, "b": {"rpm": 2}}
        with contextlib.suppress(ZeroDivisionError):
            async with limiter.acquire(who, costs, on_error=kept):
                failed = True
                raise ZeroDivisionError

    work = cancel_everywhere(opener, scenario, lambda _: {2} if failed else {0}, ("a", "b"), (LIMIT, PARALLEL))
    assert run(work) > 6


def test_cancelled_acquire_of_several_resources(opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    async def scenario(limiter: RateLimiter, who: str) -> None:
        async with limiter.acquire(who, {"a": {"rpm": 3}, "b": {"rpm": 3}}):
            pass

    work = cancel_everywhere(opener, scenario, lambda completed: {3} if completed else {0}, ("a", "b"))
    assert run(work) > 3


def test_cancelled_body_and_settlement_of_several_resources(
    opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]
) -> None:
    async def scenario(limiter: RateLimiter, who: str) -> None:
        async with limiter.acquire(who, {"a": {"rpm": 3}, "b": {"rpm": 3}}) as lease:
            await lease.adjust(rpm=2)
            await lease.resource("b").adjust(rpm=2)
            await asyncio.sleep(0)

    work = cancel_everywhere(opener, scenario, lambda completed: {5} if completed else {0, 5}, ("a", "b"))
    assert run(work) > 6


def test_cancelled_refusal_of_several_resources(opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    """The second resource has too little: what a store without free commits has taken of the first goes back."""

    async def scenario(limiter: RateLimiter, who: str) -> None:
        other = RateLimiter(Repository(opener()))
        async with other.acquire(who, {"a": {"rpm": 60}, "b": {"rpm": 60}}):
            pass
        async with other.acquire(who, "b", {"rpm": 30}) as lease:
            with pytest.raises(RateLimitExceeded):
                await limiter.acquire(who, {"a": {"rpm": 30}, "b": {"rpm": 30}}).enter()
            await lease.release(rpm=30)

    work = cancel_everywhere(opener, scenario, lambda completed: {60} if completed else {0, 60}, ("a", "b"))
    assert run(work) > 3


def test_cancelled_consume_gives_everything_back(
    opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]
) -> None:
    async def scenario(limiter: RateLimiter, who: str) -> None:
        async with limiter.acquire(who, "gpt-4", {"rpm": 3}) as lease:
            await lease.consume(rpm=4)

    steps = run(cancel_everywhere(opener, scenario, lambda completed: {7} if completed else {0}))
    assert steps > 6


def test_cancelled_with_slots(opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    """On the way in, in the body and on the way out, at two levels."""

    async def scenario(limiter: RateLimiter, who: str) -> None:
        async with limiter.acquire(who, "gpt-4", {"rpm": 3}) as lease:
            await lease.consume(rpm=4, parallel=1)
            await asyncio.sleep(0)

    def spent(completed: bool) -> set[int]:
        return {7} if completed else {0, 7}  # cancelled on the way out: the work was done

    assert run(cancel_everywhere(opener, scenario, spent, limits=(LIMIT, PARALLEL))) > 8


def test_cancelled_with_slots_of_several_resources(
    opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]
) -> None:
    async def scenario(limiter: RateLimiter, who: str) -> None:
        async with limiter.acquire(who, {"a": {"rpm": 3}, "b": {"rpm": 3}}):
            await asyncio.sleep(0)

    work = cancel_everywhere(
        opener, scenario, lambda completed: {3} if completed else {0, 3}, ("a", "b"), (LIMIT, PARALLEL)
    )
    assert run(work) > 6


def test_cancelled_while_waiting_for_a_slot(opener: Opener, run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    async def scenario(limiter: RateLimiter, who: str) -> None:
        other = RateLimiter(Repository(opener()))
        held = other.acquire(who, "gpt-4", {"parallel": 3})
        try:
            await held.enter()
            waiting = asyncio.create_task(limiter.acquire(who, "gpt-4", {"rpm": 3}, max_wait=0.2).enter())
            (result,) = await asyncio.gather(waiting, return_exceptions=True)
            assert isinstance(result, RateLimitExceeded)
        finally:
            await held.exit()

    assert run(cancel_everywhere(opener, scenario, lambda _: {0}, limits=(LIMIT, PARALLEL))) > 3


@pytest.mark.parametrize("victims", [{0}, {1, 2}, {3}])
async def test_cancelled_among_merged_with_slots(opener: Opener, victims: set[int]) -> None:
    """Of those who are merged into one write, whoever goes away leaves its slot to the others."""

    async def hold(limiter: RateLimiter) -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            await asyncio.sleep(0)

    limiter = RateLimiter(Repository(opener()))
    await limiter.set_system_defaults([Limit.per_day("rpm", 1_000), Limit.concurrent("parallel", 4)])
    for delay in range(8):
        tasks = [asyncio.create_task(hold(limiter)) for _ in range(4)]
        for _ in range(delay):
            await asyncio.sleep(0)
        for victim in victims:
            tasks[victim].cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        assert all(result is None for position, result in enumerate(results) if position not in victims)
        assert (await limiter.available("key", "gpt-4"))["parallel"] == 4
    await limiter.close()


@pytest.mark.parametrize("more", [0, 4])
async def test_cancelled_settlement_is_finished(opener: Opener, more: int) -> None:
    """Cancelling while the settlement is in flight never loses it: all of it or, before it began, none."""
    limiter = RateLimiter(Repository(opener()))
    await limiter.set_system_defaults([LIMIT])
    lease = limiter.acquire("key", "gpt-4", {"rpm": 3})
    await lease.__aenter__()
    if more:  # a grant of its own, which is settled with the other
        await lease.consume(rpm=more)
        await lease.release(rpm=3 + more)
    await lease.adjust(rpm=2)
    settling = asyncio.create_task(lease.__aexit__(None, None, None))
    await asyncio.sleep(0)
    for _ in range(3):
        settling.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert await limiter.available("key", "gpt-4") == {"rpm": 98 if more else 95}
    await limiter.close()


@pytest.mark.parametrize("victims", [{0}, {1}, {2, 3}, {0, 1, 2}, {5}])
async def test_cancelled_among_merged(opener: Opener, victims: set[int]) -> None:
    """Leaders and followers of a merged write can be cancelled; the others neither hang nor lose anything."""

    async def take(limiter: RateLimiter) -> bool:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            return True

    limiter = RateLimiter(Repository(opener()))
    await limiter.set_system_defaults([LIMIT])
    await limiter.available("key", "gpt-4")
    for delay in range(8):
        before = (await limiter.available("key", "gpt-4"))["rpm"]
        tasks = [asyncio.create_task(take(limiter)) for _ in range(6)]
        for _ in range(delay):
            await asyncio.sleep(0)
        for victim in victims:
            tasks[victim].cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        granted = sum(result is True for result in results)
        assert before - (await limiter.available("key", "gpt-4"))["rpm"] == granted
        assert all(result is True for position, result in enumerate(results) if position not in victims)
    await limiter.close()


async def test_cancelled_waiter_hands_the_line_on(opener: Opener) -> None:
    """A waiter that goes away lets the next one in line have its turn."""
    limiter = RateLimiter(Repository(opener()))
    await limiter.set_limits("key", [Limit.per_second("rpm", 1)])
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    order: list[int] = []

    async def wait(number: int) -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, max_wait=60):
            order.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[3].cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
    assert [type(result) for result in results if result is not None] == [asyncio.CancelledError] * 2
    assert order == [1, 2, 4]
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            pass
    await limiter.close()
