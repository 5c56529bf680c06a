"""The asyncio runtime. Holds nothing that belongs to one event loop, so a limiter serves several."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")

_NEEDS_ASYNCIO = (
    "The async limiter needs asyncio, and no asyncio task is running here. Under trio, also by way of anyio, use "
    "SyncRateLimiter in a thread: anyio.to_thread.run_sync or trio.to_thread.run_sync."
)


class LoopGate:
    """A gate on which a task waits; it may be opened from another loop's thread."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def open(self) -> None:
        """Let the waiter through."""
        if self._loop is _running_loop():
            self._resolve()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        """Suspend the task until the gate opens."""
        if timeout is None:
            await self._future
            return True
        await asyncio.wait((self._future,), timeout=timeout)
        return self._future.done()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class AsyncioRuntime:
    """Waits by suspending the running task."""

    def scope(self) -> object:
        """The running loop."""
        return asyncio.get_running_loop()

    def check_running(self) -> None:
        """Raise RuntimeError unless a task of asyncio is running: another library cannot wait for what asyncio does."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None:
            raise RuntimeError(_NEEDS_ASYNCIO)

    def gate(self) -> LoopGate:
        """A new, closed gate."""
        self.check_running()
        return LoopGate()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` as a task of its own; a cancelled caller waits for its end and is cancelled then."""
        task = asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                cancelled = error
            except BaseException:
                if not task.done():
                    raise  # the loop is dead and its coroutines are being cleared away: nobody will finish it
                break  # what the task has raised is raised below
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # seen: the cancellation is what the caller hears of
            raise cancelled
        return task.result()

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """All at once."""
        return await asyncio.gather(*works, return_exceptions=True)

    async def aside(self, work: Callable[[], T]) -> T:
        """In a thread, so that the event loop goes on."""
        return await asyncio.to_thread(work)
