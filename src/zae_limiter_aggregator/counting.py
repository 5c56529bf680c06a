"""Add tallies to usage snapshots, each change exactly once however often it is delivered.

A snapshot stores per shard the last change that it counts. Changes of one record are delivered in order, so those up to
this mark are counted and the others are not. Mark and counters change in one write. The peak of a concurrency limit is
raised after that, by a write that may be repeated; it is needed only where the snapshot has a lower one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zae_limiter.core.errors import CorruptRecordError, RateLimiterUnavailable
from zae_limiter.records import usage
from zae_limiter.records.algebra import (
    ABSENT,
    MISSING_OR_AT_MOST,
    Committed,
    Conflict,
    Guard,
    Guards,
    Image,
    Key,
    Write,
)

if TYPE_CHECKING:
    from zae_limiter.stores.port import Store

    from .consumption import Tally

_TRIES = 50
_DAY_MS = 86_400_000


async def count(store: Store, tally: Tally, retention_days: int) -> int:
    """Add the changes that are not counted yet and return their number; raise the peaks to what was in flight.

    The first attempt assumes that the snapshot counts earlier changes of the same shard: the usual case, in one call.
    """
    peaks = tally.peaks()
    write = _write(tally, (Guard(usage.mark(tally.shard), "<", tally.parts[0].sequence),))
    for _ in range(_TRIES):
        outcome = await _commit_twice(store, write)
        if isinstance(outcome, Committed):
            await _raise_peaks(store, write.key, outcome.images[0], peaks)
            return len(tally.parts)
        image = outcome.images[write.key]
        tally = tally.after(_last_counted(image, tally.shard))
        if not tally.parts:
            await _raise_peaks(store, write.key, image, peaks)
            return 0
        expires_at_ms = usage.end_ms(tally.window) + retention_days * _DAY_MS if image is None else None
        write = _write(tally, (_unchanged_guard(image, tally.shard),), expires_at_ms)
    raise RateLimiterUnavailable(f"Too much contention on {write.key}: lost {_TRIES} races in a row.")


async def _raise_peaks(store: Store, key: Key, image: Image | None, peaks: Mapping[str, int]) -> None:
    """Raise the peaks of a snapshot, seen as ``image``, as far as they are lower; one that is gone has none."""
    for _ in range(_TRIES):
        higher = {attr: peak for attr, peak in peaks.items() if image is not None and peak > image.get(attr, 0)}
        if not higher:
            return
        guards = tuple([Guard(attr, MISSING_OR_AT_MOST, peak) for attr, peak in higher.items()])
        outcome = await _commit_twice(store, Write(key, guards, higher))
        if isinstance(outcome, Committed):
            return
        image = outcome.images[key]
    raise RateLimiterUnavailable(f"Too much contention on {key}: lost {_TRIES} races in a row.")


async def _commit_twice(store: Store, write: Write) -> Committed | Conflict:
    """Commit, and try once more if that fails: if the first attempt took effect, the mark shows it."""
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
        more={usage.mark(tally.shard): tally.parts[-1].sequence},
        expires_at_ms=expires_at_ms,
    )


def _last_counted(image: Image | None, shard: int) -> str:
    """Return the last change of a shard that a snapshot counts."""
    return "" if image is None else str(image.get(usage.mark(shard), ""))


def _unchanged_guard(image: Image | None, shard: int) -> Guard:
    """Return the guard that holds if no changes of this shard have been counted since."""
    if image is None:
        return ABSENT
    marked = image.get(usage.mark(shard))
    if marked is None:  # every count raises the number of events
        if usage.EVENTS not in image:
            raise CorruptRecordError(f"The usage record has no {usage.EVENTS}; delete it and its usage starts anew.")
        return Guard(usage.EVENTS, "=", image[usage.EVENTS])
    return Guard(usage.mark(shard), "=", marked)
