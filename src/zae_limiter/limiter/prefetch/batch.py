"""Tokens that one write has drawn, until they are granted, go back or expire."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ...core.advance import Advance, UnusedAdvance
from ...records.algebra import Image
from ...records.level import ANCHOR, BucketLimits, token_fields
from ..planning import ShardCharge


@dataclass(slots=True, eq=False)
class PrefetchedBatch:
    """The tokens that one write has drawn, and how it left the bucket."""

    level: BucketLimits
    image: Image
    seen_ms: int
    """The instant as of which the bucket was left so."""
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
        """Return whether nothing of it can be granted any more."""
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
        """Take out everything that is left; return it as a correction: below zero."""
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
        left, size = limit.level(image[limit.at.tokens], now_ms), part.cost.get(name, 0)
        if size:
            advances[name] = Advance(limit, as_of_ms if left >= 0 else now_ms, left + size, size)
        if left >= limit.floor:
            sound.add(name)
    if not advances:
        return None
    kept_ms = min(advance.drawn_ms for advance in advances.values()) + keep_ms
    until_ms = min(kept_ms, frame.window[1], frame.until_ms, level.in_force[1] - 1)
    return PrefetchedBatch(level, image, now_ms, advances, until_ms, sound)
