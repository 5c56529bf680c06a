"""The tokens of a limit that has become a concurrency limit, kept until it counts tokens again.

    b_{limit}_pt    tk, rf, shard, shard_count, cp, ra, rp, ws, ca as the bucket had them, separated by commas

So a limit that counts slots for a while goes on refilling, as one that nobody asks for, and its debt stays debt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..core.balances import Tokens
from ..core.change import Change
from ..core.production import Rule
from .algebra import Image
from .level import ANCHOR, SHARDS, BucketLimits, attribute, parse_calendar

PARKED = "pt"
_FIELDS = ("cp", "ra", "rp", "ws", "ca")


class ParkedTokens(NamedTuple):
    """The balance of a record that was one of ``shards``."""

    balance: Tokens
    shards: int

    @classmethod
    def parse(cls, text: str) -> ParkedTokens:
        """Return what `park` has written. Raise ValueError for anything else."""
        *numbers, start, calendar = text.split(",", 8)
        tokens, anchor_ms, shard, shards, capacity, amount, period = map(int, numbers)
        if min(shards, capacity, amount, period) < 1:
            raise ValueError(text)
        windows = parse_calendar(calendar).begin(int(start) if start else None) if calendar else None
        rule = Rule(capacity, amount, period, 0, windows).share(shard, shards)
        return cls(Tokens(rule, tokens, anchor_ms), shards)


def park(level: BucketLimits, image: Image, change: Change) -> None:
    """Let a change also keep the tokens of limits that count slots from now on."""
    for name in level.slot_limits:
        tk = attribute(name, "tk")
        if tk in image:
            numbers = (image[tk], image[ANCHOR], level.shard, image.get(SHARDS, 1))
            shape = (image.get(attribute(name, field), "") for field in _FIELDS)
            change.equals[tk] = image[tk]
            change.put[attribute(name, PARKED)] = ",".join(map(str, (*numbers, *shape)))


def settle_parked(text: str, amount: int, now_ms: int) -> str:
    """Return parked tokens after a settlement: less by ``amount`` as of now, or more if it is negative."""
    balance = ParkedTokens.parse(text).balance
    if amount > 0:
        at_ms = max(now_ms, balance.anchor_ms)
        amount += balance.tokens + balance.rule.produced_between(balance.anchor_ms, at_ms) - balance.level(at_ms)
    _, _, rest = text.partition(",")
    return f"{balance.tokens - amount},{rest}"


def first_level(image: Image | None, tk: str, rule: Rule, now_ms: int) -> int:
    """Return what a limit holds at ``now_ms`` whose tokens, ``tk``, are not in the bucket yet.

    It is full, unless the bucket keeps its tokens from before it was a concurrency limit.
    """
    text = None if image is None else image.get(tk.removesuffix("tk") + PARKED)
    if image is None or text is None:
        return rule.capacity
    balance, shards = ParkedTokens.parse(text)
    count: int = image.get(SHARDS, 1)
    return min(rule.capacity, balance.level(max(now_ms, balance.anchor_ms)) * shards // count)


def find_parked(image: Image) -> Iterator[ParkedTokens]:
    """Iterate over the tokens of former kinds that a bucket keeps."""
    for attr, value in image.items():
        if attr.endswith(f"_{PARKED}") and attr.startswith("b_"):
            yield ParkedTokens.parse(value)
