"""The buckets of which a limiter holds tokens, or has lately asked for some, and what they have saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.production import MILLI
from ..core.reports import PrefetchStats
from ..core.tokens import Tokens
from ..forks import after_fork
from ..logs import SETTLEMENT_LOST, tell
from ..records import bucket
from ..stores.bounded import BoundedMap
from .held_bucket import HeldBucket
from .held_tokens import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..core.decide import Reading
    from ..records.level import Level
    from ..repository.backend import Backend
    from .chain import LevelShard, Override


class HeldBuckets:
    """The tokens held of each bucket, for requests of one priority."""

    def __init__(self, backend: Backend, keep_ms: int, wake: Callable[[int], None]) -> None:
        self._backend = backend
        self.keep_ms = keep_ms
        """For how long a token may be granted."""
        self._wake = wake
        self.counters = Counters()
        self.is_closed = False
        """Whether nothing more is drawn in advance."""
        self._buckets: BoundedMap[tuple[str, str | None], HeldBucket] = BoundedMap(backend.max_cached_keys)
        self.get = self._buckets.get
        self._active: dict[HeldBucket, None] = {}
        """Those that hold something or have something to write."""
        self.now_ms = backend.clock.now_ms
        backend.prefetching.add(self)
        after_fork(self._forget)

    def find(self, home: LevelShard, given: Override | None, now_ms: int) -> HeldBucket | None:
        """Return the bucket of a level; None for one of which no tokens are drawn in advance.

        These have slots, which are the store's to count; or may be overdrawn, so that nobody has to wait for them; or
        have quotas, of which a process that is killed would lose tokens until the window ends.
        """
        level, limits = home.level, home.level.token_limits
        if level.slot_limits or limits.soft or limits.quotas or not limits or self.is_closed:
            return None
        name = (level.key.pk, level.priority)
        found = self.get(name) or self._buckets.get_or_make(name, lambda: HeldBucket(self, home, given, now_ms))
        return found if found.follow(home, given) else None

    def add_to(self, home: LevelShard, reading: Reading, now_ms: int) -> Reading:
        """Return what was read of a level with the tokens that are held of it, and what is to be corrected."""
        level = home.level
        found = self.get((level.key.pk, level.priority))
        if found is None or found.is_idle:
            return reading
        balances = dict(reading.balances)
        if level.shard_count == 1 and found.serves(level):
            balances = dict(bucket.reading([(level, found.see(now_ms))], now_ms).balances)
        for name, held in found.find_held(now_ms).items():
            first, *others = balances.get(name, (None,))
            if held and isinstance(first, Tokens):
                balances[name] = (first._replace(advances=held), *others)
        return reading._replace(balances=balances)

    def schedule(self, held: HeldBucket) -> None:
        """Have a bucket looked after when something of it is due."""
        self._active[held] = None
        self._wake(held.due_ms())

    def active(self) -> list[HeldBucket]:
        """Return those that hold something or have something to write."""
        for held in tuple(self._active):
            if held.is_idle:
                self._active.pop(held, None)
        return list(self._active)

    def count_lost(self, level: Level, delta: Mapping[str, int]) -> None:
        """Count and log a correction that could not be written."""
        self.counters.lost += 1
        tokens = {name: amount // MILLI for name, amount in delta.items() if amount}
        whose = {"zae_entity_id": level.entity_id, "zae_resource": level.resource, "zae_tokens": tokens}
        message = "what was gathered of a bucket could not be written: %s"
        tell(SETTLEMENT_LOST, message, tokens, **self._backend.log_fields(), **whose)

    def stats(self) -> PrefetchStats:
        """Return what is held now and was counted so far."""
        now_ms, counters = self.now_ms(), self.counters
        held = sum(sum(each.count_left(now_ms).values()) for each in self.active())
        spared = max(0, counters.granted - counters.writes)
        return PrefetchStats(held // MILLI, counters.granted, counters.returned // MILLI, spared, counters.lost)

    def _forget(self) -> None:
        """Start with nothing in a child process: what is held, and what is to be corrected, is the parent's."""
        for held in tuple(self._active):
            held.forget()
        self._buckets.clear()
        self._active.clear()
        self.counters = Counters()
