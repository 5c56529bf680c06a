"""The port of a limiter in the benchmark: to be opened with some quotas on a store, and to take.

A new rival is one file beside this one with a `Rival`, and its line in ``bench/rivals/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Cost: TypeAlias = dict[str, int]
"""Tokens by the name of the quota; a quota that is not named is not asked."""

UNITS = {1: "second", 60: "minute", 3600: "hour"}
"""The periods that every rival has a word for, in seconds."""


class Quota(NamedTuple):
    """Tokens per period, and no more than that at once: a promise that buckets and windows can both keep."""

    name: str
    amount: int
    period_s: int

    @property
    def per_second(self) -> float:
        """The rate."""
        return self.amount / self.period_s


class Taker(Protocol):
    """An open limiter, for threads."""

    def take(self, key: str, cost: Cost) -> bool:
        """Take now or not at all; whether it was granted."""

    def close(self) -> None:
        """Free what is held."""


class AsyncTaker(Protocol):
    """An open limiter, for an event loop."""

    async def take(self, key: str, cost: Cost) -> bool:
        """Take now or not at all; whether it was granted."""

    async def close(self) -> None:
        """Free what is held."""


Path: TypeAlias = tuple[str, ...]
"""An entity and those above it: a key, its project, its organisation."""


class Caller(Taker, Protocol):
    """An open limiter that reserves an estimate and settles it, for threads."""

    def enter(self, path: Path) -> None:
        """Make the entities of a path known."""

    def call(self, path: Path, estimate: Cost, work: Callable[[], Cost]) -> bool:
        """Reserve now or not at all, do the work, and settle what it says was used. If it raises, all comes back."""


class AsyncCaller(AsyncTaker, Protocol):
    """The same, for an event loop."""

    async def enter(self, path: Path) -> None:
        """Make the entities of a path known."""

    async def call(self, path: Path, estimate: Cost, work: Callable[[], Awaitable[Cost]]) -> bool:
        """Reserve now or not at all, do the work, and settle what it says was used. If it raises, all comes back."""


Open: TypeAlias = Callable[[str, Sequence[Quota]], Taker]
"""By the URL of a store, ``memory://`` or ``redis://...``."""
OpenAsync: TypeAlias = Callable[[str, Sequence[Quota]], Awaitable[AsyncTaker]]


class Rival(NamedTuple):
    """A limiter as its users would use it."""

    name: str
    package: str
    """The distribution whose version is told."""
    algorithm: str
    several: str
    """The way it takes from several limits at once."""
    open: Open
    open_async: OpenAsync
    stores: tuple[str, ...] = ("memory", "redis")
    modes: tuple[str, ...] = ("blocking", "async")
    waits: bool = False
    """Whether it has those wait whom others would refuse."""
