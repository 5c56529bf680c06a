"""Limits as a file writes them: a text as behind ``-l``, a rate, a quota, or so many at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.calendar import UNITS, Calendar
from ..core.kinds import LENGTHS, kind_of
from ..core.limit import MAX_PERIOD_SECONDS, MAX_SLOTS, MAX_TTL_SECONDS, Limit, whole
from ..core.schedule import ScheduleEntry
from ..core.validation import ValidationError
from ..v017.limits_file import CAPACITY, OldLimits
from .reading import ENTRY, POLICY, SHARING, Report, check_seconds, describe, describe_amount

if TYPE_CHECKING:
    from .document import Node
    from .states import Place

PER = ("s", "min", "hour", "day")
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400}
_PERIOD = re.compile(r"([0-9]{0,10})(s|sec|min|h|hour|d|day)\Z")
_SPAN = re.compile(r"[0-9]+(ms|s|min|h|d)\Z")
_SIZES = {unit: size for size, unit in LENGTHS.items()}
_CALENDAR = ("every", "tz", "at", "on", "cron", "reset_after")
_PER = f"must be {', '.join(PER)}, or a number of them such as 30s"
_EVERY = f"must be {', '.join(UNITS)}, or a length such as 90min, at most ten years"

KINDS: dict[str, dict[str, Any]] = {
    "quota": {
        "quota": describe_amount("Tokens per window."),
        "every": describe("string", f"The window: {', '.join(UNITS)}, or a length such as 90min."),
        "tz": describe("string", "The time zone, e.g. Europe/Berlin."),
        "at": describe("string", "The local time HH:MM at which a window begins."),
        "on": describe(["string", "integer"], "The day on which it begins: monday, 15, or 04-01."),
        "cron": describe(
            "string", "Instead of every, at and on: a window begins whenever this fires, e.g. 0 9 * * 1-5."
        ),
        "reset_after": describe(
            ["string", "integer"], "Instead of these: the length of a window that begins with its first use, e.g. 5h."
        ),
        "rollover": describe_amount("Unused tokens that are kept for later windows.", least=0),
        **POLICY,
    },
    "concurrent": {
        "concurrent": describe("integer", "How many at once: its slots.", minimum=1, maximum=MAX_SLOTS),
        "ttl": describe(
            ["string", "integer"], "After how long a slot comes back that nobody renews: 60, 2min; 60 s if left out."
        ),
        "max_hold": describe(
            ["string", "integer"], "For how long a slot can be held at most: 600, 10min; for ever if left out."
        ),
        **SHARING,
    },
    "capacity": {**CAPACITY, **POLICY},
    "rate": {
        "rate": describe_amount("Tokens per period."),
        "per": describe(["string", "integer"], f"The period: {', '.join(PER)}, a number of them (30s), or seconds."),
        "burst": describe_amount("The most at once; the rate if left out."),
        **POLICY,
    },
}
"""The tables of the kinds of limits, by the key that a limit of the kind has."""


def read_limit(name: str, given: Mapping[str, tuple[Place, Node]], report: Report) -> Limit | None:
    """Return the limit of a mapping by one of the tables of `find_table`; None if ``report`` was told of problems."""
    reader = _LimitReader(given, report)
    limit: Limit | None = getattr(reader, f"read_{_find_kind(given)}")(name)
    return reader.add_schedule(limit) if "schedule" in given else limit


def find_table(given: Iterable[str]) -> Mapping[str, Any]:
    """Return the table of the kind of limit that has these keys; a rate where none tells."""
    return KINDS[_find_kind(given)]


def _find_kind(given: Iterable[str]) -> str:
    names = set(given)
    return next((kind for kind in KINDS if kind in names), "rate")


class _LimitReader(OldLimits):
    """Reads one limit of any kind."""

    def read_rate(self, name: str) -> Limit | None:
        """Return a rate, None if a field is wrong."""
        rate = self._amount("rate", None)
        burst = self._amount("burst", rate)
        seconds = self._check("per", 60, partial(_parse_seconds, hint=_PER))
        policy = self._read_policy()
        if self._failed or rate is None or burst is None:
            return None
        return Limit(name, burst, rate, seconds, None, *policy)

    def read_quota(self, name: str) -> Limit | None:
        """Return a quota, None if a field is wrong."""
        amount = self._amount("quota", None)
        rollover = self._amount("rollover", 0, 0)
        calendar = self._read_calendar()
        policy = self._read_policy()
        if self._failed or amount is None or rollover is None or calendar is None:
            return None
        return Limit(name, amount + rollover, amount, -(-calendar.longest_ms // 1000), calendar, *policy)

    def read_concurrent(self, name: str) -> Limit | None:
        """Return a concurrency limit, None if a field is wrong."""
        slots = self._check("concurrent", 0, lambda node: whole("concurrent", node.value, 1, MAX_SLOTS, "slots"))
        ttl = self._check("ttl", 60, partial(_parse_seconds, most=MAX_TTL_SECONDS))
        max_hold = self._check("max_hold", None, _parse_seconds)
        soft, floors, _ = self._read_policy()
        if max_hold is not None and max_hold < ttl:
            place = self._given["max_hold"][1].place
            self._fail(place, "max_hold", f"must not be shorter than ttl, which is {ttl} s")
        if self._failed:
            return None
        return Limit.concurrent(name, slots, ttl=ttl, max_hold=max_hold, soft=soft, floors=dict(floors))

    def add_schedule(self, limit: Limit | None) -> Limit | None:
        """Return a limit with its schedule, None if it is None or an entry is wrong."""
        node = self._given["schedule"][1]
        if not isinstance(node.value, list):
            self._fail(node.place, "schedule", "must be a list of entries with cron and scale, or other numbers")
            return None
        entries = [self._read_entry(number, each) for number, each in enumerate(node.value)]
        if limit is None or self._failed:
            return None
        try:
            return limit.with_schedule([entry for entry in entries if entry is not None])
        except ValidationError as error:
            self._fail(node.place, "schedule", error.reason)
            return None

    def _read_entry(self, number: int, node: Node) -> ScheduleEntry | None:
        path = f"schedule[{number}]"
        if not isinstance(node.value, dict) or "cron" not in node.value:
            self._fail(node.place, path, "must be a mapping with cron and scale, or other numbers")
            return None
        for key in node.value.keys() - ENTRY.keys():
            self._fail(node.value[key][0], f"{path}.{key}", f"is no known key; known are {', '.join(ENTRY)}")
        try:
            values = {key: each.value for key, (_, each) in node.value.items() if key in ENTRY}
            return ScheduleEntry(**values)
        except ValidationError as error:
            known = node.value.get(error.field)
            self._fail(node.place if known is None else known[1].place, f"{path}.{error.field}", error.reason)
            return None

    def _read_calendar(self) -> Calendar | None:
        """Return the calendar; of several wrong fields all are told, unless ``every`` is wrong itself."""
        given = {field: self._given[field][1] for field in _CALENDAR if field in self._given}
        values: dict[str, Any] = {field: node.value for field, node in given.items()}
        if "at" in given:
            values["at"] = given["at"].text  # YAML takes 10:30 for a number
        if "reset_after" in given:
            values["reset_after"] = self._check("reset_after", None, _parse_length)
        every = values.get("every")
        rival = next((field for field in ("reset_after", "cron") if field in given), None)
        if rival is not None and every is not None:
            self._fail(given["every"].place, "every", f"cannot be combined with {rival}")
            del values["every"]
            every = None
        if isinstance(every, str) and _SPAN.match(every):
            return self._read_period(f"{every}@", values.keys() - {"every"})
        while True:
            try:
                return Calendar.of(**values)
            except ValidationError as error:
                wrong = error.field
                self._fail(given[wrong].place, wrong, _EVERY if wrong == "every" else error.reason)
                del values[wrong]
                if wrong == "every":
                    return None

    def _read_period(self, text: str, others: set[str]) -> Calendar | None:
        for field in sorted(others):
            self._fail(self._given[field][0], field, "is for hours, days, weeks, months and years")
        try:
            return Calendar.parse(text)
        except ValidationError:
            self._fail(self._given["every"][1].place, "every", _EVERY)
            return None


def _parse_length(node: Node) -> timedelta:
    found = _SPAN.match(node.value) if isinstance(node.value, str) else None
    if found is None and isinstance(node.value, str):
        raise ValidationError("reset_after", node.value, "must be a length such as 5h, or seconds")
    if found is None:
        return timedelta(seconds=check_seconds(node))
    return timedelta(milliseconds=min(int(found[0].removesuffix(found[1])) * _SIZES[found[1]], 10**15))


def _parse_seconds(
    node: Node, most: int = MAX_PERIOD_SECONDS, hint: str = "must be seconds, or a time such as 30s or 2min"
) -> int:
    found = _PERIOD.match(node.value) if isinstance(node.value, str) else None
    if found is None and isinstance(node.value, str):
        raise ValidationError("seconds", node.value, hint)
    seconds = node.value if found is None else int(found[1] or 1) * _SECONDS[found[2]]
    return whole("seconds", seconds, 1, most, "seconds")


def write_limit(limit: Limit) -> str | dict[str, Any]:
    """Return a limit as a file writes it: a plain rate as a text, anything else by its fields."""
    fields: dict[str, Any] = {"soft": limit.soft, "floors": dict(limit.floors), "alerts": list(limit.alerts)}
    fields["schedule"] = [entry.to_dict() for entry in limit.schedule]
    policy = {name: value for name, value in fields.items() if value}
    made = kind_of(limit).write(limit)
    if policy or "rate" not in made:
        return made | policy
    return f"{made['rate']}/{made['per']}" + (f":{made['burst']}" if "burst" in made else "")
