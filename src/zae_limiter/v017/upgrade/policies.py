"""Read what version 0.17 stores beside plain rates: quotas, soft limits, schedules, switches, top-ups.

Config records state the limits ``l_{limit}_{field}``, and with ``w_`` those of a window that begins with its first use:

    cp, ra, rp     capacity, refill amount and period in seconds; a quota refills nothing
    rsched         when a quota is back, as cron expressions
    rsa            the same as a number of seconds after its first use
    sched          other numbers at certain times, as cron expressions
    soft           whether it only counts
    sched_tz       the time zone of all of them, once per record
    disabled       a switch: true, false or bypass

Buckets have the same fields as ``b_{limit}_{field}``, except ``rsched`` and ``sched``, which stand once for all limits
unless a limit has its own (``-`` for none); ``ws`` is when a window has begun with its first use.

What has no counterpart here raises `ValueError` with the reason, so that the record is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from ...core.limit import Limit
from ...core.production import MILLI, Rule
from ...core.schedule import ScheduleEntry
from ...core.values import Access
from ...records import config
from ...records.algebra import Image
from ...records.credits import MAX_LOT
from ...records.lots import lot_attribute
from ..limits_file import merge_resets
from .moves import whole_number

DISABLED = "disabled"
ZONE = "sched_tz"
NONE = "-"
"""Stands for no schedule if the bucket has one for its other limits."""
_ACCESS = {True: Access.DISABLED, False: Access.ENABLED, "bypass": Access.BYPASSED}
_FIELDS = ("cp", "bx", "ra", "rp", "sched", "rsched", "rsa", "soft")
_ENTRY = re.compile(r"((?:[mhDMw][0-9*/,-]+)*)((?:[scap][0-9]+)*)")
_PART = re.compile(r"([a-zA-Z])([0-9*/,-]+)")
_CRON_LETTERS = "mhDMw"
_SCALE = 1000
"""A scale is stored in thousandths."""


class OldLimit(NamedTuple):
    """One limit as version 0.17 stores it: amounts in tokens or millitokens, the period in its unit."""

    name: str
    capacity: int
    amount: int
    period: int
    zone: str = "UTC"
    reset: str | None = None
    reset_after: int | None = None
    schedule: str | None = None
    soft: bool = False

    @property
    def is_rate(self) -> bool:
        """Whether it is a plain rate, apart from ``soft``."""
        return (self.reset, self.reset_after, self.schedule) == (None, None, None)


def is_present_config(fields: Image, namespace_id: str) -> bool:
    """Return whether a config record has nothing that this version does not write."""
    stated = type(fields.get(config.VERSION)) is int and fields.get("GSI4PK") == namespace_id
    return stated and not any(map(config.FOREIGN.fullmatch, fields))


def read_limits(fields: Image) -> tuple[Limit, ...]:
    """Return the limits that a config record states. Raise `ValueError` for one that cannot be kept as it is."""
    found = []
    known: set[str] = set()
    for attr in sorted(attr for attr in fields if attr[:2] in ("l_", "w_") and attr.endswith("_cp")):
        prefix = attr[:-2]
        known |= {prefix + field for field in _FIELDS}
        texts = fields.get(f"{prefix}rsched"), fields.get(f"{prefix}sched")
        old = _read_limit(attr[2:-3], fields, prefix, *texts)
        found.append(convert_limit(old._replace(soft=bool(fields.get(f"{prefix}soft", False)))))
    unknown = sorted(attr for attr in fields if attr[:2] in ("l_", "w_") and attr not in known)
    if unknown:
        first = next(filter(config.FOREIGN.fullmatch, unknown), unknown[0])
        raise ValueError(f"it has {first}, which no known version writes beside the others")
    return tuple(found)


def read_bucket_limits(fields: Image, limit_names: Iterable[str]) -> dict[str, OldLimit]:
    """Return the limits of a bucket by name, in millitokens and milliseconds. It does not say which are soft."""
    found = {}
    for name in limit_names:
        prefix = f"b_{name}_"
        reset, schedule = (fields.get(prefix + field, fields.get(field)) for field in ("rsched", "sched"))
        texts = (None if text == NONE else text for text in (reset, schedule))
        found[name] = _read_limit(name, fields, prefix, *texts)
    return found


def _read_limit(name: str, fields: Image, prefix: str, reset: str | None, schedule: str | None) -> OldLimit:
    capacity, burst, amount, period, after = (prefix + field for field in ("cp", "bx", "ra", "rp", "rsa"))
    return OldLimit(
        name,
        max(whole_number(fields, capacity, 1), whole_number(fields, burst, default=0)),
        whole_number(fields, amount, 1 if reset is None and after not in fields else 0),
        whole_number(fields, period, 1),
        str(fields.get(ZONE, "UTC")),
        None if after in fields else reset,
        whole_number(fields, after, 1) if after in fields else None,
        schedule,
    )


def convert_limit(old: OldLimit) -> Limit:
    """Return the limit with the same meaning. Raise `ValueError` if there is none."""
    if old.schedule is not None:  # other numbers at certain times
        entries = []
        for text in _read_entries(old.schedule):
            cron, numbers = read_entry(text)
            scale = numbers["s"] / _SCALE if "s" in numbers else None
            entries.append(ScheduleEntry(cron, old.zone, scale, *(numbers.get(letter) for letter in "cap")))
        return convert_limit(old._replace(schedule=None)).with_schedule(entries)
    if old.reset is not None:  # back whenever an expression begins to match
        cron = merge_resets([read_entry(text)[0] for text in _read_entries(old.reset)])
        return Limit.quota(old.name, old.capacity, cron=cron, tz=old.zone, soft=old.soft)
    if old.reset_after is not None:
        return Limit.quota(old.name, old.capacity, reset_after=timedelta(seconds=old.reset_after), soft=old.soft)
    return Limit(old.name, old.capacity, old.amount, old.period, soft=old.soft)


def convert_rule(old: OldLimit, window_start_ms: int | None, instant_ms: int) -> Rule:
    """Return the rule of a limit in a bucket at an instant, in millitokens; of a quota with the window it is in."""
    if old.is_rate:
        return Rule(old.capacity, old.amount, old.period)
    numbers = {field: getattr(old, field) // MILLI for field in ("capacity", "amount", "period")}
    rule = Rule.of(convert_limit(old._replace(**numbers)).in_force(instant_ms))
    if rule.calendar is None or old.reset_after is None:
        return rule
    return rule._replace(calendar=rule.calendar.begin(window_start_ms))


def describe_rule(rule: Rule) -> dict[str, int | str]:
    """Return the fields of a rule as a bucket stores them."""
    fields: dict[str, int | str] = {"cp": rule.capacity, "ra": rule.amount, "rp": rule.period}
    if rule.calendar is not None:
        fields["ca"] = rule.calendar.text
        if rule.calendar.phase_ms is not None:
            fields["ws"] = rule.calendar.phase_ms
    return fields


def convert_credit(limit_name: str, rule: Rule, excess: int, now_ms: int) -> dict[str, int]:
    """Return the lot of millitokens that were added to a quota beyond its allowance: they end with its window."""
    if rule.calendar is None or excess > MAX_LOT:
        raise ValueError(f"{limit_name} holds {excess // MILLI} tokens beyond its capacity")
    end_ms = rule.calendar.start(rule.calendar.index(now_ms) + 1)
    return {lot_attribute(limit_name, end_ms): excess}


def convert_access(value: object) -> Access:
    """Return the switch that ``disabled`` states."""
    if not isinstance(value, bool | str) or value not in _ACCESS:
        raise ValueError(f"{DISABLED} is {value!r}, not true, false or bypass")
    return _ACCESS[value]


def _read_entries(text: str | None) -> list[str]:
    """Return the entries of a stored schedule, which begins with the number of its format."""
    if not isinstance(text, str) or not text.startswith("1"):
        raise ValueError(f"the schedule {text!r} has an unknown format")
    return text[1:].split(";")


def read_entry(text: str) -> tuple[str, dict[str, int]]:
    """Return the cron expression of an entry, and its numbers by letter: scale, capacity, amount, period.

    >>> read_entry("m0h9-17w1-5c200a10")
    ('0 9-17 * * 1-5', {'c': 200, 'a': 10})
    """
    found = _ENTRY.fullmatch(text)
    if found is None:
        raise ValueError(f"the schedule entry {text!r} cannot be read")
    given = dict(_PART.findall(found[1]))
    cron = " ".join(given.get(letter, "*") for letter in _CRON_LETTERS)
    return cron, {letter: int(number) for letter, number in _PART.findall(found[2])}
