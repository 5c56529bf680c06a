"""The usage record: what was consumed in one window, flat so that counters can be added to in place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ..core.values import UsageSnapshot
from . import keys
from .algebra import Image, Write

WINDOWS = ("hourly", "daily", "monthly")

_INDEX_KEYS = (f"GSI{n}{part}" for n in range(1, 5) for part in ("PK", "SK"))
_OWN = frozenset(
    ("PK", "SK", "entity_id", "resource", "window", "window_start", "window_end", "total_events", "ttl", *_INDEX_KEYS)
)


def counter(limit_name: str) -> str:
    """The attribute of a limit's counter: its name, or ``_name`` where that is one of ours.

    Limit names start with a letter, so the two never meet.
    """
    return f"_{limit_name}" if limit_name in _OWN else limit_name


def window_of(window_type: str, instant_ms: int) -> tuple[str, str]:
    """Start and end of the window that holds the instant."""
    moment = datetime.fromtimestamp(instant_ms // 1000, UTC).replace(minute=0, second=0)
    if window_type == "hourly":
        end = moment + timedelta(hours=1)
    elif window_type == "daily":
        moment = moment.replace(hour=0)
        end = moment + timedelta(days=1)
    else:
        moment = moment.replace(day=1, hour=0)
        end = (moment + timedelta(days=32)).replace(day=1)
    return utc_text(moment), utc_text(end)


def utc_text(moment: datetime) -> str:
    """A moment as window boundaries are written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def accrue(
    ns: str,
    entity_id: str,
    resource: str,
    window_type: str,
    instant_ms: int,
    amounts: dict[str, int],
    events: int,
    expires_at_ms: int | None,
) -> Write:
    """Add whole-token amounts to the window that holds the instant."""
    start, end = window_of(window_type, instant_ms)
    put: dict[str, Any] = {
        "entity_id": entity_id,
        "resource": resource,
        "window": window_type,
        "window_start": start,
        "window_end": end,
        "GSI2PK": keys.gsi2_pk_resource(ns, resource),
        "GSI2SK": keys.gsi2_sk_usage(window_type, start, entity_id),
        "GSI4PK": ns,
        "GSI4SK": keys.pk_entity(ns, entity_id),
    }
    add = {counter(name): amount for name, amount in amounts.items()} | {"total_events": events}
    return Write(keys.usage(ns, entity_id, resource, window_type, start), (), put, add, expires_at_ms=expires_at_ms)


def decode(image: Image) -> UsageSnapshot:
    """The snapshot that a record describes."""
    counters = {attr.removeprefix("_"): value for attr, value in image.items() if attr not in _OWN}
    return UsageSnapshot(
        entity_id=image["entity_id"],
        resource=image["resource"],
        window_start=image["window_start"],
        window_end=image["window_end"],
        window_type=image["window"],
        counters=counters,
        total_events=image.get("total_events", 0),
    )
