"""The keys of a limits file, once: the parser and the JSON schema both follow these tables."""

from __future__ import annotations

from typing import Any

from ..core.values import Access, OnUnavailable
from ..v017 import limits_file
from .limits import KINDS
from .reading import describe, describe_object

NONE = "none"
"""The word that removes a stored switch or cascade policy."""


def _refer(name: str, description: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}", "description": description}


def _map_of(name: str, description: str) -> dict[str, Any]:
    return describe(["object", "null"], description, additionalProperties={"$ref": f"#/$defs/{name}"})


_LIMITS = _map_of("limit", "All limits of this level, by name; empty for none.")
_SWITCH = {"enum": [*(each.value for each in Access), NONE], "description": "The switch; none removes a stored one."}
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
    "name": describe(["string", "null"], "A name for people."),
    "parent": describe(["string", "null"], "The entity above it, in this file or stored."),
    "cascade": describe("boolean", "Whether to charge the parent too."),
    "limits": _LIMITS | {"description": "Its limits for all resources."},
    "switch": _SWITCH | {"description": "Its switch for all resources."},
    "disabled": limits_file.DISABLED,
    "resources": _map_of("settings", "By resource; _default_ stands for all."),
}
ROOT: dict[str, Any] = {
    "namespace": describe("string", "The namespace that the file is for; any if left out."),
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
        **describe_object(ROOT),
        "$defs": {
            "system": describe_object(SYSTEM),
            "settings": describe_object(SETTINGS),
            "entity": describe_object(ENTITY),
            "limit": {"anyOf": [text, *(describe_object(table, first) for first, table in KINDS.items())]},
        },
    }
