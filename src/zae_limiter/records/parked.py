"""The tokens of a limit that has become a concurrency limit, kept until it counts tokens again.

    b_{limit}_pt    tk, rf, shard, shard_count, cp, ra, rp, ws, ca as the bucket had them, separated by commas

So a limit that counts slots for a while goes on refilling, as one that nobody asks for, and its debt stays debt.
"""

from __future__ import annotations

from ..core.balances import Tokens
from ..core.change import Change
from ..core.production import Rule
from ..core.tokens import TokenFields
from .algebra import Image
from .level import ANCHOR, SHARDS, BucketLimits, parse_calendar, token_fields

PARKED = "pt"


def parse_parked(text: str) -> tuple[Tokens, int]:
    """Return what `park` has written: a balance, and in how many shards its bucket was. Raise ValueError if invalid."""
    *numbers, start, calendar = text.split(",", 8)
    tokens, anchor_ms, shard, shards, capacity, amount, period = map(int, numbers)
    if min(shards, capacity, amount, period) < 1:
        raise ValueError(text)
    whole = Rule(capacity, amount, period, 0, parse_calendar(calendar) if calendar else None)
    return Tokens(whole.begin(int(start) if start else None).share(shard, shards), tokens, anchor_ms), shards


def park(level: BucketLimits, image: Image, change: Change) -> None:
    """Let a change also keep the tokens of limits that count slots from now on."""
    for at in map(token_fields, level.slot_limits):
        if at.tokens in image:
            numbers = image[at.tokens], image[ANCHOR], level.shard, image.get(SHARDS, 1)
            shape = [image.get(attr, "") for attr in (at.capacity, at.amount, at.period, at.window, at.calendar)]
            change.equals[at.tokens] = image[at.tokens]
            change.put[at.parked] = ",".join(map(str, (*numbers, *shape)))


def settle_parked(text: str, amount: int, now_ms: int) -> str:
    """Return parked tokens after a settlement: less by ``amount`` as of now, or more if it is negative."""
    balance, _ = parse_parked(text)
    if amount > 0:
        at_ms = max(now_ms, balance.anchor_ms)
        amount += balance.tokens + balance.since(at_ms) - balance.level(at_ms)
    return f"{balance.tokens - amount},{text.partition(',')[2]}"


def first_level(image: Image | None, at: TokenFields, rule: Rule, now_ms: int) -> int:
    """Return what a limit holds at ``now_ms`` whose tokens are not in the bucket yet.

    It is full, unless the bucket keeps its tokens from before it was a concurrency limit.
    """
    text = None if image is None else image.get(at.parked)
    if image is None or text is None:
        return rule.capacity
    balance, shards = parse_parked(text)
    count: int = image.get(SHARDS, 1)
    return min(rule.capacity, balance.level(max(now_ms, balance.anchor_ms)) * shards // count)
