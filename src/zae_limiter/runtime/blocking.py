"""The blocking runtime: coroutines that never suspend, driven without an event loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine whose awaits all finish at once."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("a blocking store or runtime suspended; it must finish inside the await")


class ThreadGate:
    """A gate on which a thread waits."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        """Let the waiter through."""
        self._event.set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Block the thread until the gate opens."""
        return self._event.wait(timeout)


class BlockingRuntime:
    """Waits by blocking the calling thread."""

    def scope(self) -> object:
        """One for all threads."""
        return BlockingRuntime

    def check_running(self) -> None:
        """A thread can always wait."""

    def gate(self) -> ThreadGate:
        """A new, closed gate."""
        return ThreadGate()

    async def finish(self, work: Coroutine[Any, Any, T], *, never_cancels: bool = False) -> T:
        """A thread cannot be cancelled from outside: just run it."""
        return await work

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """All at once: the first one here, each of the others in a thread of its own.

        No pool: one that waits for others inside would wait for its own place for ever.
        """
        results: list[T | BaseException] = [_UNDONE] * len(works)

        def drive(place: int) -> None:
            results[place] = _outcome(works[place])

        threads = [threading.Thread(target=drive, args=(place,), daemon=True) for place in range(1, len(works))]
        for thread in threads:
            thread.start()
        if works:
            drive(0)
        for thread in threads:
            thread.join()
        return results

    async def aside(self, work: Callable[[], T]) -> T:
        """The calling thread is the one that waits for it."""
        return work()


_UNDONE = RuntimeError("a thread ended without an outcome")


def _outcome(work: Coroutine[Any, Any, T]) -> T | BaseException:
    """What a coroutine returns or raises; also an interrupt, so that what others have done is known before it ends."""
    try:
        return run(work)
    except BaseException as error:
        return error
