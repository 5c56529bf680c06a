"""Counting: tallies into usage snapshots, each change exactly once however often it is delivered.

A snapshot has a mark per shard of the bucket: the last change that it counts. Changes of one record are delivered in
order, so those up to the mark are counted and the others are not. Mark and counters change in one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zae_limiter.core.errors import RateLimiterUnavailable
from zae_limiter.records import usage
from zae_limiter.records.algebra import ABSENT, Committed, Conflict, Guard, Guards, Image, Write

if TYPE_CHECKING:
    from zae_limiter.stores.port import Store

    from .consumption import Tally

_TRIES = 50
_DAY_MS = 86_400_000


async def count(store: Store, tally: Tally, retention_days: int) -> int:
    """Add what is not counted yet; returns how many changes that were.

    The first try takes it that the snapshot counts earlier changes of the same shard: the usual case, in one call.
    """
    write = _write(tally, (Guard(usage.mark(tally.shard), "<", tally.parts[0].sequence),))
    for _ in range(_TRIES):
        outcome = await _committed(store, write)
        if isinstance(outcome, Committed):
            return len(tally.parts)
        image = outcome.images[write.key]
        tally = tally.after(_marked(image, tally.shard))
        if not tally.parts:
            return 0
        expires_at_ms = usage.end_ms(tally.window) + retention_days * _DAY_MS if image is None else None
        write = _write(tally, (_as_seen(image, tally.shard),), expires_at_ms)
    raise RateLimiterUnavailable(f"Lost {_TRIES} races for {write.key} in a row.")


async def _committed(store: Store, write: Write) -> Committed | Conflict:
    """A commit that is tried once more if it fails: if it did take effect, the mark says so."""
    try:
        return await store.commit([write])
    except RateLimiterUnavailable:
        return await store.commit([write])


def _write(tally: Tally, guards: Guards, expires_at_ms: int | None = None) -> Write:
    return usage.accrue(
        tally.whose,
        tally.window,
        tally.total(),
        len(tally.parts),
        guards=guards,
        marks={usage.mark(tally.shard): tally.parts[-1].sequence},
        expires_at_ms=expires_at_ms,
    )


def _marked(image: Image | None, shard: int) -> str:
    """The last change of a shard that a snapshot counts."""
    return "" if image is None else str(image.get(usage.mark(shard), ""))


def _as_seen(image: Image | None, shard: int) -> Guard:
    """The guard that lets a write through if nobody has counted changes of this shard since."""
    if image is None:
        return ABSENT
    marked = image.get(usage.mark(shard))
    if marked is None:  # every count raises the number of events
        return Guard(usage.EVENTS, "=", image[usage.EVENTS])
    return Guard(usage.mark(shard), "=", marked)
