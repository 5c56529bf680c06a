"""Advances: tokens of a limit that a process has drawn before its callers asked for them.

A draw that met the level ``l`` at the instant ``T`` may take more than ``l``: token ``j`` of it is *decided as of* the
first instant at which the bucket would have held it, that is ``T`` while ``j <= l``, else when the refill has made
``j - l``. From then on it may be granted without asking the store, for as long as it is kept. So the tokens that are
decided by any instant are never more than those that an exact bucket would have given by then, however much each
process draws: ``docs/adr/0020-prefetch.md`` has the proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .production import FOR_EVER, Rule
from .tokens import TokenFrame


class Advance(NamedTuple):
    """The tokens of one limit that one draw has taken, in millitokens, and when each of them may be granted."""

    limit: TokenFrame
    drawn_ms: int
    met: int
    """The level of the bucket that the draw has met."""
    size: int

    def last(self, size: int) -> Advance:
        """Return its last ``size`` tokens."""
        return self._replace(met=self.met - self.size + size, size=size)

    def grantable(self, now_ms: int) -> int:
        """Return how many of the tokens are decided as of ``now_ms`` or before."""
        if now_ms < self.drawn_ms:
            return 0
        made = self.limit.since(now_ms) - self.limit.since(self.drawn_ms) if self.limit.amount else 0
        return max(0, min(self.size, self.met + made))

    def grantable_from(self, place: int) -> int:
        """Return the instant as of which the token at ``place`` is decided; the first one has the place 1."""
        if place <= self.met:
            return self.drawn_ms
        made = self.limit.since(self.drawn_ms)
        return max(self.drawn_ms, self.limit.reaches(made + place - self.met - 1) + 1)

    @property
    def all_grantable_from(self) -> int:
        """The instant as of which the last token is decided."""
        return self.grantable_from(self.size)


def choose_advance(wanted: int, level: int, ahead: int) -> int:
    """Return how much to draw in advance of a limit whose level will be ``level``: at most half of what is left.

    ``ahead`` is how far the draw may go beyond that, into the refill of the next moments; the level may be below zero
    for that reason, as others do the same.
    """
    return max(0, min(wanted, (level + ahead) // 2))


class UnusedAdvance(NamedTuple):
    """Tokens of one draw that were prefetched and never granted, in millitokens.

    ``room`` is the capacity less the level right after the draw, plus the bucket's counter of returned advances then.
    """

    limit_name: str
    amount: int
    room: int
    drawn_ms: int
    anchor_ms: int


def value_unused(
    unused: Iterable[UnusedAdvance], returned: int, rule: Rule, anchor_ms: int, now_ms: int
) -> tuple[int, int]:
    """Return how many unused tokens count when they come back, and up to which ``returned`` counter that is true.

    Plain adds would let many processes pile up their advances and spend them at once. So advances fill at most the room
    that there was after their draw, less the refill and the advances returned since. A draw from before the bucket's
    anchor has moved counts for nothing.
    """
    counted, most_returned = 0, FOR_EVER
    for each in unused:
        room = each.room - rule.produced_between(each.drawn_ms, now_ms) - returned - counted
        worth = max(0, min(each.amount, room)) if each.anchor_ms == anchor_ms else 0
        if worth:
            most_returned = min(most_returned, returned + room - worth)
        counted += worth
    return counted, most_returned
