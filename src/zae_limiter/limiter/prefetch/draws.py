"""Draws: who is served by the next write to a prefetched bucket, and how much it draws in advance. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...core.advance import choose_advance
from ...core.bucket import MILLI
from ...records import bucket, charging, reshaping
from ..planning import Outdated, add_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...core.draw import AnchoredLimit
    from ...records.algebra import Image, Write
    from ...records.charging import AnchoredLimits, Contention
    from ...records.level import Level
    from ..chain import LevelShard
    from ..coalescer import PendingCharge
    from ..grant import Grant
    from .demand import Demand, Others

FEWEST = 2
"""Minimum number of acquires expected while tokens are kept, for any to be drawn in advance."""
_SCARCE = 2
"""Tokens are scarce in a bucket that has less than this many times what this process wants of them."""
_CAUTION = 0.8
"""How many standard deviations less than usual is drawn then."""
_CROWDED = 0.7
"""How many writes of others in the last moment make a draw act as if there had been one."""


class Draw(NamedTuple):
    """A write to a bucket, None if there is nothing to draw, and what it draws of each limit, in millitokens."""

    write: Write | None
    drawn: Mapping[str, int]
    as_of_ms: int
    """The instant as of which it draws from limits that were full."""


class Wanted(NamedTuple):
    """What a draw is planned by: who asks for tokens, for how long they are kept, and what is left of them."""

    demand: Demand
    others: Others
    keep_ms: int
    left: Mapping[str, int]

    def plan(self, home: LevelShard, image: Image, short: Mapping[str, int], now_ms: int, ahead: bool) -> Draw | None:
        """Plan the write that takes what callers are ``short`` of and, if it draws ``ahead``, an advance as well.

        Return None if what is short is not there. Raise `Outdated` if the bucket was charged under newer config.
        """
        level, seen = home
        limits = seen.limits(level, image, now_ms)
        if limits is None or now_ms > limits.until_ms:
            if charging.is_ahead(level, image):
                raise Outdated
            write = reshaping.reshape(level, image, short, now_ms, 0, spends_credits=False) if short else None
            return Draw(write, short, now_ms) if write or not short else None
        contention = self._contention(home, now_ms)
        advance = self._choose(limits, image, short, now_ms, now_ms - seen.seen_ms) if ahead else {}
        as_of_ms = now_ms - (charging.LAG_MS if contention.names else 0)
        drawn = add_up([short, advance])
        if not drawn:
            return Draw(None, drawn, as_of_ms)
        lowered = limits._replace(by_name={**limits.by_name, **self._lower(limits, short, advance)})
        write = charging.charge(level, image, lowered, drawn, now_ms, contention, 0, spends_credits=False)
        return None if write is None else Draw(write, drawn, as_of_ms)

    def _lower(
        self, limits: AnchoredLimits, short: Mapping[str, int], advance: Mapping[str, int]
    ) -> dict[str, AnchoredLimit]:
        """Return the limits that an advance is drawn of, with the bound of it: what callers need has to be there."""
        found = {}
        for name, amount in advance.items():
            limit, ahead = limits.by_name[name], self._ahead(limits, name)
            found[name] = limit._replace(least=limit.least - (min(amount, ahead) if name in short else ahead))
        return found

    def _ahead(self, limits: AnchoredLimits, name: str) -> int:
        """Return how far a limit may be drawn ahead of its refill: for half of the time that tokens are kept.

        At most half of its capacity; nothing if something has to be left of it, or credit takes over.
        """
        limit = limits.by_name[name]
        if limit.least or name in limits.lots:
            return 0
        return min(limit.amount * self.keep_ms // 2 // limit.period, limit.capacity // 2)

    def _choose(
        self, limits: AnchoredLimits, image: Image, short: Mapping[str, int], now_ms: int, age_ms: int
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
            level = limit.level(image[limit.tk], now_ms) - int(gone) - short.get(name, 0) - max(0, limit.least)
            # As acquires come by chance: a little more than usual, so that it lasts; of scarce tokens a little less, so
            # that none of them expire here while others want them.
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
    now_ms: int,
) -> list[PendingCharge[Grant]]:
    """Return the charges that can be served, in order: from what is ``ready``, and from what the bucket has besides."""
    names, least = level.token_limits.keys(), level.least(image)
    balances = bucket.reading([(level, image)], now_ms).balances
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
