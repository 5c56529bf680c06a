"""The blocking runtime: coroutines that never suspend, driven without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

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


class ThreadSignal:
    """A signal that a thread waits for."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set

    async def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)


class ThreadCaller:
    """A thread that has called. It cannot be interrupted."""

    is_gone = False
    scope: object = "threads"
    """The scope of all threads."""

    def call(self, work: Callable[[], object]) -> None:
        threading.Thread(target=work, name="zae-limiter-call", daemon=True).start()

    def run(self, work: Callable[[], Coroutine[Any, Any, object]], timeout: float) -> None:
        run(work())

    def cancel(self, still: Callable[[], bool]) -> None:
        """Do nothing."""

    def has_cancelled(self, error: BaseException | None) -> bool:
        return False


_CALLER = ThreadCaller()


class BlockingRuntime:
    """Waits by blocking the calling thread."""

    can_cancel = False
    new_signal = ThreadSignal

    def caller(self) -> ThreadCaller:
        return _CALLER

    def scope(self) -> object:
        return _CALLER.scope

    def check_running(self) -> None:
        """Do nothing: a thread can always wait."""

    def finish(self, work: Coroutine[Any, Any, T], *, never_cancels: bool = False) -> Coroutine[Any, Any, T]:
        return work

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        _CALLER.call(lambda: run(work()))

    async def run_together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """Run the first one here, each of the others in a thread of its own.

        No pool: one that waits for others inside would wait for its own place for ever.
        """
        results: list[T | BaseException] = [RuntimeError("a thread ended without an outcome")] * len(works)

        def drive(place: int) -> None:
            try:
                results[place] = run(works[place])
            except BaseException as error:  # interrupts included, so that the outcome of the others is not lost
                results[place] = error

        threads = [threading.Thread(target=drive, args=(place,), daemon=True) for place in range(1, len(works))]
        for thread in threads:
            thread.start()
        if works:
            drive(0)
        for thread in threads:
            thread.join()
        return results

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return work()
