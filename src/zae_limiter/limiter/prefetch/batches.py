"""Batches of tokens that one write has drawn each, until they are granted, go back or expire; and their corrections.

What leases have used more or less than they took, and what comes back unused, is gathered for the next write.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from ...core.advance import Advance, UnusedAdvance
from ...core.production import MILLI
from ...forks import protect
from ...logs import SETTLEMENT_LOST, log_event
from ...records import charging
from ...records.algebra import Image, Write, apply_write, compose
from ...records.level import ANCHOR, CHANGES, HOUR_END, MADE, BucketLimits, token_fields
from ...records.settlement import Receipt, is_split
from ...repository.backend import Backend
from ...runtime.port import has_ended
from ..charge_path import BucketShard
from ..grant import ShardCharge, add_up
from ..settling import SettlementPart


@dataclass(slots=True, eq=False)
class PrefetchedBatch:
    """The tokens that one write has drawn, and how it left the bucket."""

    level: BucketLimits
    image: Image
    seen_ms: int
    """The instant of ``image``."""
    advances: dict[str, Advance]
    until_ms: int
    """The last instant at which any of the tokens may be granted."""
    sound: Collection[str] = ()
    """The limits that were not in debt: a cost of 0 is not refused for these."""
    left: dict[str, int] = field(init=False)
    """The millitokens that were not taken yet, by limit: the last ones of each advance. Replaced as a whole."""
    all_grantable_from: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = {name: advance.size for name, advance in self.advances.items()}
        instants = [each.all_grantable_from for each in self.advances.values()]
        self.all_grantable_from = max(instants, default=self.seen_ms)

    def is_over(self, now_ms: int) -> bool:
        """Return whether none of its tokens can be granted any more."""
        return now_ms > self.until_ms or not any(self.left.values())

    def rest(self, left: Mapping[str, int]) -> dict[str, Advance]:
        """Return the last tokens of each advance: what is ``left`` of its limit."""
        return {name: self.advances[name].last(size) for name, size in left.items() if size}

    def grantable(self, now_ms: int) -> dict[str, int]:
        """Return by limit how many of the tokens may be granted at ``now_ms``."""
        if now_ms > self.until_ms:
            return {}
        if now_ms >= self.all_grantable_from:
            return self.left
        return {name: advance.grantable(now_ms) for name, advance in self.rest(self.left).items()}

    def take_back(self) -> dict[str, int]:
        """Take out everything that is left, and return it as a correction, below zero."""
        back = {name: -amount for name, amount in self.left.items() if amount}
        self.left = dict.fromkeys(self.left, 0)
        return back

    def unused(self, name: str, amount: int) -> UnusedAdvance:
        """Return ``amount`` of one limit as tokens that come back without having been granted."""
        rule, anchor_ms, at = self.level.token_limits_of(self.image)[name].rule, self.image[ANCHOR], token_fields(name)
        after = rule.level(self.image[at.tokens], anchor_ms, self.seen_ms)
        room = rule.capacity - after + self.image.get(at.returned, 0)
        return UnusedAdvance(name, amount, room, self.seen_ms, anchor_ms)


def find_batch(part: ShardCharge, image: Image, as_of_ms: int, now_ms: int, keep_ms: int) -> PrefetchedBatch | None:
    """Return the tokens drawn by a write at ``now_ms`` that left the bucket as ``image``; None if it drew nothing.

    It drew from full limits as of ``as_of_ms``. The tokens may be granted for ``keep_ms``.
    """
    level, seen = part.shard
    frame = seen.limits(level, image, now_ms)
    if frame is None:  # its limits have changed since: the tokens cannot be granted
        return None
    advances, sound = {}, set()
    for name, limit in frame.by_name.items():
        left, size = limit.level(image, now_ms), part.cost.get(name, 0)
        if size:
            advances[name] = Advance(limit, as_of_ms if left >= 0 else now_ms, left + size, size)
        if left >= limit.floor:
            sound.add(name)
    if not advances:
        return None
    kept_ms = min(advance.drawn_ms for advance in advances.values()) + keep_ms
    until_ms = min(kept_ms, frame.window[1], frame.until_ms, level.in_force[1] - 1)
    return PrefetchedBatch(level, image, now_ms, advances, until_ms, sound)


class NeedsExactWrite(Exception):
    """Tokens cannot be drawn in advance, but an exact write may get them: from other shards, or from credits."""


class Books:
    """The books of one limiter: grants and writes, corrections that were lost, millitokens that went back."""

    def __init__(self, backend: Backend, keep_ms: int) -> None:
        self._backend = backend
        self.now_ms = backend.clock.now_ms
        self.keep_ms = keep_ms
        """For how long a token may be granted."""
        self.is_closed = False
        """Whether nothing more is drawn in advance."""
        self._active: dict[Any, None] = {}
        """The buckets that hold something or have something to write."""
        self.granted = self.writes = self.returned = self.lost = 0

    def wake(self, due_ms: int) -> None:
        """Have the buckets looked after at an instant, or earlier."""
        raise NotImplementedError

    def schedule(self, bucket: Any) -> None:
        """Have a bucket looked after when something of it is due."""
        self._active[bucket] = None
        self.wake(bucket.due_ms())

    def count_lost(self, level: BucketLimits, delta: Mapping[str, int]) -> None:
        """Count and log a correction that could not be written."""
        self.lost += 1
        tokens = {name: amount // MILLI for name, amount in delta.items() if amount}
        whose = {"zae_entity_id": level.entity_id, "zae_resource": level.resource, "zae_tokens": tokens}
        message = "what was gathered of a bucket could not be written: %s"
        log_event(SETTLEMENT_LOST, message, tokens, **self._backend.log_fields(), **whose)


@dataclass(slots=True, eq=False)
class Correction:
    """What is to be settled of draws from one bucket, in millitokens by limit.

    ``back`` is not set off against ``owed``: a bucket that was reset since is owed, but given nothing back.
    """

    batch: PrefetchedBatch
    """The last of the draws."""
    due_ms: int
    """The latest instant at which it is written."""
    back: dict[str, int] = field(default_factory=dict)
    owed: dict[str, int] = field(default_factory=dict)
    unused: list[UnusedAdvance] = field(default_factory=list)
    """The part of ``back`` that was never granted."""
    settled: bool = False
    """Whether it was written, or cannot be any more."""

    def concerns(self, batch: PrefetchedBatch) -> bool:
        """Return whether a batch was drawn from the same bucket, under the same limits."""
        mine = self.batch
        return mine is batch or (mine.level is batch.level and mine.image.get(MADE) == batch.image.get(MADE))

    def add(self, batch: PrefetchedBatch, delta: Mapping[str, int], *, unused: bool) -> None:
        """Add the correction of a lease, or tokens that were not granted: negative if they come back."""
        if batch.seen_ms > self.batch.seen_ms:
            self.batch = batch
        for name, amount in delta.items():
            if amount:
                side = self.back if amount < 0 else self.owed
                side[name] = side.get(name, 0) + amount
                if unused:
                    self.unused.append(batch.unused(name, -amount))

    def settlements(self, home: BucketShard) -> list[SettlementPart]:
        """Return what the draws give back and what they owe, as settlements."""
        level, image, seen_ms = self.batch.level, self.batch.image, self.batch.seen_ms
        shard, receipt = BucketShard(level, home.seen), Receipt.of(level, image, seen_ms)
        back = SettlementPart(shard, self.back, receipt, changes=0, unused=tuple(self.unused))
        return [part for part in (back, SettlementPart(shard, self.owed, receipt, changes=0)) if part.delta]


@dataclass(slots=True, eq=False)
class WriteUnderWay:
    """What a write to a bucket settles while it is being made."""

    scope: object
    """The event loop that it is made in; other values for threads."""
    corrections: list[Correction] = field(default_factory=list)
    grants: int = 0
    """How many grants it adds to the usage."""
    awaited: bool = False
    """Whether callers wait for it: then no other caller overtakes them."""
    sent: bool = False
    """Whether it may have been done, as it was planned last."""
    now_ms: int = 0
    """When it was planned last."""
    as_of_ms: int = 0
    """As of when it draws from full limits."""

    def confirm(self) -> None:
        """Note that it was done, if it was sent: a further one settles what comes after."""
        if self.sent:
            for correction in self.corrections:
                correction.settled = True
            self.corrections, self.grants, self.sent = [], 0, False
        self.awaited = False


class CorrectedBucket:
    """A bucket that is written by one write at a time, and the corrections that wait for it."""

    write: WriteUnderWay | None
    grants: int
    """How many grants the usage of the bucket does not have yet."""
    is_drawing: bool
    """Whether a write was begun in the background."""

    def __init__(self, books: Books, home: BucketShard) -> None:
        self.books = books
        self.home = home
        self.lock = threading.RLock()
        self.forget()
        protect(self.lock)

    def forget(self) -> None:
        """Start with nothing to correct; in a child process all that there was is the parent's to do."""
        self._corrections: list[Correction] = []
        self.write, self.grants, self.is_drawing = None, 0, False

    def correct(self, batch: PrefetchedBatch, delta: Mapping[str, int], *, unused: bool = False) -> Correction:
        """Have ``delta`` added to what a batch has consumed, with the next write."""
        with self.lock:
            found = next((each for each in self._corrections if each.concerns(batch)), None)
            if found is None:
                found = Correction(batch, self.books.now_ms() + self.books.keep_ms)
                self._corrections.append(found)
                self.books.schedule(self)
            found.add(batch, delta, unused=unused)
            return found

    def take_corrections(self) -> list[SettlementPart]:
        """Take out what no write that draws can settle, to be settled by writes of their own."""
        with self.lock:
            if self.write is not None:
                return []
            found, self._corrections = self._corrections, []
            for correction in found:
                correction.settled = True
            parts = [part for correction in found for part in correction.settlements(self.home)]
            place = next((place for place, part in enumerate(parts) if not part.is_split), None)
            if place is not None:  # the first that can counts the grants as well
                parts[place], self.grants = parts[place]._replace(changes=self.grants), 0
            return parts

    def begin(self, scope: object) -> WriteUnderWay | None:
        """Begin to write in an event loop, or in threads; return None if another write is under way."""
        with self.lock:
            if self.write is not None and has_ended(self.write.scope):  # in a loop that was closed meanwhile
                self.end(self.write)
                self.is_drawing = False
            if self.write is not None:
                return None
            self.write = WriteUnderWay(scope)
            self.books.schedule(self)
            return self.write

    def end(self, write: WriteUnderWay) -> None:
        """End a write, unless that has happened: in a child process, or when its event loop was found closed.

        What was sent and not confirmed is not written again, as it may have been: it is lost.
        """
        with self.lock:
            if write is not self.write:
                return
            self.write = None
            if not write.sent:
                self._corrections = [*write.corrections, *self._corrections]
                self.grants += write.grants
                self.books.schedule(self)
                return
            for correction in write.corrections:
                correction.settled = True
                self.books.count_lost(self.home.level, add_up([correction.back, correction.owed]))

    def settle(self, write: WriteUnderWay, image: Image, now_ms: int) -> tuple[Write | None, Image]:
        """Take the corrections in hand that one write can settle.

        Return what settles them and counts grants in a bucket last seen as ``image``, and the image that this leaves.
        """
        split = [each for each in self._corrections if is_split(each.batch.level, image)]
        write.corrections += [each for each in self._corrections if each not in split]
        self._corrections = split
        write.grants, self.grants = write.grants + self.grants, 0
        return self._settle_all(image, write.corrections, write.grants, now_ms)

    def see(self, image: Image, now_ms: int) -> Image:
        """Return the bucket, last seen as ``image``, as it will be when what is to be corrected is written."""
        if is_split(self.home.level, image):
            return image
        with self.lock:
            in_hand = [] if self.write is None else self.write.corrections
            return self._settle_all(image, [*in_hand, *self._corrections], 0, now_ms)[1]

    def _settle_all(
        self, image: Image, corrections: Sequence[Correction], grants: int, now_ms: int
    ) -> tuple[Write | None, Image]:
        """Return the write that settles corrections and counts grants, None for nothing; and the image it leaves."""
        level, after = self.home.level, image
        writes: list[Write] = []
        for part in [part for correction in corrections for part in correction.settlements(self.home)]:
            made = part.settle(after, now_ms, None if charging.is_ahead(level, after) else level).write
            writes.append(made._replace(add={attr: amount for attr, amount in made.add.items() if attr != CHANGES}))
            after = apply_write(after, writes[-1]) or {}  # nothing is deleted
        if grants and level.usage_days and HOUR_END in image:
            writes.append(Write(level.key, (), {}, {CHANGES: grants}, seen=image))
            after = apply_write(after, writes[-1]) or {}
        return reduce(compose, writes) if writes else None, after
