"""The worth of a give-back: as much as the bucket would hold more now had the tokens never been taken.

Had they never been taken, the bucket would hold them still, less what would have run over since: of ``amount`` there
would be ``capacity - M`` at most, where M is the highest level that a draw has met since the charge (or that there is
now). M is not stored, but two upper bounds of it follow from two counters per limit:

    credited      the refill up to the anchor and all that was ever given back. No level since the charge was higher
                  than the level after it plus all that was credited since. What is known to have been taken after the
                  charge and given back since need not be counted: it only made up for itself.
    upper draws   how many draws have met three quarters of the capacity or more, and how often the anchor was moved.
                  While it stands still, no draw since the charge has met more than these three quarters, so there is
                  room for the fourth; whatever was given back since has its share of that.

A capacity that is cut counts as credited by as much: then the lowest capacity since the charge is what counts.

Where nothing has happened since the charge, the two of them vanish together: nobody was charged in between, so the
return is nothing that anybody would have to know of, and is not credited.
"""

from __future__ import annotations

from typing import NamedTuple

from .draw import upper_mark

MOST_CREDITED = 2**51
"""Beyond this many millitokens the counter starts again, so that it stays exact in stores that count in doubles."""


class Snapshot(NamedTuple):
    """One limit of a bucket right after a charge."""

    base: int
    """``tk`` less what had been credited: it never rises above this again, as whatever raises ``tk`` is credited."""
    level: int
    capacity: int
    upper_draws: int
    tokens: int | None = None
    """``tk`` itself; None where the bucket was split since."""

    def split(self) -> tuple[Snapshot, Snapshot]:
        """Return a snapshot for each of the two shards that the bucket was split into, the old one first."""
        kept = Snapshot(self.base // 2, self.level // 2, self.capacity // 2, self.upper_draws)
        given = (self.base - kept.base, self.level - kept.level, self.capacity - kept.capacity, self.upper_draws)
        return kept, Snapshot(*given)


class Order(NamedTuple):
    """The place of a charge among those of one limit of a bucket that are not settled: a later one compares as more.

    A bucket is only ever split further, and between two splits the base falls with every draw. It rises only where a
    charge is undone, to where it was before that.
    """

    shards: int
    fallen: int
    """The base below zero."""


class GiveBack(NamedTuple):
    """How many millitokens count, as long as the counters and ``tk`` do not grow beyond what is given here.

    ``undoes`` says that nothing has happened since the charge: as long as ``tk`` and the counter of credits are what
    they were, the return is not credited.
    """

    counted: int
    most_credited: int | None = None
    upper_draws: int | None = None
    most_tokens: int | None = None
    undoes: bool = False


def give_back(
    after: Snapshot,
    amount: int,
    tk: int,
    credited: int,
    upper_draws: int,
    since: int,
    made_up: int = 0,
    may_undo: bool = True,
) -> GiveBack:
    """Return what counts of giving ``amount`` back to a limit that has ``tk`` now and has produced ``since``.

    ``made_up`` of what was credited since the charge was given back of draws that came after it. Unless it ``may_undo``
    the charge, the return is credited in any case, so that others may write meanwhile.

    >>> give_back(Snapshot(base=50, level=50, capacity=100, upper_draws=1), 50, 40, 0, 2, since=30)
    GiveBack(counted=20, most_credited=0, upper_draws=None, most_tokens=None, undoes=False)
    """
    room = after.capacity - after.base - credited + made_up - since
    if may_undo and after.tokens == tk == after.base + credited:
        return GiveBack(max(0, min(amount, room)), undoes=True)
    if room >= amount:
        return GiveBack(amount, most_credited=credited + room - amount)
    mark = upper_mark(after.capacity)
    is_below = after.level < mark and tk + since < mark and upper_draws == after.upper_draws
    if is_below and after.tokens is not None:
        shared = after.capacity - mark - (credited - (after.tokens - after.base))
        if shared > max(room, 0):
            return GiveBack(min(amount, shared), credited, upper_draws, most_tokens=mark - since - 1)
    return GiveBack(room, most_credited=credited) if room > 0 else GiveBack(0)


def owed_to_new(after: Snapshot, amount: int, produced: int) -> int:
    """Return what is left of a debt of ``amount`` for a bucket that was made since the charge.

    ``produced`` is the refill from the charge until it was made: what that has repaid is not owed any more.
    """
    return min(amount, max(0, amount + after.capacity - after.level - max(0, produced)))
