"""Draws: the writes of a prefetched bucket, which serve callers, draw in advance and settle what came back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial, reduce

from ...core.advance import choose_advance
from ...core.alerts import Alert
from ...core.change import Change, Drawn
from ...core.errors import ZAELimiterError
from ...core.production import MILLI
from ...records import bucket as records, charging, migration
from ...records.algebra import Committed, Image, Write, compose
from ...records.charging import Contention, Frame
from ...records.ledger import with_usage
from ...records.level import ANCHOR, BucketLimits, token_fields
from ...records.watching import watch
from ...repository.backend import Backend
from ...runtime.deadline import Deadline
from ..charge_path import ChargePath
from ..engine import Charges, Engine
from ..grant import NOTHING, Grant, ShardCharge, add_up, new_grant
from ..planning import UNKNOWN, CommitPlan, Freshness, Lack, StalePath, plan_part
from .batches import NeedsExactWrite, WriteUnderWay
from .bucket import FEWEST, DrawPath, PrefetchedBucket

_SCARCE = 2
"""Tokens are scarce in a bucket that has less than this many times what this process wants of them."""
_CAUTION = 0.8
"""How many standard deviations less than usual is drawn then."""
_CROWDED = 0.7
"""How many writes of others in the last moment make a draw act as if there had been one."""


class DrawEngine(Engine):
    """Charges the `DrawPath` of a prefetched bucket: callers get what is held and what its next write draws."""

    @property
    def backend(self) -> Backend:
        """Where it writes."""
        return self._backend

    def start_if_low(self, bucket: PrefetchedBucket) -> None:
        """Draw more tokens in the background before those that are held run out, unless a draw is under way."""
        if not bucket.is_low or bucket.is_drawing:
            return
        bucket.is_drawing = True
        try:
            self._runtime.start(partial(self._draw_more, bucket))
        except RuntimeError:  # no event loop is running here: the next caller has one
            bucket.is_drawing = False

    async def _draw_more(self, bucket: PrefetchedBucket) -> None:
        try:
            if bucket.is_drawing:
                await self.write(bucket)
        finally:
            bucket.is_drawing = False

    async def write(self, bucket: PrefetchedBucket) -> None:
        """Write what waits for a bucket, and draw in advance. Failures are left to callers."""
        with contextlib.suppress(ZAELimiterError, NeedsExactWrite, StalePath):
            await self.take(bucket.chain, NOTHING, self._clock.now_ms(), self._backend.deadline())

    async def settle(self, grant: Grant, delta: Mapping[str, int], deadline: Deadline) -> None:
        """Settle a grant: what was taken of held tokens with the next write to their bucket, the rest now."""
        for taken in grant.prefetched or ():
            if taken is not None:
                taken.settle(delta)
        await super().settle(grant, delta, deadline)

    def refuse_again(self, chain: ChargePath, cost: Mapping[str, int], now_ms: int) -> None:
        """Raise the refusal that is known without asking the store, unless the bucket may have more elsewhere."""
        if not _bucket_of(chain).may_have_more:
            super().refuse_again(chain, cost, now_ms)

    async def charge(self, chain: ChargePath, pending: Charges, now_ms: int, deadline: Deadline) -> None:
        """Decide charges as of now. Raise `NeedsExactWrite` while another write is under way."""
        bucket = _bucket_of(chain)
        write = bucket.begin(self._scope or self._runtime.scope())
        if write is None:
            raise NeedsExactWrite
        try:
            await super().charge(chain, pending, self._clock.now_ms(), deadline)
        finally:
            bucket.end(write)

    def _plan_commit(self, chain: ChargePath, pending: Charges, now_ms: int, freshness: Freshness) -> CommitPlan | Lack:
        """Choose who is served by the next write, and what it also draws and settles.

        Raise `StalePath` if the bucket is not what it was, and `NeedsExactWrite` if it may have what is missing
        elsewhere.
        """
        bucket, now_ms = _bucket_of(chain), chain.instant(self._clock.now_ms())
        level, image = bucket.home.level, bucket.home.seen.image
        with bucket.lock:
            write = bucket.write
            if write is None:  # a child process has forgotten it
                raise NeedsExactWrite
            write.sent, write.now_ms, write.as_of_ms = False, now_ms, now_ms
            if bucket.home.is_outgrown:
                raise StalePath
            bucket.end_batches(now_ms)
            settled, after = (None, None) if image is None else bucket.settle(write, image, now_ms)
            ready = bucket.count_ready(now_ms)
            charges = _choose_charges(level, pending, ready, after, now_ms)
            total = add_up([each.cost for each in charges])
            cost = {name: need for name, need in total.items() if name in bucket.names}
            lacking = {name: need - ready.get(name, 0) for name, need in cost.items()}
            short = {name: max(0, amount) for name, amount in lacking.items() if amount > 0 or not ready.get(name)}
            write.awaited = write.awaited or bool(short)
            if cost and not short:  # what is held is enough
                return CommitPlan(charges, cost, [])
            if not charges and bucket.may_have_more:
                raise NeedsExactWrite
            if not charges and any(bucket.count_left(now_ms).values()):
                return UNKNOWN
            parts = _plan(bucket, write, settled, after, short)
            # If no caller can be served now, those who come later may be.
            if parts is None or not (charges or any(part.cost for part in parts)):
                return UNKNOWN
            write.sent = image is not None and bool(parts)  # the first write of a bucket settles nothing
            return CommitPlan(charges, cost, parts)

    def learn(self, chain: ChargePath, chosen: CommitPlan, outcome: Committed, now_ms: int) -> list[ShardCharge]:
        """Keep what a write has drawn, forget what it has settled, and give each charge its grant.

        A charge for which others have left too little gets none.
        """
        bucket, parts = _bucket_of(chain), chosen.parts
        with bucket.lock:
            write = bucket.write
            if write is None:  # a child process has forgotten it
                raise NeedsExactWrite
            crossing = super().learn(chain, chosen, outcome, write.now_ms)
            write.confirm()
            for part, image in zip(parts, outcome.images, strict=False):  # behind it those of usage records
                bucket.keep(part, image, write)
            # What costs nothing was looked at by the write, unless tokens are held of it.
            looked_at = {name for part in parts for name, size in part.cost.items() if not size}
            for charge in chosen.charges:
                cost = {name: need for name, need in charge.cost.items() if need or name not in looked_at}
                taken = bucket.take_across(cost, write.now_ms) if charge.cost else None
                images = () if taken is not None else (None,)
                grant = new_grant((chain, charge.cost, images, write.now_ms, NOTHING, None, None, (taken,)))
                charge.grant = None if taken is None and charge.cost else grant
            if not all(bucket.serves(part.shard.level) for part in parts):
                bucket.end_batches()  # the limits have changed meanwhile
        return crossing

    async def _follow(
        self, chain: ChargePath, pending: Charges, deadline: Deadline, *, charges: bool = False
    ) -> tuple[ChargePath, Charges]:
        """Raise `StalePath`: the path of the acquire has to be resolved as a whole."""
        raise StalePath

    async def refuse(
        self,
        chain: ChargePath,
        pending: Charges,
        lack: Lack,
        now_ms: int,
        freshness: Freshness,
        deadline: Deadline,
    ) -> bool:
        return await super().refuse(chain, pending, lack, chain.instant(self._clock.now_ms()), freshness, deadline)


def _bucket_of(chain: ChargePath) -> PrefetchedBucket:
    assert isinstance(chain, DrawPath)
    return chain.bucket


def _choose_charges(
    level: BucketLimits, pending: Charges, ready: Mapping[str, int], image: Image | None, now_ms: int
) -> Charges:
    """Return the charges that can be served, in order: from what is ``ready`` and from the bucket."""
    names, floor = level.token_limits.keys(), level.floor(image)
    balances = records.reading([(level, image)], now_ms).balances
    spare = {name: shard.without_credits().level(now_ms) - floor[name] for name, (shard,) in balances.items()}
    held = {name: ready.get(name, 0) + max(0, amount) for name, amount in spare.items()}
    most = {limit.name: limit.capacity * MILLI for limit in level.limits}
    chosen = []
    for charge in pending:
        needs = {name: need for name, need in charge.cost.items() if name in names}
        fits = all(held[name] >= need if need else held[name] or spare[name] >= 0 for name, need in needs.items())
        if fits and not any(need > most[name] for name, need in needs.items()):
            chosen.append(charge)
            held |= {name: held[name] - need for name, need in needs.items()}
    return chosen


def _plan(
    bucket: PrefetchedBucket, write: WriteUnderWay, settled: Write | None, image: Image | None, short: Mapping[str, int]
) -> list[ShardCharge] | None:
    """Return the write that draws what is ``short`` and an advance, after ``settled``, which leaves ``image``.

    Return None if what is short is not there, [] if nothing is to be written. Raise `StalePath` if the bucket was
    charged under newer config.
    """
    level, now_ms, before = bucket.home.level, write.now_ms, bucket.home.seen.image
    if image is None or before is None:
        first = plan_part(bucket.home, None, short, now_ms, charging.ALONE, 0) if short else []
        return [first] if isinstance(first, ShardCharge) else None if short else []
    change, drawn = _draw(bucket, write, image, short)
    if drawn and change is None:
        return None
    made = [settled, charging.write_of(change, level.key, image) if change else None]
    if not any(made):
        return []
    alerts: tuple[Alert, ...] = ()
    whole = reduce(compose, filter(None, made))
    if level.token_limits.watched:
        both = charging.change_of(whole)
        both.drawn = _find_drawn(bucket, before, change, both, now_ms)
        alerts = watch(level, before, both, now_ms)
        whole = charging.write_of(both, level.key, before)
    whole, accruals = with_usage(level, before, whole, now_ms)
    return [ShardCharge(bucket.home, drawn, whole, accruals, write.grants, alerts=alerts)]


def _find_drawn(
    bucket: PrefetchedBucket, image: Image, draw: Change | None, whole: Change, now_ms: int
) -> dict[str, Drawn]:
    """Return the numbers by which a change as a whole takes from limits: debts that it settles, and its ``draw``."""
    level, seen = bucket.home
    frame = None if ANCHOR in whole.put else seen.limits(level, image, now_ms)
    if frame is None:  # it is moved by the draw
        drawn = draw.drawn if draw else {}
        return {name: (image[token_fields(name).tokens], *each[1:]) for name, each in drawn.items()}
    found: dict[str, Drawn] = {}
    for name, limit in frame.by_name.items():
        since = limit.since(now_ms)
        if whole.add.get(limit.at.consumed, 0) > 0:
            found[name] = image[limit.at.tokens], since, limit.rule.capacity, None
    return found


def _draw(
    bucket: PrefetchedBucket, write: WriteUnderWay, image: Image, short: Mapping[str, int]
) -> tuple[Change | None, Mapping[str, int]]:
    """Return the change that draws what is ``short`` and an advance, None if there is none; and what it draws."""
    (level, seen), now_ms = bucket.home, write.now_ms
    frame = seen.limits(level, image, now_ms)
    if frame is None or now_ms > frame.until_ms:
        if charging.is_ahead(level, image):
            raise StalePath
        change = migration.migrate(level, image, short, now_ms, 0, spends_credits=False) if short else None
        return change if isinstance(change, Change) else None, short
    contention, limits = _find_contention(bucket, now_ms), dict(frame.by_name)
    write.as_of_ms = now_ms - (charging.LAG_MS if contention.names else 0)
    advance = _choose_advance(bucket, frame, image, short, now_ms)
    for name, amount in advance.items():  # what callers need has to be there; an advance is drawn ahead of the refill
        limit, ahead = limits[name], _find_ahead(bucket, frame, name)
        limits[name] = limit._replace(floor=limit.floor - (min(amount, ahead) if name in short else ahead))
    drawn, frame = add_up([short, advance]), frame._replace(by_name=limits)
    change = charging.charge(level, image, frame, drawn, now_ms, contention, 0, spends_credits=False) if drawn else None
    return change if isinstance(change, Change) else None, drawn


def _find_ahead(bucket: PrefetchedBucket, frame: Frame, name: str) -> int:
    """Return how far a limit may be drawn ahead of its refill: for half of the time that tokens are kept.

    At most half of its capacity; nothing if something has to be left of it, or credit takes over.
    """
    limit = frame.by_name[name]
    if limit.floor or name in frame.with_lots:
        return 0
    return min(limit.amount * bucket.books.keep_ms // 2 // limit.period, limit.rule.capacity // 2)


def _choose_advance(
    bucket: PrefetchedBucket, frame: Frame, image: Image, short: Mapping[str, int], now_ms: int
) -> dict[str, int]:
    """Return what to draw beyond what is ``short``: for as many acquires of the usual cost as all limits have."""
    demand, keep, share = bucket.demand, bucket.books.keep_ms / MILLI, 1.0
    draws_ahead = bucket.draws and bucket.is_hot and not bucket.books.is_closed
    held, age_ms = bucket.count_left(now_ms), max(0, now_ms - bucket.home.seen.seen_ms)
    wanted: dict[str, float] = {}
    for name, limit in frame.by_name.items() if draws_ahead else ():
        usual = demand.tokens.get(name, 0.0) * keep
        if not usual:
            continue
        gone = int(demand.others.get(name, 0.0) * age_ms / MILLI)  # what others have taken since the bucket was seen
        level = limit.level(image, now_ms) - gone - short.get(name, 0) - max(0, limit.floor)
        # As acquires come by chance: a little more than usual, so that it lasts; of scarce tokens a little less, so
        # that none of them expire here while others want them.
        spread = (usual * demand.usual_cost(name)) ** 0.5
        is_scarce = level < _SCARCE * (usual + spread)
        want = usual + (-_CAUTION * spread if is_scarce else spread) - held.get(name, 0)
        if want >= 1:
            wanted[name] = want
            share = min(share, choose_advance(int(want), level, _find_ahead(bucket, frame, name)) / want)
    expected = [want / demand.usual_cost(name) for name, want in wanted.items()]
    if not wanted or share * min(expected) < FEWEST:
        return {}
    return {name: int(want * share) for name, want in wanted.items()}


def _find_contention(bucket: PrefetchedBucket, now_ms: int) -> Contention:
    """Return which limits others have probably written a moment ago, if their writes are as large as one's own."""
    demand, seen = bucket.demand, bucket.home.seen
    usual = {name: max(1.0, demand.tokens.get(name, 0.0) * bucket.books.keep_ms) for name in demand.others}
    names = {name for name, tokens in demand.others.items() if tokens * charging.LAG_MS > _CROWDED * usual[name]}
    return charging.Contention(names or seen.contention(now_ms).names, seen.seen_ms, seen.lost)
