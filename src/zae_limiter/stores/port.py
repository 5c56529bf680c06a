"""The store port: four verbs, and extra abilities that only some stores have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVarTuple, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..clock import Clock
    from ..core.values import BackendCapabilities, BackendStats
    from ..records.algebra import Committed, Conflict, Image, Key, Page, Query, Write

Ts = TypeVarTuple("Ts")


class Store(Protocol):
    """What a backend has to do.

    The verbs are coroutines. A blocking store finishes inside the await without suspending; then the same
    use cases run without an event loop. Each verb answers within ``timeout`` seconds (None: the store's own
    default) or raises `RateLimiterUnavailable`. Expired records count as absent. A store that was deployed as a
    stack may have a ``stack_name``, which errors then show. Prove a new store with `zae_limiter.testing.conformance`.
    """

    @property
    def capabilities(self) -> BackendCapabilities:
        """Return what the store can do and what it costs."""
        ...

    @property
    def clock(self) -> Clock:
        """Return the clock by which all its clients decide."""
        ...

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images, in the order of the keys."""
        ...

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none. A key appears at most once."""
        ...

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return one page of a range."""
        ...

    async def close(self) -> None:
        """Free connections, files and threads; closing twice is fine."""
        ...


@runtime_checkable
class Replaceable(Protocol):
    """An extra ability of a store whose data somebody may replace by other data: it tells when that has happened."""

    def on_replaced(self, forget: Callable[[], None]) -> None:
        """Have the method ``forget`` called each time, as long as its object lives."""
        ...


@runtime_checkable
class UpdatesInPlace(Protocol):
    """An extra ability of a store inside the process: it has one bucket changed under its lock.

    A plain acquire then needs neither guards nor a coroutine. Other stores are served by `Store.commit`.
    """

    def update_in_place(
        self, key: Key, now_ms: int, change: Callable[[Image | None, *Ts], Image | None], *args: *Ts
    ) -> tuple[Image | None, Image | None]:
        """Replace a bucket's image by what ``change`` makes of it; return the image before, and the new one.

        ``change`` gets None where there is no bucket, and what it makes then is a new one. It returns None to leave
        the bucket as it is.
        """
        ...


@runtime_checkable
class Provisioned(Protocol):
    """A store whose table must exist before it can be used. It is only created on request."""

    async def create_table(self, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False) -> None:
        """Create the table. A suitable one is left alone."""
        ...

    async def check_table(self) -> None:
        """Raise an error if the table is missing or unsuitable. Changes nothing."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A store that counts its calls and what they cost."""

    def stats(self) -> BackendStats:
        """Return the counters as of now."""
        ...
