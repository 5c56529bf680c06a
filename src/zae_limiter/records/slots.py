"""The slots of a bucket: which are taken, until when and by whom.

    sl                    present where the bucket has concurrency limits
    b_{limit}_cp|tl       the slots of the whole limit, in thousandths, and the time to live of one, ms
    b_{limit}_tn          how often slots were taken
    b_{limit}_tc          for how long slots were held, ms; so the whole tokens of it are seconds
    b_{limit}_ov          how many were taken beyond a soft limit, in thousandths; missing: none
    b_{limit}_pk          the most that were in flight in the open hour (`note_peaks`); 0 where the bucket has no ledger
    s_{limit}_{number}    the instant until which the slot is taken, ms; missing: it is free
    f_{limit}_{number}    its ownership token: since when it is held, its place among those of this millisecond, a
                          random number, its time to live and, if given, the holder's name

Taking a slot is guarded by its being free, so that requests of different slots do not collide. Renewing and releasing
it are guarded by the ownership token, so that a holder that lost its slot cannot touch what its successor has, and by
the instant until which it is taken, so that a release that meets a renewal does not count the same time again. Only the
holder changes these: what is renewed or released at the same moment commutes with all that others do. There is one
exception: a slot that is taken for more than two times to live was taken before the clock was set back, and others
shorten it to one (`shorten_slots`). A holder that lives renews it before that is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.change import MISSING_OR_AT_MOST, Change
from ..core.production import MILLI
from ..core.slots import SlotLimit, SlotOwner, in_shard
from .algebra import Image
from .level import CHANGES, HOUR_END, HOUR_MS, NEWEST, BucketLimits, attribute
from .slot_table import OWNERSHIP_PREFIX, ROWS, SLOTS, UNTIL_PREFIX, SlotTable, slot_attributes

_TOKEN_FIELDS = ("tk", "ra", "rp", "ua", "ca", "ws", "al")
_SLOT_FIELDS = ("tl", "tn", "pk", "pt")
"""The fields that only limits of tokens have, and only those of slots."""
MOST_FREED = 64
"""How many slots one write frees at most: stores bound what a write can say."""
MOST_TAKEN = 50
"""How many slots one write takes at most, for the same reason."""


class PreferredSlots(NamedTuple):
    """Which slots of a bucket a process takes before others, so that processes rarely want the same at the same time.

    ``freed`` are slots by limit and number that it has freed lately, the last one at the end; then those that were free
    ``before`` as well, if that is given, of those that ``stated`` has, the bucket as last seen: nobody is about to take
    these again.
    """

    freed: tuple[tuple[str, int], ...] = ()
    before: SlotTable | None = None
    stated: Image | None = None

    def choose(self, limit_name: str, free: list[int], now_ms: int) -> int | None:
        """Return the place of the best one among the numbers that are free; None if there is none of these."""
        for name, number in reversed(self.freed):
            if name == limit_name and (place := bisect_left(free, number)) < len(free) and free[place] == number:
                return place
        if self.before is not None and self.stated and attribute(limit_name, "tl") in self.stated:
            earlier = self.before.of(limit_name)
            end = bisect_left(free, self.stated[attribute(limit_name, "cp")] // MILLI)
            return next((place for place in reversed(range(end)) if not earlier.is_taken(free[place], now_ms)), None)
        return None


NO_PREFERENCE = PreferredSlots()


class SlotRequest(NamedTuple):
    """One of those who are served by a write: what it costs, and the name that it gives itself.

    ``chance`` is a random number that chooses among free slots, ``salt`` a random text that no other request has,
    ``order`` is greater than that of all earlier requests of this host, ``preferred`` are the slots it takes first.
    """

    cost: Mapping[str, int]
    holder: str = ""
    chance: int = 0
    salt: str = ""
    preferred: PreferredSlots = NO_PREFERENCE
    order: int = 0

    def choose(self, limit_name: str, free: list[int], now_ms: int) -> int:
        """Take a number out of those that are free: the one that is preferred most, else any."""
        place = None if self.preferred is NO_PREFERENCE else self.preferred.choose(limit_name, free, now_ms)
        return free.pop(self.chance % len(free) if place is None else place)

    def ownership_token(self, now_ms: int, ttl_ms: int) -> str:
        """Return the ownership token of what it takes at ``now_ms``."""
        ownership_token = f"{now_ms:x}.{self.order:x}-{self.salt}-{ttl_ms:x}"
        return f"{ownership_token}.{self.holder}" if self.holder else ownership_token


@dataclass(slots=True, eq=False)
class TakenSlot:
    """A slot that was taken for a lease.

    ``until_attr`` and ``ownership_attr`` are the attributes of its instant and its token. ``counted_ms`` is the
    instant up to which its time is in the usage, ``in_flight`` how many slots of its limit were taken in its bucket
    right after it was. ``ended`` says that it is not held any more, ``lost`` that this was not by the wish of its
    holder.
    """

    limit_name: str
    number: int
    until_attr: str
    ownership_attr: str
    ownership_token: str
    since_ms: int
    until_ms: int
    ttl_ms: int
    max_hold_ms: int
    counted_ms: int
    owner: SlotOwner
    in_flight: int = 0
    ended: bool = False
    lost: bool = False

    @property
    def last_ms(self) -> int | None:
        """The instant beyond which it is not renewed; None where there is none."""
        return self.since_ms + self.max_hold_ms if self.max_hold_ms else None

    def renewed_until(self, now_ms: int) -> int:
        """Return until when it is taken if it is renewed at ``now_ms``."""
        until_ms = now_ms + self.ttl_ms
        return until_ms if self.last_ms is None else min(until_ms, self.last_ms)

    def is_due(self, begun_ms: int, now_ms: int) -> bool:
        """Return whether a renewal that was begun at ``begun_ms`` has to renew it: not twice, and not in vain.

        It has to in any case if the clock was set back since it was taken.
        """
        if self.until_ms > now_ms + self.ttl_ms:
            return True
        return self.counted_ms < begun_ms and self.renewed_until(now_ms) > self.until_ms

    def is_in_shard(self, shard: int, count: int) -> bool:
        """Return whether a shard of so many has it."""
        return in_shard(self.number, shard, count)

    def is_ours(self, image: Image) -> bool:
        """Return whether a bucket still has it as this lease took it."""
        return bool(image.get(self.ownership_attr) == self.ownership_token and self.until_attr in image)


def find_taken(image: Image | None, now_ms: int) -> dict[str, dict[int, int]]:
    """Return by limit the slots that are taken at ``now_ms``, and until when; as `shorten_slots` leaves them."""
    if image is None or SLOTS not in image:
        return {}
    return {name: slots.taken(now_ms) for name, slots in SlotTable.parse(image).shorten(image, now_ms).limits.items()}


def count_slots(image: Image) -> int:
    """Return how many slots of a bucket are kept in its record."""
    return sum(attr.startswith(UNTIL_PREFIX) for attr in image) if SLOTS in image else 0


def count_takes(level: BucketLimits, image: Image) -> int:
    """Return how often slots of a level's limits were taken from a bucket."""
    return sum(image.get(attribute(name, "tn"), 0) for name in level.slot_limits)


def last_until(image: Image) -> int:
    """Return the instant from which no slot of a bucket is taken; 0 if none is."""
    return max([image[attr] for attr in image if attr.startswith(UNTIL_PREFIX)], default=0) if SLOTS in image else 0


def without_slots(image: Image) -> tuple[str, ...]:
    """Return the attributes of a bucket but for those of its slots."""
    return tuple([attr for attr in image if not attr.startswith(ROWS)])


def concurrency_limits(attrs: Iterable[str]) -> set[str]:
    """Return the names of the concurrency limits that a bucket with these attributes has."""
    return {attr[2:-3] for attr in attrs if attr.startswith("b_") and attr.endswith("_tl")}


def shape_of(limit: SlotLimit) -> dict[str, int]:
    """Return the attributes by which a bucket states a whole limit."""
    return {attribute(limit.name, "cp"): limit.slots * MILLI, attribute(limit.name, "tl"): limit.ttl_ms}


def states_slots(level: BucketLimits, image: Image) -> bool:
    """Return whether a bucket states the concurrency limits of a level."""
    limits = level.slot_limits.values()
    return all(image.get(attr) == value for limit in limits for attr, value in shape_of(limit).items())


def shapes_for(level: BucketLimits, image: Image) -> dict[str, int]:
    """Return the attributes by which a bucket, last seen as ``image``, states the concurrency limits of a level."""
    put: dict[str, int] = {}
    for name, limit in level.slot_limits.items():
        put |= {SLOTS: 1, **shape_of(limit)}
        put |= {attr: 0 for field in ("tn", "tc", "pk") if (attr := attribute(name, field)) not in image}
    return put


def drop_other_kind(level: BucketLimits, image: Image) -> tuple[str, ...]:
    """Return the attributes to remove of limits that count slots now and tokens before, or the other way round."""
    found = [attribute(name, field) for name in level.slot_limits for field in _TOKEN_FIELDS]
    found += [attribute(name, field) for name in level.token_limits for field in _SLOT_FIELDS]
    return tuple([attr for attr in found if attr in image])


def free_slots(
    image: Image, names: Collection[str], change: Change, ownership_tokens: Collection[str] | None = None
) -> list[str]:
    """Let a change free slots of some limits, whoever holds them: `MOST_FREED` at most.

    Guarded by nobody else having taken them meanwhile. ``ownership_tokens`` are those of the slots that may be
    freed; None for all. Return those of the slots that further writes have to free.
    """
    pairs = [(attr, OWNERSHIP_PREFIX + attr[2:]) for name, _, attr in slot_attributes(image) if name in names]
    held = [pair for pair in pairs if ownership_tokens is None or image[pair[1]] in ownership_tokens]
    for until_attr, ownership_attr in held[:MOST_FREED]:
        change.equals[ownership_attr] = image[ownership_attr]
        change.remove += until_attr, ownership_attr
    return [image[ownership_attr] for _, ownership_attr in held[MOST_FREED:]]


class SeenSlots(NamedTuple):
    """A bucket as last seen, which may be empty, its slots, and the instant as of which they are looked at."""

    image: Image
    table: SlotTable
    now_ms: int


def take_slots(level: BucketLimits, seen: SeenSlots, change: Change, requests: Sequence[SlotRequest]) -> bool:
    """Let a change of a bucket also take slots for ``requests``. Return False if there are too few.

    Where a limit was lowered, slots above it that have expired are taken away: a holder that renews one of them too
    late has lost it, as it was counted as free. A request that has to leave slots for others is guarded by nobody
    having taken one since.
    """
    image, table, now_ms = seen
    for name, limit in level.slot_limits_of(image).items():
        wanted = [(request, need // MILLI) for request in requests if (need := request.cost.get(name, 0))]
        if not wanted:
            continue
        held, total, taken = table.of(name), sum([count for _, count in wanted]), attribute(name, "tn")
        free, above = held.find_free(limit, now_ms)
        beyond = total - len(free)
        if beyond > 0 and not limit.soft:
            return False
        if beyond > 0:
            free += held.find_beyond(limit, now_ms)
            change.add[attribute(name, "ov")] = beyond * MILLI
        for request, count in wanted:
            ownership_token = request.ownership_token(now_ms, limit.ttl_ms)
            for _ in range(min(count, len(free))):
                number = request.choose(name, free, now_ms)
                until_attr = f"{UNTIL_PREFIX}{name}_{number}"
                change.guards.append((until_attr, MISSING_OR_AT_MOST, now_ms))
                change.put[until_attr] = now_ms + limit.ttl_ms
                change.put[f"{OWNERSHIP_PREFIX}{name}_{number}"] = ownership_token
        change.add[taken] = total
        _drop_slots(image, change, [f"{UNTIL_PREFIX}{name}_{number}" for number in above])
        if limit.floor and taken in image:
            change.equals[taken] = image[taken]
    if change.remove:
        change.remove = [attr for attr in change.remove if attr not in change.put]
    return True


def note_taken(
    level: BucketLimits, seen: SeenSlots, change: Change, requests: Sequence[SlotRequest], changes: int
) -> bool:
    """Let a change that takes tokens also take slots for the ``requests``. Return False if there are too few.

    ``changes`` is how many grants it counts for, if it takes no tokens at all.
    """
    takes_tokens = bool(change.add)
    if not take_slots(level, seen, change, requests):
        return False
    if not takes_tokens and change.add:
        change.put[NEWEST] = max(seen.now_ms, seen.image[NEWEST])
        change.add.update({CHANGES: changes} if level.usage_days else {})
    return True


def note_peaks(seen: SeenSlots, change: Change, slots: Sequence[TakenSlot]) -> None:
    """Note in a change that more were in flight in the open hour than the bucket says by now.

    That is what it shows, and what those of our ``slots`` have shown that were taken in this hour. Only what was
    seen counts, so the peak is never too high. What is in flight grows only when a slot is taken, and whoever takes one
    sees how many there are then and renews or releases it later, so it is not too low either, unless the process ends
    or the hour is booked before that. It never falls.
    """
    image, table, now_ms = seen
    if HOUR_END not in image:
        return
    most = {name: taken.count(now_ms) for name, taken in table.limits.items()}
    for slot in slots:
        if slot.since_ms >= image[HOUR_END] - HOUR_MS:
            most[slot.limit_name] = max(slot.in_flight, most.get(slot.limit_name, 0))
    for name, in_flight in most.items():
        pk = attribute(name, "pk")
        if pk in image and in_flight > image[pk]:
            change.put[pk] = in_flight
            change.bound(pk, high=in_flight)


def taken_slots(level: BucketLimits, put: Mapping[str, Any]) -> tuple[TakenSlot, ...]:
    """Return the slots that a write to the bucket of a level takes, in the order of those it serves."""
    found = []
    for attr, ownership_token in put.items():
        if attr.startswith(OWNERSHIP_PREFIX):
            name, _, number = attr[2:].rpartition("_")
            limit, until_attr = level.slot_limits[name], UNTIL_PREFIX + attr[2:]
            since_ms = int(ownership_token.partition(".")[0], 16)
            times = (since_ms, put[until_attr], limit.ttl_ms, limit.max_hold_ms, since_ms)
            owner = SlotOwner(level.entity_id, level.resource, name)
            found.append(TakenSlot(name, int(number), until_attr, attr, ownership_token, *times, owner))
    return tuple(found)


def release_slots(
    level: BucketLimits, seen: SeenSlots, change: Change, slots: Sequence[TakenSlot], changes: int
) -> None:
    """Let a change free slots in a bucket, which may have been seen before they were taken.

    Its guards do not hold where one of them is not ours any more, or is being renewed. ``changes`` is what it counts
    for, as of `settle`; if that is negative, a grant is undone, and the time for which they were held is no usage.
    """
    image, counted = seen.image, False
    for slot in slots:
        until_ms = image[slot.until_attr] if slot.is_ours(image) else slot.until_ms
        change.guards += (slot.ownership_attr, "=", slot.ownership_token), (slot.until_attr, "=", until_ms)
        change.remove += slot.until_attr, slot.ownership_attr
        if changes > 0:
            counted = _count_time(seen, slot, until_ms, change) or counted
    note_peaks(seen, change, slots)
    if level.usage_days and HOUR_END in image and counted:
        change.add[CHANGES] = changes


def renew_slots(seen: SeenSlots, change: Change, slots: Sequence[TakenSlot]) -> None:
    """Let a change hold slots of a bucket, in which all of them are ours, for another time to live."""
    now_ms = seen.now_ms
    for slot in slots:
        until_ms = seen.image[slot.until_attr]
        change.guards += (slot.ownership_attr, "=", slot.ownership_token), (slot.until_attr, "=", until_ms)
        change.put[slot.until_attr] = slot.renewed_until(now_ms)
        _count_time(seen, slot, until_ms, change)
    note_peaks(seen, change, slots)


def _count_time(seen: SeenSlots, slot: TakenSlot, until_ms: int, change: Change) -> bool:
    """Add the time for which a slot was held since that was last counted. Return False if its limit counts tokens now.

    A renewal whose answer is still to come has counted up to a time to live before the instant that it has written.
    """
    if attribute(slot.limit_name, "tl") not in seen.image:
        return False
    held_ms = max(0, seen.now_ms - max(slot.counted_ms, until_ms - slot.ttl_ms))
    tc = attribute(slot.limit_name, "tc")
    change.add[tc] = change.add.get(tc, 0) + held_ms
    return True


def drop_expired_slots(image: Image, change: Change, now_ms: int) -> None:
    """Let a change take away slots that nobody holds any more, a bounded number of them."""
    _drop_slots(image, change, [attr for _, _, attr in slot_attributes(image) if image[attr] <= now_ms])


def shorten_slots(image: Image, change: Change, now_ms: int) -> None:
    """Let a change shorten slots that were taken before the clock was set back, a bounded number of them."""
    for attr, until_ms in list(SlotTable.parse(image).find_ahead(image, now_ms).items())[:MOST_FREED]:
        change.equals[attr] = image[attr]
        change.put[attr] = until_ms


def _drop_slots(image: Image, change: Change, attrs: Sequence[str]) -> None:
    """Let a change take away slots as they are seen in ``image``, by the attributes of their instants."""
    for attr in attrs[:MOST_FREED]:
        change.equals[attr] = image[attr]
        change.remove += [each for each in (attr, OWNERSHIP_PREFIX + attr[2:]) if each in image]
