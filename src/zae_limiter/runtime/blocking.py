"""The blocking runtime: coroutines that never suspend, driven without an event loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

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

    def gate(self) -> ThreadGate:
        """A new, closed gate."""
        return ThreadGate()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """A thread cannot be cancelled from outside: just run it."""
        return await work

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """One after the other."""
        results: list[T | BaseException] = []
        for work in works:
            try:
                results.append(await work)
            except Exception as error:
                results.append(error)
        return results
