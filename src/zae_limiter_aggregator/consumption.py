"""Measure what the changes of one bucket have consumed, window by window.

A bucket counts its total consumption (``tc``), and how much of it was beyond a soft limit (``ov``). The difference that
a change makes is what it has consumed: a refill does not change it, and tokens that are given back make it negative.
Of a concurrency limit it is the time for which slots were held; what is in flight is in every image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from zae_limiter.core.names import INFRASTRUCTURE_LIMIT, is_address
from zae_limiter.records import keys, pressure, usage
from zae_limiter.records.algebra import TTL, Image
from zae_limiter.records.bucket import inspect, stored_names
from zae_limiter.records.level import ANCHOR, MIGRATED_FROM, NEWEST, SHARDS, attribute
from zae_limiter.records.slot_table import SLOTS
from zae_limiter.records.slots import concurrency_limits, find_taken

if TYPE_CHECKING:
    from .stream import StreamChange


class Used(NamedTuple):
    """A change, the millitokens that it has consumed per limit, and the slots in flight per concurrency limit."""

    change: StreamChange
    amounts: dict[str, int]
    in_flight: dict[str, int]


class TallyPart(NamedTuple):
    """The consumption of one change, in millitokens, and what was in flight by the attribute that has the peak."""

    sequence: str
    used: dict[str, int]
    in_flight: dict[str, int]


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

    def peaks(self) -> dict[str, int]:
        """Return the most that were in flight, by the attribute that has the peak."""
        most: dict[str, int] = {}
        for part in self.parts:
            most |= {attr: max(count, most.get(attr, 0)) for attr, count in part.in_flight.items()}
        return most


def measure_change(change: StreamChange) -> dict[str, int]:
    """Return the millitokens per limit that a change of a bucket has consumed, those overdrawn by `usage.overdrawn`.

    The milliseconds for which slots were held are there by `usage.held`. Raise ValueError if its key is not that of a
    bucket, `CorruptRecordError` if its numbers are not.
    """
    new, whose = change.new, keys.parse_bucket_pk(change.key.pk)
    if new is None or _is_migration(change.old, new) or _is_passing(whose, new):
        return {}
    inspect(change.key, new)
    before: Image = {}
    if change.old is not None and not _starts_anew(whose, change.old, new):
        before = inspect(change.key, change.old)
    labels = {name: name for name in stored_names(new) - {INFRASTRUCTURE_LIMIT}}
    labels |= {name: usage.held(name) for name in concurrency_limits(tuple(new))}
    used = {}
    for name, counted in labels.items():
        for counter, label in ((attribute(name, "tc"), counted), (attribute(name, "ov"), usage.overdrawn(name))):
            amount = new.get(counter, 0) - before.get(counter, 0)
            if amount:
                used[label] = amount
    return used


def count_in_flight(change: StreamChange) -> dict[str, int]:
    """Return per concurrency limit how many slots were in flight, if a change of a bucket took or held some.

    That is the higher of before and after: slots that it has freed were in flight until then.
    """
    new, old = change.new, change.old or {}
    if new is None or SLOTS not in new or _is_passing(keys.parse_bucket_pk(change.key.pk), new):
        return {}
    counters = {name: [attribute(name, field) for field in ("tn", "tc")] for name in concurrency_limits(tuple(new))}
    touched = [name for name, attrs in counters.items() if any(new[attr] != old.get(attr, 0) for attr in attrs)]
    now_ms = max(change.instant_ms, new.get(NEWEST, 0))  # the stream tells whole seconds only
    before, after = find_taken(old, now_ms), find_taken(new, now_ms)
    return {name: max(len(before.get(name, ())), len(after.get(name, ()))) for name in touched}


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
    for change, amounts, in_flight in used:
        whose = keys.parse_bucket_pk(change.key.pk)
        if amounts or in_flight:
            part = TallyPart(change.sequence, amounts, _name_peaks(change, whose.shard_id, in_flight))
            for window_type in windows:
                found.setdefault(usage.window_of(window_type, change.instant_ms), []).append(part)
    for window, parts in found.items():
        assert whose is not None  # there were changes
        yield Tally(usage.Subject(*whose[:3]), window, whose.shard_id, tuple(parts))


def _name_peaks(change: StreamChange, shard: int, in_flight: dict[str, int]) -> dict[str, int]:
    """Return what is in flight by the attribute of the shard's peak."""
    shards = 1 if change.new is None else change.new.get(SHARDS, 1)
    return {usage.shard_peak(name, shard, shards): count for name, count in in_flight.items()}
