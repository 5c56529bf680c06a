"""The usage record: what was consumed in one window, flat so that counters can be added to in place.

    {limit}         millitokens consumed: a request may be served from several shards in fractions of a token
    over:{limit}    millitokens of them beyond a soft limit, or so many thousandths of slots
    held:{limit}    of a concurrency limit: for how long slots were held, in milliseconds
    peak:{limit}:{n}        so many slots were in flight at once; the highest counts
    peak:{limit}@{shards}.{shard}   the most that were in flight at once in one of so many shards of a bucket: those of
                            as many shards are added up, and the highest sum counts
    total_events    how many changes of consumption: grants and settlements
    @{shard}        the last change of that shard of the bucket that is counted here, by its place in the change stream

The mark of a shard is written together with what it marks, so a change that is delivered again is not counted again.
A peak names the number that was reached, so it is booked without knowing what is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.names import USAGE_WINDOWS
from ..core.production import MILLI
from . import keys
from .algebra import Guards, Image, Write
from .fields import read_fields

if TYPE_CHECKING:
    from ..core.usage import InFlight, UsageSnapshot

WINDOWS = USAGE_WINDOWS
USAGE_RETENTION_DAYS = 90
"""Default time for which usage is kept, from the end of its window."""
EVENTS = "total_events"

_MARK = "@"
_OVER, _HELD, _PEAK = "over:", "held:", "peak:"
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


def held(limit_name: str) -> str:
    """Return the name under which the time is counted for which slots of a concurrency limit were held."""
    return f"{_HELD}{limit_name}"


def reached(limit_name: str, in_flight: int) -> str:
    """Return the attribute that says that ``in_flight`` slots of a concurrency limit were in flight at once."""
    return f"{_PEAK}{limit_name}:{in_flight}"


def shard_peak(limit_name: str, shard: int, shards: int) -> str:
    """Return the attribute of the most slots of a limit that were in flight at once in one shard of ``shards``."""
    return f"{_PEAK}{limit_name}{_MARK}{shards}.{shard}"


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
    more: Mapping[str, Any] | None = None,
    expires_at_ms: int | None = None,
) -> Write:
    """Return the write that adds to the usage of a window.

    ``more`` is set with it: the marks of what is counted, and the peaks that were reached.
    """
    put: dict[str, Any] = {
        **dict(zip(_TEXTS, (whose.entity_id, whose.resource, *window), strict=True)),
        "GSI2PK": keys.gsi2_pk_resource(whose.namespace_id, whose.resource),
        "GSI2SK": keys.gsi2_sk_usage(window.type, window.start, whose.entity_id),
        "GSI4PK": whose.namespace_id,
        "GSI4SK": keys.pk_entity(whose.namespace_id, whose.entity_id),
        **(more or {}),
    }
    add = {counter(name): amount for name, amount in used_milli.items()} | {EVENTS: events}
    return Write(keys.usage(*whose, window.type, window.start), guards, put, add, expires_at_ms=expires_at_ms)


def counters_milli(image: Image) -> dict[str, int]:
    """Return the consumed millitokens by limit, sorted by name."""
    counted = (attr for attr in image if attr not in OWN and attr[0] != _MARK and ":" not in attr)
    return dict(sorted((attr.removeprefix("_"), image[attr]) for attr in counted))


def is_present(image: Image) -> bool:
    """Return whether a record has the present layout: an older one has another unit."""
    return "window_end" in image


def window_in(image: Image) -> tuple[str, str]:
    """Return the kind and the start of the window of a record, which was inspected."""
    return image["window"], image["window_start"]


def overdrawn_milli(image: Image) -> dict[str, int]:
    """Return the millitokens by limit that were consumed beyond soft limits, sorted by name, where there are any."""
    return {attr.removeprefix(_OVER): image[attr] for attr in sorted(image) if attr.startswith(_OVER) and image[attr]}


class HeldSlots(NamedTuple):
    """For how long slots of a concurrency limit were held, and the most at once; over some windows, and how long."""

    held_ms: int = 0
    peak: int = 0
    seconds: int = 0

    def merge(self, other: HeldSlots) -> HeldSlots:
        """Return both together: the peak is the higher one."""
        return HeldSlots(self.held_ms + other.held_ms, max(self.peak, other.peak), self.seconds + other.seconds)

    def describe(self) -> InFlight:
        """Return the report; a renewal may count time of the window before, but no average is above a peak."""
        from ..core.usage import InFlight

        average = self.held_ms / (MILLI * self.seconds)
        return InFlight(self.peak, min(average, self.peak) if self.peak else average, self.held_ms // MILLI)


def held_slots(image: Image) -> dict[str, HeldSlots]:
    """Return the slots that were held by limit, sorted by name."""
    start, end = (datetime.fromisoformat(image[attr]) for attr in ("window_start", "window_end"))
    seconds, peaks = int((end - start).total_seconds()), _peaks(image)
    names = {attr.removeprefix(_HELD) for attr in image if attr.startswith(_HELD)} | peaks.keys()
    return {name: HeldSlots(image.get(held(name), 0), peaks.get(name, 0), seconds) for name in sorted(names)}


def _peaks(image: Image) -> dict[str, int]:
    """Return the highest number of slots that were in flight at once by limit."""
    highest: dict[str, int] = {}
    sums: Counter[str] = Counter()
    for attr in image:
        if attr.startswith(_PEAK):
            name, mark, where = attr.removeprefix(_PEAK).partition(_MARK)
            place = f"{name}{mark}{where.partition('.')[0]}"
            sums[place] += image[attr]
            limit_name = name.partition(":")[0]
            highest[limit_name] = max(highest.get(limit_name, 0), sums[place])
    return highest


def inspect(image: Image) -> Image:
    """Return ``image`` if it has its texts and numbers, else raise `CorruptRecordError`."""
    counted = dict.fromkeys([attr for attr in image if attr not in OWN and not attr.startswith(_MARK)], int)
    read_fields("usage", image, _TEXTS, {**counted, EVENTS: int})
    return image


def decode(image: Image) -> UsageSnapshot:
    """Return the snapshot that a record describes, in whole tokens."""
    from ..core.usage import UsageSnapshot

    said = {attr: image[attr] for attr in ("entity_id", "resource", "window_start", "window_end")}
    counters = {name: amount // MILLI for name, amount in counters_milli(image).items()}
    beyond = {name: amount // MILLI for name, amount in overdrawn_milli(image).items()}
    return UsageSnapshot(
        **said,
        window_type=image["window"],
        counters=counters,
        total_events=image.get(EVENTS, 0),
        overdrawn=beyond,
        in_flight={name: slots.describe() for name, slots in held_slots(image).items()},
    )
