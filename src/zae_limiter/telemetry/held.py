"""What measured limiters hold at the moment, added up: slots, and tokens that were drawn in advance."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from ..forks import protect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..limiter.limiter import RateLimiter
    from ..repository.repository import Repository
    from ..sync import SyncRateLimiter, SyncRepository

Limiter: TypeAlias = "RateLimiter | SyncRateLimiter"
Attributes: TypeAlias = tuple[tuple[str, str], ...]


class HeldSlots:
    """Reads what limiters hold. A line that was told once is told for ever: that nothing is held any more is news."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._limiters: WeakKeyDictionary[Limiter, tuple[Attributes, frozenset[str]]] = WeakKeyDictionary()
        self._told: set[Attributes] = set()
        protect(self._lock)

    def join(self, limiter: Limiter, where: Mapping[str, str], labels: frozenset[str]) -> None:
        """Read what a limiter holds from now on. ``labels`` are the names beside that of the limit."""
        with self._lock:
            self._limiters[limiter] = (*where.items(),), labels

    def leave(self, limiter: Limiter) -> None:
        """Read it no more."""
        with self._lock:
            self._limiters.pop(limiter, None)

    def totals(self) -> dict[Attributes, int]:
        """Return how many slots are held by attributes, 0 for those that have been held."""
        with self._lock:
            totals: Counter[Attributes] = Counter(dict.fromkeys(self._told, 0))
            for limiter, (where, labels) in tuple(self._limiters.items()):
                for owner, count in limiter.held_slots.items():
                    named = [(f"zae_limiter.{label}", getattr(owner, label)) for label in sorted(labels)]
                    totals[*where, ("zae_limiter.limit", owner.limit_name), *named] += count
            self._told.update(totals)
            return dict(totals)


class HeldAdvances:
    """Reads how many tokens limiters hold that were drawn in advance; nothing of those that never held any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._repositories: WeakKeyDictionary[Repository | SyncRepository, Attributes] = WeakKeyDictionary()
        self._told: set[Attributes] = set()
        protect(self._lock)

    def join(self, repository: Repository | SyncRepository, where: Mapping[str, str]) -> None:
        """Read what the limiters of a repository hold, from now on."""
        with self._lock:
            self._repositories[repository] = (*where.items(),)

    def totals(self) -> dict[Attributes, int]:
        """Return how many tokens are held, by attributes."""
        with self._lock:
            totals: Counter[Attributes] = Counter(dict.fromkeys(self._told, 0))
            for repository, where in tuple(self._repositories.items()):
                totals[where] += repository.get_backend_stats().prefetch.held
            totals = Counter({where: held for where, held in totals.items() if held or where in self._told})
            self._told.update(totals)
            return dict(totals)
