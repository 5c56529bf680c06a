"""Standing in line: when a waiter tries, when it looks at the store, and when it gives up.

The first in line tries when the refill has made its tokens, and looks at the store at least once a second, as other
processes may have given something back. A return of this process wakes it at once.

Other processes wait for the same buckets. A waiter that was overtaken, or has waited for half a second, leaves a mark
in the bucket (`records.waiters`). Waiters that came later count it as if it had been served before them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import CapacityExceeded, RateLimitExceeded
from ..core.production import MILLI
from ..records.algebra import Image, Write
from ..records.level import BucketLimits
from ..records.waiters import MARK_MS, PATIENCE_MS, Waiter, find_waiters, leave_mark, pass_on, sum_ahead
from ..repository.backend import Backend
from .charge_path import ChargePath
from .coalescer import Turn
from .grant import Grant
from .planning import add_up
from .waiting import Line, Lines, may_wait, refuse_behind

LOOK_SECONDS = 1.0
"""Longest pause between two looks at the store, in seconds."""
_SPLIT_LOOK_SECONDS = 1.1
"""The same for slots that are left to others: looking more often makes more processes race for one slot."""
_MANY_SLOTS = 64
"""A pool of at least this many slots is large."""
_RECENT_MS = 50
"""How long an image of a bucket counts as just seen, in milliseconds."""
_CLAIM = 8
"""A line claims at most this share of a limit's slots at once, so that slots do not swing between processes."""
_SHORTEST_PAUSE, _SHARE = 0.01, 32
"""While slots change hands, a waiter that is next looks after this share of the time that it has waited, in seconds."""


@dataclass(eq=False)
class Standing:
    """One acquire that stands in line for at most ``max_wait_ms``."""

    lines: Lines
    backend: Backend
    chain: ChargePath
    cost: Mapping[str, int]
    max_wait_ms: int
    attempt: Callable[[Turn], Coroutine[Any, Any, Grant]]
    """Takes the tokens or raises, with this one's turn."""
    look: Callable[[Sequence[Write]], Coroutine[Any, Any, ChargePath]]
    """Reads the buckets and leaves marks there."""
    note_wait: Callable[[float], None]
    """Called with the seconds of each pause."""
    overtaken: bool = False
    """Whether others were served since it is the first in line."""

    def __post_init__(self) -> None:
        self._clock = self.backend.clock
        self._ticket = self.lines.new_ticket(self.chain, self.cost)
        self._deadline_ms = self._ticket.since_ms + self.max_wait_ms
        self._promised_ms = self._tried_ms = self._takes = self._first_takes = 0

    async def wait(self) -> Grant:
        """Stand in line until the acquire is served; raise `RateLimitExceeded` when its time is up."""
        lines, ticket = self.lines, self._ticket
        try:
            looked = False
            if not lines.join(ticket):
                if not await self._time(lines.wait_to_lead(ticket, self.max_wait_ms / 1000)):
                    lines.check(self.chain, self.cost, 0, before=ticket)
                looked = self._is_recent() and not self.chain.sharded
            while True:
                error = self._foresee(looked)
                if error is None:
                    await self._hold_back()
                    self._tried_ms = self._clock.now_ms()
                    try:
                        granted = await self.attempt(self.pass_on)
                        for line in lines.find_lines(ticket):
                            line.takes = self.chain.count_takes()
                        return granted
                    except RateLimitExceeded as refused:
                        error = refused
                now_ms = self._clock.now_ms()
                left_ms = self._deadline_ms - now_ms
                if not lines.leads(ticket) or not may_wait(self.chain, error, now_ms, left_ms):
                    raise error
                self._learn(error, now_ms)
                looked = await self._leave_marks(error, now_ms) or await self._pause(error, now_ms)
        finally:
            lines.leave(ticket)

    def pass_on(self, write: Write, level: BucketLimits, image: Image) -> Write:
        """Return a write to a level's bucket that serves this one, with the mark of the one behind it in line."""
        ticket, root = self._ticket, level.at(0, 1).key
        if ticket.mark not in image:
            return write
        line, follower = self.lines.find_line(ticket, root), self.lines.find_next(ticket, root)
        if line is None or follower is None:
            return pass_on(write, ticket.mark, None)
        line.marked_ms = self._tried_ms
        # A slot that this process has got stays with it: the next one in line need not ask others for another one.
        tokens = {name: need for name, need in follower.costs[root].items() if name in level.token_limits}
        waiter = Waiter(follower.since_ms, self._tried_ms + MARK_MS, tokens) if tokens else None
        return pass_on(write, ticket.mark, waiter)

    async def _time(self, waiting: Coroutine[Any, Any, bool]) -> bool:
        """Wait, and note the seconds that this has taken."""
        started = self.lines.stopwatch()
        try:
            return await waiting
        finally:
            self.note_wait(self.lines.stopwatch() - started)

    def _is_recent(self) -> bool:
        """Return whether the buckets were seen a moment ago, as after serving the waiter before this one."""
        seen_ms = min(seen.seen_ms for _, seen in self.chain.primary_shards)
        return self._clock.now_ms() - seen_ms <= _RECENT_MS and not self.backend.closed

    def _foresee(self, looked: bool) -> RateLimitExceeded | None:
        """Return the refusal to expect as of now, counting older waiters of other processes; None if a try may succeed.

        Unless the store was just ``looked`` at, only these are a reason not to try, and not when the time is up.
        """
        now_ms, ticket = self.chain.instant(self._clock.now_ms()), self._ticket
        ahead = [
            sum_ahead(seen.image, ticket.mark, ticket.since_ms, now_ms, level.slot_limits)
            for level, seen in self.chain.primary_shards
        ]
        if now_ms >= self._deadline_ms or not (looked or any(ahead)):
            return None
        error = refuse_behind(self.chain, self.cost, ahead, now_ms)
        return None if isinstance(error, CapacityExceeded) else error

    async def _hold_back(self) -> None:
        """Wait while processes race for slots of a split bucket or a large pool, and none of the free ones is for this.

        Those are about to be taken again where they were freed.
        """
        while self._holds_back(now_ms := self._clock.now_ms()) and now_ms < self._deadline_ms:
            shards = self.chain.shards
            raced = [seen for _, seen in shards if seen.is_raced_for(now_ms)]
            if not raced or any(seen.has_preferred(level, now_ms) for level, seen in shards):
                return
            seconds = _SPLIT_LOOK_SECONDS - (now_ms - max(seen.seen_ms for seen in raced)) / 1000
            seconds = min(seconds, (self._deadline_ms - now_ms) / 1000)
            if seconds > 0:
                await self._time(self.lines.pause(self._ticket, seconds))
            else:
                self.chain = await self.look(())

    def _learn(self, error: RateLimitExceeded, now_ms: int) -> None:
        """Note whether others were served instead: slots were taken, or the tokens come later than promised."""
        before, self._promised_ms = self._promised_ms, now_ms + round((error.retry_after_seconds or 0) * 1000)
        takes = self.chain.count_takes()
        overtaken = 0 < before < self._promised_ms and not error.at_latest
        self.overtaken = self.overtaken or overtaken or 0 < self._takes < takes
        self._takes = takes

    async def _leave_marks(self, error: RateLimitExceeded, now_ms: int) -> bool:
        """Leave a mark in each bucket that refuses, if it is time to. Return whether the store was looked at."""
        ticket = self._ticket
        waited = now_ms - ticket.since_ms
        is_patient = not (self.overtaken or waited >= PATIENCE_MS) or (error.at_latest and self._holds_back(now_ms))
        if self.chain.sharded or is_patient:
            return False
        refused = {(status.entity_id, status.resource) for status in error.violations}
        until_ms, marks = min(now_ms + MARK_MS, self._deadline_ms), []
        for shards in self.chain.levels:
            level, seen = shards.home
            line = self.lines.find_line(ticket, shards.key(0))
            if line is None or now_ms - line.marked_ms < MARK_MS // 2:
                continue
            if seen.image is not None and (level.entity_id, level.resource) in refused:
                line.marked_ms = now_ms
                waiter = Waiter(ticket.since_ms, until_ms, _find_claim(level, line, ticket.costs[shards.key(0)]))
                marks.append(leave_mark(level.key, seen.image, ticket.mark, waiter, now_ms))
        if not marks:
            return False
        self.chain = await self.look(marks)
        return True

    def _holds_back(self, now_ms: int) -> bool:
        """Return whether slots are left to the processes that have freed them.

        Those of a split bucket are, as it has no marks; and those of a large pool, of which each process has some that
        come back often, unless all slots have changed hands without this process getting one.
        """
        chain = self.chain
        if not chain.slot_names or chain.sharded:
            return bool(chain.slot_names)
        slots = min(limit.slots for level, _ in chain.primary_shards for limit in level.slot_limits.values())
        if slots < _MANY_SLOTS:
            return False
        takes = chain.count_takes()
        self._first_takes = self._first_takes or takes
        since = max([self._first_takes, *(line.takes for line in self.lines.find_lines(self._ticket))])
        return now_ms - self._ticket.since_ms < PATIENCE_MS or takes - since < slots

    def _is_next(self, now_ms: int) -> bool:
        """Return whether one of the next slots to be freed may be left to this waiter, by the marks of others."""
        mark, since_ms = self._ticket.mark, self._ticket.since_ms
        for level, seen in self.chain.primary_shards:
            older = [each.cost for each in find_waiters(seen.image, now_ms, mark) if each.since_ms < since_ms]
            if any(add_up(older).get(name, 0) > limit.slots * MILLI for name, limit in level.slot_limits.items()):
                return False
        return True

    async def _pause(self, error: RateLimitExceeded, now_ms: int) -> bool:
        """Wait until a try may succeed, or it is time to look at the store. Return whether that was looked at."""
        holds_back = self._holds_back(now_ms)  # then `_hold_back` looks
        longest = _SPLIT_LOOK_SECONDS if holds_back else LOOK_SECONDS
        seconds = min(longest, (self._deadline_ms - now_ms) / 1000, error.retry_after_seconds or 0)
        if self.overtaken and error.at_latest and not holds_back and self._is_next(now_ms):
            seconds = min(seconds, max(_SHORTEST_PAUSE, (now_ms - self._ticket.since_ms) / 1000 / _SHARE))
        stirred = await self._time(self.lines.pause(self._ticket, seconds))
        has_news, self._ticket.has_news = self._ticket.has_news, False
        if not has_news and (stirred or holds_back or self._clock.now_ms() >= self._promised_ms):
            return False
        self.chain = await self.look(())
        return True


def _find_claim(level: BucketLimits, line: Line, cost: Mapping[str, int]) -> dict[str, int]:
    """Return what a mark asks for: what the first in line wants, and some slots for those behind it."""
    claim = dict(cost)
    for name, limit in level.slot_limits.items():
        claim[name] = min(line.wanted[name], max(claim[name], limit.slots // _CLAIM * MILLI)) if name in claim else 0
    return claim
