"""A case: one bucket under terms and a clock that change, and what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zae_limiter.records.algebra import TTL, Image, Write, apply_write, holds
from zae_limiter.records.level import SHARDS

from . import adapter, worlds
from .dice import Dice
from .worlds import FLAVOURS, START_MS, Spot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .adapter import Planned, Receipt, Slot

_MOST_OLD = 6
_MOST_SHARDS = 16
_FAR = 2**62
EXACT_FROM = 700
"""From this case on, many steps are exactly at an instant at which something ends, or a millisecond beside it."""
CLOCKS_MS = 1_743_296_400_000
"""30 March 2025, when the clocks of Berlin skip an hour."""


class Charge(NamedTuple):
    """A charge that was made and can be settled: what was taken from which records, and the first of them after it."""

    spot: Spot
    plans: Sequence[Planned]
    receipt: Receipt
    cost: Mapping[str, int]
    image: Image
    now_ms: int

    @property
    def slots(self) -> list[Slot]:
        """The slots that it took."""
        return [slot for planned in self.plans for slot in planned.slots]


class Case:
    """The life of one bucket. What happens in each step is chosen by dice of its own."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.flavour = FLAVOURS[number % len(FLAVOURS)]
        self.is_exact = number >= EXACT_FROM
        dice = Dice(f"case {number}")
        self.now_ms = START_MS + dice.below(20_000_000_000)
        if self.is_exact and dice.chance(0.5):
            self.now_ms = CLOCKS_MS - dice.below(200_000_000)
        self.terms = worlds.draw_terms(dice, self.flavour)
        self.images: dict[int, Image] = {}
        """The records of the bucket by shard."""
        self.older: list[tuple[int, Image]] = []
        """Some images that records have had."""
        self.charges: list[Charge] = []
        self.freed: list[tuple[str, int]] = []
        """Slots that were released lately, by limit and number."""
        self.serial = 0

    def begin_step(self, place: int) -> Dice:
        """Let time pass, terms change and the bucket expire, each at times. Return the dice of the step."""
        dice = Dice(f"case {self.number} step {place}")
        self.now_ms = worlds.tick(dice, self.now_ms)
        if self.is_exact and dice.chance(0.5):
            self.now_ms = dice.pick(self._find_borders()) + dice.pick((0, 0, 0, -1, 1))
        if dice.chance(self.flavour.changes):
            self.terms = worlds.change_terms(dice, self.flavour, self.terms, self.now_ms)
        is_over = any(image.get(TTL, _FAR) * 1000 <= self.now_ms for image in self.images.values())
        if dice.chance(0.7) and is_over:
            self.images = {}
        self.serial += 1
        return dice

    def _find_borders(self) -> list[int]:
        """Return instants at which something ends: an hour, a window, a lot, a slot, a record, or what is missing."""
        found = {CLOCKS_MS, self.now_ms}
        found |= {(self.now_ms // length + 1) * length for length in (30_000, 300_000, 3_600_000, 86_400_000)}
        for image in self.images.values():
            found |= {adapter.full_at(image), image.get(TTL, 0) * 1000}
            found |= {value for attr, value in image.items() if attr.startswith("s_")}
            found |= {int(attr.rpartition("_")[2]) for attr in image if attr.startswith("lot_") and attr[-1].isdigit()}
            for limit in self.terms.limits:
                begun_ms = image.get(f"b_{limit.name}_ws")
                if begun_ms is not None and limit.calendar is not None:
                    found.add(begun_ms + limit.calendar.period_ms)
        return sorted(each for each in found if abs(each - self.now_ms) < 3_000_000_000)

    def spot(self, dice: Dice) -> Spot:
        """Return one of the records, the first if there is none yet."""
        return self.spot_of(dice.pick(sorted(self.images) or [0]))

    def spot_of(self, shard: int) -> Spot:
        """Return a record under the terms in force."""
        return Spot(self.terms, shard, self.images.get(shard, {}).get(SHARDS, 1))

    def older_image(self, dice: Dice, shard: int) -> Image | None:
        """Return an image that a record has had; None if none is known."""
        found = [image for place, image in self.older if place == shard]
        return dice.pick(found) if found else None

    def apply(self, write: Write) -> bool:
        """Apply a write to a record of the bucket if its guards hold. Return whether they do."""
        shard = next(shard for shard in range(_MOST_SHARDS) if write.key == adapter.key_of(shard))
        before = self.images.get(shard)
        if not holds(before, write.guards):
            return False
        if not write.is_check:
            if before is not None:
                self.older = [*self.older[1 - _MOST_OLD :], (shard, before)]
            after = apply_write(before, write)
            assert after is not None  # no write of a bucket deletes it
            self.images[shard] = dict(sorted(after.items()))  # stores keep no order
        return True
