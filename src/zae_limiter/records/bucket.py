"""The bucket record: one item per entity, resource and shard, holding every limit.

    rf                    the anchor, ms; moves with limits, config version and shards, and when numbers get large
    b_{limit}_tk          tokens relative to the anchor, millitokens
    b_{limit}_tc          net consumption ever, millitokens
    b_{limit}_ov          net consumption ever of a soft limit beyond what it held, millitokens; missing: none
    b_{limit}_ua          unused advances that were ever returned (`core.advance`), millitokens; missing: none
    b_{limit}_cp|ra|rp    capacity, refill amount (millitokens) and period (ms) of the limit that tk is kept under
    b_{limit}_ca          the calendar of a quota, of which rp counts the windows
    b_{limit}_ws          when the window of a quota has begun with its first use, ms; changes only with the anchor
    b_{limit}_pt          the tokens of a limit that counts slots now (`records.parked`)
    b_{limit}_al          the last threshold of a quota that was crossed (`core.alerts`); only where it has thresholds
    at                    the newest instant, ms, as of which it was charged; of two writes at once the later one counts
    mk                    when it was made, microseconds; below a millisecond a number to tell two buckets apart
    cv                    the highest config version it was charged under; raising it moves the anchor
    shard_count           the record has the share of one shard of so many
    lots, lot_{limit}_{expiry}   how many lots of credit it has, and what each holds (`records.lots`)
    sl, s_{limit}_{number}, ...  concurrency limits and their slots (`records.slots`)
    w_{line}              marks of those who wait (`records.waiters`)
    he, ev, bk, b_{limit}_uc|ob   the usage that is not in the usage records yet (`records.ledger`)
    ttl                   expiry in seconds, only under default limits and on one shard

A bucket keeps the rule its numbers were written under, so that a client with other limits notices
(`migration.migrate` then moves the bucket to the new limits in the same write), and so that anybody can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

from ..core.balances import Balance, SlotBalance, Tokens
from ..core.decide import Reading
from ..core.errors import CorruptRecordError, ValidationError
from ..core.names import INFRASTRUCTURE_LIMIT
from ..core.production import FAR, FOR_EVER, Rule
from ..core.tokens import NEVER_USED
from ..core.validation import MissingCronsim
from . import keys
from .algebra import NEVER, TTL, Image, Key
from .level import (
    ANCHOR,
    BOOKINGS,
    CHANGES,
    CONFIG_VERSION,
    CREDITS,
    HOUR_END,
    LIMIT_PREFIX,
    LOT_PREFIX,
    MADE,
    NEWEST,
    SHARDS,
    BucketLimits,
    attribute,
    parse_calendar,
    token_fields,
)
from .lots import credits_by_limit, credits_of, last_expiry, parse_lot
from .parked import PARKED, first_level, parse_parked
from .slot_states import slot_balances, slot_state, stored_slot_names
from .slot_table import SLOTS, SlotTable
from .slots import concurrency_limits, last_until, without_slots

if TYPE_CHECKING:
    from ..core.reports import BucketState, Credit

_LAST_MS = 2**47
"""No hour ends later: usage is written down by calendar, which has no years of five digits."""
_NUMBER, _POSITIVE, _COUNT, _TEXT = (-FAR, FAR), (1, FAR), (0, FAR), (1, 0)
_OF_TOKENS = {"tk": _NUMBER, "tc": _NUMBER, "cp": _POSITIVE, "ra": _POSITIVE, "rp": _POSITIVE}
_OF_SLOTS = {"cp": _COUNT, "tl": _COUNT, "tn": _COUNT, "pk": _COUNT, "tc": _NUMBER}
_OPTIONAL = dict.fromkeys(("uc", "ov", "ob", "al", "ws", "ua"), _NUMBER) | dict.fromkeys(("ca", PARKED), _TEXT)
"""The least and the most that the fields of a limit can be; those that it must have, and others."""


def required_expiry(image: Image) -> int | None:
    """Return the instant until which a bucket must be kept (`NEVER`: for ever), or None if its expiry is not sooner."""
    full_ms = full_at(image) if TTL in image else 0
    return NEVER if full_ms == FOR_EVER else full_ms if full_ms > image.get(TTL, 0) * 1000 else None


def reading(
    shards: Iterable[tuple[BucketLimits, Image | None]], now_ms: int, tables: Iterable[SlotTable | None] = repeat(None)
) -> Reading:
    """Return one entity's bucket under the limits in force, over all shards; one that does not exist is full.

    ``tables`` are the slots of each shard, if these were read before.
    """
    balances: dict[str, tuple[Balance, ...]] = {}
    for (level, image), table in zip(shards, tables, strict=False):
        for name, shard in _balances(level, image, now_ms):
            balances[name] = (*balances.get(name, ()), shard)
        for name, slots in _slot_balances(level, image, table, now_ms) if level.slot_limits else ():
            balances[name] = (*balances.get(name, ()), slots)
    floors = {name: part for name, part in level.floor().items() if part}
    return Reading(level.entity_id, level.resource, level.limits, balances, floors, scheduled=level.scheduled)


def _balances(level: BucketLimits, image: Image | None, now_ms: int) -> Iterable[tuple[str, Tokens]]:
    entries = level.token_limits if image is None else level.token_limits_of(image)
    for name, entry in entries.items():
        held = None if image is None else stored_tokens(image, name, level.shard)
        if image is None or held is None:
            full = first_level(image, entry.at, entry.rule, now_ms)
            full = NEVER_USED if name in level.scheduled and full == entry.rule.capacity else full
            yield name, Tokens(entry.rule, full, now_ms, () if image is None else credits_of(image, name))
        elif held.rule != entry.rule or (name in level.scheduled and not level.is_in_force(latest_instant(image, 0))):
            instant = latest_instant(image, now_ms)
            produced, ceiling = carry_over(level, image, name, held.rule, entry.rule, instant)
            yield name, Tokens(entry.rule, min(ceiling, held.tokens + produced), instant, held.credits)
        else:
            yield name, held


def _slot_balances(
    level: BucketLimits, image: Image | None, table: SlotTable | None, now_ms: int
) -> Iterable[tuple[str, SlotBalance]]:
    table = (table or SlotTable.parse(image)).shorten(image or {}, now_ms)
    for name, limit in level.slot_limits_of(image).items():
        yield name, SlotBalance(limit.rule, table.of(name), now_ms)


def carry_over(level: BucketLimits, image: Image, name: str, old: Rule, new: Rule, now_ms: int) -> tuple[int, int]:
    """Return the way of a limit from the tokens in a bucket to its level under the limits in force, at ``now_ms``.

    These count from their change on, but not before the newest instant that the bucket was charged at under others.
    """
    from ..core.borders import Span, carry

    newest_ms, place = latest_instant(image, 0), (level.shard, image.get(SHARDS, 1))
    span = Span(image[ANCHOR], newest_ms, max(newest_ms, min(level.since.get(name, now_ms), now_ms)), now_ms)
    return carry(level.scheduled.get(name), old, new, span, place)


def latest_instant(image: Image, now_ms: int) -> int:
    """Return the instant from which a bucket may be counted at other rates: now, or the newest that it knows of.

    For a client whose clock is behind, what others have already counted at the old rate stays so.
    """
    known: int = image[NEWEST if NEWEST in image else ANCHOR]
    return max(now_ms, known)


Shards: TypeAlias = list[tuple[Key, Image]]
"""The records of one bucket."""


def group_by_bucket(rows: Iterable[tuple[Key, Image]]) -> list[Shards]:
    """Group records by the bucket that they are shards of. Raise `CorruptRecordError` for a damaged one."""
    found: dict[tuple[str, str], Shards] = {}
    for key, image in rows:
        whose = keys.parse_bucket_pk(key.pk)
        found.setdefault((whose.entity_id, whose.resource), []).append((key, inspect(key, image)))
    return list(found.values())


def states(shards: Shards, now_ms: int) -> list[BucketState]:
    """Return the limits of one stored bucket; several shards are added up as of now, as each is full on its own."""
    from ..core.reports import BucketState

    credit, whose = live_credits(shards, now_ms), keys.parse_bucket_pk(shards[0][0].pk)
    slotted = stored_slot_names(image for _, image in shards)
    names = {name for _, image in shards for name in all_tokens(image)}
    anchor = shards[0][1][ANCHOR] if len(shards) == 1 else now_ms
    found = []
    for name in sorted(names | slotted):
        if name in slotted:
            found.append(slot_state(shards, name, now_ms))
            continue
        whole = next(rule for _, image in shards if (rule := whole_rule(image, name)))
        balances, calendar = stored_balances(shards, name), whole.calendar
        levels = (shard.without_credits().level(now_ms) for shard in balances)
        tokens = balances[0].tokens if len(shards) == 1 else sum(levels)
        consumed, beyond = (sum(image.get(attribute(name, field), 0) for _, image in shards) for field in ("tc", "ov"))
        text, start = (None, None) if calendar is None else (calendar.text, calendar.phase_ms)
        numbers = tokens, anchor, *whole[:3], consumed, text, start, credit.get(name, ()), beyond
        found.append(BucketState(whose.entity_id, whose.resource, name, *numbers))
    return found


def live_credits(shards: Shards, now_ms: int) -> dict[str, tuple[Credit, ...]]:
    """Return by limit the credits of one stored bucket that can be spent at ``now_ms``, in their order."""
    from ..core.reports import Credit

    lots = (pair for _, image in shards for pair in credits_by_limit(image).items())
    found: dict[str, tuple[Credit, ...]] = {}
    for expires_ms, milli, name in sorted([(*lot, name) for name, held in lots for lot in held]):
        if expires_ms > now_ms and milli:
            credit = Credit(milli, None if expires_ms == FOR_EVER else expires_ms)
            found[name] = (*found.get(name, ()), credit)
    return found


def held_balances(shards: Shards, name: str, now_ms: int) -> Sequence[Balance]:
    """Return what each record of a bucket holds of one limit, as it was stated when it was written."""
    return slot_balances(shards, name, now_ms) or stored_balances(shards, name)


def balances_under(level: BucketLimits, shards: Shards, name: str, now_ms: int) -> Sequence[Balance]:
    """Return what each record of a bucket holds of one limit under the limits of a level."""
    rows = [(level.at(keys.parse_bucket_pk(key.pk).shard_id, image.get(SHARDS, 1)), image) for key, image in shards]
    return reading(rows, now_ms).balances.get(name, ())


def stored_balances(shards: Shards, name: str) -> list[Tokens]:
    """Return what each record of a bucket holds of a rate or a quota, under the rule that it was written under."""
    found = (stored_tokens(image, name, keys.parse_bucket_pk(key.pk).shard_id) for key, image in shards)
    return [held for held in found if held is not None]


def stored_tokens(image: Image, name: str, shard: int = 0) -> Tokens | None:
    """Return what a record holds of a rate or a quota, under the rule that it was written under; None if nothing."""
    rule, tokens = stored_rule(image, name, shard), image.get(token_fields(name).tokens)
    return None if rule is None or tokens is None else Tokens(rule, tokens, image[ANCHOR], credits_of(image, name))


def all_tokens(image: Image, shard: int = 0, *, reserved: bool = False) -> dict[str, Tokens]:
    """Return what a record holds of every rate and quota, by name, with the reserved one only if asked for."""
    attrs = without_slots(image) if SLOTS in image else tuple(image)
    names = (name for name in _sort_names(attrs) if reserved or name != INFRASTRUCTURE_LIMIT)
    return {name: held for name in names if (held := stored_tokens(image, name, shard)) is not None}


@lru_cache(maxsize=1024)
def _sort_names(attrs: tuple[str, ...]) -> list[str]:
    return sorted(stored_names(attrs))


def has_parent(image: Image) -> bool:
    """Return whether the entity of a bucket had a parent when the bucket was made."""
    return bool(image.get("parent_id"))


def full_at(image: Image) -> int:
    """Return the instant from which every limit of the bucket is full, no slot is taken and no credit is left.

    Deleting it then loses nothing. `FOR_EVER` for credit that does not expire.
    """
    latest, anchor_ms = last_until(image), image[ANCHOR]
    for name in _sort_names(without_slots(image) if SLOTS in image else tuple(image)):
        if (rule := stored_rule(image, name)) is not None:
            latest = max(latest, rule.fits_at(image[token_fields(name).tokens], anchor_ms, rule.capacity))
    if SLOTS in image:
        parked = [image[attr] for attr in image if attr.startswith(LIMIT_PREFIX) and attr.endswith(f"_{PARKED}")]
        latest = max([latest, *[parse_parked(text)[0].full_at() for text in parked]])
    return latest if CREDITS not in image else max(latest, last_expiry(image))


@lru_cache(maxsize=1024)
def _rule(capacity: int, amount: int, period: int, calendar: str | None) -> Rule:
    """Return a rule by its numbers as they are stored: one object for all records that have the same."""
    return Rule(capacity, amount, period, 0, None if calendar is None else parse_calendar(calendar))


_OLDER = "If a client of zae-limiter 0.x wrote it, `zae-limiter upgrade --force` takes it over with its tokens. "


def inspect(key: Key, image: Image) -> Image:
    """Return ``image`` if its numbers are valid, else raise `CorruptRecordError`: damage never makes it unlimited."""
    check(key, image, SlotTable.parse(image))
    return image


def check(key: Key, image: Image, table: SlotTable) -> None:
    """Raise `CorruptRecordError` unless the numbers of ``image`` are valid, of which the slots were read."""
    wrong = [*table.wrong]
    for attr, (least, most) in _ranges(table.attrs if SLOTS in image else tuple(image)).items():
        value = image.get(attr)
        if (type(value) is not int or not least <= value <= most) and not (
            most < least and _is_sound(parse_parked if attr.endswith(f"_{PARKED}") else parse_calendar, value)
        ):
            wrong.append(f"{attr}={value!r}")
    if wrong:
        owner = keys.parse_bucket_pk(key.pk)
        older = "" if CONFIG_VERSION in image else _OLDER
        raise CorruptRecordError(
            f"The bucket {key.pk} holds invalid values: {', '.join(wrong)}. {older}Repair it with "
            f"reset_bucket({owner.entity_id!r}, {owner.resource!r}): the next acquire starts a full bucket."
        )


def _is_sound(parse: Callable[[str], object], value: object) -> bool:
    """Return whether a value can be parsed."""
    try:
        return isinstance(value, str) and parse(value) is not None
    except (ValueError, ValidationError):
        return False
    except MissingCronsim:  # a reader that needs its windows is told; its numbers are sound without
        return True


@lru_cache(maxsize=1024)
def _ranges(attrs: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Return what must be whole numbers in a bucket with these attributes: the least and the most that each can be.

    An attribute that holds a text has a least that is above its most.
    """
    ranges = {ANCHOR: _NUMBER, CONFIG_VERSION: _NUMBER}
    ranges |= {attr: span for attr, span in ((SHARDS, _POSITIVE), (TTL, _COUNT)) if attr in attrs}
    if CREDITS in attrs:
        lots = [attr for attr in attrs if attr.startswith(LOT_PREFIX)]
        ranges[CREDITS] = (len(lots), len(lots)) if all(_is_sound(parse_lot, lot) for lot in lots) else _TEXT
        ranges |= dict.fromkeys(lots, _COUNT)
    if not {HOUR_END, CHANGES, BOOKINGS}.isdisjoint(attrs):
        ranges |= {HOUR_END: (0, _LAST_MS), CHANGES: _NUMBER, BOOKINGS: _NUMBER}
    if MADE in attrs:
        ranges |= {MADE: _COUNT, NEWEST: _NUMBER}
    fields = [(attr[2:-3], attr[-2:], attr) for attr in attrs if attr.startswith(LIMIT_PREFIX)]
    ranges |= {attr: _OPTIONAL[field] for _, field, attr in fields if field in _OPTIONAL}
    slotted = concurrency_limits(attrs)
    for name in {name for name, _, _ in fields}:
        required = _OF_SLOTS if name in slotted else _OF_TOKENS
        ranges |= {attribute(name, field): span for field, span in required.items()}
        if name == INFRASTRUCTURE_LIMIT:
            ranges[attribute(name, "fl")] = _NUMBER
    return ranges


def stored_rule(image: Image, name: str, shard: int = 0) -> Rule | None:
    """Return the rule that a limit's numbers were written under, or None if the record has none."""
    whole, count = whole_rule(image, name), image.get(SHARDS, 1)
    return whole if whole is None or count == 1 else whole.share(shard, count)


def whole_rule(image: Image, name: str) -> Rule | None:
    """Return the rule of the whole bucket, of which the record may hold a share; None if the record has none."""
    at = token_fields(name)
    capacity, amount, period = image.get(at.capacity), image.get(at.amount), image.get(at.period)
    if capacity is None or amount is None or period is None:
        return None
    rule = _rule(capacity, amount, period, image.get(at.calendar))
    return rule if rule.calendar is None else rule.begin(image.get(at.window))


def stored_names(attrs: Iterable[str]) -> set[str]:
    """Return the names of the limits that a bucket with these attributes holds, the reserved one included."""
    return {attr[2:-3] for attr in attrs if attr.startswith("b_") and attr.endswith("_tk")}
