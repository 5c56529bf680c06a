"""What this process holds of one bucket: tokens that were drawn in advance, and corrections that are to be written.

Callers take from the tokens without asking the store. Every write that draws more of them also settles what has become
of the ones before: what nobody has taken goes back, and what leases have used more or less than they took is corrected.
One write at a time does so. Tokens and corrections of a bucket are shared by all threads and event loops.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..core.advance import Rest
from ..core.production import FOR_EVER, MILLI
from ..core.tokens import Tokens
from ..forks import protect
from ..records import charging
from ..records.algebra import apply_write
from ..records.ledger import with_usage
from ..records.level import CREDITS, SHARDS
from ..records.settlement import is_split
from ..records.watching import watch
from ..runtime.port import has_ended
from .chain import Chain, LevelShard, LevelShards
from .deciding import Draft
from .demand import Demand, Others
from .held_tokens import Correction, Keeper, Lot, WriteUnderWay
from .planning import Elsewhere, Outdated, Part, add_up, plan_part
from .refilling import FEWEST, Wanted, choose_charges, find_drawn, settle_all, settlements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..core.alerts import Alert
    from ..core.limit import Limit
    from ..records.algebra import Image, Write
    from ..records.level import Level
    from .chain import Override
    from .coalescer import PendingCharge
    from .grant import Grant
    from .settling import SettlementPart

_LEAD_MS = 30
"""So long before the tokens run out, at the present demand, more of them are drawn."""


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
        lot = self.places[0][0]
        mine = {name: amount for name, amount in delta.items() if amount and name in lot.level.token_limits}
        if mine:
            self.corrections.append(self.bucket.correct(lot, mine))

    @property
    def is_settled(self) -> bool:
        """Whether all corrections are written, as far as they can be."""
        return all(correction.settled for correction in self.corrections)

    def undo(self) -> None:
        """Put the tokens back; where others have taken more since, the next write returns them."""
        if self.places[0][1]:  # else it has taken nothing
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
                held.append(Rest(lot.advances[limit.name], left[limit.name]))
            rule = lot.level.token_limits_of(lot.image)[limit.name].rule
            tokens = tuple([each for each in held if each is not None])
            yield limit, Tokens(rule, lot.image[anchored.at.tokens], anchored.anchor_ms, advances=tokens).level(now_ms)


class HeldBucket:
    """The tokens held of one bucket, who has asked for them, and what is to be corrected."""

    def __init__(self, held: Keeper, home: LevelShard, given: Override | None, now_ms: int) -> None:
        self._held = held
        self._lock = threading.RLock()
        self.demand = Demand(now_ms)
        self._others = Others()
        self.lots: list[Lot] = []
        """The tokens, the oldest first."""
        self._looked: Lot | None = None
        """What leases have got that have taken nothing of the bucket as it was last seen."""
        self._corrections: list[Correction] = []
        self._open: dict[Lot, Correction] = {}
        """Those of them that may grow, by lot."""
        self._grants = 0
        """How many grants the usage of the bucket does not have yet."""
        self._low: dict[str, float] = {}
        """What is left of each limit when more has to be drawn."""
        self.is_low = False
        """Whether more has to be drawn."""
        self.is_refilling = False
        """Whether that was begun in the background."""
        self.draws = True
        """Whether writes draw in advance; if not, they only settle."""
        self._write: WriteUnderWay | None = None
        self._move(home, given)
        protect(self._lock)

    def _move(self, home: LevelShard, given: Override | None) -> None:
        self.home = home
        self.names = frozenset(home.level.token_limits)
        self.chain = Chain((LevelShards(home, (home,)),), given, 0, FOR_EVER, 0, held=self._held, refills=self)
        """The bucket alone, for the writes that draw in advance."""

    def serves(self, level: Level) -> bool:
        """Return whether the tokens were drawn under the limits of a level, and from its shard."""
        mine = self.home.level
        same = mine.token_limits is level.token_limits and mine.version == level.version
        return same and mine.shard_count == level.shard_count

    def follow(self, home: LevelShard, given: Override | None) -> bool:
        """Go on under other limits; what was drawn under the old ones goes back. Return False if these are older."""
        if self.serves(home.level) and home.seen is self.home.seen:
            return True
        with self._lock:
            if self.serves(home.level):  # what was last seen was forgotten meanwhile, and is kept elsewhere
                self._move(home, given)
                return True
            if (home.level.version or 0) < (self.home.level.version or 0):
                return False
            self.end_lots()
            self._move(home, given)
            return True

    def forget(self) -> None:
        """Hold nothing, and correct nothing: in a child process, where it is the parent's to do."""
        self.lots, self._corrections, self._open, self._write = [], [], {}, None
        self._grants, self.is_refilling = 0, False

    # Taking.

    @property
    def is_hot(self) -> bool:
        """Whether so much is asked for that tokens are worth drawing in advance."""
        return self.demand.acquires * self._held.keep_ms >= FEWEST * MILLI

    def count(self, cost: Mapping[str, int], now_ms: int) -> None:
        """Count an acquire."""
        if self.demand.count(cost, now_ms):
            tokens = self.demand.tokens.items() if self.is_hot else ()
            self._low = {name: amount * _LEAD_MS / MILLI for name, amount in tokens if name in self.names}

    def take(self, cost: Mapping[str, int], now_ms: int) -> Taken | None:
        """Take ``cost`` of the tokens that are held; return None if that is not all there, or callers are waiting."""
        under_way = self._write
        for name, need in cost.items():
            if need and name in self.names:
                break
        else:  # it takes nothing of the bucket
            return self._look(cost, now_ms)
        if not self.lots or (under_way is not None and under_way.awaited):
            return None
        with self._lock:
            lots = self.lots
            for lot in lots:
                if lot.all_born_ms <= now_ms <= lot.until_ms:
                    left = self._take_from(lot, cost)
                    if left is not None:
                        if lot is not lots[0] and lots[0].is_over(now_ms):
                            self.end_lots(now_ms)
                        return Taken(self, ((lot, cost, left),))
                elif not lot.is_over(now_ms):
                    break
            return self._take_across(cost, now_ms)

    def _look(self, cost: Mapping[str, int], now_ms: int) -> Taken | None:
        """Grant a cost that takes nothing, if no limit that it names is in debt.

        Return None where that is not so, or the bucket was not seen for as long as tokens are kept.
        """
        level, seen = self.home
        image = seen.image
        if image is None or not self.is_hot or not 0 <= now_ms - seen.seen_ms <= self._held.keep_ms:
            return None
        limits = seen.limits(level, image, now_ms)
        if limits is None or now_ms > limits.until_ms:
            return None
        for name in cost.keys() & self.names:
            limit, settled = limits.by_name[name], self.see(now_ms) or image
            if limit.level(settled[limit.at.tokens], now_ms) < limit.floor and not self._count_ready(now_ms).get(name):
                return None
        lot = self._looked
        if lot is None or lot.image is not image or lot.level is not level:
            lot = self._looked = Lot(level, image, now_ms, {}, now_ms)
        lot.now_ms = max(lot.now_ms, now_ms)  # as of which it is owed what leases use of it after all
        return Taken(self, ((lot, lot.left, lot.left),))

    def _take_from(self, lot: Lot, cost: Mapping[str, int]) -> dict[str, int] | None:
        """Take ``cost`` of one lot, of which all may be granted. Return what is left; None if it is not all there."""
        lots, low = self.lots, self._low
        left = lot.left.copy()
        for name, need in cost.items():
            have = left.get(name, 0)
            if have < (need or 1):
                if name in self.names and (need or name not in lots[-1].sound):
                    return None
            elif need:
                left[name] = have = have - need
                if have < low.get(name, 0):
                    others = sum([each.left.get(name, 0) for each in lots if each is not lot])
                    self.is_low = self.is_low or have + others < low[name]
        lot.left = left
        self._grants += 1
        return left

    def _take_across(self, cost: Mapping[str, int], now_ms: int) -> Taken | None:
        """Take ``cost`` of several lots, or of those of which not all may be granted; the oldest tokens first."""
        ready = self._count_ready(now_ms)
        sound = self.lots[-1].sound if self.lots else ()
        missing = {name: need for name, need in cost.items() if name in self.names and (need or name not in sound)}
        if not self.lots or any(ready.get(name, 0) < (need or 1) for name, need in missing.items()):
            return None
        places = []
        for lot in self.lots:
            mine = {name: min(need, lot.ready(name, now_ms)) for name, need in missing.items() if need}
            if any(mine.values()):
                lot.left = {name: left - mine.get(name, 0) for name, left in lot.left.items()}
                missing = {name: need - mine.get(name, 0) for name, need in missing.items()}
                places.append((lot, mine, lot.left))
        left = add_up([lot.left for lot in self.lots])
        self.is_low = self.is_low or any(left.get(name, 0) < least for name, least in self._low.items())
        if not places:  # of limits that have changed while it was written
            return Taken(self, ((self.lots[-1], {}, self.lots[-1].left),))
        self._grants += 1
        return Taken(self, places)

    def put_back(self, taken: Taken) -> None:
        """Undo `take`."""
        with self._lock:
            self._grants -= 1
            for lot, mine, left in taken.places:
                if lot.left is left and lot in self.lots:
                    lot.left = {name: amount + mine.get(name, 0) for name, amount in left.items()}
                else:
                    back = {name: -amount for name, amount in mine.items() if name in lot.advances}
                    self.correct(lot, back, unused=True)

    def _count_ready(self, now_ms: int) -> dict[str, int]:
        """Return what may be granted at ``now_ms``, by limit."""
        return add_up([{name: lot.ready(name, now_ms) for name in lot.left} for lot in tuple(self.lots)])

    def count_left(self, now_ms: int) -> dict[str, int]:
        """Return what may be granted at ``now_ms`` or later, by limit."""
        return add_up([lot.left for lot in tuple(self.lots) if now_ms <= lot.until_ms])

    def find_held(self, now_ms: int) -> dict[str, tuple[Rest, ...]]:
        """Return the tokens that may be granted at ``now_ms`` or later, by limit."""
        lots = [lot for lot in tuple(self.lots) if now_ms <= lot.until_ms]
        found = {name: [lot.held(name) for lot in lots] for name in self.names}
        return {name: tuple([each for each in held if each is not None]) for name, held in found.items()}

    # Correcting.

    def correct(self, lot: Lot, delta: Mapping[str, int], *, unused: bool = False) -> Correction:
        """Have ``delta`` added to what a lot has consumed, with the next write."""
        with self._lock:
            found = self._open.get(lot)
            if found is None:
                found = self._open[lot] = Correction(lot, self._held.now_ms() + self._held.keep_ms)
                self._corrections.append(found)
                self._held.schedule(self)
            found.add(delta, unused=unused)
            return found

    def end_lots(self, now_ms: int | None = None) -> None:
        """Have all tokens returned with the next write, or those alone that cannot be granted after ``now_ms``."""
        with self._lock:
            for lot in tuple(self.lots):
                if now_ms is None or lot.is_over(now_ms):
                    self.lots.remove(lot)
                    back = lot.take_back()
                    self._held.counters.returned -= sum(back.values())
                    if back or (self._grants and lot.level.usage_days):  # they have to be counted as well
                        self.correct(lot, back, unused=True)

    def take_corrections(self) -> list[tuple[Correction, SettlementPart]]:
        """Take out what no write that draws can settle, for whoever settles it otherwise."""
        with self._lock:
            if self.is_writing:
                return []
            found, self._corrections, self._open = self._corrections, [], {}
            for correction in found:
                correction.settled = True
            parts = [(each, part) for each in found for part in settlements(self.home, [each])]
            for place, (each, part) in enumerate(parts):  # the first that can counts the grants as well
                if not part.is_split:
                    parts[place], self._grants = (each, part._replace(changes=self._grants)), 0
                    break
            return parts

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing held and nothing to write."""
        return not (self.lots or self._corrections or self.is_writing)

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._write is not None

    def due_ms(self) -> int:
        """Return when something has to be written, if no other write takes it along, or the next tokens expire."""
        ends = [lot.until_ms + 1 for lot in tuple(self.lots)]
        return min([*ends, *self._due()], default=FOR_EVER)

    def _due(self) -> list[int]:
        return [correction.due_ms for correction in tuple(self._corrections)]

    def is_due(self, now_ms: int) -> bool:
        """Return whether something has to be written by ``now_ms``; what has expired by then is to be."""
        self.end_lots(now_ms)
        return min(self._due(), default=FOR_EVER) <= now_ms

    # Writing: `Engine` decides by `draft`, commits, and has `learn` called; one at a time, between `begin` and `end`.

    def begin(self, scope: object) -> WriteUnderWay | None:
        """Begin to write in an event loop, or in threads; return None if somebody else is writing."""
        with self._lock:
            if self._write is not None and has_ended(self._write.scope):  # in a loop that was closed meanwhile
                self.end(self._write)
                self.is_refilling = False
            if self._write is not None:
                return None
            self._write = WriteUnderWay(scope)
            self._held.schedule(self)
            return self._write

    def end(self, write: WriteUnderWay) -> None:
        """End a write, unless that has happened: in a child process, or where its event loop was closed before.

        What was sent and not confirmed is not written again, as it may have been: it is lost.
        """
        with self._lock:
            if write is not self._write:
                return
            self._write = None
            for correction in write.corrections if write.sent else ():
                correction.lost = correction.settled = True
                self._held.count_lost(self.home.level, correction.delta)
            if not write.sent:
                self._corrections = [*write.corrections, *self._corrections]
                self._grants += write.grants
                self._held.schedule(self)

    def draft(self, pending: list[PendingCharge[Grant]], now_ms: int) -> Draft | None:
        """Choose who is served by the next write, and what it draws and settles besides.

        Return None where nobody can be. Raise `Outdated` where the bucket is not what it was, and `Elsewhere` where it
        may have what is missing in other places.
        """
        level, seen = self.home
        image = seen.image
        if (1 if image is None else image.get(SHARDS, 1)) != level.shard_count:
            raise Outdated
        with self._lock:
            under_way = self._expect_write()
            under_way.sent = False
            self.end_lots(now_ms)
            settled = None if image is None else self._settle(under_way, image, now_ms)
            ready = self._count_ready(now_ms)
            charges = choose_charges(level, pending, ready, image, settled, now_ms)
            cost = {name: need for name, need in add_up([each.cost for each in charges]).items() if name in self.names}
            short = {
                name: max(0, need - ready.get(name, 0))
                for name, need in cost.items()
                if ready.get(name, 0) < (need or 1)
            }
            under_way.awaited = under_way.awaited or bool(short)
            if cost and not short:  # what is held is enough
                return Draft(charges, cost, [])
            if not charges and self._may_have_more:
                raise Elsewhere
            if not charges and any(self.count_left(now_ms).values()):
                return None
            chosen = self._plan(Draft(charges, cost, []), image, settled, short, now_ms)
            # Where nobody can be served now, those who come later may be.
            if chosen is None or not (charges or any(part.cost for part in chosen.parts)):
                return None
            under_way.sent = image is not None and bool(chosen.parts)  # the first write of a bucket settles nothing
            return chosen

    def _expect_write(self) -> WriteUnderWay:
        """Return the write that is under way; raise `Elsewhere` in a child process, which has forgotten it."""
        if self._write is None:
            raise Elsewhere
        return self._write

    def _settle(self, under_way: WriteUnderWay, image: Image, now_ms: int) -> Write | None:
        """Take the corrections in hand that one write can settle; return that write."""
        for correction in tuple(self._corrections):
            if not is_split(correction.lot.level, image):
                self._corrections.remove(correction)
                self._open.pop(correction.lot, None)
                under_way.corrections.append(correction)
        under_way.grants, self._grants = under_way.grants + self._grants, 0
        return settle_all(self.home, image, under_way.corrections, under_way.grants, now_ms)

    def see(self, now_ms: int) -> Image | None:
        """Return the bucket as it will be when what is to be corrected is written."""
        level, seen = self.home
        image = seen.image
        if image is None or is_split(level, image):
            return image
        with self._lock:
            in_hand = [] if self._write is None else self._write.corrections
            settled = settle_all(self.home, image, [*in_hand, *self._corrections], 0, now_ms)
        return image if settled is None else apply_write(image, settled)

    @property
    def _may_have_more(self) -> bool:
        """Return whether the bucket has tokens that are not drawn in advance: in other shards, or as credits."""
        image = self.home.seen.image
        return self.home.level.shard_count > 1 or (image is not None and CREDITS in image)

    def _plan(
        self, chosen: Draft, image: Image | None, settled: Write | None, short: Mapping[str, int], now_ms: int
    ) -> Draft | None:
        """Return what was chosen with the write that settles what there is to settle and draws what is short.

        It draws an advance besides. Return None where it does not fit.
        """
        level = self.home.level
        if image is None:
            first = plan_part(self.home, None, short, now_ms, charging.ALONE, 0) if short else None
            if short and not isinstance(first, Part):
                return None
            return chosen._replace(parts=[first] if isinstance(first, Part) else [], as_of_ms=now_ms)
        draws = self.draws and self.is_hot and not self._held.is_closed
        wanted = Wanted(self.demand, self._others, self._held.keep_ms, self.count_left(now_ms))
        plan = wanted.plan(self.home, image, settled, short, now_ms, draws)
        if plan is None or plan.write is None:
            return None if plan is None else chosen
        write = plan.write
        alerts: tuple[Alert, ...] = ()
        if level.token_limits.watched:
            change = charging.change_of(write)
            alerts = watch(level, image, change, now_ms)
            write = charging.write_of(change, level.key, image)
        write, accruals = with_usage(level, image, write, now_ms)
        part = Part(self.home, plan.drawn, write, accruals, self._expect_write().grants, alerts=alerts)
        return chosen._replace(parts=[part], as_of_ms=plan.as_of_ms)

    def learn_loss(self) -> None:
        """Note that the write that was drafted last was not done: somebody else was faster."""
        self._expect_write().sent = False

    def learn(self, chosen: Draft, image: Image | None, now_ms: int) -> list[Taken | None]:
        """Keep what a write has drawn, and forget what it has settled.

        Return what each of those it was chosen for has got; None for one for whom others have left too little.
        """
        with self._lock:
            under_way = self._expect_write()
            if under_way.sent:
                under_way.confirm()
            for part in chosen.parts:
                self._held.counters.writes += 1
                if image is not None:
                    self._others.learn(part.shard.level, image, part.write, now_ms)
                    self._keep(part, chosen.as_of_ms, image, now_ms)
            under_way.awaited = False
            # What costs nothing was looked at by the write, where nothing is held of it.
            looked_at = {name for part in chosen.parts for name, size in part.cost.items() if not size}
            served: list[Taken | None] = []
            for charge in chosen.charges:
                cost = {name: need for name, need in charge.cost.items() if need or name not in looked_at}
                served.append(self._take_across(cost, now_ms) if charge.cost else None)
            if chosen.cost and not chosen.parts and not any(served):
                raise Elsewhere  # others have taken what was held
            if not all(self.serves(part.shard.level) for part in chosen.parts):
                self.end_lots()  # the limits have changed meanwhile
            return served

    def _keep(self, part: Part, as_of_ms: int, image: Image, now_ms: int) -> None:
        """Keep the tokens that a write has drawn, which has left the bucket as ``image``."""
        lot = find_drawn(part, image, as_of_ms, now_ms, self._held.keep_ms)
        if lot is not None:
            self.lots.append(lot)
            self.is_low = False
            self._held.schedule(self)
