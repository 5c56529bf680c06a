"""How a cost is taken from one limit of a bucket.

With ``since = produced(T) - produced(rf)`` for a decision as of ``T``, whoever holds the bucket alone simply
takes it: `draw_all`. Whoever only remembers the bucket sends one of two forms of a guarded write, `draw`, which
does the same where its guard holds:

    inside   the bucket is not full    guard  cost - since <= tk < ceiling - since    tk -= cost
    full     it is full                guard  tk >= ceiling - since                   tk = ceiling - since - cost

``inside`` draws commute, so writers do not collide. The upper guard keeps the surplus that an idle
bucket accrues beyond its ceiling from being spent.

A limit may have another bound than 0 for what a draw leaves: a floor above it for requests of a lower priority, or none
at all if the limit is soft. The level of a quota changes only between two windows: within one, ``since`` is constant.

A draw that meets `upper_mark` or more is counted in the bucket (`core.give_back` says what for); one that was decided
below the mark is guarded by it.

When the limits of a bucket change, the same draw also moves the bucket to its new anchor: ``after``
is then ``produced(T) - produced(new rf)`` at the new rate, and the ceiling is the lower of the old
and the new capacity. So a raise keeps the tokens, a cut clamps them, and debt stays debt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .bucket import between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .bucket import Rule

Guard: TypeAlias = tuple[str, str, Any]
"""An attribute, how it must compare, and with what."""
Changes: TypeAlias = dict[str, Any]
"""What a write puts into attributes, or adds to them."""


SOFT = -(2**62)
"""The ``least`` of a limit that never refuses."""


class AnchoredLimit(NamedTuple):
    """A limit of a bucket with a known anchor: all that a draw needs besides the tokens.

    ``rest`` is what the rate had left over at the anchor, in parts of a millitoken, ``mark`` the `upper_mark`. ``tk``,
    ``tc`` and ``hi`` name the attributes of the tokens, the consumption and the count of upper draws. ``least`` is what
    a draw has to leave.

    For a quota it holds in one window only: as a rate of 0 that has left over what was produced until then.
    """

    capacity: int
    amount: int
    period: int
    anchor_ms: int
    rest: int
    mark: int
    tk: str
    tc: str
    hi: str
    least: int

    @classmethod
    def of(
        cls, rule: Rule, anchor_ms: int, attributes: tuple[str, str, str], least: int = 0, now_ms: int = 0
    ) -> AnchoredLimit:
        """Return the limit for a bucket whose anchor is ``anchor_ms``, of a quota for the window of ``now_ms``."""
        capacity, amount, period, phase, calendar = rule
        rest = (anchor_ms * amount + phase) % period
        if calendar is not None:
            amount, period, rest = 0, 1, between(rule, anchor_ms, now_ms)
        return cls(capacity, amount, period, anchor_ms, rest, upper_mark(capacity), *attributes, least)

    def since(self, now_ms: int) -> int:
        """Return what the rate has produced from the anchor to ``now_ms``."""
        return ((now_ms - self.anchor_ms) * self.amount + self.rest) // self.period

    def carried(self, ceiling: int, produced: int) -> AnchoredLimit:
        """Return the limit as one that has produced so much since the anchor, up to a ceiling, and makes no more."""
        return self._replace(capacity=ceiling, amount=0, period=1, rest=produced, mark=upper_mark(ceiling))

    def crowded(self, since: int, now_ms: int) -> AnchoredLimit:
        """Return the limit as if it had produced ``since`` by ``now_ms``, for a draw that may meet more than was seen.

        Such a draw is counted as an upper one in any case.
        """
        return self._replace(anchor_ms=now_ms, rest=since * self.period, mark=-(2**62))

    def level(self, tokens: int, now_ms: int) -> int:
        """Return the balance at ``now_ms`` of a bucket that holds ``tokens`` relative to its anchor."""
        return min(self.capacity, tokens + self.since(now_ms))

    def reaches(self, milli: int) -> int:
        """Return the last instant by which a rate has produced no more than ``milli`` since the anchor."""
        return self.anchor_ms + ((milli + 1) * self.period - self.rest - 1) // self.amount


def upper_mark(capacity: int) -> int:
    """Return the level from which on a draw is counted as an upper one: three quarters of the capacity."""
    return capacity * 3 // 4


def draw_all(
    limits: Mapping[str, AnchoredLimit], image: dict[str, Any], cost: Mapping[str, int], now_ms: int
) -> dict[str, Any] | None:
    """Take ``cost`` from a bucket that nobody else touches.

    Return its image afterwards, the same where nothing is taken, or None if one of the limits does not hold enough.
    A cost of 0 is not there while a limit is below its ``least``. Raise KeyError for a name that is not in ``limits``.
    """
    after = image
    for name, need in cost.items():
        capacity, amount, period, anchor_ms, rest, mark, tk, tc, hi, least = limits[name]
        since = ((now_ms - anchor_ms) * amount + rest) // period
        held = image[tk] + since
        if held > capacity:
            held = capacity
        if held < need + least:
            return None
        if need:
            if after is image:
                after = image.copy()
            after[tk] = held - since - need
            after[tc] += need
            if held >= mark:
                after[hi] += 1
    return after


def draw(
    limit: AnchoredLimit,
    tokens: int,
    cost: int | None,
    now_ms: int,
    put: Changes,
    add: Changes,
    after: int | None = None,
) -> Guard | None:
    """Draw ``cost`` as of ``now_ms`` from a limit that was last seen at ``tokens``.

    Note the change in what a write puts and adds, and return the guard that it needs; None, with nothing noted, if it
    does not fit. A cost of 0 changes nothing, and fits unless the limit is below its ``least``. A cost of None asks for
    nothing, so it always fits. ``after`` is what the limit has produced since its new anchor, to which it is moved.
    """
    capacity, amount, period, anchor_ms, rest, mark, tk, tc, hi, least = limit
    since = ((now_ms - anchor_ms) * amount + rest) // period
    shift = 0 if after is None else since - after
    room, need = capacity - since, cost or 0
    low = need + least - since
    if need + least > capacity or (cost is not None and tokens < low):
        return None
    if cost == 0 and after is None:
        return (tk, ">=", low)
    upper = need > 0 and tokens >= mark - since
    if need:
        add[tc] = need
    if upper:
        add[hi] = 1
    if tokens >= room:
        put[tk] = room + shift - need
        return (tk, ">", room - 1)
    add[tk] = shift - need
    high = room - 1 if upper or not need else mark - since - 1
    return (tk, "<=", high) if cost is None or least == SOFT else (tk, "between", (low, high))


def owe(limit: AnchoredLimit, tokens: int, cost: int, now_ms: int, put: Changes, add: Changes) -> Guard:
    """Draw a cost that cannot be refused any more: the same forms as those of `draw`, without a lower bound."""
    since, tk = limit.since(now_ms), limit.tk
    room, mark = limit.capacity - since, limit.mark - since
    if tokens >= mark:
        add[limit.hi] = 1
    if tokens >= room:
        put[tk] = room - cost
        return (tk, ">", room - 1)
    add[tk] = -cost
    return (tk, "<=", room - 1 if tokens >= mark else mark - 1)


def halve(
    whole: Rule, shard: int, count: int, tokens: int, rf: int, now_ms: int, anchor_ms: int
) -> tuple[tuple[str, Any], int, int]:
    """Leave a shard of ``count`` half of its balance and move it to a new anchor: the same forms as those of `draw`.

    Return how its tokens must compare, and with what; how they change (where they must be ``>``, what they are set
    to); and the tokens of the new shard that gets the other half: together they are what the one was, now and for ever.
    The lower bound keeps the old shard out of debt should others have spent meanwhile: the new one could not pay it.
    """
    old = whole.share(shard, count)
    mine, other = (whole.share(index, 2 * count) for index in (shard, shard + count))
    since = between(old, rf, now_ms)
    room = old.capacity - since
    gift = (min(old.capacity, tokens + since) + 1) // 2
    full = tokens >= room
    change = (old.capacity if full else since) - gift - between(mine, anchor_ms, now_ms)
    bounds = (gift - since if gift > 0 else tokens, room - 1)
    return (">", room - 1) if full else ("between", bounds), change, gift - between(other, anchor_ms, now_ms)
