"""Convert buckets of all old layouts to one record with one anchor.

    per limit    ENTITY#{id} #BUCKET#{resource}#{limit}     tokens_milli, last_refill_ms, capacity_milli, ...
    composite    ENTITY#{id} #BUCKET#{resource}             b_{limit}_tk|cp|bx|ra|rp|tc, rf
    sharded      {ns}/BUCKET#{id}#{resource}#{shard}        the same; a part of the bucket in each shard

An old bucket's level at an instant is ``min(capacity, tokens + (instant - refilled) * amount // period)``. By that
formula every limit is refilled to the latest refill among them, which becomes the anchor: there the levels are exactly
the old ones. Later they differ by at most the one millitoken by which the two formulas round differently.

A quota of version 0.17 holds what is left of the window of its last refill, over all shards that exist; in a later
window it is full.

A client of 0.14 to 0.17 that goes on after an upgrade and sets limits also states them in the buckets of the present
layout, beside an anchor that may be old. Such buckets are converted once more, with all that is still ours. What they
hold of a limit that was stated again cannot be known, as the old rate is gone: it is taken to be the level by the new
one, or for a quota the tokens at the anchor, but no debt and at most the capacity.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...core import names
from ...core.production import MILLI, Rule
from ...records import keys, pressure
from ...records.algebra import TTL, Image, Write
from ...records.bucket import stored_names, stored_rule, whole_rule
from ...records.charging import identity, index_attributes, write_of
from ...records.level import (
    ANCHOR,
    CONFIG_VERSION,
    CREDITS,
    LOT_PREFIX,
    MADE,
    MIGRATED_FROM,
    NEWEST,
    SHARDS,
    BucketLimits,
    TokenLimits,
    attribute,
)
from ...records.settlement import Receipt, settle
from ...records.slot_states import merge_slots
from ...stores.dynamodb.store import CAPABILITIES
from . import policies
from .moves import Move, Old, plan_move, whole_number

MOST_SHARDS = 64
_FOREIGN = re.compile(r"(b_.+_)?(rsched|sched|rsa)|vu")
"""Attributes of a bucket that only older clients write."""


class Holding(NamedTuple):
    """One limit of a bucket in an old layout, in millitokens and milliseconds."""

    limit_name: str
    rule: Rule
    tokens: int
    refilled_ms: int
    consumed: int = 0
    is_level: bool = False
    """Whether ``tokens`` are the balance at ``refilled_ms``, of a bucket of the present layout."""

    def level(self, now_ms: int) -> int:
        """Return the balance at an instant not before the last refill, by the old formula."""
        if self.rule.calendar is not None:
            return self.rule.capacity if self.is_over(now_ms) else self.tokens
        elapsed = max(0, now_ms - self.refilled_ms)
        return min(self.rule.capacity, self.tokens + elapsed * self.rule.amount // self.rule.period)

    def is_over(self, now_ms: int) -> bool:
        """Return whether the window of a quota is over in which it was refilled last."""
        calendar = self.rule.calendar
        assert calendar is not None  # it is a quota
        return calendar.is_idle(now_ms) or calendar.index(now_ms) > calendar.index(self.refilled_ms)


def read_rule(fields: Image, capacity: str, burst: str, amount: str, period: str) -> Rule:
    """Return the rule in the fields of these names. A burst above the capacity becomes the capacity."""
    most = max(whole_number(fields, capacity, 1), whole_number(fields, burst, default=0))
    return Rule(most, whole_number(fields, amount, 1), whole_number(fields, period, 1))


def level_of(ns: str, entity_id: str, resource: str, owner: Image, lifetime_ms: int = 0) -> BucketLimits:
    """Return a bucket as a `BucketLimits` without limits. ``owner`` has the parent that is charged with it."""
    return BucketLimits(
        keys.bucket(ns, entity_id, resource),
        ns,
        entity_id,
        resource,
        (),
        TokenLimits({}),
        lifetime_ms=lifetime_ms,
        cascade=bool(owner.get("cascade")),
        parent_id=owner.get("parent_id") or None,
        partition_writes=CAPABILITIES.partition_writes,
    )


def convert_per_limit(level: BucketLimits, parts: Mapping[str, Old], now_ms: int) -> Move | None:
    """Return the move of the items of a bucket, by limit."""
    held = []
    for name, fields in ((name, old.fields) for name, old in parts.items()):
        rule = read_rule(fields, "capacity_milli", "burst_milli", "refill_amount_milli", "refill_period_ms")
        tokens, refilled = whole_number(fields, "tokens_milli"), whole_number(fields, "last_refill_ms")
        held.append(Holding(name, rule, tokens, refilled, whole_number(fields, "total_consumed_milli", default=0)))
    return _move_bucket(level, list(parts.values()), held, "per-limit", now_ms)


def convert_composite(level: BucketLimits, old: Old, now_ms: int) -> Move | None:
    """Return the move of a bucket that is one item."""
    return _move_bucket(level, [old], _read_holdings(old), "composite", now_ms)


def is_old_shard(image: Image) -> bool:
    """Return whether an older client wrote the bucket, or stated limits in it."""
    return not is_present(image) or any(map(_FOREIGN.fullmatch, image))


def is_present(image: Image) -> bool:
    """Return whether a client of this version made the bucket: they always store the config version."""
    return CONFIG_VERSION in image


def count_shards(olds: Iterable[Old]) -> int:
    """Return how many shards a bucket has, judging by those that exist."""
    return max(
        max(whole_number(old.fields, SHARDS, 1, default=1), keys.parse_bucket_pk(old.key.pk).shard_id + 1)
        for old in olds
    )


def merge_shards(shards: Mapping[int, Old], now_ms: int) -> Move | None:
    """Return the move of all shards of a bucket to one record with their total.

    Each shard has ``capacity // shards`` and ``amount // shards``; a missing one is full. The record is split again
    when traffic requires it.
    """
    olds = list(shards.values())
    number = count_shards(olds)
    if number > MOST_SHARDS:
        raise ValueError(f"it has {number} shards, more than {MOST_SHARDS}")
    parts = [part for old in olds for part in _read_holdings(old)]
    anchor = max((part.refilled_ms for part in parts), default=0)
    held = [
        _merge_holdings([part for part in parts if part.limit_name == name], number, anchor, now_ms)
        for name in sorted({part.limit_name for part in parts})
    ]
    level = level_of(*keys.parse_bucket_pk(olds[0].key.pk)[:3], olds[0].fields)
    return _move_bucket(level, olds, held, "sharded", now_ms)


def _merge_holdings(parts: list[Holding], number: int, anchor: int, now_ms: int) -> Holding:
    """Return the total of one limit over all shards, as of the anchor."""
    whole = parts[0].rule
    if parts[0].is_level:
        tokens, consumed = (sum(each) for each in zip(*[(part.tokens, part.consumed) for part in parts], strict=True))
        return parts[0]._replace(tokens=tokens, refilled_ms=anchor, consumed=consumed)
    if whole.calendar is not None:
        return _merge_quota(parts, number, anchor, now_ms)
    share = Rule(max(1, whole.capacity // number), max(1, whole.amount // number), whole.period)
    levels = [part._replace(rule=share).level(anchor) for part in parts]
    tokens = sum(levels) + (number - len(parts)) * (whole.capacity // number)
    consumed = sum(part.consumed for part in parts)
    return Holding(parts[0].limit_name, whole, tokens if number > 1 else levels[0], anchor, consumed)


def _merge_quota(parts: list[Holding], number: int, anchor: int, now_ms: int) -> Holding:
    """Return the total of a quota: of shards that were not used in this window their share is left."""
    over = [part.is_over(now_ms) for part in parts]
    share = parts[0].rule.capacity // number
    left = sum(share if is_over else part.tokens for part, is_over in zip(parts, over, strict=True))
    tokens = parts[0].rule.capacity if all(over) else left
    return parts[0]._replace(tokens=tokens, refilled_ms=anchor, consumed=sum(part.consumed for part in parts))


def _read_holdings(old: Old) -> list[Holding]:
    """Return the holding of each limit of a bucket item, without the store's own write limit.

    Before namespaces there was no such limit, so one of its name is a user's, which `names.limit_name` refuses.
    """
    fields = old.fields
    reserved = {names.INFRASTRUCTURE_LIMIT} if "/" in old.key.pk.partition("#")[0] else set()
    limit_names = {name[2:-3] for name in fields if name.startswith("b_") and name.endswith("_tk")}
    refilled, found = whole_number(fields, ANCHOR), []
    # a quota that this version wrote: its period is one window, theirs a second at least
    quotas = {name for name in limit_names - reserved if attribute(name, "ca") in fields}
    own = {name for name in quotas if is_present(fields) and fields.get(attribute(name, "rp")) == 1}
    limits = policies.read_bucket_limits(fields, sorted(limit_names - reserved - own))
    for name, limit in limits.items():
        tk, tc, ws = (attribute(name, field) for field in ("tk", "tc", "ws"))
        rule, tokens = policies.convert_rule(limit, fields.get(ws), refilled), whole_number(fields, tk)
        held = Holding(name, rule, tokens, refilled, whole_number(fields, tc, default=0))
        found.append(_estimate(held, fields) if is_present(fields) else held)
    return found + [_read_quota(old, name) for name in sorted(own)]


def _read_quota(old: Old, name: str) -> Holding:
    """Return what a bucket holds of a quota that this version wrote."""
    fields = old.fields
    used = whole_number(fields, NEWEST, default=whole_number(fields, ANCHOR))
    whole, share = whole_rule(fields, name), stored_rule(fields, name, keys.parse_bucket_pk(old.key.pk).shard_id)
    if whole is None or share is None:
        raise ValueError(f"{name} is not complete")
    held = share.level(whole_number(fields, attribute(name, "tk")), whole_number(fields, ANCHOR), used)
    return Holding(name, whole, held, used, whole_number(fields, attribute(name, "tc"), default=0), is_level=True)


def _estimate(held: Holding, fields: Image) -> Holding:
    """Return what a bucket of the present layout holds of a limit that an older client may have stated in it.

    A soft limit may be overdrawn, as it never refuses.
    """
    used = whole_number(fields, NEWEST, default=held.refilled_ms)
    share = held.rule.capacity // whole_number(fields, SHARDS, 1, default=1)
    tokens = min(held.tokens if held.rule.calendar is not None else held.level(used), share)
    is_soft = attribute(held.limit_name, "ov") in fields
    return held._replace(tokens=tokens if is_soft else max(0, tokens), refilled_ms=used, is_level=True)


def _move_bucket(
    level: BucketLimits, olds: list[Old], holdings: Sequence[Holding], layout: str, now_ms: int
) -> Move | None:
    names.entity_id(level.entity_id)
    names.resource(level.resource)
    slots = merge_slots([old.image for old in olds], without={held.limit_name for held in holdings})
    if not holdings and not slots:
        raise ValueError("it holds no limit")
    anchor = max([held.refilled_ms for held in holdings], default=now_ms)
    image: Image = {**identity(level), **index_attributes(level), MIGRATED_FROM: layout}
    image |= {SHARDS: 1, ANCHOR: anchor, CONFIG_VERSION: 0, MADE: anchor * MILLI, NEWEST: anchor}
    image |= pressure.initial_attributes(level, anchor, pressure.WRITE)
    lots: Counter[str] = Counter()
    for old in olds:
        lots.update({attr: value for attr, value in old.image.items() if attr.startswith(LOT_PREFIX)})
    image |= lots | slots
    for held in holdings:
        names.limit_name(held.limit_name)
        tokens = held.tokens if held.is_level else held.level(anchor if held.rule.calendar is None else now_ms)
        if tokens > held.rule.capacity:
            image |= policies.convert_credit(held.limit_name, held.rule, tokens - held.rule.capacity, now_ms)
        values: dict[str, Any] = {"tk": min(tokens, held.rule.capacity), "tc": held.consumed}
        values |= policies.describe_rule(held.rule)
        if overdrawn := sum(
            old.image.get(attribute(held.limit_name, "ov"), 0) for old in olds if is_present(old.image)
        ):
            values["ov"] = overdrawn
        image |= {attribute(held.limit_name, field): value for field, value in values.items()}
    if credits := sum(attr.startswith(LOT_PREFIX) for attr in image):
        image[CREDITS] = credits
    return plan_move("bucket", olds, level.key, image, now_ms)


def merge_bucket(move: Move, current: Image, now_ms: int) -> list[Write]:
    """Return the writes that merge an old bucket into a new one that clients already use, and delete the old one.

    The new one began full, as if nothing had been taken before. So it is charged what the old one lacked, and no token
    is counted twice. The old consumption is not added: it was counted when it happened.
    """
    first = move.writes[0]
    old = dict(first.put)
    owed: dict[str, int] = {}
    new: dict[str, Any] = {}
    for name in stored_names(old) - {names.INFRASTRUCTURE_LIMIT}:
        rule = stored_rule(old, name)
        if rule is None:
            continue
        held = rule.level(old[attribute(name, "tk")], old[ANCHOR], now_ms)
        if stored_rule(current, name) is None:
            new |= _limit_attributes(old, current, name, held, now_ms)
        elif held < rule.capacity:
            owed[name] = rule.capacity - held
    bucket = level_of(*keys.parse_bucket_pk(first.key.pk)[:3], {}, lifetime_ms=1 if TTL in current else 0)
    change = settle(bucket, current, owed, Receipt(now_ms, current.get(MADE, 0)), now_ms)
    write = write_of(change, bucket.key, current)
    counters = {attribute(name, "tc") for name in owed}
    add = {name: amount for name, amount in write.add.items() if name not in counters}
    return [write._replace(put={**write.put, **new}, add=add), *move.writes[1:]]


def _limit_attributes(old: Image, current: Image, name: str, held: int, now_ms: int) -> dict[str, Any]:
    """Return the attributes of a limit that only the old bucket has, relative to the present anchor."""
    rule = stored_rule({**old, SHARDS: current.get(SHARDS, 1)}, name)
    assert rule is not None  # the old bucket has it
    tokens = min(held, rule.capacity) - rule.produced_between(current[ANCHOR], now_ms)
    stored = (attribute(name, field) for field in ("cp", "ra", "rp", "ca", "ws"))
    same = {attr: old[attr] for attr in stored if attr in old}
    return {**same, attribute(name, "tc"): 0, attribute(name, "tk"): tokens}
