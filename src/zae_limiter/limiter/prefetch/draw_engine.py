"""The engine for one prefetched bucket at a time: every write also draws in advance and settles what came back."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ...core.errors import ZAELimiterError
from ...records import charging
from ...records.algebra import compose
from ...records.ledger import with_usage
from ...records.watching import watch
from ..deciding import Draft
from ..engine import Engine
from ..grant import NOTHING, new_grant
from ..planning import Outdated, Part, add_up, plan_part
from .bucket import DrawChain
from .corrections import NeedsExactWrite
from .draws import Wanted, choose_charges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...records.algebra import Committed, Image, Write
    from ...runtime.deadline import Deadline
    from ..chain import Chain
    from ..coalescer import PendingCharge
    from ..deciding import Knowledge
    from ..grant import Grant
    from .bucket import PrefetchedBucket
    from .corrections import WriteUnderWay


class DrawEngine(Engine):
    """Charges the `DrawChain` of a prefetched bucket: callers get what is held and what its next write draws."""

    def start_if_low(self, bucket: PrefetchedBucket) -> None:
        """Draw more tokens in the background before those that are held run out, unless that is under way."""
        if not bucket.is_low or bucket.is_drawing:
            return
        bucket.is_drawing = True
        try:
            self._runtime.start(partial(self._draw_more, bucket))
        except RuntimeError:  # no event loop is running here: the next caller has one
            bucket.is_drawing = False

    async def _draw_more(self, bucket: PrefetchedBucket) -> None:
        """Draw more tokens, unless they were returned since that was begun."""
        try:
            if bucket.is_drawing:
                await self.write(bucket)
        finally:
            bucket.is_drawing = False

    async def write(self, bucket: PrefetchedBucket) -> None:
        """Write what there is to write of a bucket, and draw in advance if it does. Failures are left to callers."""
        with contextlib.suppress(ZAELimiterError, NeedsExactWrite, Outdated):
            await self.take(bucket.chain, NOTHING, self._clock.now_ms(), self.begin())

    async def settle(self, grant: Grant, delta: Mapping[str, int], deadline: Deadline) -> None:
        """Settle a grant: what was taken of held tokens with the next write to their bucket, the rest now."""
        for taken in grant.held or ():
            if taken is not None:
                taken.settle(delta)
        await super().settle(grant, delta, deadline)

    def refuse_again(self, chain: Chain, cost: Mapping[str, int], now_ms: int) -> None:
        """Raise the refusal that is known without asking the store, unless the bucket may have more elsewhere."""
        if not _bucket_of(chain).may_have_more:
            super().refuse_again(chain, cost, now_ms)

    async def _charge(self, chain: Chain, pending: list[PendingCharge[Grant]], now_ms: int, deadline: Deadline) -> None:
        """Decide charges by a write of their own. Raise `NeedsExactWrite` while another one is under way."""
        bucket = _bucket_of(chain)
        write = bucket.begin(self._scope or self._runtime.scope())
        if write is None:
            raise NeedsExactWrite
        try:
            await super()._charge(chain, pending, self._clock.now_ms(), deadline)
        finally:
            bucket.end(write)

    def _draft(
        self, chain: Chain, pending: list[PendingCharge[Grant]], now_ms: int, knowledge: Knowledge
    ) -> Draft | None:
        """Choose who is served by the next write, and what it draws and settles besides.

        Return None if nobody can be. Raise `Outdated` if the bucket is not what it was, and `NeedsExactWrite` if it
        may have what is missing in other places.
        """
        bucket, now_ms = _bucket_of(chain), chain.instant(self._clock.now_ms())
        level, image = bucket.home.level, bucket.home.seen.image
        with bucket.lock:
            write = bucket.expect_write()
            write.sent, write.now_ms, write.as_of_ms = False, now_ms, now_ms
            if bucket.home.is_outgrown:
                raise Outdated
            bucket.end_batches(now_ms)
            settled, after = (None, None) if image is None else bucket.settle(write, image, now_ms)
            ready = bucket.count_ready(now_ms)
            charges = choose_charges(level, pending, ready, after, now_ms)
            total = add_up([each.cost for each in charges])
            cost = {name: need for name, need in total.items() if name in bucket.names}
            lacking = {name: need - ready.get(name, 0) for name, need in cost.items()}
            short = {name: max(0, amount) for name, amount in lacking.items() if amount > 0 or not ready.get(name)}
            write.awaited = write.awaited or bool(short)
            if cost and not short:  # what is held is enough
                return Draft(charges, cost, [])
            if not charges and bucket.may_have_more:
                raise NeedsExactWrite
            if not charges and any(bucket.count_left(now_ms).values()):
                return None
            parts = _plan(bucket, write, settled, after, short)
            # If no caller can be served now, those who come later may be.
            if parts is None or not (charges or any(part.cost for part in parts)):
                return None
            write.sent = image is not None and bool(parts)  # the first write of a bucket settles nothing
            return Draft(charges, cost, parts)

    def _learn(self, chain: Chain, chosen: Draft, outcome: Committed, now_ms: int) -> list[Part]:
        """Keep what a write has drawn, forget what it has settled, and give each charge its grant.

        A charge for which others have left too little gets none.
        """
        bucket, parts = _bucket_of(chain), chosen.parts
        with bucket.lock:
            write = bucket.expect_write()
            crossing = super()._learn(chain, chosen, outcome, write.now_ms)
            for charge in chosen.charges:
                charge.grant = None
            write.confirm()
            for part, image in zip(parts, outcome.images, strict=False):  # behind it those of usage records
                bucket.keep(part, image, write)
            # What costs nothing was looked at by the write, unless tokens are held of it.
            looked_at = {name for part in parts for name, size in part.cost.items() if not size}
            for charge in chosen.charges:
                cost = {name: need for name, need in charge.cost.items() if need or name not in looked_at}
                taken = bucket.take_across(cost, write.now_ms) if charge.cost else None
                if taken is not None or not charge.cost:
                    images = () if taken is not None else (None,)
                    fields = (chain, charge.cost, images, write.now_ms, NOTHING, None, None, (taken,))
                    charge.grant = new_grant(fields)
            if chosen.cost and not parts and not any(charge.grant for charge in chosen.charges):
                raise NeedsExactWrite  # others have taken what was held
            if not all(bucket.serves(part.shard.level) for part in parts):
                bucket.end_batches()  # the limits have changed meanwhile
        return crossing

    async def _follow(
        self, chain: Chain, pending: list[PendingCharge[Grant]], deadline: Deadline, *, charges: bool = False
    ) -> tuple[Chain, list[PendingCharge[Grant]]]:
        """Raise `Outdated`: the bucket is found by way of chains, which have to be resolved as wholes."""
        raise Outdated

    async def _refuse(
        self,
        chain: Chain,
        pending: list[PendingCharge[Grant]],
        now_ms: int,
        knowledge: Knowledge,
        deadline: Deadline,
    ) -> bool:
        """Refuse every charge as of now, when more tokens may be granted than before."""
        return await super()._refuse(chain, pending, chain.instant(self._clock.now_ms()), knowledge, deadline)


def _bucket_of(chain: Chain) -> PrefetchedBucket:
    assert isinstance(chain, DrawChain)
    return chain.bucket


def _plan(
    bucket: PrefetchedBucket,
    write: WriteUnderWay,
    settled: Write | None,
    image: Image | None,
    short: Mapping[str, int],
) -> list[Part] | None:
    """Return the write that draws what is ``short`` and an advance, after ``settled``, which leaves ``image``.

    Return None if what is short is not there, [] if nothing is to be written.
    """
    home, now_ms = bucket.home, write.now_ms
    if image is None:
        first = plan_part(home, None, short, now_ms, charging.ALONE, 0) if short else None
        return None if short and first is None else [first] if first else []
    wanted = Wanted(bucket.demand, bucket.others, bucket.books.keep_ms, bucket.count_left(now_ms))
    draw = wanted.plan(home, image, short, now_ms, bucket.draws and bucket.is_hot and not bucket.books.is_closed)
    if draw is None:
        return None
    write.as_of_ms = draw.as_of_ms
    made = compose(settled, draw.write) if settled and draw.write else settled or draw.write
    if made is None:
        return []
    before = home.seen.image
    made, alerts = watch(home.level, before, made, now_ms) if home.level.token_limits.watched else (made, ())
    made, accruals = with_usage(home.level, before, made, now_ms)
    return [Part(home, draw.drawn, made, accruals, write.grants, alerts=alerts)]
