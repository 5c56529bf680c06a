"""The lots of credit in a bucket record: tokens that are spent after the allowance, each lot with its own expiry.

    lots                      how many lots the record has; missing: none
    lot_{limit}_{expiry}      the millitokens of one lot; its expiry in milliseconds, or ``never``

A lot is named by its limit and its expiry, so what is added with the same expiry joins it. Which lots there are changes
only with the anchor of the bucket. Of a split bucket the first shard has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ..core.credits import SpentLots
from ..core.production import FOR_EVER
from .algebra import Image
from .level import CREDITS, LOT_PREFIX

_NEVER = "never"


class Lot(NamedTuple):
    """A lot of a limit: when it expires (`FOR_EVER`: never), and the attribute that holds it."""

    limit_name: str
    expires_ms: int
    attr: str


def lot_attribute(limit_name: str, expires_ms: int) -> str:
    """Return the attribute of a lot; injective, as an expiry has no underscore."""
    return f"{LOT_PREFIX}{limit_name}_{_NEVER if expires_ms == FOR_EVER else expires_ms}"


def parse_lot(attr: str) -> Lot:
    """Return the lot that an attribute holds. Raise ValueError for an attribute that is no lot."""
    limit_name, _, expiry = attr.removeprefix(LOT_PREFIX).rpartition("_")
    if not limit_name:
        raise ValueError(attr)
    return Lot(limit_name, FOR_EVER if expiry == _NEVER else int(expiry), attr)


@lru_cache(maxsize=1024)
def _parse_lots(attrs: tuple[str, ...]) -> tuple[Lot, ...]:
    found = [parse_lot(attr) for attr in attrs if attr.startswith(LOT_PREFIX)]
    return tuple(sorted(found, key=lambda lot: (lot.limit_name, lot.expires_ms)))


def lots_of(image: Image) -> tuple[Lot, ...]:
    """Return the lots of a bucket, expired ones too, by limit and in the order in which they are spent."""
    return _parse_lots(tuple(image)) if CREDITS in image else ()


def held_lots(image: Image, limit_name: str, now_ms: int) -> list[tuple[str, int]]:
    """Return the attributes of the live lots of a limit and what they hold, in the order in which they are spent."""
    lots = [lot for lot in lots_of(image) if lot.limit_name == limit_name and lot.expires_ms > now_ms]
    return [(lot.attr, image[lot.attr]) for lot in lots]


def credits_by_limit(image: Image) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return by limit when its lots expire and what they hold, as `Tokens` have them."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for lot in lots_of(image):
        found[lot.limit_name] = (*found.get(lot.limit_name, ()), (lot.expires_ms, image[lot.attr]))
    return found


def credits_of(image: Image, limit_name: str) -> tuple[tuple[int, int], ...]:
    """Return when the lots of one limit expire and what they hold."""
    return credits_by_limit(image).get(limit_name, ()) if CREDITS in image else ()


def last_expiry(image: Image) -> int:
    """Return the instant at which the last lot expires that holds something: 0 if none does, `FOR_EVER` for never."""
    return max((lot.expires_ms for lot in lots_of(image) if image[lot.attr] > 0), default=0)


def spent_lots(add: Mapping[str, int]) -> SpentLots:
    """Return what the additions of a write take from lots, in their order."""
    spent = [(attr, -amount) for attr, amount in add.items() if attr.startswith(LOT_PREFIX) and amount < 0]
    return tuple([(parse_lot(attr).limit_name, attr, amount) for attr, amount in spent])
