"""Tokens: the state of a rate or a quota in one record of a bucket.

The balance at ``t`` is ``min(capacity, tokens + produced since the anchor)``; below zero is debt. Every write is one of
two guarded changes, with ``since`` produced by the instant of the decision:

    inside   the bucket is not full    guard  needed - since <= tk < ceiling - since    tk -= cost
    full     it is full                guard  tk >= ceiling - since                     tk = ceiling - since - cost

``inside`` writes commute, so writers do not collide. The upper guard keeps the surplus that an idle bucket accrues
beyond its ceiling from being spent. A process that owns the bucket does the same without guards: `draw_all`.

A soft limit is drawn like any other as long as it holds enough. Beyond that it is overdrawn, and a counter says by how
much, exactly: if nothing is left all of the cost is overdrawn, whatever others do meanwhile; if something is left, but
not enough, the guard is on the very tokens that were seen.

When the limits of a bucket change, the same write also moves it to a new anchor. The ceiling is then the lower of the
old and the new capacity: a raise keeps the tokens, a cut clamps them, and debt stays debt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from .alerts import AlertLevels
from .change import Change, Drawn
from .names import FIRST_USE
from .production import FAR, Amounts, Rule

SOFT = -FAR
"""What a draw has to leave of a limit that never refuses."""
NEVER_USED = 2**60
"""The tokens of a limit that was never used: it is full whatever its numbers are."""


class TokenFields(NamedTuple):
    """The attributes of one rate or quota in a record: `records.bucket` says what they hold."""

    tokens: str
    consumed: str
    overdrawn: str
    returned: str
    announced: str
    capacity: str
    amount: str
    period: str
    calendar: str
    window: str
    parked: str


class TokenLimit(NamedTuple):
    """A rate or a quota in force, or a shard's share of it.

    ``stated`` are the attributes by which a record states the whole limit. ``floor`` is what a request has to leave,
    `SOFT` of a limit that never refuses. ``alert_levels`` are the thresholds that are watched.
    """

    at: TokenFields
    rule: Rule
    stated: Mapping[str, int | str]
    floor: int = 0
    alert_levels: AlertLevels | None = None

    @property
    def soft(self) -> bool:
        """Whether it never refuses."""
        return self.floor == SOFT

    @property
    def announces(self) -> bool:
        """Whether records say which of its thresholds were crossed: those of quotas do."""
        return self.alert_levels is not None and self.rule.calendar is not None

    @property
    def unused(self) -> tuple[str, ...]:
        """The attributes that a limit of this kind does not have."""
        calendar = self.rule.calendar
        if calendar is None:
            return self.at.calendar, self.at.window
        return () if calendar.unit == FIRST_USE else (self.at.window,)

    def begin(self, start_ms: int | None) -> TokenLimit:
        """Return the limit in a bucket whose window has begun with its first use at ``start_ms``."""
        return self._replace(rule=self.rule.begin(start_ms))


class TokenFrame(NamedTuple):
    """A limit in a record with a known anchor: all but the tokens, in the segment of its production at an instant.

    ``floor`` is what a draw has to leave; 0 for a soft limit.
    """

    rule: Rule
    anchor_ms: int
    at: TokenFields
    amount: int
    period: int
    rest: int
    start: int
    end: int
    floor: int = 0
    soft: bool = False

    @classmethod
    def of(cls, rule: Rule, anchor_ms: int, at: TokenFields, now_ms: int, floor: int = 0) -> TokenFrame:
        """Return the frame of a limit of which a request has to leave ``floor``, in the segment of ``now_ms``."""
        soft = floor == SOFT
        return cls(rule, anchor_ms, at, *rule.segment(anchor_ms, now_ms), 0 if soft else floor, soft)

    def since(self, now_ms: int) -> int:
        """Return what was produced from the anchor to ``now_ms``."""
        rule, anchor_ms, _, amount, period, rest, start, end, _, _ = self
        if start <= now_ms <= end:
            return ((now_ms - anchor_ms) * amount + rest) // period
        return rule.produced_between(anchor_ms, now_ms)

    def level(self, image: Mapping[str, Any], now_ms: int) -> int:
        """Return the balance at ``now_ms`` in a record whose anchor it has."""
        held: int = image[self.at.tokens] + self.since(now_ms)
        return min(self.rule.capacity, held)

    def reaches(self, milli: int) -> int:
        """Return the last instant by which a rate has produced no more than ``milli`` since the anchor."""
        return self.anchor_ms + ((milli + 1) * self.period - self.rest - 1) // self.amount


# Taking from a record that others may have changed since it was seen.


def draw(change: Change, at: TokenFields, drawn: Drawn, need: int | None, floor: int = 0, soft: bool = False) -> bool:
    """Take ``need`` from a limit, and move it to another anchor if there is one.

    Return False, with nothing noted, if that would leave less than ``floor`` and the limit is not ``soft``. A need of 0
    changes nothing, and fits unless the limit is below its floor; None asks for nothing, so it always fits.
    """
    tokens, since, capacity, since_after = drawn
    room, cost = capacity - since, need or 0
    low = cost + floor - since
    if need is not None and (tokens < low or cost + floor > capacity):
        if not soft:
            return False
        if not cost and since_after is None:
            change.bounds[at.tokens] = -FAR, FAR
        else:
            change.add[at.consumed] = cost
            _overdraw(change, at, drawn, cost)
        return True
    if need == 0 and since_after is None:
        change.bounds[at.tokens] = low, FAR
        return True
    if cost:
        change.add[at.consumed] = cost
    by = -cost if since_after is None else since - since_after - cost
    if tokens >= room:
        change.put[at.tokens] = room + by
        change.bounds[at.tokens] = room, FAR
    else:
        change.add[at.tokens] = by
        change.bounds[at.tokens] = (-FAR if need is None else low), room - 1
    return True


def owe(change: Change, at: TokenFields, drawn: Drawn, cost: int, soft: bool = False) -> None:
    """Take a cost that cannot be refused any more: a draw without a lower bound.

    A soft limit has one: what it does not hold is overdrawn, that of others is debt.
    """
    tokens, since, capacity, _ = drawn
    if soft and min(capacity, tokens + since) < cost:
        _overdraw(change, at, drawn, cost)
        return
    draw(change, at, (tokens, since, capacity, since + cost), None)
    if soft:
        change.bound(at.tokens, low=cost - since)


def split_balance(
    change: Change, at: TokenFields, tokens: int, old: Rule, new: Rule, anchors: tuple[int, int], now_ms: int
) -> int:
    """Leave a shard half of its balance and move it to a new anchor, under its share in twice as many shards.

    Return the half for the new shard as of ``now_ms``: together they are what the one was, now and for ever. The lower
    bound keeps the old shard out of debt should others have spent meanwhile: the new one could not pay it.
    """
    since = old.produced_between(anchors[0], now_ms)
    gift = (min(old.capacity, tokens + since) + 1) // 2
    draw(change, at, (tokens, since, old.capacity, new.produced_between(anchors[1], now_ms) + gift), None)
    change.bound(at.tokens, low=gift - since if gift > 0 else tokens)
    return gift


def _overdraw(change: Change, at: TokenFields, drawn: Drawn, cost: int) -> None:
    """Take more than a soft limit holds, and count by how much."""
    tokens, since, capacity, since_after = drawn
    held = min(capacity, tokens + since)
    change.add[at.overdrawn] = cost - max(0, held)
    draw(change, at, (tokens, since, capacity, cost + (since if since_after is None else since_after)), None)
    if at.tokens in change.add:
        change.bounds[at.tokens] = (-FAR, -since) if held <= 0 else (tokens, tokens)


# Taking where this process owns the record.

OwnedLimit: TypeAlias = tuple[str, int, int, int, int, int, str, str, int, str]
"""A limit's name, capacity, amount, period, anchor and rest, the attributes of its tokens and of what was consumed, its
floor, and the attribute that counts what is overdrawn, "" if it refuses: a plain tuple unpacks fastest."""


def draw_all(limits: Iterable[OwnedLimit], image: dict[str, Any], cost: Amounts, now_ms: int) -> dict[str, Any] | None:
    """Take ``cost`` from a bucket that this process owns, and give back what is below zero.

    Return its image afterwards, the same one if nothing changes, or None if a limit does not hold enough. A cost of 0
    does not fit while a limit is below its floor. A name that is none of ``limits`` costs nothing.
    """
    after, find = image, cost.get
    for name, capacity, amount, period, anchor_ms, rest, tk, tc, floor, ov in limits:
        need = find(name)
        if need is None:
            continue
        if need and after is image:
            after = image.copy()
        tokens = image[tk]
        if need < 0:
            after[tk] = tokens - need
            after[tc] += need
            continue
        held = tokens + ((now_ms - anchor_ms) * amount + rest) // period
        if held > capacity:
            tokens -= held - capacity
            held = capacity
        if held < need + floor:
            if not ov:
                return None
            if need:
                after[ov] = after.get(ov, 0) + need - max(0, held)
        if need:
            after[tk] = tokens - need
            after[tc] += need
    return after
