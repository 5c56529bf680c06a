"""The ledger of a bucket: the usage of the hour that is open, kept where the tokens are.

    he              the end of the open hour, ms
    ev              how many grants and settlements there were since the last booking
    bk              how often usage was booked
    b_{limit}_uc    how much of the consumption (tc) is in the usage records, millitokens; missing: nothing
    b_{limit}_ob    how much of what was overdrawn (ov) is there
    b_{limit}_pk    the most slots in flight in the open hour; only of concurrency limits (`records.slots`)

Charges and settlements raise ``tc`` and ``ev`` in the write that they make anyway, so usage costs nothing more. The
first write of a later hour books the open one into the usage records in the same commit (`book`), guarded by everything
that the entry is made of: nothing is counted twice or skipped. Reading usage books as well (`book_seen`), but leaves
the hour open, with what others consume meanwhile.

The peak of an hour may be booked any number of times: usage records keep the highest. The next hour begins with what is
in flight at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from . import keys, usage
from .algebra import ABSENT, Guards, Image, Key, Write
from .bucket import stored_names
from .level import ANCHOR, BOOKINGS, CHANGES, HOUR_END, HOUR_MS, NEWEST, BucketLimits, attribute
from .slot_table import SLOTS
from .slots import concurrency_limits, find_taken

DAY_MS = 86_400_000
LONGEST_WINDOW_DAYS = 31


class BucketChange(NamedTuple):
    """A change of a bucket, and what the usage records gain in its commit: the hour before, where that is over."""

    write: Write
    accruals: tuple[Write, ...]


def hour_end(now_ms: int) -> int:
    """Return the end of the hour of an instant."""
    return now_ms - now_ms % HOUR_MS + HOUR_MS


def open_ledger(now_ms: int, changes: int) -> dict[str, int]:
    """Return the ledger of a bucket that is made by ``changes`` grants and settlements."""
    return {HOUR_END: hour_end(now_ms), CHANGES: changes, BOOKINGS: 0}


def kept_ms(usage_days: int) -> int:
    """Return for how long after its last write a bucket is kept for the usage that it holds, in milliseconds."""
    return (usage_days + LONGEST_WINDOW_DAYS + 1) * DAY_MS if usage_days else 0


def with_usage(level: BucketLimits, image: Image | None, write: Write, now_ms: int) -> BucketChange:
    """Return a write to a bucket last seen as ``image``, with the usage records that belong into its commit.

    A bucket without a ledger gets one when its anchor moves: writers that have seen it without lose the race. If a
    limit of tokens becomes one of slots, or the other way round, what is open is booked as what it was.
    """
    if not level.usage_days or image is None or (now_ms < image.get(HOUR_END, 0) and not _changes_kind(write)):
        return BucketChange(write, ())
    if HOUR_END not in image and ANCHOR not in write.put:
        return BucketChange(write, ())
    noted = {attr: peak for attr, peak in write.put.items() if attr.startswith("b_") and attr.endswith("_pk")}
    booked, accruals = book(level.key, {**image, **noted} if noted else image, level.usage_days)
    peaks = {attribute(name, "pk"): count for name, count in _count_in_flight(image, now_ms - now_ms % HOUR_MS).items()}
    put = {**write.put, **booked.put, **peaks, HOUR_END: hour_end(now_ms)}
    return BucketChange(write._replace(guards=(*write.guards, *booked.guards), put=put), accruals)


def _changes_kind(write: Write) -> bool:
    """Return whether a write takes away what makes a limit one of tokens, or one of slots."""
    return any(attr.startswith("b_") and attr.endswith(("_tk", "_tl")) for attr in write.remove)


def is_open(image: Image) -> bool:
    """Return whether a bucket has usage that the usage records do not have."""
    return HOUR_END in image and (image[CHANGES] != 0 or bool(_used(image)))


def book(key: Key, image: Image, usage_days: int) -> BucketChange:
    """Return the change that books the open usage of a bucket; one without a ledger starts it, with nothing to book."""
    put = _count_booked(image)
    counters = [attribute(name, field) for name in _counted_names(image) for field in ("tc", "ov")]
    unspent = _guard_unchanged(image, *counters)
    if HOUR_END not in image:
        guards = (*_guard_unchanged(image, ANCHOR), *unspent)
        return BucketChange(Write(key, guards, put | {CHANGES: 0, BOOKINGS: 0}), ())
    seen = _guard_unchanged(image, HOUR_END, BOOKINGS, CHANGES, *put)
    put |= {CHANGES: 0, BOOKINGS: image[BOOKINGS] + 1}
    accruals = _accruals(key, image, usage_days) if is_open(image) else ()
    return BucketChange(Write(key, (*seen, *unspent), put), accruals)


def book_seen(key: Key, image: Image, usage_days: int) -> BucketChange:
    """Return the change that books the usage seen open in a bucket; what was consumed since stays open."""
    put = _count_booked(image)
    guards = _guard_unchanged(image, ANCHOR, HOUR_END, BOOKINGS, *put)
    put[BOOKINGS] = image[BOOKINGS] + 1
    write = Write(key, guards, put, {CHANGES: -image[CHANGES]}, seen=image)
    return BucketChange(write, _accruals(key, image, usage_days))


def usage_without_bucket(level: BucketLimits, used: Mapping[str, int], events: int, now_ms: int) -> BucketChange:
    """Return the change that books what was given back to a bucket that is gone, without making a bucket for it."""
    return BucketChange(Write(level.key, (ABSENT,)), _entries(level.key, used, {}, events, now_ms, level.usage_days))


def _counted_names(image: Image) -> dict[str, str]:
    """Return the limits of a bucket, each with the name under which usage records count what was consumed of it."""
    names = {name: name for name in stored_names(image)}
    if SLOTS in image:
        names |= {name: usage.held(name) for name in concurrency_limits(tuple(image))}
    return names


def _count_booked(image: Image) -> dict[str, int]:
    """Return the counters of a bucket after booking everything in ``image``."""
    names = _counted_names(image)
    pairs = [(attribute(name, "uc"), attribute(name, "tc")) for name in names]
    pairs += [(attribute(name, "ob"), attribute(name, "ov")) for name in names]
    return {booked: image[counted] for booked, counted in pairs if counted in image}


def _guard_unchanged(image: Image, *attrs: str) -> Guards:
    """Return guards that these attributes have not changed, as far as they are there."""
    return tuple((attr, "=", image[attr]) for attr in attrs if attr in image)


def _used(image: Image) -> dict[str, int]:
    """Return the millitokens by limit that the usage records do not have, those overdrawn by `usage.overdrawn`."""
    amounts: dict[str, int] = {}
    for name, counted in _counted_names(image).items():
        tc, uc, ov, ob = (image.get(attribute(name, field), 0) for field in ("tc", "uc", "ov", "ob"))
        amounts |= {counted: tc - uc, usage.overdrawn(name): ov - ob}
    return {name: amount for name, amount in amounts.items() if amount}


def _peaks(image: Image) -> dict[str, int]:
    """Return by limit the most slots in flight in the open hour.

    If it was not noted yet, it is what is in flight since the last one was taken, or since the hour began.
    """
    in_flight = _count_in_flight(image, max(image.get(NEWEST, 0), image[HOUR_END] - HOUR_MS))
    return {name: max(image.get(attribute(name, "pk"), 0), count) for name, count in in_flight.items()}


def _count_in_flight(image: Image, now_ms: int) -> dict[str, int]:
    if SLOTS not in image:
        return {}
    taken = find_taken(image, now_ms)
    return {name: len(taken.get(name, ())) for name in concurrency_limits(tuple(image))}


def _accruals(key: Key, image: Image, usage_days: int) -> tuple[Write, ...]:
    return _entries(key, _used(image), _peaks(image), image[CHANGES], image[HOUR_END] - 1, usage_days)


def _entries(
    key: Key, used: Mapping[str, int], peaks: Mapping[str, int], events: int, instant_ms: int, usage_days: int
) -> tuple[Write, ...]:
    whose = usage.Subject(*keys.parse_bucket_pk(key.pk)[:3])
    seen = {usage.reached(name, peak): peak for name, peak in peaks.items() if peak}
    return tuple(
        usage.accrue(whose, window, used, events, more=seen, expires_at_ms=usage.end_ms(window) + usage_days * DAY_MS)
        for window in (usage.window_of(window_type, instant_ms) for window_type in usage.WINDOWS)
    )
