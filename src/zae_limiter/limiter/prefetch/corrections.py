"""Corrections of prefetched tokens, gathered until the next write to their bucket: what leases used, what came back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from ...core.advance import UnusedAdvance
from ...core.production import MILLI
from ...forks import protect
from ...logs import SETTLEMENT_LOST, log_event
from ...records import charging
from ...records.algebra import Image, Write, apply_write, compose
from ...records.level import CHANGES, HOUR_END, MADE, BucketLimits
from ...records.settlement import Charge, is_split
from ...repository.backend import Backend
from ...runtime.port import has_ended
from ..charge_path import BucketShard
from ..planning import add_up
from ..settling import SettlementPart
from .batch import PrefetchedBatch


class NeedsExactWrite(Exception):
    """Tokens cannot be drawn in advance, but may be had by an exact write: from other shards, or from credits."""


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
        shard, charge = BucketShard(level, home.seen), Charge.of(level, image, seen_ms)
        back = SettlementPart(shard, self.back, charge, changes=0, unused=tuple(self.unused))
        return [part for part in (back, SettlementPart(shard, self.owed, charge, changes=0)) if part.delta]


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
