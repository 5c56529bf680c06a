"""Tokens that were drawn in advance by one write, what one grant has taken of them, and what is corrected later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.advance import HeldTokens
from ..core.bucket import ShardBalance
from ..records.settlement import Charge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..core.advance import Advance
    from ..core.limit import Limit
    from ..records.algebra import Image
    from ..records.level import Level
    from .held_bucket import HeldBucket


class Lot:
    """The tokens that one write has drawn, and how the bucket was left by it."""

    __slots__ = ("advances", "calm_from_ms", "calm_until_ms", "ends_ms", "image", "left", "level", "now_ms", "unused")

    def __init__(self, level: Level, image: Image, now_ms: int, advances: dict[str, Advance]) -> None:
        self.level = level
        self.image = image
        self.now_ms = now_ms
        self.advances = advances
        self.left = {name: advance.size for name, advance in advances.items()}
        """What nobody has taken yet, by limit: the last tokens of each advance. Replaced as a whole."""
        self.unused = dict.fromkeys(advances, 0)
        """What cannot be granted any more."""
        self.calm_from_ms = max(advance.all_born_ms for advance in advances.values())
        self.calm_until_ms = min(min(each.drawn_ms + each.keep_ms, each.until_ms) for each in advances.values())
        """From when until when all that is left may be granted."""
        self.ends_ms = max(min(each.all_born_ms + each.keep_ms, each.until_ms) for each in advances.values())
        """The last instant at which any of it may be granted."""

    def is_over(self, now_ms: int) -> bool:
        """Return whether nothing of it can be granted any more."""
        return now_ms > self.ends_ms or not any(self.left.values())

    def held(self, name: str) -> HeldTokens | None:
        """Return what is left of one limit; None for nothing."""
        return HeldTokens(self.advances[name], self.left[name]) if self.left.get(name) else None

    def ready(self, name: str, now_ms: int) -> int:
        """Return what may be granted of one limit."""
        tokens = self.held(name)
        return 0 if tokens is None else tokens.ready(now_ms)

    def pass_over_expired(self, now_ms: int) -> None:
        """Leave what cannot be granted any more to be returned."""
        if now_ms <= self.calm_until_ms:
            return
        for name, advance in self.advances.items():
            valid = advance.size - advance.expired(now_ms)
            if valid < self.left[name]:
                self.unused[name] += self.left[name] - valid
                self.left = {**self.left, name: valid}

    def take_unused(self) -> dict[str, int]:
        """Take out what cannot be granted any more; return it as a correction: below zero."""
        back = {name: -amount for name, amount in self.unused.items() if amount}
        self.unused = dict.fromkeys(self.unused, 0)
        return back

    def end(self) -> None:
        """Leave everything to be returned."""
        self.unused = {name: amount + self.left[name] for name, amount in self.unused.items()}
        self.left = dict.fromkeys(self.left, 0)

    def charge(self) -> Charge:
        """Return the draw as what a settlement belongs to."""
        return Charge.of(self.level, self.image, self.now_ms, {})._replace(orders={}, may_undo=False)


class Correction:
    """What is to be settled of one lot. ``settled`` says that it was; ``lost`` that it cannot be any more."""

    __slots__ = ("delta", "due_ms", "lost", "lot", "settled")

    def __init__(self, lot: Lot, due_ms: int) -> None:
        self.lot = lot
        self.due_ms = due_ms
        """When it is written at the latest."""
        self.delta: dict[str, int] = {}
        self.settled = self.lost = False


class Taken:
    """What one grant has taken of the tokens that are held of a bucket.

    ``places`` are the lots that it is from, the oldest first: what was taken of each, and what that has left.
    """

    __slots__ = ("bucket", "corrections", "places")

    def __init__(self, bucket: HeldBucket, places: Sequence[tuple[Lot, Mapping[str, int], Mapping[str, int]]]) -> None:
        self.bucket = bucket
        self.places = places
        self.corrections: list[Correction] = []

    def settle(self, delta: Mapping[str, int]) -> None:
        """Have a correction written with the next write to the bucket; it belongs to the oldest of the lots."""
        mine = {name: amount for name, amount in delta.items() if amount and name in self.bucket.names}
        if mine:
            self.corrections.append(self.bucket.correct(self.places[0][0], mine))

    @property
    def is_settled(self) -> bool:
        """Whether all corrections are written, as far as they can be."""
        return all(correction.settled for correction in self.corrections)

    def undo(self) -> None:
        """Put the tokens back; where others have taken more since, the next write returns them."""
        self.bucket.put_back(self)

    def read_left(self, level: Level, now_ms: int) -> Iterator[tuple[Limit, int]]:
        """Iterate over what a caller could rely on right after it: what was held, and what the bucket had besides."""
        lot, _, left = self.places[-1]
        others = [each for each in tuple(self.bucket.lots) if each is not lot]
        limits = self.bucket.home.seen.limits(lot.level, lot.image, now_ms)
        for limit in level.limits:
            anchored = None if limits is None else limits.by_name.get(limit.name)
            if anchored is None:
                continue
            held = [each.held(limit.name) for each in others]
            if left.get(limit.name):
                held.append(HeldTokens(lot.advances[limit.name], left[limit.name]))
            rule = lot.level.token_limits_of(lot.image)[limit.name].rule
            tokens = tuple([each for each in held if each is not None])
            yield limit, ShardBalance(rule, lot.image[anchored.tk], anchored.anchor_ms, advances=tokens).level(now_ms)
