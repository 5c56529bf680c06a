"""Merge an old bucket into a new one that clients already use.

The new one began full, as if nothing had been taken before. So it is charged what the old one lacked, and no token is
counted twice. The old consumption is not added: it was counted when it happened. For all other kinds of records the
existing one is newer, and the old one is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.bucket import between, level
from ...core.names import INFRASTRUCTURE_LIMIT
from ...records import keys
from ...records.algebra import TTL
from ...records.bucket import stored_names, stored_rule
from ...records.level import ANCHOR, MADE, SHARDS, attribute
from ...records.settlement import Charge, settle
from .buckets import Owner, level_of

if TYPE_CHECKING:
    from ...records.algebra import Image, Write
    from .items import Move


def merge_bucket(move: Move, current: Image, now_ms: int) -> list[Write]:
    """Return the writes that charge the present bucket what the old one lacked and delete the old one."""
    first = move.writes[0]
    old = dict(first.put)
    whose = keys.parse_bucket_pk(first.key.pk)
    owed: dict[str, int] = {}
    new: dict[str, Any] = {}
    for name in stored_names(old) - {INFRASTRUCTURE_LIMIT}:
        rule = stored_rule(old, name)
        if rule is None:
            continue
        held = level(rule, old[attribute(name, "tk")], old[ANCHOR], now_ms)
        if stored_rule(current, name) is None:
            new |= _limit_attributes(old, current, name, held, now_ms)
        elif held < rule.capacity:
            owed[name] = rule.capacity - held
    bucket = level_of(Owner(*whose[:3]), lifetime_ms=1 if TTL in current else 0)
    write = settle(bucket, current, owed, Charge(now_ms, current.get(MADE, 0), {}, {}), now_ms).write
    counters = {attribute(name, "tc") for name in owed}
    add = {name: amount for name, amount in write.add.items() if name not in counters}
    return [write._replace(put={**write.put, **new}, add=add), *move.writes[1:]]


def _limit_attributes(old: Image, current: Image, name: str, held: int, now_ms: int) -> dict[str, int]:
    """Return the attributes of a limit that only the old bucket has, relative to the present anchor."""
    rule = stored_rule({**old, SHARDS: current.get(SHARDS, 1)}, name)
    assert rule is not None  # the old bucket has it
    tokens = min(held, rule.capacity) - between(rule, current[ANCHOR], now_ms)
    same = {attribute(name, field): old[attribute(name, field)] for field in ("cp", "ra", "rp")}
    zeros = {attribute(name, field): 0 for field in ("tc", "cr", "hi")}
    return {**same, **zeros, attribute(name, "tk"): tokens}
