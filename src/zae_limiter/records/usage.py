"""The usage record: what was consumed in one window, flat so that counters can be added to in place.

    {limit}         millitokens consumed: a request may be served from several shards in fractions of a token
    over:{limit}    millitokens of them beyond a soft limit
    total_events    how many changes of consumption: grants and settlements
    @{shard}        the last change of that shard of the bucket that is counted here, by its place in the change stream

The mark of a shard is written together with what it marks, so a change that is delivered again is never counted again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.bucket import MILLI
from ..core.names import USAGE_WINDOWS
from . import keys
from .algebra import Guards, Image, Write
from .fields import read_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.reports import UsageSnapshot

WINDOWS = USAGE_WINDOWS
USAGE_RETENTION_DAYS = 90
"""For how long usage is kept where nobody says otherwise, counted from the end of its window."""
EVENTS = "total_events"

_MARK = "@"
_OVER = "over:"
OWN = frozenset(("PK", "SK", "entity_id", "resource", "window", "window_start", "window_end", EVENTS, "ttl")).union(
    f"GSI{number}{part}" for number in range(1, 5) for part in ("PK", "SK")
)
"""The attributes that are no counters, whatever limits are called."""
_TEXTS = dict.fromkeys(("entity_id", "resource", "window", "window_start", "window_end"), str)


class Subject(NamedTuple):
    """Whose usage, of what."""

    namespace_id: str
    entity_id: str
    resource: str


class Window(NamedTuple):
    """A stretch of time: ``start`` belongs to it, ``end`` does not."""

    type: str
    start: str
    end: str


def counter(limit_name: str) -> str:
    """Return the attribute of a limit's counter: its name, or ``_name`` where that is one of ours.

    Limit names start with a letter, so the two never meet.
    """
    return f"_{limit_name}" if limit_name in OWN else limit_name


def overdrawn(limit_name: str) -> str:
    """Return the name under which consumption beyond a soft limit is counted; no limit has such a name."""
    return f"{_OVER}{limit_name}"


def mark(shard: int) -> str:
    """Return the attribute of a shard's mark; no counter has such a name."""
    return f"{_MARK}{shard}"


def window_of(window_type: str, instant_ms: int) -> Window:
    """Return the window that holds the instant."""
    moment = datetime.fromtimestamp(instant_ms // 1000, UTC).replace(minute=0, second=0)
    if window_type == "hourly":
        end = moment + timedelta(hours=1)
    elif window_type == "daily":
        moment = moment.replace(hour=0)
        end = moment + timedelta(days=1)
    else:
        moment = moment.replace(day=1, hour=0)
        end = (moment + timedelta(days=32)).replace(day=1)
    return Window(window_type, utc_text(moment), utc_text(end))


def utc_text(moment: datetime) -> str:
    """Return a moment as window boundaries are written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def end_ms(window: Window) -> int:
    """Return the instant at which a window ends."""
    return int(datetime.fromisoformat(window.end).timestamp()) * 1000


def accrue(
    whose: Subject,
    window: Window,
    used_milli: Mapping[str, int],
    events: int,
    *,
    guards: Guards = (),
    marks: Mapping[str, str] | None = None,
    expires_at_ms: int | None = None,
) -> Write:
    """Return the write that adds to the usage of a window, and sets the marks of what is counted with it."""
    put: dict[str, Any] = {
        "entity_id": whose.entity_id,
        "resource": whose.resource,
        "window": window.type,
        "window_start": window.start,
        "window_end": window.end,
        "GSI2PK": keys.gsi2_pk_resource(whose.namespace_id, whose.resource),
        "GSI2SK": keys.gsi2_sk_usage(window.type, window.start, whose.entity_id),
        "GSI4PK": whose.namespace_id,
        "GSI4SK": keys.pk_entity(whose.namespace_id, whose.entity_id),
        **(marks or {}),
    }
    add = {counter(name): amount for name, amount in used_milli.items()} | {EVENTS: events}
    return Write(keys.usage(*whose, window.type, window.start), guards, put, add, expires_at_ms=expires_at_ms)


def counters_milli(image: Image) -> dict[str, int]:
    """Return the consumed millitokens by limit, sorted by name."""
    counted = (attr for attr in image if attr not in OWN and attr[0] != _MARK and not attr.startswith(_OVER))
    return dict(sorted((attr.removeprefix("_"), image[attr]) for attr in counted))


def overdrawn_milli(image: Image) -> dict[str, int]:
    """Return the millitokens by limit that were consumed beyond soft limits, sorted by name, where there are any."""
    return {attr.removeprefix(_OVER): image[attr] for attr in sorted(image) if attr.startswith(_OVER) and image[attr]}


def inspect(image: Image) -> Image:
    """Return ``image`` if it has its texts and numbers, else raise `CorruptRecordError`."""
    counted = dict.fromkeys([attr for attr in image if attr not in OWN and not attr.startswith(_MARK)], int)
    read_fields("usage", image, _TEXTS, {**counted, EVENTS: int})
    return image


def decode(image: Image) -> UsageSnapshot:
    """Return the snapshot that a record describes, in whole tokens."""
    from ..core.reports import UsageSnapshot

    said = {attr: image[attr] for attr in ("entity_id", "resource", "window_start", "window_end")}
    counters = {name: amount // MILLI for name, amount in counters_milli(image).items()}
    beyond = {name: amount // MILLI for name, amount in overdrawn_milli(image).items()}
    return UsageSnapshot(
        **said,
        window_type=image["window"],
        counters=counters,
        total_events=image.get(EVENTS, 0),
        overdrawn=beyond,
    )
