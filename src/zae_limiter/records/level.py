"""A level: one entity's bucket for a resource, seen through the limits in force."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ..core.alerts import AlertLevels
from ..core.borders import Scheduled
from ..core.calendar import Calendar
from ..core.limit import Limit
from ..core.names import FIRST_USE
from ..core.production import Amounts, Rule
from ..core.slots import SlotLimit
from ..core.tokens import SOFT, TokenFields, TokenLimit
from . import keys
from .algebra import Image, Key

ANCHOR, NEWEST, MADE, CONFIG_VERSION, SHARDS, CREDITS = "rf", "at", "mk", "cv", "shard_count", "lots"
HOUR_END, CHANGES, BOOKINGS = "he", "ev", "bk"
LIMIT_PREFIX, LOT_PREFIX = "b_", "lot_"
"""Attributes of a bucket, or what they begin with: `records.bucket` says what they hold."""
HOUR_MS = 3_600_000
MIGRATED_FROM = "migrated_from"
"""The layout that an upgrade brought a bucket from: what it had consumed by then was counted there."""


class TokenLimits(dict[str, TokenLimit]):
    """The rates and quotas of a level, by name.

    ``soft`` says that one never refuses, ``watched`` that one has thresholds, ``first_use`` that one begins its windows
    with their first use; ``has_more`` any of these. ``quotas`` are the names of those with a calendar.
    """

    __slots__ = ("first_use", "has_more", "quotas", "soft", "watched")

    def __init__(self, entries: Mapping[str, TokenLimit]) -> None:
        super().__init__(entries)
        self.soft = any(entry.soft for entry in entries.values())
        self.watched = any(entry.alert_levels is not None for entry in entries.values())
        calendars = {name: calendar for name, entry in entries.items() if (calendar := entry.rule.calendar) is not None}
        self.first_use = any(calendar.unit == FIRST_USE for calendar in calendars.values())
        self.quotas = tuple(calendars)
        self.has_more = self.soft or self.watched or self.first_use


class BucketLimits(NamedTuple):
    """One entity's bucket for a resource, or one shard of it, with the limits in force; a level of a cascade.

    ``token_limits`` are the rates and quotas among the limits (`token_limits_for`), ``slot_limits`` the others.
    ``version`` is that of the config the limits come from (None: the caller passed the limits), ``known_version`` that
    of the config that was read, wherever the limits come from.
    ``lifetime_ms`` is how long an untouched bucket is kept (0: for ever).
    ``partition_writes`` is how many writes a second the store takes for one record (0: it does not matter).
    ``usage_days`` is for how long usage is kept by whoever consumes (0: not by these).
    ``priority`` is that of the requests, which the limits may have a floor for.
    ``bypassed`` says that nothing is refused.
    ``scheduled`` are those limits, by name, that have a schedule; ``limits`` are what these are from the first instant
    of ``in_force`` on until before the second. ``since`` is when the config last changed each of them; limits that a
    caller passed have no such instant, and are in force from now on.
    ``shard_count`` is the number of shards when it was last looked at; what a record says of itself goes first.
    """

    key: Key
    namespace_id: str
    entity_id: str
    resource: str
    limits: tuple[Limit, ...]
    token_limits: TokenLimits
    source: str = ""
    version: int | None = None
    lifetime_ms: int = 0
    cascade: bool = False
    parent_id: str | None = None
    partition_writes: int = 0
    usage_days: int = 0
    shard: int = 0
    shard_count: int = 1
    priority: str | None = None
    bypassed: bool = False
    scheduled: Mapping[str, Scheduled] = MappingProxyType({})
    in_force: tuple[int, int] = (0, 2**62)
    slot_limits: Mapping[str, SlotLimit] = MappingProxyType({})
    since: Mapping[str, int] = MappingProxyType({})
    known_version: int = 2**62

    def for_entity(self, entity_id: str, key: Key, cascade: bool, parent_id: str | None) -> BucketLimits:
        """Return the level of another entity: an unsplit bucket at ``key``, under the same limits."""
        return tuple.__new__(BucketLimits, (key, self[1], entity_id, *self[3:9], cascade, parent_id, *self[11:]))

    def at(self, shard: int, count: int) -> BucketLimits:
        """Return another shard of the same bucket."""
        if shard == self.shard and count == self.shard_count:
            return self
        key = keys.bucket(self.namespace_id, self.entity_id, self.resource, shard)
        return self._replace(key=key, shard=shard, shard_count=count)

    def is_in_force(self, instant_ms: int) -> bool:
        """Return whether no border of a schedule lies between an instant and the limits of the level."""
        return self.in_force[0] <= instant_ms < self.in_force[1]

    def charges(self, cost: Amounts) -> bool:
        """Return whether something of a cost is taken here."""
        return any(cost.get(name) for name in (*self.token_limits, *self.slot_limits))

    def token_limits_of(self, image: Image) -> TokenLimits:
        """Return the limits with the share and the windows that the record has by its own account."""
        count = image.get(SHARDS, 1)
        entries = self.token_limits
        if count > 1:
            entries = token_limits_for(self.limits, self.priority, self.bypassed, self.shard, count)
        if not entries.first_use:
            return entries
        return TokenLimits({name: entry.begin(image.get(entry.at.window)) for name, entry in entries.items()})

    def capacities(self) -> dict[str, int]:
        """Return by limit what the whole bucket can hold, in thousandths of tokens and slots."""
        capacities = {name: entry.rule.capacity for name, entry in self.token_limits.items()}
        return capacities | {name: limit.rule.capacity for name, limit in self.slot_limits.items()}

    def overdrafts(self) -> dict[str, str]:
        """Return by limit that never refuses the attribute that counts what was taken beyond it."""
        found = {name: entry.at.overdrawn for name, entry in self.token_limits.items() if entry.soft}
        return found | {name: attribute(name, "ov") for name, limit in self.slot_limits.items() if limit.soft}

    @property
    def may_overdraw(self) -> bool:
        """Whether one of the limits never refuses."""
        return self.token_limits.soft or any(limit.soft for limit in self.slot_limits.values())

    def floor(self, image: Image | None = None) -> dict[str, int]:
        """Return by limit what a request has to leave of the whole bucket, or of the share that ``image`` is."""
        tokens = self.token_limits if image is None else self.token_limits_of(image)
        floor = {name: entry.floor for name, entry in tokens.items()}
        return floor | {name: limit.floor_milli for name, limit in self.slot_limits_of(image).items()}

    def slot_limits_of(self, image: Image | None) -> Mapping[str, SlotLimit]:
        """Return the concurrency limits with the share that the record has by its own account."""
        count = 1 if image is None else image.get(SHARDS, 1)
        if count == 1 or not self.slot_limits:
            return self.slot_limits
        return {name: limit.share(self.shard, count) for name, limit in self.slot_limits.items()}


@lru_cache(maxsize=1024)
def parse_calendar(text: str) -> Calendar:
    """Return a stored calendar: one object for all records that have the same. Raise `ValidationError`."""
    from ..core.calendar import Calendar

    return Calendar.parse(text)


def attribute(limit_name: str, field: str) -> str:
    """Return the attribute of a limit's field; injective, as a field has two letters and no underscore."""
    return f"{LIMIT_PREFIX}{limit_name}_{field}"


_TOKEN_FIELDS = ("tk", "tc", "ov", "ua", "al", "cp", "ra", "rp", "ca", "ws", "pt")


@lru_cache(maxsize=2**12)
def token_fields(limit_name: str) -> TokenFields:
    """Return the attributes of a rate or a quota."""
    return TokenFields(*[attribute(limit_name, field) for field in _TOKEN_FIELDS])


def stated_rule(at: TokenFields, whole: Rule) -> dict[str, int | str]:
    """Return the attributes by which a record states the rule of a whole bucket."""
    capacity, amount, period, _, calendar = whole
    found: dict[str, int | str] = {at.capacity: capacity, at.amount: amount, at.period: period}
    return found if calendar is None else {**found, at.calendar: calendar.text}


@lru_cache(maxsize=1024)
def token_limits_for(
    limits: tuple[Limit, ...], priority: str | None = None, bypassed: bool = False, shard: int = 0, count: int = 1
) -> TokenLimits:
    """Return the rates and quotas of some limits by name, or a shard's share: one object for all who have the same."""
    entries: dict[str, TokenLimit] = {}
    for limit in limits:
        if limit.is_concurrency:
            continue
        at, whole = token_fields(limit.name), Rule.of(limit)
        rule, floor = whole.share(shard, count), round(whole.capacity * limit.floor(priority))
        floor = SOFT if limit.soft or bypassed else (floor + shard) // count
        # Of a split bucket the first shard is watched, for all of them.
        alert_levels = AlertLevels.of(limit.alerts, rule.capacity) if limit.alerts and shard == 0 else None
        entries[limit.name] = TokenLimit(at, rule, stated_rule(at, whole), floor, alert_levels)
    return TokenLimits(entries)


@lru_cache(maxsize=1024)
def slot_limits_for(
    limits: tuple[Limit, ...], priority: str | None = None, bypassed: bool = False
) -> Mapping[str, SlotLimit]:
    """Return the concurrency limits among some limits by name: one object for all levels that have the same."""
    return {limit.name: SlotLimit.of(limit, priority, bypassed) for limit in limits if limit.is_concurrency}
