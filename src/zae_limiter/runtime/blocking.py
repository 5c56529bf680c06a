"""The blocking runtime: coroutines that never suspend, driven without an event loop."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from concurrent.futures import ThreadPoolExecutor

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


_THREADS = 32
"""How many writes of one process are in flight beside those of its own threads."""


class BlockingRuntime:
    """Waits by blocking the calling thread."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def gate(self) -> ThreadGate:
        """A new, closed gate."""
        return ThreadGate()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """A thread cannot be cancelled from outside: just run it."""
        return await work

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """All at once: the first one here, the others each in a thread."""
        if len(works) < 2:
            return [outcome(work) for work in works]
        others = [self._threads().submit(outcome, work) for work in works[1:]]
        return [outcome(works[0]), *(other.result() for other in others)]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():
            from concurrent.futures import ThreadPoolExecutor  # on first use: few need it

            self._pid = os.getpid()
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="zae-limiter")
        return self._pool


def outcome(work: Coroutine[Any, Any, T]) -> T | BaseException:
    """What a coroutine returns or raises; also an interrupt, so that what others have done is known before it ends."""
    try:
        return run(work)
    except BaseException as error:
        return error
