"""The last seen image of each bucket. Never a reason to grant, only to choose a write or to refuse."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..records import charging
from ..records.algebra import Image, Key, Write
from ..records.charging import Contention, Frame
from ..records.level import ANCHOR, CONFIG_VERSION, MADE, BucketLimits, token_fields
from ..records.slot_table import NO_TABLE, SLOTS, SlotTable
from ..records.slots import NO_PREFERENCE, PreferredSlots
from ..stores.bounded import MAX_CACHED_KEYS, BoundedMap

_MOST_FREED = 64
_APART_MS = 30
"""A slot that is free in two images this far apart is one that no other process is about to take, in ms."""
_RACING_MS = 60_000
_CALM = 16
"""Writes in a row without one of another process, after which a bucket counts as this one's own again."""
_RECENT_MS = 60_000
"""How long a quota whose balance has risen may be expected to rise again, in milliseconds."""
_FEW = 16
"""How many leases are remembered before those that have ended are dropped."""
_NONE: frozenset[str] = frozenset()
_NO_SLOTS: tuple[Image | None, SlotTable] = (None, NO_TABLE)


class Reserving(Protocol):
    """What is used of a lease."""

    @property
    def is_open(self) -> bool:
        """Whether the lease was entered and has not ended."""


class Outlook:
    """The open leases of this process that have tokens of a bucket's quotas, and when these quotas last rose."""

    __slots__ = ("_leases", "_most", "_risen")

    def __init__(self, quotas: Sequence[str]) -> None:
        self._risen: dict[str, int | None] = dict.fromkeys(quotas)
        self._leases: list[tuple[weakref.ref[Reserving], Mapping[str, int]]] = []
        """Leases and what they have taken."""
        self._most = _FEW

    def add(self, lease: Reserving, cost: Mapping[str, int]) -> None:
        """Remember a lease that is about to open, until it ends."""
        if len(self._leases) >= self._most:
            self._leases = [each for each in self._leases if _is_open(each[0])]
            self._most = 2 * len(self._leases) + _FEW
        self._leases.append((weakref.ref(lease), cost))

    def note_rises(self, before: Image | None, after: Image | None, now_ms: int) -> None:
        """Note which quotas have risen between two images of the bucket; a reset does not count."""
        if before is None or after is None or any(before.get(attr) != after.get(attr) for attr in (ANCHOR, MADE)):
            return
        for name in self._risen:
            tk = token_fields(name).tokens
            if after.get(tk, 0) > before.get(tk, 0):
                self._risen[name] = now_ms

    def is_good(self, limit_name: str, now_ms: int) -> bool:
        """Return whether tokens of a quota may come back: an open lease has some, or it rose in the last minute."""
        risen_ms = self._risen.get(limit_name)
        if risen_ms is not None and now_ms - risen_ms <= _RECENT_MS:
            return True
        return any(cost.get(limit_name) and _is_open(ref) for ref, cost in tuple(self._leases))


def _is_open(ref: weakref.ref[Reserving]) -> bool:
    lease = ref()
    return lease is not None and lease.is_open


class LastSeen:
    """The last image of one bucket (None: not known), when it was seen, and what was learned with it.

    ``refused`` says that a request was refused with this image; ``lost`` is how many races for it were lost since the
    last that was won; ``contended`` are the limits that others were writing then.

    Shared between threads without a lock: a writer stores the image before the instant and a reader takes them
    the other way round. Two writers at once may leave the older image with the newer instant: then a refusal is
    repeated for a moment too long, and a write loses its race.
    """

    __slots__ = (
        "_calm",
        "_checked",
        "_slots",
        "before",
        "contended",
        "epoch",
        "freed",
        "image",
        "level",
        "lost",
        "outlook",
        "planned",
        "raced_ms",
        "refused",
        "seen_ms",
    )

    def __init__(self) -> None:
        self.image: Image | None = None
        self.seen_ms = 0
        self.refused = False
        self.lost = 0
        self.contended = _NONE
        self.freed: deque[tuple[str, int]] | None = None
        """Slots by limit and number that this process has freed lately, the last one at the end."""
        self.before: SlotTable | None = None
        """The slots of the image before, if it was seen some time before."""
        self._slots: tuple[Image | None, SlotTable] = _NO_SLOTS
        """An image with slots, and these; replaced as a whole."""
        self.raced_ms = -_RACING_MS
        """When a race for a slot was last lost."""
        self.outlook: Outlook | None = None
        """Of a bucket with quotas, whether tokens of these may come back."""
        self._calm = 0
        self._checked: tuple[BucketLimits | None, Image | None, Frame | None] = (None, None, None)
        """An image that was found sound, and the limits that a level has in it; replaced as a whole."""
        self.level: BucketLimits | None = None
        """What `share` returned last."""
        self.planned: Any = None
        """Its `PlannedBucket`, on a store inside the process."""
        self.epoch = object()
        """Another one as soon as the limits that the image holds may be others, or begin at another anchor."""

    def show(
        self, image: Image | None, now_ms: int, table: SlotTable | None = None, write: Write | None = None
    ) -> None:
        """Keep a newer image, with its slots if they were read. The instant never goes back, should the clock do so.

        With a ``write`` it is known that this alone has changed the image that it was planned from.
        """
        self.refused = False
        before = self.image
        if before is None or image is None or before[ANCHOR] != image[ANCHOR] or before.get(MADE) != image.get(MADE):
            self.epoch = object()
        if image is not None and SLOTS in image:
            if now_ms - self.seen_ms >= _APART_MS:
                self.before = None if before is None else self._slots[1]
            if write is not None and write.seen is self._slots[0]:
                table = self._slots[1].follow(image, (*write.put, *write.remove))
            self._slots = (image, table or SlotTable.parse(image))
        elif self._slots is not _NO_SLOTS:
            self._slots = _NO_SLOTS
        if self.outlook is not None:
            self.outlook.note_rises(self.image, image, now_ms)
        self.image = image
        if now_ms > self.seen_ms:
            self.seen_ms = now_ms

    def slots_of(self, image: Image | None) -> SlotTable:
        """Return the slots of an image, which mostly is the last one."""
        known, table = self._slots
        return table if known is image and image is not None else SlotTable.parse(image)

    def share(self, level: BucketLimits) -> BucketLimits:
        """Return one object for all equal levels through which chains see the bucket, one after the other."""
        if self.level != level:
            self.level = level
        assert self.level is not None  # else they were not equal
        return self.level

    def clear(self) -> None:
        """Forget what was seen."""
        self.refused = False
        self.epoch = object()
        self.image = None
        self.seen_ms = 0

    def limits(self, level: BucketLimits, image: Image, now_ms: int) -> Frame | None:
        """Return the limits of a level at ``now_ms`` as a sound image holds them; None where it has to be moved."""
        if level.slot_limits:
            last, table = self._slots
            table = table if last is image else SlotTable.parse(image)
            if now_ms < table.ahead_ms and table.find_ahead(image, now_ms):
                return None
        known_level, known_image, known = self._checked
        if known_level is level and known is not None and known.window[0] <= now_ms <= known.window[1]:
            if known_image is image:
                return known
            # The rule of a bucket changes only with its anchor.
            anchor_ms, made, config_version = known[:3]
            if image[ANCHOR] == anchor_ms and image.get(MADE) == made and image[CONFIG_VERSION] == config_version:
                return known
        limits = charging.find_frame(level, image, now_ms)
        self._checked = (level, image, limits)
        return limits

    def contention(self, now_ms: int) -> Contention:
        """Return what is known of others who write the bucket: after a calm write only as long as that is recent."""
        names = _NONE if self._calm and now_ms - self.seen_ms > charging.LAG_MS else self.contended
        return charging.Contention(names, self.seen_ms, self.lost)

    def mark_contended(self, names: frozenset[str]) -> None:
        """Note that a race was lost, and which limits others are writing at this moment."""
        self.lost += 1
        self.contended = names
        self._calm = 0

    def mark_written(self, *, undisturbed: bool) -> None:
        """Note that a race was won; after enough of them in a row without others in between it is one's own again."""
        self.lost = 0
        if self.contended:
            self._calm = self._calm + 1 if undisturbed else min(self._calm, 1)
            if self._calm >= _CALM:
                self.contended = _NONE

    def is_raced_for(self, now_ms: int) -> bool:
        """Return whether races for slots were lost lately: those that come back are wanted by several processes."""
        return now_ms - self.raced_ms < _RACING_MS

    def preferred_slots(self, now_ms: int) -> PreferredSlots:
        """Return which slots to take before others: own ones that were freed lately.

        If others race for slots, then those that were free for some time.
        """
        before = self.before if self.image is not None and self.is_raced_for(now_ms) else None
        return PreferredSlots(tuple(self.freed or ()), before, self.image) if self.freed or before else NO_PREFERENCE

    def has_freed(self, now_ms: int) -> bool:
        """Return whether a slot that this process has freed was free when the bucket was last seen."""
        table = self.slots_of(self.image) if self.freed else NO_TABLE
        return any(not table.of(name).is_taken(number, now_ms) for name, number in tuple(self.freed or ()))

    def has_preferred(self, level: BucketLimits, now_ms: int) -> bool:
        """Return whether one of the preferred slots was free when the bucket was last seen."""
        preferred, table = self.preferred_slots(now_ms), self.slots_of(self.image)
        limits = level.slot_limits_of(self.image).items()
        free = [(name, table.of(name).find_free(limit, now_ms)[0]) for name, limit in limits]
        return any(preferred.choose(name, numbers, now_ms) is not None for name, numbers in free)

    def keep_freed(self, slots: Iterable[tuple[str, int]]) -> None:
        """Remember slots that were freed; the oldest ones are forgotten."""
        self.freed = self.freed or deque(maxlen=_MOST_FREED)
        self.freed.extend(slots)

    def forget_freed(self, slots: Iterable[tuple[str, int]]) -> None:
        """Forget slots that are taken again."""
        for slot in slots:
            if self.freed and slot in self.freed:
                self.freed.remove(slot)


class LastSeenBuckets:
    """The `LastSeen` of each bucket; bounded. One that is forgotten stays valid for those that hold it."""

    def __init__(self, max_entries: int = MAX_CACHED_KEYS) -> None:
        self._known: BoundedMap[str, LastSeen] = BoundedMap(max_entries)

    def of(self, key: Key) -> LastSeen:
        """Return what was last seen of a bucket, an empty one if it is new."""
        return self._known.get_or_make(key.pk, LastSeen)

    def forget(self, key: Key) -> None:
        """Forget what is known of a bucket, also for those who hold its `LastSeen`."""
        seen = self._known.get(key.pk)
        if seen is not None:
            seen.clear()

    def __len__(self) -> int:
        """Return how many buckets are known."""
        return len(self._known)
