"""The store port: four verbs, and extra abilities that only some stores have."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..clock import Clock
from ..core.values import BackendCapabilities
from ..records.algebra import Committed, Conflict, Image, Key, Page, Query, Write

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..core.reports import BackendStats


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

    @property
    def clock(self) -> Clock:
        """Return the clock by which all its clients decide."""

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images, in the order of the keys."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none. A key appears at most once."""

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return one page of a range."""

    async def close(self) -> None:
        """Free connections, files and threads; closing twice is fine."""


@runtime_checkable
class Replaceable(Protocol):
    """An extra ability of a store whose data somebody may replace by other data: it tells when that has happened."""

    def on_replaced(self, forget: Callable[[], None]) -> None:
        """Have the method ``forget`` called each time, as long as its object lives."""


@runtime_checkable
class UpdatesInPlace(Protocol):
    """An extra ability of a store inside the process: whoever holds its lock may change its buckets.

    A plain acquire then needs neither guards nor a coroutine. Other stores are served by `Store.commit`.
    """

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Return what to hold during all of this."""

    def is_inside(self) -> bool:
        """Return whether the calling thread holds the lock: then it is in a finalizer or a signal handler."""

    @property
    def images(self) -> dict[Any, Image]:
        """Return the buckets that were used last, by partition key.

        An image may be replaced by one that is in the same indexes.
        """

    def has_records(self, pk: str) -> bool:
        """Return whether the partition of an entity holds anything; to be called with or without the lock."""

    def find_bucket(self, key: Key, now_ms: int) -> Image | None:
        """Return the bucket if it lives at ``now_ms``, from then on one of `images`; else None."""

    def insert_bucket(self, key: Key, image: Image, now_ms: int, full_ms: int) -> None:
        """Add a bucket that is not there, and that is full from ``full_ms`` on."""

    @property
    def returned(self) -> Container[str]:
        """Return the buckets of which `note_return` has nothing to note."""

    def note_return(self, key: Key) -> None:
        """Note that tokens came back to a bucket, so that it may be full earlier than the store knows."""


@runtime_checkable
class ServesThreads(Protocol):
    """An extra ability of a store for event loops: it makes another one of the same records that any thread can use."""

    def for_threads(self) -> Store:
        """Return a new store of the same records whose coroutines never suspend. Whoever asks for it closes it."""


@runtime_checkable
class Preparable(Protocol):
    """An extra ability of a store that has to find something, e.g. credentials, before it can be asked.

    That takes time of its own, which is not the time of the first call.
    """

    async def prepare(self) -> None:
        """Find it, unless that is done. Raise the error of a call if it cannot be found, or not in good time."""


@runtime_checkable
class KnowsCaller(Protocol):
    """An extra ability of a store whose credentials belong to somebody, who is named in the audit log."""

    async def find_caller(self, timeout: float) -> str | None:
        """Return who that is; None if it is not known within ``timeout`` seconds. Never raises."""


@runtime_checkable
class MayEvict(Protocol):
    """An extra ability of a store whose server may delete records when its memory is full: it tells when it does so."""

    async def find_eviction_policy(self, timeout: float | None = None) -> str | None:
        """Return the server's ``maxmemory-policy``; None if it does not say so in time. Never raises."""


@runtime_checkable
class Provisioned(Protocol):
    """A store whose table must exist before it can be used. It is only created on request."""

    @property
    def stack_name(self) -> str:
        """Return the name of the table, and of the stack that has it."""

    @property
    def region(self) -> str | None:
        """Return the region; None while it has not been looked up."""

    @property
    def endpoint_url(self) -> str | None:
        """Return the endpoint that was given; None for the usual one."""

    async def create_table(self, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False) -> None:
        """Create the table. A suitable one is left alone."""

    async def check_table(self) -> None:
        """Raise an error if the table is missing or unsuitable. Changes nothing."""

    async def delete_table(self) -> None:
        """Delete the table with all data and wait until it is gone. One that is missing is no error."""


@runtime_checkable
class Metered(Protocol):
    """A store that counts its calls and what they cost."""

    def stats(self) -> BackendStats:
        """Return the counters as of now."""
