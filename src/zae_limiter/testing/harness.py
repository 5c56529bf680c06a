"""One test, both modes: a coroutine over the limiter, run by an event loop or without one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..limiter.limiter import RateLimiter
from ..repository.repository import Repository
from ..runtime.blocking import run
from ..stores.port import Store
from ..sync import BlockingRateLimiter, BlockingRepository
from .clock import ManualClock

if TYPE_CHECKING:
    from ..clock import Clock

T = TypeVar("T")


class Harness:
    """A way to open a store, and a mode: ``async`` or ``blocking``.

    ``open_store(clock, blocking)`` gives a client of the same data each time it is called, as a second process
    would have it. ``prefetch`` is that of its limiters, where nothing else is said.
    """

    def __init__(self, open_store: Callable[[Clock, bool], Store], *, blocking: bool, prefetch: float = 0) -> None:
        self.blocking = blocking
        self.prefetch = prefetch
        self.clock: ManualClock = ManualClock()
        self._open_store = open_store

    def store(self, clock: Clock | None = None) -> Store:
        """Return a new client of the store."""
        return self._open_store(clock or self.clock, self.blocking)

    def repository(self, store: Store | None = None, **options: Any) -> Repository:
        """Return a repository in the harness's mode."""
        kind = BlockingRepository if self.blocking else Repository
        return kind(store or self.store(), **options)

    def limiter(self, store: Store | Repository | None = None, **options: Any) -> RateLimiter:
        """Return a limiter in the harness's mode, with nothing in common with others but the store."""
        repository = store if isinstance(store, Repository) else self.repository(store)
        kind = BlockingRateLimiter if self.blocking else RateLimiter
        prefetch = self.prefetch if options.get("speculative_writes", True) else 0
        return kind(repository, **{"prefetch": prefetch, **options})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in the harness's mode."""
        if self.blocking:
            return run(work)
        import asyncio

        return asyncio.run(work)
