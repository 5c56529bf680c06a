"""The store as background work can use it: in threads of the housekeeper, beside whatever callers are doing."""

from __future__ import annotations

from ..forks import after_fork
from ..repository.backend import Backend, SharedBackend
from ..runtime.blocking import BlockingRuntime, run
from ..stores.port import Preparable, ServesThreads, Store


class BackgroundStore:
    """A store that threads can use, opened on first use; for all background work of one limiter."""

    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._opened: Store | None = None
        self._in_place = store.capabilities.instant or not backend.runtime.can_cancel
        """Whether threads can use the store as it is."""
        self.needs_loops = not (self._in_place or isinstance(store, ServesThreads))
        """Whether only event loops can use the store."""
        after_fork(self._forget)

    def open(self) -> Store:
        """Return a store that the calling thread can use."""
        if self._in_place or not isinstance(self._store, ServesThreads):
            return self._backend.store
        if self._opened is None:
            store = self._store.for_threads()
            if isinstance(store, Preparable):
                run(store.prepare())
            self._opened = store
        return self._opened

    def open_backend(self) -> Backend:
        """Return the backend over `open`, for use cases that the calling thread runs through."""
        return SharedBackend(self._backend, self.open(), BlockingRuntime())

    def close(self) -> None:
        """Close what was opened."""
        store, self._opened = self._opened, None
        if self._in_place and self._backend.closed:  # background work may have opened it again
            store = self._backend.store
        if store is not None:
            run(store.close())

    def _forget(self) -> None:
        """Leave what the parent has opened to the parent."""
        self._opened = None
