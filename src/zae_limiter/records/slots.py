"""The slots of a bucket: which are taken, until when and by whom.

    sl                    present where the bucket has concurrency limits
    b_{limit}_cp|tl       the slots of the whole limit, in thousandths, and the time to live of one, ms
    b_{limit}_tn          how often slots were taken
    b_{limit}_tc          for how long slots were held, ms; so the whole tokens of it are seconds
    b_{limit}_ov          how many were taken beyond a soft limit, in thousandths; missing: none
    b_{limit}_pk          the most that were in flight in the open hour (`note_peaks`); 0 where the bucket has no ledger
    s_{limit}_{number}    the instant until which the slot is taken, ms; missing: it is free
    f_{limit}_{number}    its fence: since when it is held, its place among those of this millisecond, a random number,
                          its time to live and, if given, the holder's name

Taking a slot is guarded by its being free, so that takers of different slots do not collide. Renewing and releasing it
are guarded by the fence, so that a holder that lost its slot cannot touch what its successor has, and by the instant
until which it is taken, so that a release that meets a renewal does not count the same time again. Only the holder
changes these: what is renewed or released at the same moment commutes with all that others do. There is one exception:
a slot that is taken for more than two times to live was taken before the clock was set back, and others shorten it to
one (`shorten_slots`). A holder that lives renews it before that is over.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.bucket import MILLI
from ..core.slots import SlotOwner, in_shard
from .algebra import MISSING_OR_AT_MOST, Write
from .level import CHANGES, HOUR_END, HOUR_MS, NEWEST, attribute
from .slot_table import (
    FENCE_PREFIX,
    ROWS,
    SLOTS,
    UNTIL_PREFIX,
    SlotTable,
    parse_fence,
    slot_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..core.slots import SlotLimit, Slots
    from .algebra import Guards, Image
    from .level import Level

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
    ``before`` as well, if that is given: nobody is about to take these again.
    """

    freed: tuple[tuple[str, int], ...] = ()
    before: SlotTable | None = None

    def choose(self, limit_name: str, free: list[int], now_ms: int) -> int | None:
        """Return the place of the best one among the numbers that are free; None if there is none of these."""
        for name, number in reversed(self.freed):
            if name == limit_name and (place := find_place(free, number)) is not None:
                return place
        if self.before is not None:
            earlier, places = self.before.of(limit_name), reversed(range(len(free)))
            return next((place for place in places if not earlier.is_taken(free[place], now_ms)), None)
        return None


NO_PREFERENCE = PreferredSlots()


def find_place(free: Sequence[int], number: int) -> int | None:
    """Return the place of a number among those that are free, which are in ascending order; None if it is not there."""
    place = bisect_left(free, number)
    return place if place < len(free) and free[place] == number else None


class Taker(NamedTuple):
    """One of those who are served by a write: what it costs, and the name that it gives itself.

    ``chance`` is a random number that chooses among free slots, ``salt`` a random text that no other taker has,
    ``order`` a number that is greater than those of all earlier takers of this host, ``preferred`` says which slots it
    takes before others.
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

    def fence(self, now_ms: int, ttl_ms: int) -> str:
        """Return the fence of what it takes at ``now_ms``."""
        fence = f"{now_ms:x}.{self.order:x}-{self.salt}-{ttl_ms:x}"
        return f"{fence}.{self.holder}" if self.holder else fence


@dataclass(slots=True, eq=False)
class TakenSlot:
    """A slot that was taken for a lease.

    ``counted_ms`` is the instant up to which its time is in the usage, ``in_flight`` how many slots of its limit were
    taken in its bucket right after it was. ``ended`` says that it is not held any more, ``lost`` that this was not by
    the wish of its holder.
    """

    limit_name: str
    number: int
    fence: str
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
    def until_attr(self) -> str:
        """The attribute of the instant until which it is taken."""
        return f"{UNTIL_PREFIX}{self.limit_name}_{self.number}"

    @property
    def fence_attr(self) -> str:
        """The attribute of its fence."""
        return f"{FENCE_PREFIX}{self.limit_name}_{self.number}"

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
        return bool(image.get(self.fence_attr) == self.fence and self.until_attr in image)


def shorten_slots(image: Image, now_ms: int) -> SlotChanges:
    """Return what shortens slots that were taken before the clock was set back, a bounded number of them."""
    found = dict(list(SlotTable.parse(image).find_ahead(image, now_ms).items())[:MOST_FREED])
    return SlotChanges(tuple([(attr, "=", image[attr]) for attr in found]), found, {})


def find_taken(image: Image | None, now_ms: int) -> dict[str, dict[int, int]]:
    """Return by limit the slots that are taken at ``now_ms``, and until when; as `shorten_slots` leaves them."""
    if image is None or SLOTS not in image:
        return {}
    return {name: slots.taken(now_ms) for name, slots in SlotTable.parse(image).shorten(image, now_ms).limits.items()}


def count_slots(image: Image) -> int:
    """Return how many slots of a bucket are kept in its record."""
    return sum(attr.startswith(UNTIL_PREFIX) for attr in image) if SLOTS in image else 0


def last_until(image: Image) -> int:
    """Return the instant from which no slot of a bucket is taken; 0 if none is."""
    return max([image[attr] for attr in image if attr.startswith(UNTIL_PREFIX)], default=0) if SLOTS in image else 0


def without_slots(image: Image) -> tuple[str, ...]:
    """Return the attributes of a bucket but for those of its slots."""
    return tuple([attr for attr in image if not attr.startswith(ROWS)])


def concurrency_limits(attrs: Sequence[str]) -> set[str]:
    """Return the names of the concurrency limits that a bucket with these attributes has."""
    return {attr[2:-3] for attr in attrs if attr.startswith("b_") and attr.endswith("_tl")}


def shape_of(limit: SlotLimit) -> dict[str, int]:
    """Return the attributes by which a bucket states a whole limit."""
    return {attribute(limit.name, "cp"): limit.slots * MILLI, attribute(limit.name, "tl"): limit.ttl_ms}


def states_slots(level: Level, image: Image) -> bool:
    """Return whether a bucket states the concurrency limits of a level."""
    shapes = map(shape_of, level.slot_limits.values())
    return all(image.get(attr) == value for shape in shapes for attr, value in shape.items())


def shapes_for(level: Level, image: Image) -> dict[str, int]:
    """Return the attributes by which a bucket, last seen as ``image``, states the concurrency limits of a level."""
    put: dict[str, int] = {}
    for name, limit in level.slot_limits.items():
        put |= {SLOTS: 1, **shape_of(limit)}
        put |= {attr: 0 for field in ("tn", "tc", "pk") if (attr := attribute(name, field)) not in image}
    return put


def drop_other_kind(level: Level, image: Image) -> tuple[str, ...]:
    """Return the attributes to remove of limits that count slots now and tokens before, or the other way round."""
    found = [attribute(name, field) for name in level.slot_limits for field in _TOKEN_FIELDS]
    found += [attribute(name, field) for name in level.token_limits for field in _SLOT_FIELDS]
    return tuple([attr for attr in found if attr in image])


def free_slots(image: Image, names: Collection[str], fences: Collection[str] | None = None) -> FreedSlots:
    """Return what frees slots of some limits, whoever holds them: `MOST_FREED` at most.

    Guarded by nobody else having taken them meanwhile. ``fences`` are those of the slots that may be freed; None for
    all.
    """
    found = [attr for name, _, attr in slot_attributes(image) if name in names]
    pairs = [(attr, FENCE_PREFIX + attr[2:]) for attr in found]
    held = [pair for pair in pairs if fences is None or image[pair[1]] in fences]
    guards = tuple([(fence, "=", image[fence]) for _, fence in held[:MOST_FREED]])
    rest = tuple([image[fence] for _, fence in held[MOST_FREED:]])
    return FreedSlots(guards, tuple([attr for pair in held[:MOST_FREED] for attr in pair]), rest)


class SlotChanges(NamedTuple):
    """What a write does to slots."""

    guards: Guards
    put: dict[str, Any]
    add: dict[str, int]
    remove: tuple[str, ...] = ()

    def take(self, name: str, number: int, taker: Taker, now_ms: int, ttl_ms: int) -> SlotChanges:
        """Return the changes with a free slot that is taken besides."""
        until_attr, fence_attr = f"{UNTIL_PREFIX}{name}_{number}", f"{FENCE_PREFIX}{name}_{number}"
        put = {**self.put, until_attr: now_ms + ttl_ms, fence_attr: taker.fence(now_ms, ttl_ms)}
        return self._replace(guards=(*self.guards, (until_attr, MISSING_OR_AT_MOST, now_ms)), put=put)

    def applied_to(self, write: Write) -> Write:
        """Return a write to the bucket with these changes besides its own."""
        whole = SlotChanges(write.guards, {**write.put}, {**write.add}, write.remove).merge(self)
        return write._replace(guards=whole.guards, put=whole.put, add=whole.add, remove=whole.remove)

    def merge(self, more: SlotChanges) -> SlotChanges:
        """Return the changes with others besides; what is put is not removed."""
        put = {**self.put, **more.put}
        remove = tuple([attr for attr in (*self.remove, *more.remove) if attr not in put])
        return SlotChanges((*self.guards, *more.guards), put, {**self.add, **more.add}, remove)


class FreedSlots(NamedTuple):
    """What a write does to free slots; ``rest`` are the fences of those that further writes have to free."""

    guards: Guards
    remove: tuple[str, ...]
    rest: tuple[str, ...]


def take_slots(
    level: Level, image: Image | None, slots: SlotTable, takers: Sequence[Taker], now_ms: int
) -> SlotChanges | None:
    """Return what takes the slots of those who are served by a write to a bucket last seen as ``image``.

    None if there are too few. Where a limit was lowered, slots above it that have expired are taken away: a holder that
    renews one of them too late has lost it, as it was counted as free. A request that has to leave slots for others is
    guarded by nobody having taken one since.
    """
    changes = SlotChanges((), {}, {})
    for name, limit in level.slot_limits_of(image).items():
        wanted = [(taker, need // MILLI) for taker in takers if (need := taker.cost.get(name, 0))]
        if not wanted:
            continue
        held, total = slots.of(name), sum(count for _, count in wanted)
        free = held.find_free(limit, now_ms)
        beyond = total - len(free)
        if beyond > 0 and not limit.soft:
            return None
        if beyond > 0:
            free += held.find_beyond(limit, now_ms)
            changes.add[attribute(name, "ov")] = beyond * MILLI
        for taker, count in wanted:
            for _ in range(min(count, len(free))):
                changes = changes.take(name, taker.choose(name, free, now_ms), taker, now_ms, limit.ttl_ms)
        changes.add[attribute(name, "tn")] = total
        if image is not None:
            changes = changes.merge(_drop_above(limit, image, held, now_ms))
            if limit.least and (tn := attribute(name, "tn")) in image:
                changes = changes._replace(guards=(*changes.guards, (tn, "=", image[tn])))
    return changes


def with_taken(
    level: Level, image: Image, slots: SlotTable, write: Write, takers: Sequence[Taker], now_ms: int, changes: int
) -> Write | None:
    """Return a write that takes tokens, also taking slots for the ``takers``; None if there are too few.

    ``changes`` is how many grants it counts for, if it takes no tokens at all.
    """
    taken = take_slots(level, image, slots, takers, now_ms)
    if taken is None:
        return None
    if not write.add and taken.add:
        taken.put[NEWEST] = max(now_ms, image[NEWEST])
        taken.add.update({CHANGES: changes} if level.usage_days else {})
    return taken.applied_to(write)


def _drop_above(limit: SlotLimit, image: Image, held: Slots, now_ms: int) -> SlotChanges:
    """Return what takes away slots that have expired and are above those that can be taken: they count as free."""
    numbers = held.find_expired_above(limit, now_ms)[:MOST_FREED]
    return _drop_slots(image, [f"{UNTIL_PREFIX}{limit.name}_{number}" for number in numbers])


def note_peaks(image: Image, table: SlotTable, slots: Sequence[TakenSlot], now_ms: int, put: dict[str, int]) -> Guards:
    """Note in what a write puts that more were in flight in the open hour than the bucket says by now.

    That is what ``image`` shows, and what those of our ``slots`` have shown that were taken in this hour. Only what was
    seen counts, so the peak is never too high. What is in flight grows only when a slot is taken, and whoever takes one
    sees how many there are then and renews or releases it later, so it is not too low either, unless the process ends
    or the hour is booked before that. Return the guards by which it never falls.
    """
    if HOUR_END not in image:
        return ()
    most = {name: taken.count(now_ms) for name, taken in table.limits.items()}
    for slot in slots:
        if slot.since_ms >= image[HOUR_END] - HOUR_MS:
            most[slot.limit_name] = max(slot.in_flight, most.get(slot.limit_name, 0))
    guards: list[tuple[str, str, int]] = []
    for name, in_flight in most.items():
        pk = attribute(name, "pk")
        if pk in image and in_flight > image[pk]:
            put[pk] = in_flight
            guards.append((pk, "<=", in_flight))
    return tuple(guards)


def taken_slots(level: Level, put: Mapping[str, Any]) -> tuple[TakenSlot, ...]:
    """Return the slots that a write to the bucket of a level takes, in the order of those it serves."""
    found = []
    for attr, fence in put.items():
        if attr.startswith(FENCE_PREFIX):
            name, _, number = attr[2:].rpartition("_")
            limit = level.slot_limits[name]
            since_ms, until_ms = parse_fence(fence)[0], put[f"{UNTIL_PREFIX}{name}_{number}"]
            times = (since_ms, until_ms, limit.ttl_ms, limit.max_hold_ms, since_ms)
            owner = SlotOwner(level.entity_id, level.resource, name)
            found.append(TakenSlot(name, int(number), fence, *times, owner))
    return tuple(found)


def release_slots(
    image: Image, table: SlotTable, slots: Sequence[TakenSlot], now_ms: int, *, counts: bool = True
) -> SlotChanges:
    """Return what frees slots in a bucket last seen as ``image``, which may be older than the slots.

    The guards do not hold where one of them is not ours any more, or is being renewed. ``counts``: whether the time for
    which they were held is usage; not of a grant that is undone.
    """
    add: dict[str, int] = {}
    guards: Guards = ()
    for slot in slots:
        until_ms = image[slot.until_attr] if slot.is_ours(image) else slot.until_ms
        guards += ((slot.fence_attr, "=", slot.fence), (slot.until_attr, "=", until_ms))
        if counts:
            _count_time(image, slot, until_ms, now_ms, add)
    put: dict[str, int] = {}
    if slots:
        guards += note_peaks(image, table, slots, now_ms, put)
    remove = tuple([attr for slot in slots for attr in (slot.until_attr, slot.fence_attr)])
    return SlotChanges(guards, put, add, remove)


def with_freed(
    level: Level, image: Image, table: SlotTable, write: Write, slots: Sequence[TakenSlot], now_ms: int, changes: int
) -> Write:
    """Return a write that settles tokens, also freeing slots. ``changes`` is what it counts for, as of `settle`."""
    freed = release_slots(image, table, slots, now_ms, counts=changes > 0)
    if level.usage_days and HOUR_END in image and freed.add:
        freed.add[CHANGES] = changes
    return freed.applied_to(write)


def renew_slots(image: Image, table: SlotTable, slots: Sequence[TakenSlot], now_ms: int) -> SlotChanges:
    """Return what holds slots for another time to live in a bucket seen as ``image``, in which all of them are ours."""
    add: dict[str, int] = {}
    for slot in slots:
        _count_time(image, slot, image[slot.until_attr], now_ms, add)
    guards = tuple([(attr, "=", image[attr]) for slot in slots for attr in (slot.fence_attr, slot.until_attr)])
    put = {slot.until_attr: slot.renewed_until(now_ms) for slot in slots}
    return SlotChanges(guards + note_peaks(image, table, slots, now_ms, put), put, add)


def _count_time(image: Image, slot: TakenSlot, until_ms: int, now_ms: int, add: dict[str, int]) -> None:
    """Add the time for which a slot was held since that was last counted; not to what counts tokens by now.

    A renewal whose answer is still to come has counted up to a time to live before the instant that it has written.
    """
    tc = attribute(slot.limit_name, "tc")
    if attribute(slot.limit_name, "tl") in image:
        add[tc] = add.get(tc, 0) + max(0, now_ms - max(slot.counted_ms, until_ms - slot.ttl_ms))


def drop_expired_slots(image: Image, now_ms: int) -> SlotChanges:
    """Return what takes away slots that nobody holds any more, a bounded number of them."""
    found = [attr for _, _, attr in slot_attributes(image) if image[attr] <= now_ms]
    return _drop_slots(image, found[:MOST_FREED])


def _drop_slots(image: Image, attrs: Sequence[str]) -> SlotChanges:
    """Return what takes away slots as they are seen in ``image``, by the attributes of their instants."""
    guards = tuple([(attr, "=", image[attr]) for attr in attrs])
    remove = tuple([each for attr in attrs for each in (attr, FENCE_PREFIX + attr[2:]) if each in image])
    return SlotChanges(guards, {}, {}, remove)
