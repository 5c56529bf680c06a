"""Write pressure: how close a record is to what the store can write to it in a second.

Every bucket of a store with such a limit carries the reserved limit ``wcu`` among its own. It refuses no request; when
it runs low, the bucket is split. It refills at four fifths of what the store takes, so that it runs low before the
store throttles, as throttled writes are not counted. Its writes are not guarded: a lost count does not matter. Its
``fl`` is the last instant of a write, for clocks that are behind.
"""

from __future__ import annotations

from typing import Any

from ..core.names import INFRASTRUCTURE_LIMIT
from ..core.production import MILLI, Rule
from .algebra import Guards, Image
from .level import ANCHOR, SHARDS, BucketLimits, attribute

WRITE = MILLI
"""The cost of one write."""

_MOST_LOST = 10
"""How many lost writes are counted at once: more than that were lost over a time in which the limit refilled."""

_FIELDS = _TK, _TC, _FL, _CP, _RA, _RP = [
    attribute(INFRASTRUCTURE_LIMIT, field) for field in ("tk", "tc", "fl", "cp", "ra", "rp")
]


def _rule(level: BucketLimits) -> Rule:
    return Rule(level.partition_writes * MILLI, level.partition_writes * MILLI * 4 // 5, MILLI)


def initial_attributes(level: BucketLimits, anchor_ms: int, taken: int = 0) -> dict[str, int]:
    """Return the attributes of a record that has counted only ``taken`` so far."""
    if not level.partition_writes:
        return {}
    rule = _rule(level)
    values = (rule.capacity - taken, taken, anchor_ms, rule.capacity, rule.amount, rule.period)
    return dict(zip(_FIELDS, values, strict=True))


def count(
    level: BucketLimits,
    image: Image,
    now_ms: int,
    put: dict[str, Any],
    add: dict[str, int],
    seen_ms: int = 0,
    lost: int = 0,
) -> None:
    """Count one write, and the lost ones before it, which have cost the store as much.

    Only a writer that has seen the surplus of an idle time cuts it off: its put would wipe out what others have counted
    since an older image.
    """
    rule = _rule(level)
    taken = WRITE * (1 + min(lost, _MOST_LOST))
    if image.get(_CP) != rule.capacity:
        put.update(initial_attributes(level, image[ANCHOR], taken))
        return
    if now_ms > image[_FL]:
        put[_FL] = now_ms
    if image[_TK] + rule.produced_between(image[ANCHOR], seen_ms) >= rule.capacity:
        put[_TK] = rule.capacity - rule.produced_between(image[ANCHOR], now_ms) - taken
    else:
        add[_TK] = -taken
    add[_TC] = taken


def moved_attributes(level: BucketLimits, image: Image, now_ms: int, anchor_ms: int) -> dict[str, int]:
    """Return the attributes of a record that gets another anchor, with one more write counted."""
    taken = initial_attributes(level, anchor_ms, WRITE)
    if _TK in image:
        rule = _rule(level)
        held = rule.level(image[_TK], image[ANCHOR], now_ms) - WRITE
        taken |= {_TK: held - rule.produced_between(anchor_ms, now_ms), _TC: image[_TC] + WRITE}
    return taken


def moved_counters(image: Image, anchor_ms: int) -> dict[str, int]:
    """Return what a write adds that moves a record to another anchor and changes nothing else."""
    if not {_TK, _TC, _CP, _RA, _RP} <= image.keys():
        return {}
    rule = Rule(image[_CP], image[_RA], image[_RP])
    return {_TK: rule.produced_between(image[ANCHOR], anchor_ms) - WRITE, _TC: WRITE}


def is_high(level: BucketLimits, image: Image, now_ms: int) -> bool:
    """Return whether the record takes nearly as many writes as the store can make."""
    if not level.partition_writes or _TK not in image:
        return False
    rule = _rule(level)
    return rule.level(image[_TK], image[ANCHOR], max(now_ms, image[_FL])) * 2 < rule.capacity


def is_sustained(partition_writes: int, first: Image, last: Image) -> bool:
    """Return whether a record took four fifths of what the store can make between two images, a second at least."""
    if not {_TC, _FL} <= first.keys() & last.keys():
        return False
    milliseconds = max(MILLI, last[_FL] - first[_FL])
    return bool((last[_TC] - first[_TC]) * 5 >= partition_writes * milliseconds * 4 > 0)


def guard_unwritten(image: Image) -> Guards:
    """Return the guard that the record was not written since it was seen as ``image``."""
    return ((_TC, "=", image[_TC]),) if _TC in image else ()


def is_new(shard: int, image: Image) -> bool:
    """Return whether a record was just made: a whole bucket counts one write then, the new shard of a split none."""
    count = image.get(SHARDS, 0)
    return bool(image.get(_TC) == WRITE) if count == 1 else bool(2 * shard >= count > 1 and image.get(_TC) == 0)
