"""Measure what the changes of one bucket have consumed, window by window.

A bucket counts its total consumption (``tc``), and how much of it was beyond a soft limit (``ov``). The difference that
a change makes is what it has consumed: a refill does not change it, and tokens that are given back make it negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zae_limiter.core.names import INFRASTRUCTURE_LIMIT, is_address
from zae_limiter.records import keys, pressure, usage
from zae_limiter.records.algebra import TTL
from zae_limiter.records.bucket import inspect, stored_names
from zae_limiter.records.level import ANCHOR, MIGRATED_FROM, attribute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zae_limiter.records.algebra import Image

    from .stream import StreamChange


class Used(NamedTuple):
    """A change, and the millitokens that it has consumed per limit."""

    change: StreamChange
    amounts: dict[str, int]


class TallyPart(NamedTuple):
    """The consumption of one change, in millitokens."""

    sequence: str
    used: dict[str, int]


class Tally(NamedTuple):
    """The consumption of one shard of a bucket in one window, in the order of the stream."""

    whose: usage.Subject
    window: usage.Window
    shard: int
    parts: tuple[TallyPart, ...]

    def after(self, sequence: str) -> Tally:
        """Return the part of the tally after a position in the stream."""
        return self._replace(parts=tuple(part for part in self.parts if part.sequence > sequence))

    def total(self) -> dict[str, int]:
        """Return the sum of all parts."""
        total: dict[str, int] = {}
        for part in self.parts:
            for name, amount in part.used.items():
                total[name] = total.get(name, 0) + amount
        return total


def measure_change(change: StreamChange) -> dict[str, int]:
    """Return the millitokens per limit that a change of a bucket has consumed, those overdrawn by `usage.overdrawn`.

    Raise ValueError if its key is not that of a bucket, `CorruptRecordError` if its numbers are not.
    """
    new, whose = change.new, keys.parse_bucket_pk(change.key.pk)
    if new is None or _is_migration(change.old, new) or _is_passing(whose, new):
        return {}
    inspect(change.key, new)
    before: Image = {}
    if change.old is not None and not _starts_anew(whose, change.old, new):
        before = inspect(change.key, change.old)
    used = {}
    for name in stored_names(new) - {INFRASTRUCTURE_LIMIT}:
        for counter, label in ((attribute(name, "tc"), name), (attribute(name, "ov"), usage.overdrawn(name))):
            amount = new.get(counter, 0) - before.get(counter, 0)
            if amount:
                used[label] = amount
    return used


def _is_passing(whose: keys.BucketKey, new: Image) -> bool:
    """Return whether it is the bucket of an address without limits of its own, of which no usage is kept."""
    return TTL in new and is_address(whose.entity_id)


def _is_migration(old: Image | None, new: Image) -> bool:
    """Return whether an upgrade has written the record."""
    return MIGRATED_FROM in new and (old is None or MIGRATED_FROM not in old)


def _starts_anew(whose: keys.BucketKey, old: Image, new: Image) -> bool:
    """Return whether this change created the bucket, replacing an expired one or a leftover shard."""
    if old.get(ANCHOR) == new[ANCHOR]:
        return False
    return pressure.is_new(whose.shard_id, new)


def build_tallies(used: Iterable[Used], windows: Iterable[str]) -> Iterator[Tally]:
    """Yield the tallies of the changes of one bucket record."""
    found: dict[usage.Window, list[TallyPart]] = {}
    windows = tuple(windows)
    whose = None
    for change, amounts in used:
        whose = keys.parse_bucket_pk(change.key.pk)
        if amounts:
            for window_type in windows:
                window = usage.window_of(window_type, change.instant_ms)
                found.setdefault(window, []).append(TallyPart(change.sequence, amounts))
    for window, parts in found.items():
        assert whose is not None  # there were changes
        yield Tally(usage.Subject(*whose[:3]), window, whose.shard_id, tuple(parts))
