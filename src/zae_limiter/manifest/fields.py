"""The keys of a limits file, once: the parser and the JSON schema both follow these tables."""

from __future__ import annotations

from typing import Any

from ..core.calendar import UNITS
from ..core.limit import MAX_AMOUNT, MAX_SLOTS
from ..core.values import Access, OnUnavailable
from ..v017 import limits_file

NONE = "none"
"""The word that removes a stored switch or cascade policy."""
PER = ("s", "min", "hour", "day")


def _of(kind: str | list[str], description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **more}


def _refer(name: str, description: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}", "description": description}


def _map_of(name: str, description: str) -> dict[str, Any]:
    return _of(["object", "null"], description, additionalProperties={"$ref": f"#/$defs/{name}"})


def _amount(description: str, least: int = 1) -> dict[str, Any]:
    return _of("integer", description, minimum=least, maximum=MAX_AMOUNT)


def _object(fields: dict[str, Any], *required: str) -> dict[str, Any]:
    made = {"type": "object" if required else ["object", "null"], "properties": fields, "additionalProperties": False}
    return made | ({"required": list(required)} if required else {})


_LIMITS = _map_of("limit", "All limits of this level, by name; empty for none.")
_SWITCH = {"enum": [*(each.value for each in Access), NONE], "description": "The switch; none removes a stored one."}
ENTRY: dict[str, Any] = {
    "cron": _of("string", "The pattern: the entry is in force in every minute that matches, e.g. * 9-17 * * 1-5."),
    "tz": _of("string", "The time zone, e.g. Europe/Berlin."),
    "scale": _of("number", "The factor for capacity and refill.", exclusiveMinimum=0),
    "capacity": _amount("Instead of the factor: the capacity; of a quota, the tokens per window."),
    "refill_amount": _amount("The tokens per period, of a rate."),
    "refill_period_seconds": _of("integer", "The period in seconds, of a rate.", minimum=1),
}
_SHARING: dict[str, Any] = {
    "soft": _of("boolean", "Whether it only counts, and never refuses."),
    "floors": _of(
        "object",
        "By priority, the part that its requests leave for others.",
        additionalProperties={"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    ),
    "schedule": _of("array", "Other numbers at certain times; the first that matches.", items=_object(ENTRY, "cron")),
}
_POLICY: dict[str, Any] = {
    **_SHARING,
    "alerts": _of(
        "array",
        "The parts of the capacity at which an alert is recorded when they are used.",
        items={"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        maxItems=8,
    ),
}
RATE: dict[str, Any] = {
    "rate": _amount("Tokens per period."),
    "per": _of(["string", "integer"], f"The period: {', '.join(PER)}, a number of them (30s), or seconds."),
    "burst": _amount("The most at once; the rate if left out."),
    **_POLICY,
}
QUOTA: dict[str, Any] = {
    "quota": _amount("Tokens per window."),
    "every": _of("string", f"The window: {', '.join(UNITS)}, or a length such as 90min."),
    "tz": _of("string", "The time zone, e.g. Europe/Berlin."),
    "at": _of("string", "The local time HH:MM at which a window begins."),
    "on": _of(["string", "integer"], "The day on which it begins: monday, 15, or 04-01."),
    "cron": _of("string", "Instead of every, at and on: a window begins whenever this fires, e.g. 0 9 * * 1-5."),
    "reset_after": _of(
        ["string", "integer"], "Instead of these: the length of a window that begins with its first use, e.g. 5h."
    ),
    "rollover": _amount("Unused tokens that are kept for later windows.", least=0),
    **_POLICY,
}
CONCURRENT: dict[str, Any] = {
    "concurrent": _of("integer", "How many at once: its slots.", minimum=1, maximum=MAX_SLOTS),
    "ttl": _of(
        ["string", "integer"], "After how long a slot comes back that nobody renews: 60, 2min; 60 s if left out."
    ),
    "max_hold": _of(
        ["string", "integer"], "For how long a slot can be held at most: 600, 10min; for ever if left out."
    ),
    **_SHARING,
}
KINDS: dict[str, dict[str, Any]] = {
    "quota": QUOTA,
    "concurrent": CONCURRENT,
    "capacity": {**limits_file.CAPACITY, **_POLICY},
    "rate": RATE,
}
"""The tables of the kinds of limits, by the key that a limit of the kind has."""
_CASCADE = {
    "enum": [True, False, NONE, None],
    "description": "Whether to charge parents too, whatever the entity says; none removes it.",
}
SETTINGS: dict[str, Any] = {"limits": _LIMITS, "switch": _SWITCH, "disabled": limits_file.DISABLED, "cascade": _CASCADE}
SYSTEM: dict[str, Any] = {
    "limits": _LIMITS,
    "on_unavailable": {
        "enum": [*(each.value for each in OnUnavailable), None],
        "description": "What an acquire does when the store is unavailable.",
    },
}
ENTITY: dict[str, Any] = {
    "name": _of(["string", "null"], "A name for people."),
    "parent": _of(["string", "null"], "The entity above it, in this file or stored."),
    "cascade": _of("boolean", "Whether to charge the parent too."),
    "limits": _LIMITS | {"description": "Its limits for all resources."},
    "switch": _SWITCH | {"description": "Its switch for all resources."},
    "disabled": limits_file.DISABLED,
    "resources": _map_of("settings", "By resource; _default_ stands for all."),
}
ROOT: dict[str, Any] = {
    "namespace": _of("string", "The namespace that the file is for; any if left out."),
    "system": _refer("system", "Defaults for all entities and resources."),
    "resources": _map_of("settings", "Defaults by resource."),
    "entities": _map_of("entity", "Entities by id."),
}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a limits file, for editors."""
    text = {
        "type": ["string", "integer"],
        "description": "As behind -l: 60, 1000/min:1500, 1000000/day@Europe/Berlin, 10/concurrent.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "zae-limiter limits",
        **_object(ROOT),
        "$defs": {
            "system": _object(SYSTEM),
            "settings": _object(SETTINGS),
            "entity": _object(ENTITY),
            "limit": {"anyOf": [text, *(_object(table, first) for first, table in KINDS.items())]},
        },
    }
