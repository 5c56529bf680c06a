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

from typing import TYPE_CHECKING, Any, NamedTuple

from .bucket import between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .bucket import Rule


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

    def as_produced(self, since: int, now_ms: int) -> AnchoredLimit:
        """Return the limit as if it had produced ``since`` by ``now_ms``."""
        return self._replace(anchor_ms=now_ms, rest=since * self.period)

    def level(self, tokens: int, now_ms: int) -> int:
        """Return the balance at ``now_ms`` of a bucket that holds ``tokens`` relative to its anchor."""
        return min(self.capacity, tokens + self.since(now_ms))


class Draw(NamedTuple):
    """A guarded change of ``tk``.

    Not full: ``low <= tk <= high`` (no lower bound where ``low`` is None), then ``tk += change``.
    Full: ``tk > high``, then ``tk = change``; ``low`` is not needed. ``upper`` draws are counted in the bucket.
    """

    full: bool
    low: int | None
    high: int
    change: int
    upper: bool


def apply_draw(
    drawn: Draw, tk: str, upper_draws: str, put: dict[str, Any], add: dict[str, int]
) -> tuple[str, str, Any]:
    """Add what a draw does to two attributes to a write's ``put`` and ``add``; return the guard that it needs."""
    if drawn.upper:
        add[upper_draws] = 1
    if drawn.full:
        put[tk] = drawn.change
        return (tk, ">", drawn.high)
    add[tk] = drawn.change
    return (tk, "<=", drawn.high) if drawn.low is None else (tk, "between", (drawn.low, drawn.high))


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


def draw(limit: AnchoredLimit, tokens: int, cost: int | None, now_ms: int, after: int | None = None) -> Draw | None:
    """Return the draw of ``cost`` as of ``now_ms`` from a limit that was last seen at ``tokens``.

    Return None if it does not fit. A cost of 0 fits unless the limit is below its ``least``. A cost of None asks for
    nothing, so it always fits.
    """
    capacity, amount, period, anchor_ms, rest, mark, _, _, _, least = limit
    since = ((now_ms - anchor_ms) * amount + rest) // period
    shift = 0 if after is None else since - after
    room, need = capacity - since, cost or 0
    low = None if least == SOFT else need + least - since
    if tokens >= room:
        return Draw(True, low, room - 1, room + shift - need, need > 0) if need + least <= capacity else None
    if cost is None:
        return Draw(False, None, room - 1, shift, False)
    if low is not None and tokens < low:
        return None
    upper = need > 0 and tokens >= mark - since
    high = mark - since - 1 if need and not upper else room - 1
    return Draw(False, low, high, shift - need, upper)


def owe(ceiling: int, tk: int, since: int, cost: int) -> Draw:
    """Return the draw of a cost that cannot be refused any more: the same forms, without a lower bound."""
    room = ceiling - since
    if tk >= room:
        return Draw(True, None, room - 1, room - cost, True)
    mark = upper_mark(ceiling) - since
    upper = tk >= mark
    return Draw(False, None, room - 1 if upper else mark - 1, -cost, upper)


def halve(whole: Rule, shard: int, count: int, tk: int, rf: int, now_ms: int, anchor_ms: int) -> tuple[Draw, int]:
    """Return the draw that leaves a shard of ``count`` half of its balance and moves it to a new anchor, and the
    ``tk`` of the new shard that gets the other half: together they are what the one was, now and for ever.

    The lower bound keeps the old shard out of debt should others have spent meanwhile: the new one could not pay it.
    """
    old = whole.share(shard, count)
    mine, other = (whole.share(index, 2 * count) for index in (shard, shard + count))
    since = between(old, rf, now_ms)
    room = old.capacity - since
    gift = (min(old.capacity, tk + since) + 1) // 2
    full = tk >= room
    change = (old.capacity if full else since) - gift - between(mine, anchor_ms, now_ms)
    low = None if full else gift - since if gift > 0 else tk
    return Draw(full, low, room - 1, change, True), gift - between(other, anchor_ms, now_ms)
