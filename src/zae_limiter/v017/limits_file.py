"""Limits files of 0.17: a switch called ``disabled``, and limits with a ``capacity``, a refill and reset schedules.

There a quota may have several expressions, and is back when one of them *begins* to match: ``* 9 * * *`` at 9:00 only.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..core.calendar import Calendar
from ..core.cron import parse_cron
from ..core.limit import Limit
from ..core.values import Access
from ..manifest.reading import FieldReader, check_seconds, describe_amount

if TYPE_CHECKING:
    from ..manifest.document import Node


DISABLED: dict[str, Any] = {
    "enum": [True, False, "bypass", None],
    "description": "The switch, as version 0.17 writes it.",
}
RESET: dict[str, Any] = {
    "cron": {"type": "string", "description": "It is back when this begins to match, e.g. 0 0 * * *."},
    "tz": {"type": "string", "description": "The time zone; UTC if left out."},
}
CAPACITY: dict[str, Any] = {
    "capacity": describe_amount("The most at once, as version 0.17 writes it."),
    "burst": describe_amount("The same; it counts instead of the capacity."),
    "refill_amount": describe_amount("Tokens per period; the capacity if left out.", least=0),
    "refill_period": {"type": "integer", "description": "The period in seconds; 60 if left out.", "minimum": 1},
    "reset_after_seconds": {
        "type": ["integer", "null"],
        "description": "The same for a window that begins with its first use: its length.",
        "minimum": 1,
    },
    "reset_schedule": {
        "type": ["array", "null"],
        "description": "When a quota is back, instead of a refill amount.",
        "items": {"type": "object", "properties": RESET, "required": ["cron"], "additionalProperties": False},
    },
}
"""The keys of a limit, beside those that all limits have."""


class OldLimits(FieldReader):
    """Reads limits with a ``capacity``."""

    def read_capacity(self, name: str) -> Limit | None:
        """Return a rate or a quota as version 0.17 writes it, None if a field is wrong."""
        capacity = self._amount("burst", self._amount("capacity", None))
        calendar = self._read_resets()
        amount = self._amount("refill_amount", 0 if calendar else capacity, 0)
        seconds = self._check("refill_period", 60, check_seconds)
        policy = self._read_policy()
        if "refill_amount" in self._given and amount is not None and bool(amount) == (calendar is not None):
            reason = "must be 0 beside a reset" if calendar else "must be 1 or more without reset_schedule"
            self._fail(self._given["refill_amount"][1].place, "refill_amount", reason)
        if self._failed or capacity is None or amount is None:
            return None
        if calendar is not None:
            return Limit(name, capacity, capacity, -(-calendar.longest_ms // 1000), calendar, *policy)
        return Limit(name, capacity, amount, seconds, None, *policy)

    def _read_resets(self) -> Calendar | None:
        """Return the calendar of a reset as version 0.17 writes it, None without one."""
        _, node = self._given.get("reset_schedule", (None, None))
        place, after = self._given.get("reset_after_seconds", (None, None))
        if place is not None and after is not None and after.value is not None:
            if node is not None and node.value:
                self._fail(place, "reset_after_seconds", "cannot be combined with reset_schedule")
            seconds = self._check("reset_after_seconds", 1, check_seconds)
            return Calendar.of(reset_after=timedelta(seconds=seconds))
        return None if node is None or not node.value else self._read_schedule(node)

    def _read_schedule(self, node: Node) -> Calendar | None:
        entries = node.value if isinstance(node.value, list) else []
        given = [entry.value for entry in entries if isinstance(entry.value, dict)]
        if (
            not entries
            or len(given) < len(entries)
            or not all({"cron"} <= each.keys() <= RESET.keys() for each in given)
        ):
            self._fail(node.place, "reset_schedule", "must be a list of mappings with cron and perhaps tz")
            return None
        zones = {str(each["tz"][1].value) if "tz" in each else "UTC" for each in given}
        if len(zones) > 1:
            self._fail(node.place, "reset_schedule", f"has several time zones: {', '.join(sorted(zones))}")
            return None
        try:
            crons = [Calendar.of(cron=each["cron"][1].value).cron for each in given]
            return Calendar.of(cron=merge_resets(crons), tz=zones.pop())
        except ValueError as error:
            self._fail(node.place, "reset_schedule", getattr(error, "reason", str(error)))
            return None


def read_disabled(value: object) -> tuple[Access, str | None]:
    """Return the switch that ``disabled`` states, and what is wrong with it, if anything."""
    if isinstance(value, bool):
        return Access.DISABLED if value else Access.ENABLED, None
    return Access.BYPASSED, None if value == "bypass" else "must be true, false or bypass"


def merge_resets(crons: list[str]) -> str:
    """Return the expression that fires whenever one of several begins to match. Raise `ValueError` if there is none."""
    return find_edges(merge_crons(crons))


def merge_crons(crons: list[str]) -> str:
    """Return one expression that fires whenever one of several does. They must differ in one field only.

    >>> merge_crons(["0 0 1 1 *", "0 0 1 7 *"])
    '0 0 1 1,7 *'
    """
    columns = [list(dict.fromkeys(column)) for column in zip(*(cron.split() for cron in crons), strict=True)]
    several = [column for column in columns if len(column) > 1]
    if len(several) > 1 or any("*" in column for column in several):
        raise ValueError(f"it is back at several times that are no single cron expression: {'; '.join(crons)}")
    return " ".join(",".join(column) for column in columns)


def find_edges(cron: str) -> str:
    """Return the expression that fires when another one begins to match: version 0.17 resets a quota only then.

    >>> find_edges("* 9 * * *")
    '0 9 * * *'
    """
    matching = set(parse_cron(cron).minutes)
    first = {minute for minute in matching if minute - 1 not in matching}
    hours, minutes = sorted({each // 60 for each in first}), sorted({each % 60 for each in first})
    if {0, 24 * 60 - 1} <= matching or len(hours) * len(minutes) != len(first):
        raise ValueError(f"it is back when {cron!r} begins to match, which is no cron expression")
    if first == matching:
        return cron
    return " ".join([",".join(map(str, minutes)), ",".join(map(str, hours)), *cron.split()[2:]])
