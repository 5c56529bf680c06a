"""Refilling: the write that draws tokens of a bucket in advance and settles what has become of those before. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.advance import Advance, choose_advance
from ..core.change import Change
from ..core.production import MILLI
from ..records import bucket, charging, reshaping
from ..records.algebra import Write, apply_write, compose
from ..records.level import CHANGES, HOUR_END, MADE
from .chain import LevelShard
from .held_tokens import Lot
from .planning import Outdated, add_up
from .settling import SettlementPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..core.tokens import TokenFrame
    from ..records.algebra import Image
    from ..records.charging import Contention, Frame, Refusal
    from ..records.level import Level
    from .coalescer import PendingCharge
    from .demand import Demand, Others
    from .grant import Grant
    from .held_tokens import Correction
    from .planning import Part

FEWEST = 2
"""So many acquires must be expected while tokens are kept, or none are drawn in advance."""
_SCARCE = 2
"""Tokens are scarce where a bucket has less than so many times what this process wants of them."""
_CAUTION = 0.8
"""By so many standard deviations less is drawn then than is usually asked for."""
_CROWDED = 0.7
"""So many writes of others are to be expected in a moment, for a draw to be decided as if there had been one."""


class Plan(NamedTuple):
    """A write to a bucket, None where there is nothing to write, and what it draws of each limit, in millitokens."""

    write: Write | None
    drawn: Mapping[str, int]
    as_of_ms: int
    """The instant as of which it draws from limits that were full."""


class Wanted(NamedTuple):
    """What a refill is planned by: who asks for tokens, for how long they are kept, and what is left of them."""

    demand: Demand
    others: Others
    keep_ms: int
    left: Mapping[str, int]

    def plan(
        self,
        home: LevelShard,
        image: Image,
        settled: Write | None,
        short: Mapping[str, int],
        now_ms: int,
        draws: bool,
    ) -> Plan | None:
        """Plan the write that takes what callers are ``short`` of, and if it ``draws``, an advance besides.

        It does so after what ``settled`` does. Return None where what is short is not there. Raise `Outdated` where the
        bucket was charged under newer config.
        """
        level, seen = home
        after = image if settled is None else apply_write(image, settled)
        assert after is not None  # nothing is deleted
        limits = seen.limits(level, after, now_ms)
        if limits is not None and now_ms > limits.until_ms:
            limits = None
        if limits is None and charging.is_ahead(level, after):
            raise Outdated
        contention = self._contention(home, now_ms)
        advance: Mapping[str, int] = {}
        if limits is not None and draws:
            advance = self._choose(limits, after, short, now_ms, now_ms - seen.seen_ms)
        drawn = add_up([short, advance])
        change: Change | Refusal = []
        if limits is None and drawn:
            change = reshaping.migrate(level, after, drawn, now_ms, 0, spends_credits=False)
        elif limits is not None and drawn:
            bounded = limits._replace(by_name={**limits.by_name, **self._lower(limits, short, advance)})
            change = charging.charge(level, after, bounded, drawn, now_ms, contention, 0, spends_credits=False)
        if drawn and not isinstance(change, Change):
            return None
        write = charging.write_of(change, level.key, after) if isinstance(change, Change) else None
        as_of_ms = now_ms - (charging.LAG_MS if contention.names else 0)
        return Plan(
            write if settled is None else settled if write is None else compose(settled, write), drawn, as_of_ms
        )

    def _lower(self, limits: Frame, short: Mapping[str, int], advance: Mapping[str, int]) -> dict[str, TokenFrame]:
        """Return the limits that an advance is drawn of, with the bound of it: what callers need has to be there."""
        found = {}
        for name, amount in advance.items():
            limit, ahead = limits.by_name[name], self._ahead(limits, name)
            found[name] = limit._replace(floor=limit.floor - (min(amount, ahead) if name in short else ahead))
        return found

    def _ahead(self, limits: Frame, name: str) -> int:
        """Return how far a limit may be drawn ahead of its refill: for half of the time that tokens are kept.

        At most for half of its capacity; not at all where something has to be left of it, or where credit takes over.
        """
        limit = limits.by_name[name]
        if limit.floor or name in limits.lots:
            return 0
        return min(limit.amount * self.keep_ms // 2 // limit.period, limit.rule.capacity // 2)

    def _choose(
        self, limits: Frame, image: Image, short: Mapping[str, int], now_ms: int, age_ms: int
    ) -> dict[str, int]:
        """Return what to draw beyond what is short: for as many acquires of the usual cost as all limits have.

        Others have taken their share of the bucket since it was seen, ``age_ms`` ago.
        """
        demand, keep, share = self.demand, self.keep_ms / MILLI, 1.0
        wanted: dict[str, float] = {}
        for name, limit in limits.by_name.items():
            usual = demand.tokens.get(name, 0.0) * keep
            if not usual:
                continue
            gone = self.others.tokens.get(name, 0.0) * max(0, age_ms) / MILLI
            level = limit.level(image[limit.at.tokens], now_ms) - int(gone) - short.get(name, 0) - max(0, limit.floor)
            # As acquires come by chance: a little more than usual, so that it lasts; where tokens are scarce, a little
            # less, so that none of them expire here while others want them.
            spread = (usual * demand.usual_cost(name)) ** 0.5
            is_scarce = level < _SCARCE * (usual + spread)
            want = usual + (-_CAUTION * spread if is_scarce else spread) - self.left.get(name, 0)
            if want >= 1:
                wanted[name] = want
                share = min(share, choose_advance(int(want), level, self._ahead(limits, name)) / want)
        expected = [want / demand.usual_cost(name) for name, want in wanted.items()]
        if not wanted or share * min(expected) < FEWEST:
            return {}
        return {name: int(want * share) for name, want in wanted.items()}

    def _contention(self, home: LevelShard, now_ms: int) -> Contention:
        """Return which limits others have probably written a moment ago, if their writes are as large as one's own."""
        seen, names = home.seen, set()
        for name, tokens in self.others.tokens.items():
            usual = self.demand.tokens.get(name, 0.0) * self.keep_ms
            if tokens * charging.LAG_MS > _CROWDED * max(usual, 1.0):
                names.add(name)
        return charging.Contention(names or seen.contention(now_ms).names, seen.seen_ms, seen.lost)


def choose_charges(
    level: Level,
    pending: Iterable[PendingCharge[Grant]],
    ready: Mapping[str, int],
    image: Image | None,
    settled: Write | None,
    now_ms: int,
) -> list[PendingCharge[Grant]]:
    """Return those who can be served, in order: from what is ``ready``, and from what the bucket has besides.

    That is what it has after what ``settled`` does.
    """
    names = level.token_limits.keys()
    after = image if settled is None else apply_write(image, settled)
    least, balances = level.least(after), bucket.reading([(level, after)], now_ms).balances
    spare = {name: shard.without_credits().level(now_ms) - least[name] for name, (shard,) in balances.items()}
    held = {name: ready.get(name, 0) + max(0, amount) for name, amount in spare.items()}
    most = {limit.name: limit.capacity * MILLI for limit in level.limits}
    chosen = []
    for charge in pending:
        needs = {name: need for name, need in charge.cost.items() if name in names}
        if any(need > most[name] for name, need in needs.items()):
            continue
        if all(held[name] >= need if need else held[name] or spare[name] >= 0 for name, need in needs.items()):
            chosen.append(charge)
            held |= {name: held[name] - need for name, need in needs.items()}
    return chosen


def find_drawn(part: Part, image: Image, as_of_ms: int, now_ms: int, keep_ms: int) -> Lot | None:
    """Return the tokens that a write has drawn, which has left the bucket as ``image``; None where it is none.

    It drew from limits that were full as of ``as_of_ms``.
    """
    level, seen = part.shard
    limits = seen.limits(level, image, now_ms)
    if limits is None:  # they are others by now: then the tokens are taken for nobody
        return None
    advances = {}
    for name, size in part.cost.items():
        limit = limits.by_name[name]
        met = limit.level(image[limit.at.tokens], now_ms) + size
        if size:
            advances[name] = Advance(limit, as_of_ms if met >= size else now_ms, met, size)
    if not advances:
        return None
    sound = {name for name, each in limits.by_name.items() if each.level(image[each.at.tokens], now_ms) >= each.floor}
    kept_ms = min(advance.drawn_ms for advance in advances.values()) + keep_ms
    until_ms = min(kept_ms, limits.window[1], limits.until_ms, level.in_force[1] - 1)
    return Lot(level, image, now_ms, advances, until_ms, sound)


def settle_all(
    home: LevelShard, image: Image, corrections: Sequence[Correction], grants: int, now_ms: int
) -> Write | None:
    """Return the write that settles corrections and counts grants; None if there is nothing to settle."""
    level, write, after = home.level, None, image
    for part in settlements(home, corrections):
        made = part.settle(after, now_ms, None if charging.is_ahead(level, after) else level).write
        made = made._replace(add={attr: amount for attr, amount in made.add.items() if attr != CHANGES})
        write = made if write is None else compose(write, made)
        applied = apply_write(image, write)
        assert applied is not None  # nothing is deleted
        after = applied
    if grants and level.usage_days and HOUR_END in image:
        counted = Write(level.key, (), {}, {CHANGES: grants}, seen=image)
        write = counted if write is None else compose(write, counted)
    return write


def settlements(home: LevelShard, corrections: Sequence[Correction]) -> list[SettlementPart]:
    """Return corrections as parts of settlements: for each bucket what its draws give back, and what they owe."""
    buckets: dict[object, list[Correction]] = {}
    for each in corrections:
        buckets.setdefault((id(each.lot.level), each.lot.image.get(MADE, 0)), []).append(each)
    parts = []
    for group in buckets.values():
        last = max((each.lot for each in group), key=lambda lot: lot.now_ms)
        shard, charge = LevelShard(last.level, home.seen), last.charge()
        back, owed = add_up([each.back for each in group]), add_up([each.owed for each in group])
        if back:
            unused = tuple([advance for each in group for advance in each.unused_advances()])
            parts.append(SettlementPart(shard, back, charge, changes=0, unused=unused))
        if owed:
            parts.append(SettlementPart(shard, owed, charge, changes=0))
    return parts
