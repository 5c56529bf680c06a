"""The fields that several kinds of limits have in a limits file: their JSON schema, and reading them.

Each is read on its own, so that everything wrong is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.limit import MAX_AMOUNT, MAX_PERIOD_SECONDS, whole
from ..core.policy import check_alerts, check_floors
from ..core.validation import ValidationError

if TYPE_CHECKING:
    from .document import Node
    from .states import Place

Report = Callable[["Place", str, str], None]
"""Notes a problem: its place, the keys below the limit, and what is wrong."""


def describe(kind: str | list[str], description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **more}


def describe_amount(description: str, least: int = 1) -> dict[str, Any]:
    return describe("integer", description, minimum=least, maximum=MAX_AMOUNT)


def describe_object(fields: dict[str, Any], *required: str) -> dict[str, Any]:
    made = {"type": "object" if required else ["object", "null"], "properties": fields, "additionalProperties": False}
    return made | ({"required": list(required)} if required else {})


ENTRY: dict[str, Any] = {
    "cron": describe("string", "The pattern: the entry is in force in every minute that matches, e.g. * 9-17 * * 1-5."),
    "tz": describe("string", "The time zone, e.g. Europe/Berlin."),
    "scale": describe("number", "The factor for capacity and refill.", exclusiveMinimum=0),
    "capacity": describe_amount("Instead of the factor: the capacity; of a quota, the tokens per window."),
    "refill_amount": describe_amount("The tokens per period, of a rate."),
    "refill_period_seconds": describe("integer", "The period in seconds, of a rate.", minimum=1),
}
SHARING: dict[str, Any] = {
    "soft": describe("boolean", "Whether it only counts, and never refuses."),
    "floors": describe(
        "object",
        "By priority, the part that its requests leave for others.",
        additionalProperties={"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    ),
    "schedule": describe(
        "array", "Other numbers at certain times; the first that matches.", items=describe_object(ENTRY, "cron")
    ),
}
POLICY: dict[str, Any] = {
    **SHARING,
    "alerts": describe(
        "array",
        "The parts of the capacity at which an alert is recorded when they are used.",
        items={"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        maxItems=8,
    ),
}


class FieldReader:
    """Reads fields that several kinds of limits have."""

    def __init__(self, given: Mapping[str, tuple[Place, Node]], report: Report) -> None:
        self._given = given
        self._report = report
        self._failed = False

    def _read_policy(self) -> tuple[bool, tuple[tuple[str, float], ...], tuple[float, ...]]:
        alerts = self._check("alerts", (), _check_thresholds)
        return self._check("soft", False, _check_flag), self._read_floors(), alerts

    def _read_floors(self) -> tuple[tuple[str, float], ...]:
        if "floors" not in self._given:
            return ()
        node = self._given["floors"][1]
        if not isinstance(node.value, dict):
            self._fail(node.place, "floors", "must map priorities to parts of the capacity, e.g. batch: 0.3")
            return ()
        found: dict[str, float] = {}
        for priority, (_, part) in node.value.items():
            try:
                found |= check_floors({priority: part.value})
            except ValidationError as error:
                self._fail(part.place, f"floors.{priority}", error.reason)
        return check_floors(found)

    def _amount(self, field: str, default: int | None, least: int = 1) -> int | None:
        found: int | None = self._check(
            field, default, lambda node: whole(field, node.value, least, MAX_AMOUNT, "tokens")
        )
        return found

    def _check(self, field: str, default: Any, convert: Callable[[Node], Any]) -> Any:
        if field not in self._given:
            return default
        node = self._given[field][1]
        try:
            return convert(node)
        except ValidationError as error:
            self._fail(node.place, field, error.reason)
            return default

    def _fail(self, place: Place, field: str, reason: str) -> None:
        self._failed = True
        self._report(place, field, reason)


def _check_flag(node: Node) -> bool:
    if not isinstance(node.value, bool):
        raise ValidationError("soft", node.value, "must be true or false")
    return node.value


def _check_thresholds(node: Node) -> tuple[float, ...]:
    items = [each.value for each in node.value] if isinstance(node.value, list) else node.value
    return check_alerts(items)


def check_seconds(node: Node) -> int:
    """Return a period in seconds. Raise `ValidationError` for anything else."""
    return whole("per", node.value, 1, MAX_PERIOD_SECONDS, "seconds")
