"""Tokens that were drawn in advance by one write, and what is corrected of them later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..core.advance import Rest, UnusedAdvance
from ..records.level import ANCHOR, token_fields
from ..records.settlement import Charge
from .chain import Holding
from .planning import add_up

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..core.advance import Advance
    from ..records.algebra import Image
    from ..records.level import Level


class Lot:
    """The tokens that one write has drawn, and how the bucket was left by it."""

    __slots__ = ("advances", "all_born_ms", "image", "left", "level", "now_ms", "sound", "until_ms")

    def __init__(
        self,
        level: Level,
        image: Image,
        now_ms: int,
        advances: dict[str, Advance],
        until_ms: int,
        sound: Collection[str] = (),
    ) -> None:
        self.level = level
        self.image = image
        self.now_ms = now_ms
        self.advances = advances
        self.until_ms = until_ms
        """The last instant at which any of them may be granted."""
        self.sound = sound
        """The limits that were not in debt: a cost of 0 is not refused for these."""
        self.left = {name: advance.size for name, advance in advances.items()}
        """What nobody has taken yet, by limit: the last tokens of each advance. Replaced as a whole."""
        self.all_born_ms = max([advance.all_born_ms for advance in advances.values()], default=now_ms)
        """From when on all that is left may be granted."""

    def is_over(self, now_ms: int) -> bool:
        """Return whether nothing of it can be granted any more."""
        return now_ms > self.until_ms or not any(self.left.values())

    def held(self, name: str) -> Rest | None:
        """Return what is left of one limit; None for nothing."""
        return Rest(self.advances[name], self.left[name]) if self.left.get(name) else None

    def ready(self, name: str, now_ms: int) -> int:
        """Return what may be granted of one limit."""
        tokens = None if now_ms > self.until_ms else self.held(name)
        return 0 if tokens is None else tokens.ready(now_ms)

    def take_back(self) -> dict[str, int]:
        """Take out everything that is left; return it as a correction: below zero."""
        back = {name: -amount for name, amount in self.left.items() if amount}
        self.left = dict.fromkeys(self.left, 0)
        return back

    def unused(self, name: str, amount: int) -> UnusedAdvance:
        """Return ``amount`` of one limit as tokens that come back without having been granted."""
        rule, anchor_ms = self.level.token_limits_of(self.image)[name].rule, self.image[ANCHOR]
        at = token_fields(name)
        left = rule.level(self.image[at.tokens], anchor_ms, self.now_ms)
        room = rule.capacity - left + self.image.get(at.returned, 0)
        return UnusedAdvance(name, amount, room, self.now_ms, anchor_ms)

    def charge(self) -> Charge:
        """Return the draw as the charge that settlements refer to."""
        return Charge.of(self.level, self.image, self.now_ms)


class Correction:
    """What is to be settled of one lot. ``settled`` says that it was; ``lost`` that it cannot be any more.

    ``back`` is not set off against ``owed``: a bucket that was reset since is owed, but given nothing back.
    """

    __slots__ = ("back", "due_ms", "lost", "lot", "owed", "settled", "unused")

    def __init__(self, lot: Lot, due_ms: int) -> None:
        self.lot = lot
        self.due_ms = due_ms
        """When it is written at the latest."""
        self.back: dict[str, int] = {}
        self.owed: dict[str, int] = {}
        self.unused: dict[str, int] = {}
        """The part of ``back`` that was never granted, as positive amounts."""
        self.settled = self.lost = False

    def add(self, delta: Mapping[str, int], *, unused: bool = False) -> None:
        """Add the correction of a lease, or tokens that were not granted: negative if they come back."""
        back = {name: amount for name, amount in delta.items() if amount < 0}
        self.back = add_up([self.back, back])
        if unused:
            self.unused = add_up([self.unused, {name: -amount for name, amount in back.items()}])
        self.owed = add_up([self.owed, {name: amount for name, amount in delta.items() if amount > 0}])

    def unused_advances(self) -> list[UnusedAdvance]:
        """Return the tokens that come back without having been granted."""
        return [self.lot.unused(name, amount) for name, amount in self.unused.items()]

    @property
    def delta(self) -> dict[str, int]:
        """Return both together."""
        return add_up([self.back, self.owed])


class WriteUnderWay:
    """What a write to a bucket settles while it is being made."""

    __slots__ = ("awaited", "corrections", "grants", "scope", "sent")

    def __init__(self, scope: object) -> None:
        self.scope = scope
        """The event loop that it is made in; other values for threads."""
        self.corrections: list[Correction] = []
        self.grants = 0
        """How many grants it adds to the usage."""
        self.awaited = False
        """Whether callers wait for it: then nobody overtakes them."""
        self.sent = False
        """Whether it may have been done, as it was drafted last."""

    def confirm(self) -> None:
        """Note that it was done: then a further one settles what comes after."""
        for correction in self.corrections:
            correction.settled = True
        self.corrections, self.grants, self.sent = [], 0, False


class Counters:
    """What is counted of all buckets: grants and writes, corrections that were lost, millitokens that went back."""

    __slots__ = ("granted", "lost", "returned", "writes")

    def __init__(self) -> None:
        self.granted = self.writes = self.returned = self.lost = 0


class Keeper(Holding, Protocol):
    """What the buckets of one limiter have in common."""

    counters: Counters

    @property
    def keep_ms(self) -> int:
        """For how long a token may be granted."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is drawn in advance."""

    def now_ms(self) -> int:
        """Return the instant."""

    def schedule(self, held: Any) -> None:
        """Have a bucket looked after when something of it is due."""

    def count_lost(self, level: Level, delta: Mapping[str, int]) -> None:
        """Count and log a correction that could not be written."""
