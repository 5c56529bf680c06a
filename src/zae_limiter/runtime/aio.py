"""The asyncio runtime. Holds nothing that belongs to one event loop, so a limiter serves several."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_NEEDS_ASYNCIO = (
    "The async limiter needs asyncio, and no asyncio task is running here. Under trio, also by way of anyio, use "
    "SyncRateLimiter in a thread: anyio.to_thread.run_sync or trio.to_thread.run_sync."
)


class LoopSignal:
    """A signal that a task waits for; it may be set from another loop's thread."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        try:
            here: object = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if self._loop is here:
            self._resolve()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            await self._future
            return True
        await asyncio.wait((self._future,), timeout=timeout)
        return self._future.done()


class TaskCaller:
    """A task that has called."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()
        self._cancelled = False

    @property
    def scope(self) -> object:
        return self._loop

    @property
    def is_gone(self) -> bool:
        return self._loop.is_closed()

    def call(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # it was closed
            self._loop.call_soon_threadsafe(work)

    def run(self, work: Callable[[], Coroutine[Any, Any, object]], timeout: float) -> None:
        if self._loop.is_closed():
            return
        running = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            running.result(timeout)
        finally:
            running.cancel()

    def cancel(self, still: Callable[[], bool]) -> None:
        self.call(partial(self._cancel, still))

    def _cancel(self, still: Callable[[], bool]) -> None:
        if still() and self._task is not None and self._task.cancel():
            self._cancelled = True

    def has_cancelled(self, error: BaseException | None) -> bool:
        if not self._cancelled or self._task is None:
            return False
        self._cancelled = False
        return self._task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError)


_STARTED: set[asyncio.Task[object]] = set()
"""Background tasks, which a loop alone would not keep alive."""


class AsyncioRuntime:
    """Waits by suspending the running task. Raises RuntimeError where none of asyncio is running."""

    can_cancel = True

    def caller(self) -> TaskCaller:
        self.check_running()
        return TaskCaller()

    def scope(self) -> object:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None:  # another library cannot wait for what asyncio does
            raise RuntimeError(_NEEDS_ASYNCIO)
        return task.get_loop()

    def check_running(self) -> None:
        self.scope()

    def new_signal(self) -> LoopSignal:
        self.check_running()
        return LoopSignal()

    def finish(self, work: Coroutine[Any, Any, T], *, never_cancels: bool = False) -> Awaitable[T]:
        return _run_to_end(work) if never_cancels else _run_apart(work)

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        _STARTED.add(task)
        task.add_done_callback(_STARTED.discard)

    async def run_together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        return await asyncio.gather(*works, return_exceptions=True)

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


async def _run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in a task of its own, and raise a cancellation of the caller at its end."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            if not task.done():
                raise  # the loop is dead and its coroutines are being cleared away
            break  # what the task has raised is raised below
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller hears of
        raise cancelled
    return task.result()


@types.coroutine
def _run_to_end(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run ``work`` in the caller's task, and raise a cancellation of that at its end."""
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            waiting = work.send(None)
        except StopIteration as end:
            if cancelled is not None:
                raise cancelled from None
            result: T = end.value
            return result
        except BaseException:
            if cancelled is not None:
                raise cancelled from None
            raise
        held = _hold(waiting)
        while True:
            try:
                yield held
            except asyncio.CancelledError as error:
                cancelled = error
            except GeneratorExit:  # the loop is dead and its coroutines are being cleared away
                work.close()
                raise
            except BaseException:  # what was waited for has failed, which is for the work to see
                if held is None or not held.done():
                    raise
            if held is None or held.done():
                break
            held._asyncio_future_blocking = True


def _hold(waiting: Any) -> Any:
    """Return a future that cannot be cancelled, done when ``waiting`` is; None stands for a loop iteration."""
    if waiting is None:
        return None
    if hasattr(waiting, "held"):  # it can do so itself, which saves an iteration of the loop
        waiting.held = True
        return waiting
    waiting._asyncio_future_blocking = False
    held = _Held(loop=waiting.get_loop())
    held._asyncio_future_blocking = True
    waiting.add_done_callback(held.resolve)
    return held


class _Held(asyncio.Future[None]):
    """A future that cannot be cancelled: the task that waits for it hears of its cancellation when it is done."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False

    def resolve(self, _: asyncio.Future[Any]) -> None:
        self.set_result(None)
