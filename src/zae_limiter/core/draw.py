"""How a cost is taken from one limit of a bucket.

With ``since = produced(T) - produced(rf)`` for a decision as of ``T``, whoever holds the bucket alone simply
takes it: `spent`. Whoever only remembers the bucket sends one of two forms of a guarded write, `draw`, which
does the same where its guard holds:

    inside   the bucket is not full    guard  cost - since <= tk < ceiling - since    tk -= cost
    full     it is full                guard  tk >= ceiling - since                   tk = ceiling - since - cost

``inside`` draws commute, so writers do not collide. The upper guard keeps the surplus that an idle
bucket accrues beyond its ceiling from being spent.

When the limits of a bucket change, the same draw also moves the bucket to its new anchor: ``after``
is then ``produced(T) - produced(new rf)`` at the new rate, and the ceiling is the lower of the old
and the new capacity. So a raise keeps the tokens, a cut clamps them, and debt stays debt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .bucket import between

if TYPE_CHECKING:
    from .bucket import Rule

Draw: TypeAlias = tuple[bool, int | None, int, int]
"""``(full, low, high, change)``: what has to hold for ``tk``, and what becomes of it.

Not full: ``low <= tk <= high`` (no lower bound where ``low`` is None), then ``tk += change``.
Full: ``tk > high``, then ``tk = change``.
"""


def spent(capacity: int, tk: int, since: int, cost: int) -> int | None:
    """``tk`` after ``cost`` was taken from a bucket that nobody else touches; None where it does not fit."""
    room = capacity - since
    held = room if tk > room else tk
    return held - cost if held + since >= cost else None


def draw(ceiling: int, tk: int, since: int, cost: int, after: int | None = None) -> Draw | None:
    """The draw of ``cost`` from a limit that was last seen at ``tk``, or None where it does not fit.

    A cost of 0 is not checked, so it passes in debt too.
    """
    shift = 0 if after is None else since - after
    room = ceiling - since
    if tk >= room:
        return (True, None, room - 1, room + shift - cost) if cost <= ceiling else None
    if cost == 0:
        return (False, None, room - 1, shift)
    low = cost - since
    return (False, low, room - 1, shift - cost) if tk >= low else None


def owe(ceiling: int, tk: int, since: int, cost: int) -> Draw:
    """The draw of a cost that nobody may refuse any more: the same forms, without a lower bound."""
    room = ceiling - since
    return (True, None, room - 1, room - cost) if tk >= room else (False, None, room - 1, -cost)


def halve(whole: Rule, shard: int, count: int, tk: int, rf: int, now_ms: int, anchor_ms: int) -> tuple[Draw, int]:
    """The draw that leaves shard ``shard`` of ``count`` half of its balance and moves it to a new anchor, and the
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
    return (full, low, room - 1, change), gift - between(other, anchor_ms, now_ms)
