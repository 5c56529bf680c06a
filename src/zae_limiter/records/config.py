"""The config record of the three stored levels: system, resource and entity.

l_{limit}_cp|ra|rp    capacity, refill amount, refill period in seconds: whole tokens
l_{limit}_ca          the calendar, of a quota only
l_{limit}_so          1 for a soft limit
l_{limit}_fl          floors by priority, e.g. batch=0.3,free=0.5
l_{limit}_al          thresholds that are announced, e.g. 0.8,0.95
l_{limit}_sc          the schedule: its entries, with ; between them
l_{limit}_tl|mh       time to live and longest hold of a slot in seconds, of a concurrency limit only
l_{limit}_ms          when its rate or capacity last changed, if that is earlier than ``changed_ms``
config_version        raised by every change; a deleted config keeps its record, so that it never falls
changed_ms            when the limits last changed or were deleted: buckets follow the new ones from that instant on
on_unavailable        system level only
access                a switch: enabled, disabled or bypassed
cascade               whether the parent is charged too, whatever the entity says

A record that states limits or a switch in another layout was left by an upgrade. It cannot be read: not even what it
has in common with this layout means the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..core.config import Config as Config
from ..core.errors import CorruptRecordError, ValidationError, quote
from ..core.limit import Limit, whole
from ..core.schedule import read_schedule
from ..core.values import Access, OnUnavailable
from .algebra import ABSENT, PRESENT, Guard, Image, Key, Write
from .level import parse_calendar

VERSION = "config_version"
CHANGED = "changed_ms"
_FIELDS = ("cp", "ra", "rp")
_VOLATILE = ("on_unavailable", "access", "cascade", "GSI3PK", "GSI3SK")
"""The attributes that a config has only while it says something."""
FOREIGN = re.compile(r"l_(?!.*_(?:cp|ra|rp|ca|so|fl|al|sc|tl|mh|ms)$).*|w_.*|disabled|sched_tz|data", re.DOTALL)
"""Matches the attributes of other layouts that state limits or switches."""


def attribute(limit_name: str, field: str) -> str:
    """Return the attribute of a limit's field in a config record."""
    return f"l_{limit_name}_{field}"


def resource_of(image: Image) -> str:
    """Return the resource that an entity's config is for."""
    return str(image["resource"])


def registered(resource: str) -> str:
    """Return the attribute of a registry that counts the configs for a resource."""
    return f"r_{resource}"


def list_registered(image: Image) -> list[str]:
    """Return the resources that a registry has configs for, sorted."""
    return sorted(attr[2:] for attr, count in image.items() if attr.startswith("r_") and count > 0)


def encode(limits: tuple[Limit, ...]) -> dict[str, int | str]:
    """Return the attributes that state the limits."""
    put: dict[str, int | str] = {}
    for limit in limits:
        fields: dict[str, int | str] = {
            "cp": limit.capacity,
            "ra": limit.refill_amount,
            "rp": limit.refill_period_seconds,
            "ca": "" if limit.calendar is None else limit.calendar.text,
            "so": int(limit.soft),
            "fl": ",".join(f"{name}={part!r}" for name, part in limit.floors),
            "al": ",".join(map(repr, limit.alerts)),
            "sc": ";".join(entry.text for entry in limit.schedule),
            "tl": limit.ttl,
            "mh": limit.max_hold,
        }
        put |= {attribute(limit.name, field): value for field, value in fields.items() if value}
    return put


def _decode_limit(name: str, image: Image) -> Limit:
    prefix = attribute(name, "")
    capacity, amount, period = (image[prefix + field] for field in _FIELDS)
    calendar, soft, floors, alerts, schedule = (image.get(prefix + field) for field in ("ca", "so", "fl", "al", "sc"))
    pairs = [pair.partition("=") for pair in floors.split(",")] if floors else []
    return Limit(
        name,
        capacity,
        amount,
        period,
        None if calendar is None else parse_calendar(calendar),
        bool(soft),
        tuple([(priority, float(part)) for priority, _, part in pairs]),
        tuple(map(float, alerts.split(","))) if alerts else (),
        read_schedule(schedule.split(";")) if schedule else (),
        image.get(prefix + "tl", 0),
        image.get(prefix + "mh", 0),
    )


def decode(key: Key, image: Image | None) -> Config:
    """Return what a config record says, nothing if there is none. Raise `CorruptRecordError` for a damaged one."""
    if image is None:
        return Config()
    foreign = next(filter(FOREIGN.fullmatch, image), None)
    if foreign is not None:
        raise CorruptRecordError(
            f"The config record {key.pk} {key.sk} cannot be read: an upgrade has left it, or a client of zae-limiter "
            f"0.x has written it since, with {foreign}. `zae-limiter upgrade --force` moves it or says why not. "
            "Set or delete these limits again to replace it."
        )
    names = sorted(attr[2:-3] for attr in image if attr.startswith("l_") and attr.endswith("_cp"))
    try:
        limits = tuple([_decode_limit(name, image) for name in names])
        policy, access = image.get("on_unavailable"), image.get("access")
        version, changed_ms = whole(VERSION, image[VERSION], 0, 2**62), whole(CHANGED, image.get(CHANGED, 0), 0, 2**62)
        known, switch = OnUnavailable(policy) if policy else None, Access(access) if access else None
        attrs = {name: attribute(name, "ms") for name in names}
        since = {name: whole(attr, image[attr], 0, 2**62) for name, attr in attrs.items() if attr in image}
        return Config(limits or None, known, version, switch, image.get("cascade"), changed_ms, since)
    except (KeyError, ValidationError, ValueError) as error:
        raise CorruptRecordError(
            f"The config record {key.pk} {key.sk} cannot be read: {quote(error)}. Set or delete these limits again."
        ) from error


def decode_or_damaged(key: Key, image: Image | None) -> Config:
    """Return what a config record says that is about to be replaced; a damaged one says something that is not empty.

    What is switched off stays so, also where an older layout says it.
    """
    try:
        return decode(key, image)
    except CorruptRecordError:
        assert image is not None  # else it is not damaged
        is_off = image.get("disabled") is True or image.get("access") == Access.DISABLED.value
        return Config(limits=(Limit.per_second("damaged", 1),), access=Access.DISABLED if is_off else None)


def replace(key: Key, seen: Image | None, new: Config, identity: Mapping[str, Any]) -> Write:
    """Return the write that replaces all that a level says, if it still says what is in ``seen``.

    The version of ``new`` does not matter: it is raised.
    """
    put: dict[str, Any] = {**identity, **encode(new.limits or ()), CHANGED: new.changed_ms}
    put |= {attribute(name, "ms"): since_ms for name, since_ms in new.since.items()}
    if new.on_unavailable is not None:
        put["on_unavailable"] = new.on_unavailable.value
    if new.access is not None:
        put["access"] = new.access.value
    if new.cascade is not None:
        put["cascade"] = new.cascade
    if seen is None:
        put[VERSION] = 1
        return Write(key, (ABSENT,), put)
    before = seen.get(VERSION)
    put[VERSION] = before + 1 if type(before) is int else 1
    stale = (attr for attr in seen if attr[:2] == "l_" or attr in _VOLATILE or FOREIGN.fullmatch(attr) is not None)
    remove = tuple([attr for attr in stale if attr not in put])
    guard = PRESENT if before is None else Guard(VERSION, "=", before)
    return Write(key, (guard,), put, remove=remove)
