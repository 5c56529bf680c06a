"""The bucket record: one item per entity, resource and shard, holding every limit.

    rf                    the anchor, ms; moves only when the limits change
    b_{limit}_tk          tokens relative to the anchor, millitokens
    b_{limit}_tc          net consumption ever, millitokens
    b_{limit}_fl          the last instant, ms, as of which it was charged while full
    b_{limit}_cp|ra|rp    capacity, refill amount (millitokens) and period (ms) under which tk is kept
    cv                    the highest config version it was charged under; raising it moves the anchor
    ttl                   expiry in seconds, only under default limits

A bucket keeps the rule its numbers were written under, so that a client with other limits notices
(`charge` then moves the bucket to the new limits in the same write), and so that anybody can read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.bucket import Rule, first_instant, produced
from ..core.decide import Reading
from ..core.errors import CorruptRecordError
from ..core.values import BucketState
from . import keys
from .algebra import TTL, Image, Key
from .level import ANCHOR, CONFIG_VERSION, attribute

if TYPE_CHECKING:
    from .level import Level

FIELDS = ("tk", "tc", "fl", "cp", "ra", "rp")
_FAR = 2**62
"""No number of a bucket is ever this large."""


def outlives(image: Image) -> int | None:
    """The instant until which a bucket must be kept, where its expiry is sooner."""
    if TTL not in image:
        return None
    full_ms = full_at(image)
    return full_ms if full_ms > image[TTL] * 1000 else None


def reading(level: Level, image: Image | None, now_ms: int) -> Reading:
    """The level as the limits in force see it; a bucket that does not exist is full."""
    tokens: dict[str, tuple[int, int]] = {}
    for name, slot in level.slots.items():
        old = None if image is None else stored_rule(image, name)
        if image is None or old is None:
            tokens[name] = (slot.rule.capacity, now_ms)
        elif old == slot.rule:
            tokens[name] = (image[slot.tk], image[ANCHOR])
        else:
            ceiling = min(old.capacity, slot.rule.capacity)
            tokens[name] = (min(ceiling, image[slot.tk] + between(old, image[ANCHOR], now_ms)), now_ms)
    return Reading(level.entity_id, level.resource, level.limits, tokens)


def states(key: Key, image: Image) -> list[BucketState]:
    """The limits of a stored bucket."""
    inspect(key, image)
    found = []
    for name in sorted(stored_names(image)):
        rule = stored_rule(image, name)
        if rule is not None:
            found.append(
                BucketState(
                    image["entity_id"],
                    image["resource"],
                    name,
                    image[attribute(name, "tk")],
                    image[ANCHOR],
                    *rule,
                    image.get(attribute(name, "tc"), 0),
                )
            )
    return found


def full_at(image: Image) -> int:
    """The instant from which every limit of the bucket is full: forgetting it then loses nothing."""
    rules = ((name, stored_rule(image, name)) for name in stored_names(image))
    return max(
        (
            first_instant(rule, image[attribute(name, "tk")], image[ANCHOR], rule.capacity)
            for name, rule in rules
            if rule is not None
        ),
        default=0,
    )


def inspect(key: Key, image: Image) -> Image:
    """Return ``image`` if its numbers are numbers; a bucket that cannot be read is never unlimited."""
    wrong = [attr for attr in (ANCHOR, CONFIG_VERSION) if type(image.get(attr)) is not int]
    for name in {attr[2:-3] for attr in image if attr.startswith("b_")}:
        for field in FIELDS:
            value = image.get(attribute(name, field))
            least = 1 if field in ("cp", "ra", "rp") else -_FAR
            if type(value) is not int or not least <= value <= _FAR:
                wrong.append(attribute(name, field))
    if wrong:
        owner = keys.parse_bucket_pk(key.pk)
        found = ", ".join(f"{attr}={image.get(attr)!r}" for attr in wrong)
        raise CorruptRecordError(
            f"The bucket {key.pk} holds values that cannot be: {found}. Repair it with "
            f"reset_bucket({owner.entity_id!r}, {owner.resource!r}): the next acquire starts a full bucket."
        )
    return image


def between(rule: Rule, start_ms: int, end_ms: int) -> int:
    return produced(end_ms, rule.amount, rule.period) - produced(start_ms, rule.amount, rule.period)


def stored_rule(image: Image, name: str) -> Rule | None:
    """The rule that a limit's numbers were written under; None where it has none, and so no meaning."""
    capacity, amount, period = (image.get(attribute(name, field)) for field in ("cp", "ra", "rp"))
    if capacity is None or amount is None or period is None:
        return None
    return Rule(capacity, amount, period)


def stored_names(image: Image) -> set[str]:
    return {attr[2:-3] for attr in image if attr.startswith("b_") and attr.endswith("_tk")}
