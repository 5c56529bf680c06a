"""The runtime port: waiting, and finishing what was begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Signal(Protocol):
    """A one-time signal between tasks or threads."""

    def set(self) -> None:
        """Wake the waiter; from any thread, any number of times."""

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if ``timeout`` seconds pass before."""


def has_ended(scope: object) -> bool:
    """Return whether a scope is an event loop that has been closed; the scope of threads never ends."""
    return bool(getattr(scope, "is_closed", bool)())


class Caller(Protocol):
    """The task or thread that has called, as others can reach it."""

    @property
    def scope(self) -> object:
        """Where it lives, as `Runtime.scope`."""

    def call(self, work: Callable[[], object]) -> None:
        """Have something done in the caller's event loop, else in a thread of its own; from any thread."""

    def run(self, work: Callable[[], Coroutine[Any, Any, object]], timeout: float) -> None:
        """Run a coroutine where the caller lives, from another thread. Raise TimeoutError if it takes longer."""

    def cancel(self, still: Callable[[], bool]) -> None:
        """Cancel the caller, from any thread, if ``still`` is true when its turn comes; where that is possible."""

    def has_cancelled(self, error: BaseException | None) -> bool:
        """Return whether ``error`` is the end of the caller by `cancel` and by nothing else; undo `cancel`."""

    @property
    def is_gone(self) -> bool:
        """Whether it cannot end any lease any more: its event loop was closed."""


class Runtime(Protocol):
    """Everything that the use cases need in order to wait."""

    def scope(self) -> object:
        """Return where the caller's work belongs: the running event loop, or one scope for all threads.

        Callers never wait for work of another scope, which may be stuck or dead.
        """

    def check_running(self) -> None:
        """Raise RuntimeError where this runtime cannot wait for anything; called before any I/O."""

    def new_signal(self) -> Signal:
        """Return a new signal for one waiter."""

    def caller(self) -> Caller:
        """Return the task or thread that calls."""

    @property
    def can_cancel(self) -> bool:
        """Whether callers can be cancelled."""

    def finish(self, work: Coroutine[Any, Any, T], *, never_cancels: bool = False) -> Awaitable[T]:
        """Return an awaitable that completes ``work`` even if the caller is cancelled, and raises that afterwards.

        ``never_cancels``: the work never cancels the task that it runs in, see `BackendCapabilities`.
        """

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin background work, which must not raise: in the running event loop, or in a thread."""

    async def run_together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """Run several at once where that is possible; failures come back as values."""

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run something that blocks for long, without blocking others."""
