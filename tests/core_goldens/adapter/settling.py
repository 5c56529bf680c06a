"""Settling a charge: what it was, and the writes that correct it in its bucket as it is by then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zae_limiter.core.advance import UnusedAdvance
from zae_limiter.core.tokens import draw_all
from zae_limiter.limiter import committing, grant as grants, settling
from zae_limiter.limiter.charge_path import BucketShard
from zae_limiter.records import charging, ledger, settlement, watching
from zae_limiter.records.level import CREDITS, SHARDS
from zae_limiter.repository.last_seen import LastSeenBuckets

from ..worlds import Spot
from .levels import Planned, Receipt, Settled, chain_of, last_seen, level_of, owned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zae_limiter.records.algebra import Image
    from zae_limiter.records.level import BucketLimits

    from ..worlds import Terms, Unused
    from .levels import ImagesByShard


def receive(
    spots: Sequence[Spot],
    plans: Sequence[Planned],
    cost: Mapping[str, int],
    images: Sequence[Image],
    now_ms: int,
    later: Mapping[str, int],
) -> Receipt:
    """Return the receipt of a charge that left its records as ``images``, where others took ``later`` on top."""
    pairs = zip(spots, images, strict=True)
    chain = chain_of([BucketShard(level_of(spot, now_ms), last_seen(image, now_ms)) for spot, image in pairs])
    is_plain = len(plans) == 1 and not chain.slot_names and CREDITS not in images[0]
    parts = None if is_plain else tuple([planned.part for planned in plans])
    return grants.Grant(chain, cost, images, now_ms, later, parts)


def read_receipt(receipt: Receipt) -> dict[str, Any]:
    """Return what a caller is shown of a charge: what is left, how much of it is credit, and what was overdrawn."""
    left = {limit.name: tokens for _, limit, tokens in grants.read_left(receipt)}
    held = {name: tokens for (_, name), tokens in grants.read_credits(receipt).items()}
    return {"left": left, "credits": held, "overdrawn": list(grants.find_overdrawn(receipt))}


def describe_charges(receipt: Receipt, delta: Mapping[str, int]) -> list[Any]:
    """Return by record when a charge was made, in which bucket, what it has overdrawn, and which lots get it back."""
    parts = settling.settlement_parts(receipt, delta)
    return [[part.receipt.instant_ms, part.receipt.made, dict(part.receipt.overdrawn), part.lots] for part in parts]


def add_share(receipt: Receipt, delta: Mapping[str, int]) -> Receipt:
    """Return the receipt of a charge after a part of it was settled."""
    return grants.add_share(receipt, delta)


def settle(
    receipt: Receipt,
    delta: Mapping[str, int],
    images: ImagesByShard,
    now_ms: int,
    current: Terms | None = None,
    unused: Sequence[Unused] = (),
    meets: bool = False,
) -> list[Settled]:
    """Return the writes that settle a charge in its bucket as it is now, which may be split, moved or gone.

    ``current`` are the terms in force, if these are known; ``meets``: the records were just read.
    """
    found: list[Settled] = []
    for part in settling.settlement_parts(receipt, delta):
        prefetched = tuple([UnusedAdvance(*each) for each in unused if delta.get(each.name, 0) < 0])
        found += _settle_part(part._replace(unused=prefetched), images, now_ms, current, meets)
    return found


def undo(planned: Planned, image: Image, images: ImagesByShard, now_ms: int) -> list[Settled]:
    """Return the writes that undo a charge that left its record as ``image``: it was never handed out."""
    part = planned.part
    level = part.shard.level
    back = {name: -amount for name, amount in part.cost.items() if amount and name in level.token_limits}
    whose = settlement.Receipt.of(level, image, now_ms, cost=part.allowance_cost)
    crossed = committing._find_crossed(part)
    undone = settling.SettlementPart(
        part.shard, back, whose, changes=-part.grants, lots=part.lots, crossed=crossed, slots=part.slots
    )
    return _settle_part(undone, images, now_ms, None, False) if back or part.slots else []


def _settle_part(
    part: settling.SettlementPart, images: ImagesByShard, now_ms: int, current: Terms | None, meets: bool
) -> list[Settled]:
    """Settle one part as `settling.Settling` does, without a store."""
    level = part.shard.level
    image = images.get(level.shard)
    part = part._replace(shard=BucketShard(level, last_seen(image, now_ms)))
    if image is None:
        return _remake(part, now_ms, current)
    if part.is_split:
        halves = part.split(SimpleNamespace(last_seen=LastSeenBuckets()))  # type: ignore[arg-type]  # all it needs
        return [each for half in halves for each in _settle_part(half, images, now_ms, current, meets)]
    part = part.meet(image) if meets else part
    there = None if current is None else _find_level(current, level, image, now_ms)
    made = part.settle(image, now_ms, there)
    change = ledger.with_usage(level, image, made.write, now_ms)
    return [Settled(level.shard, change.write, change.accruals, made.alerts)]


def _find_level(current: Terms, level: BucketLimits, image: Image, now_ms: int) -> BucketLimits | None:
    """Return a record under the terms in force; None if it was charged under newer ones."""
    found = level_of(Spot(current, level.shard, image.get(SHARDS, 1)), now_ms)
    return None if charging.is_ahead(found, image) else found


def _remake(part: settling.SettlementPart, now_ms: int, current: Terms | None) -> list[Settled]:
    """Settle a part whose bucket is gone."""
    charged, delta = part.shard.level.at(0, 1), part.delta
    if not delta:
        return []
    if max(delta.values()) > 0 and current is not None:
        level = level_of(Spot(current), now_ms)
        made = settlement.remake(level, charged, delta, part.receipt, now_ms, 7)
        alerts = watching.watch(level, None, made, now_ms) if level.token_limits.watched else ()
        return [Settled(0, charging.write_of(made, level.key, None), (), alerts)]
    if not charged.usage_days:
        return []
    change = ledger.usage_without_bucket(charged, part.used(), part.changes, now_ms)
    return [Settled(0, change.write, change.accruals, ())]


def settle_in_place(
    spot: Spot, image: Image, charged: Image, charged_ms: int, delta: Mapping[str, int], now_ms: int
) -> Image | None:
    """Return a bucket after its owner has settled a charge that left it as ``charged``; None if it needs a write."""
    planned = owned(spot, image, now_ms)
    if planned is None or not (planned.is_plain or planned.returns_count(charged, charged_ms, delta)):
        return None
    if any(limit.soft and limit.level(charged, charged_ms) < 0 for limit in planned.frame.by_name.values()):
        return None  # what was overdrawn comes back by what the charge cost, which is not given here
    after = draw_all(planned.settles, image, delta, now_ms)
    if after is not None and after is not image:
        planned.note_debt(after, delta, now_ms)
    return after
