"""How a cost is taken from one limit of a bucket.

With ``since = produced(T) - produced(rf)`` for a decision as of ``T``, whoever holds the bucket alone simply
takes it: `draw_all`. Whoever only remembers the bucket sends one of two forms of a guarded write, `draw`, which
does the same where its guard holds:

    inside   the bucket is not full    guard  cost - since <= tk < ceiling - since    tk -= cost
    full     it is full                guard  tk >= ceiling - since                   tk = ceiling - since - cost

``inside`` draws commute, so writers do not collide. The upper guard keeps the surplus that an idle
bucket accrues beyond its ceiling from being spent.

A limit may have another bound than 0 for what a draw leaves: a floor above it for requests of a lower priority. The
level of a quota changes only between two windows: within one, ``since`` is constant.

A soft limit is drawn like any other as long as it holds enough. Beyond that it is overdrawn, and ``ov`` counts by how
much, exactly: where nothing is left all of the cost is overdrawn, whatever others do meanwhile; where something is
left, but not enough, the guard is on the very tokens that were seen.

When the limits of a bucket change, the same draw also moves the bucket to its new anchor: ``after``
is then ``produced(T) - produced(new rf)`` at the new rate, and the ceiling is the lower of the old
and the new capacity. So a raise keeps the tokens, a cut clamps them, and debt stays debt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .bucket import between

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .bucket import Rule

Guard: TypeAlias = tuple[str, str, Any]
"""An attribute, how it must compare, and with what."""
Changes: TypeAlias = dict[str, Any]
"""What a write puts into attributes, or adds to them."""


SOFT = -(2**62)
"""What a draw has to leave of a limit that never refuses."""


class AnchoredLimit(NamedTuple):
    """A limit of a bucket with a known anchor: all that a draw needs besides the tokens.

    ``rest`` is what the rate had left over at the anchor, in parts of a millitoken. ``tk`` and ``tc`` name the
    attributes of the tokens and the consumption. ``least`` is what a draw has to leave. ``ov`` names the count of what
    was overdrawn, of a soft limit only; then ``least`` is 0.

    For a quota it holds in one window only: as a rate of 0 that has left over what was produced until then.
    """

    capacity: int
    amount: int
    period: int
    anchor_ms: int
    rest: int
    tk: str
    tc: str
    least: int
    ov: str

    @classmethod
    def of(
        cls,
        rule: Rule,
        anchor_ms: int,
        attributes: tuple[str, str],
        least: int = 0,
        now_ms: int = 0,
        ov: str = "",
    ) -> AnchoredLimit:
        """Return the limit for a bucket whose anchor is ``anchor_ms``, of a quota for the window of ``now_ms``."""
        capacity, amount, period, phase, calendar = rule
        rest = (anchor_ms * amount + phase) % period
        if calendar is not None:
            amount, period, rest = 0, 1, between(rule, anchor_ms, now_ms)
        return cls(capacity, amount, period, anchor_ms, rest, *attributes, 0 if ov else least, ov)

    def since(self, now_ms: int) -> int:
        """Return what the rate has produced from the anchor to ``now_ms``."""
        return ((now_ms - self.anchor_ms) * self.amount + self.rest) // self.period

    def carried(self, ceiling: int, produced: int) -> AnchoredLimit:
        """Return the limit as one that has produced so much since the anchor, up to a ceiling, and makes no more."""
        return self._replace(capacity=ceiling, amount=0, period=1, rest=produced)

    def crowded(self, since: int, now_ms: int) -> AnchoredLimit:
        """Return the limit as if it had produced ``since`` by ``now_ms``: the draw may meet more than was seen."""
        return self._replace(anchor_ms=now_ms, rest=since * self.period)

    def level(self, tokens: int, now_ms: int) -> int:
        """Return the balance at ``now_ms`` of a bucket that holds ``tokens`` relative to its anchor."""
        return min(self.capacity, tokens + self.since(now_ms))

    def reaches(self, milli: int) -> int:
        """Return the last instant by which a rate has produced no more than ``milli`` since the anchor."""
        return self.anchor_ms + ((milli + 1) * self.period - self.rest - 1) // self.amount


OwnedLimit: TypeAlias = tuple[str, int, int, int, int, int, str, str, int]
"""The name of a limit and the fields of its `AnchoredLimit` up to ``least``: a plain tuple unpacks fastest."""


def draw_all(
    limits: Iterable[OwnedLimit], image: dict[str, Any], cost: Mapping[str, int], now_ms: int
) -> dict[str, Any] | None:
    """Take ``cost`` from a bucket that this process owns.

    Return its image afterwards, the same one if nothing is taken, or None if a limit does not hold enough, even a soft
    one. A cost of 0 does not fit while a limit is below its ``least``. A name that is none of ``limits`` costs nothing.
    """
    after, find = image, cost.get
    for name, capacity, amount, period, anchor_ms, rest, tk, tc, least in limits:
        need = find(name)
        if need is None:
            continue
        tokens = image[tk]
        held = tokens + ((now_ms - anchor_ms) * amount + rest) // period
        if held > capacity:
            tokens -= held - capacity
            held = capacity
        if held < need + least:
            return None
        if need:
            if after is image:
                after = image.copy()
            after[tk] = tokens - need
            after[tc] += need
    return after


def settle_all(
    limits: Iterable[OwnedLimit], image: dict[str, Any], delta: Mapping[str, int], now_ms: int
) -> dict[str, Any] | None:
    """Correct a charge to a bucket that this process owns: a positive ``delta`` is owed, a negative one comes back.

    Return its image afterwards, the same one if nothing changes, or None if a debt leaves a limit below its ``least``.
    """
    after, find = image, delta.get
    for name, capacity, amount, period, anchor_ms, rest, tk, tc, least in limits:
        owed = find(name)
        if not owed:
            continue
        if after is image:
            after = image.copy()
        after[tc] += owed
        if owed < 0:
            after[tk] -= owed
            continue
        tokens = image[tk]
        held = tokens + ((now_ms - anchor_ms) * amount + rest) // period
        if held > capacity:
            tokens -= held - capacity
            held = capacity
        if held < owed + least:
            return None
        after[tk] = tokens - owed
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
    capacity, amount, period, anchor_ms, rest, tk, tc, least, ov = limit
    since = ((now_ms - anchor_ms) * amount + rest) // period
    shift = 0 if after is None else since - after
    room, need = capacity - since, cost or 0
    low = need + least - since
    if cost is not None and (need + least > capacity or tokens < low):
        if not ov:
            return None
        if cost == 0 and after is None:
            return (tk, ">=", SOFT)
        add[tc] = need
        return _overdraw(limit, tokens, need, since, shift, put, add)
    if cost == 0 and after is None:
        return (tk, ">=", low)
    if need:
        add[tc] = need
    if tokens >= room:
        put[tk] = room + shift - need
        return (tk, ">", room - 1)
    add[tk] = shift - need
    return (tk, "<=", room - 1) if cost is None else (tk, "between", (low, room - 1))


def _overdraw(
    limit: AnchoredLimit, tokens: int, cost: int, since: int, shift: int, put: Changes, add: Changes
) -> Guard:
    """Draw more than a soft limit holds, and count by how much. ``shift`` is added to the tokens besides."""
    tk, room = limit.tk, limit.capacity - since
    held = min(limit.capacity, tokens + since)
    add[limit.ov] = cost - max(0, held)
    if tokens >= room:
        put[tk] = room + shift - cost
        return (tk, ">", room - 1)
    add[tk] = shift - cost
    return (tk, "<=", -since) if held <= 0 else (tk, "=", tokens)


def owe(limit: AnchoredLimit, tokens: int, cost: int, now_ms: int, put: Changes, add: Changes) -> Guard:
    """Draw a cost that cannot be refused any more: the same forms as those of `draw`, without a lower bound.

    A soft limit has one: what it does not hold is overdrawn, that of others is debt.
    """
    since, tk = limit.since(now_ms), limit.tk
    room = limit.capacity - since
    if limit.ov and min(tokens, room) < cost - since:
        return _overdraw(limit, tokens, cost, since, 0, put, add)
    if tokens >= room:
        put[tk] = room - cost
        return (tk, ">", room - 1)
    add[tk] = -cost
    return (tk, "between", (cost - since, room - 1)) if limit.ov else (tk, "<=", room - 1)


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
