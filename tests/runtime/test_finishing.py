"""What was begun is finished in the caller's own task, also if that is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from zae_limiter.runtime.aio import AsyncioRuntime


class Scene:
    """A caller that finishes some work, and a future that the work waits for."""

    def __init__(self, wait: Callable[[asyncio.Future[str]], Awaitable[str]]) -> None:
        self.gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ended = False
        self._wait = wait
        self.caller = asyncio.ensure_future(AsyncioRuntime().finish(self._work(), never_cancels=True))

    async def _work(self) -> str:
        try:
            return await self._wait(self.gate)
        finally:
            self.ended = True

    async def outcome(self) -> Any:
        """What the caller hears."""
        return (await asyncio.gather(self.caller, return_exceptions=True))[0]


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def directly(gate: asyncio.Future[str]) -> str:
    return await gate


async def in_a_group(gate: asyncio.Future[str]) -> str:
    (found,) = await asyncio.gather(directly(gate))
    return found


async def until_done(gate: asyncio.Future[str]) -> str:
    await asyncio.wait((gate,), timeout=60)
    return gate.result()


async def in_steps(gate: asyncio.Future[str]) -> str:
    while not gate.done():  # noqa: ASYNC110  # this is about coroutines that only give way
        await asyncio.sleep(0)
    return gate.result()


async def nested(gate: asyncio.Future[str]) -> str:
    return await AsyncioRuntime().finish(directly(gate), never_cancels=True)


WAITS = pytest.mark.parametrize("wait", [directly, in_a_group, until_done, in_steps, nested])


@WAITS
@pytest.mark.parametrize("cancellations", [0, 1, 3])
async def test_a_cancelled_caller_hears_of_it_when_the_work_is_done(
    wait: Callable[[asyncio.Future[str]], Awaitable[str]], cancellations: int
) -> None:
    scene = Scene(wait)
    await turns()
    for _ in range(cancellations):
        scene.caller.cancel()
        await turns()
    assert (scene.ended, scene.caller.done()) == (False, False)
    scene.gate.set_result("done")
    outcome = await scene.outcome()
    assert scene.ended
    assert isinstance(outcome, asyncio.CancelledError) if cancellations else outcome == "done"


@WAITS
@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_error_is_the_callers_unless_it_is_cancelled(
    wait: Callable[[asyncio.Future[str]], Awaitable[str]], cancelled: bool
) -> None:
    scene = Scene(wait)
    await turns()
    if cancelled:
        scene.caller.cancel()
    await turns()
    scene.gate.set_exception(KeyError("broken"))
    assert type(await scene.outcome()) is (asyncio.CancelledError if cancelled else KeyError)


async def test_a_timeout_around_the_caller_is_told_when_the_work_is_done() -> None:
    loop = asyncio.get_running_loop()
    gate = loop.create_future()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            loop.call_later(0.01, gate.set_result, "done")
            await AsyncioRuntime().finish(directly(gate), never_cancels=True)
    assert gate.done()


async def test_the_work_runs_in_the_callers_task() -> None:
    async def work() -> asyncio.Task[Any] | None:
        await asyncio.sleep(0)
        return asyncio.current_task()

    assert await AsyncioRuntime().finish(work(), never_cancels=True) is asyncio.current_task()


def test_work_whose_loop_is_dead_is_cleared_away() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    caller: Any = AsyncioRuntime().finish(work(), never_cancels=True)
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        caller.send(None)

    loop.run_until_complete(begin())
    loop.close()
    caller.close()
    assert ended == [True]
