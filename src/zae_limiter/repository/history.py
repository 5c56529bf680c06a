"""Read the audit log and usage snapshots."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import whole
from ..core.names import RESERVED_NAMESPACE
from ..core.production import MILLI
from ..core.values import AuditEvent
from ..records import audit, keys, ledger, usage
from ..records.algebra import Image, Query
from ..records.bucket import inspect
from ..records.keys import buckets_of_entity, buckets_of_resource
from ..runtime.deadline import Deadline
from ..stores.opaque import decode_cursor, encode_cursor
from .backend import MAX_PAGE, Operations
from .buckets import book

if TYPE_CHECKING:
    from ..core.usage import UsageSnapshot, UsageSummary

_BOOKED_TOGETHER = 20


class HistoryOperations(Operations):
    """Read audit events and usage."""

    async def get_audit_events(
        self, entity_id: str, limit: int = 100, start_event_id: str | None = None
    ) -> list[AuditEvent]:
        """Return at most ``limit`` changes, newest first, older than ``start_event_id`` if given.

        ``entity_id`` is an entity, or one of the subjects ``$SYSTEM``, ``$RESOURCE:{name}`` and ``$NAMESPACE:{name}``.
        """
        names.audit_subject(entity_id)
        limit = whole("limit", limit, 1, MAX_PAGE, "events")
        if start_event_id is not None:
            names.stored_id(start_event_id, "start_event_id")
        deadline = (await self._deadline()).for_each_step()
        of_registry = entity_id.startswith("$NAMESPACE:")
        ns = RESERVED_NAMESPACE if of_registry else await self._backend.ns(deadline)
        end = None if start_event_id is None else keys.sk_audit(start_event_id)
        query = Query(
            keys.pk_audit(ns, entity_id), keys.AUDIT_PREFIX, limit=min(limit, 1000) + 1, descending=True, end=end
        )
        rows, _ = await self._backend.collect_some(query, limit + 1, deadline)
        events = [audit.decode(image) for _, image in rows]
        return [event for event in events if event.event_id != start_event_id][:limit]

    async def get_usage_snapshots(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str | None = None,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
        limit: int = 100,
        next_key: str | None = None,
    ) -> tuple[list[UsageSnapshot], str | None]:
        """Return one page of usage, and a cursor: by resource, kind of window and time, newest first.

        If the consuming writes keep usage, it is exact as of the first page; if a stream keeps it, as of what the
        stream has delivered.

        Args:
            entity_id: The entity; None for all entities of ``resource``.
            resource: The resource; None for all resources of ``entity_id``.
            window_type: ``hourly``, ``daily`` or ``monthly``; None for all.
            start_time: Only windows that start at this time or later, as a datetime or as RFC 3339.
            end_time: Only windows that start before this time.
            limit: The most snapshots of a page.
            next_key: The cursor of the previous page; None starts at the beginning. The last page returns None.
        """
        start, end = _spell_moment("start_time", start_time), _spell_moment("end_time", end_time)
        wanted = _UsageFilter(entity_id, resource, window_type, start, end)
        found, cursor = await self._read_usage(wanted, limit, next_key)
        return [usage.decode(image) for image in found], cursor

    async def _read_usage(
        self, wanted: _UsageFilter, limit: int, next_key: str | None
    ) -> tuple[list[Image], str | None]:
        wanted.check()
        limit = whole("limit", limit, 1, MAX_PAGE, "windows")
        after = decode_cursor("next_key", next_key)
        deadline, ns = await self._begin_steps()
        query = wanted.query(ns)._replace(limit=limit, after=after, descending=True)
        if after is None and self._backend.store.capabilities.usage_retention_days:
            await self._book_usage(wanted.buckets(ns), deadline)
        found: list[Image] = []
        while True:
            page = await self._backend.query(query, deadline)
            places = [place for place, (_, image) in enumerate(page.items) if wanted.matches(image)]
            room = limit - len(found)
            if len(places) > room:  # a cursor is the end of a page, so this one has to end where the room does
                query = query._replace(limit=places[room - 1] + 1)
                continue
            found += [page.items[place][1] for place in places]
            if page.cursor is None or len(found) >= limit:
                return found, encode_cursor(page.cursor)
            query = query._replace(after=page.cursor, limit=limit)

    async def _book_usage(self, query: Query, deadline: Deadline) -> None:
        """Book all open usage of the buckets of a range into the usage records; each of them is one commit."""
        backend, query = self._backend, query._replace(limit=500)
        while True:
            page = await backend.query(query, deadline)
            opened = [row for row in page.items if ledger.is_open(inspect(*row))]
            for start in range(0, len(opened), _BOOKED_TOGETHER):
                works = [book(backend, *row, deadline) for row in opened[start : start + _BOOKED_TOGETHER]]
                for result in await backend.runtime.run_together(works):
                    if isinstance(result, BaseException):
                        raise result
            if page.cursor is None:
                return
            query = query._replace(after=page.cursor)

    async def get_usage_summary(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str | None = None,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
    ) -> UsageSummary:
        """Return the sum and the average of all snapshots of one kind of window.

        The arguments are those of `get_usage_snapshots`; without ``window_type`` it is the finest kind that there is.
        """
        start, end = _spell_moment("start_time", start_time), _spell_moment("end_time", end_time)
        wanted = _UsageFilter(entity_id, resource, window_type, start, end)
        sums: dict[str, _UsageSum] = {}
        next_key: str | None = None
        while True:
            found, next_key = await self._read_usage(wanted, 1000, next_key)
            for image in found:
                kind, begun = usage.window_in(image)
                sums.setdefault(kind, _UsageSum()).add(image, begun)
            if next_key is None:
                break
        finest = next((sums[each] for each in usage.WINDOWS if each in sums), _UsageSum())
        return finest.describe()


class _UsageSum:
    """The sum of usage records of one kind of window."""

    def __init__(self) -> None:
        self._milli: Counter[str] = Counter()
        self._beyond: Counter[str] = Counter()
        self._held: dict[str, usage.HeldSlots] = {}
        self._starts: list[str] = []

    def add(self, image: Image, begun: str) -> None:
        """Add a record of a window that has begun at an instant."""
        self._milli.update(usage.counters_milli(image))
        self._beyond.update(usage.overdrawn_milli(image))
        for name, slots in usage.held_slots(image).items():
            self._held[name] = self._held.get(name, usage.HeldSlots()).merge(slots)
        self._starts.append(begun)

    def describe(self) -> UsageSummary:
        """Return the sum as users see it."""
        from ..core.usage import UsageSummary

        total, overdrawn = (
            {name: amount // MILLI for name, amount in sorted(amounts.items())}
            for amounts in (self._milli, self._beyond)
        )
        average = {name: amount / len(self._starts) for name, amount in total.items()}
        in_flight = {name: slots.describe() for name, slots in sorted(self._held.items())}
        first, last = min(self._starts, default=None), max(self._starts, default=None)
        return UsageSummary(len(self._starts), total, average, first, last, overdrawn, in_flight)


class _UsageFilter(NamedTuple):
    """Which usage is wanted: of an entity, a resource or both, with moments in the form of window starts."""

    entity_id: str | None
    resource: str | None
    window_type: str | None
    start: str | None
    end: str | None

    def check(self) -> None:
        """Raise `ValidationError` for an invalid window type or name, and if neither name is given."""
        if self.window_type is not None and self.window_type not in usage.WINDOWS:
            raise ValidationError("window_type", self.window_type, f"must be one of {', '.join(usage.WINDOWS)}")
        if self.entity_id is None and self.resource is None:
            raise ValidationError("entity_id", None, "pass an entity_id, a resource or both")
        if self.resource is not None:
            names.resource(self.resource)
        if self.entity_id is not None:
            names.entity_id(self.entity_id)

    def matches(self, image: Image) -> bool:
        """Return whether a record is wanted; one of an older layout, which no upgrade could move, has another unit."""
        if not usage.is_present(image):
            return False
        kind, begun = usage.window_in(usage.inspect(image))
        inside = (self.start is None or begun >= self.start) and (self.end is None or begun < self.end)
        return inside and self.window_type in (None, kind)

    def buckets(self, ns: str) -> Query:
        """Return the range of the buckets whose usage is wanted."""
        if self.entity_id is not None:
            return buckets_of_entity(ns, self.entity_id, self.resource)
        assert self.resource is not None  # one of the two is given
        return buckets_of_resource(ns, self.resource)

    def query(self, ns: str) -> Query:
        """Return the smallest range with all that is wanted, bounded in time if its keys are ordered by time."""
        if self.entity_id is not None:
            query, prefix = Query(keys.pk_entity(ns, self.entity_id), keys.USAGE_PREFIX), keys.USAGE_PREFIX
            if self.resource is None:
                return query
            prefix += f"{self.resource}#"
        else:
            assert self.resource is not None  # one of the two is given
            query, prefix = Query(keys.gsi2_pk_resource(ns, self.resource), gsi="GSI2"), "USAGE#"
        if self.window_type is None:
            return query._replace(prefix=prefix)
        prefix += f"{self.window_type}#"
        first, last = (None if moment is None else prefix + moment for moment in (self.start, self.end))
        return query._replace(prefix=prefix, start=first, end=last)


def parse_moment(field: str, moment: object) -> datetime:
    """Return a moment given as a datetime or as RFC 3339. Raise `ValidationError` for none, or one without a zone."""
    try:
        parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        parsed = None
    if not isinstance(parsed, datetime) or parsed.tzinfo is None:
        reason = "must be a datetime with a time zone, e.g. datetime.now(UTC), or a text such as 2026-01-31T12:00:00Z"
        raise ValidationError(field, moment, reason)
    return parsed


def _spell_moment(field: str, moment: datetime | str | None) -> str | None:
    """Return a moment in the form of window starts. Raise `ValidationError` if it has no time zone."""
    if moment is None:
        return None
    parsed = parse_moment(field, moment)
    second = usage.utc_text(parsed)
    return f"{second}+" if parsed.microsecond else second  # behind a window that begins with this very second
