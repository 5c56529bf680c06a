"""Convert namespace records and lists of resources of other clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...records import keys, version
from ...records.namespace import ACTIVE, SCHEMA_VERSION
from .items import Move, plan_move

if TYPE_CHECKING:
    from ...records.algebra import Image
    from .items import Old


def convert_namespace(old: Old, now_ms: int) -> Move | None:
    """Return the move that adds our fields to a namespace record, by name or by id."""
    image = old.image
    name = image.get("name") or image.get("namespace_name") or old.key.sk.removeprefix(keys.NAMESPACE_PREFIX)
    wanted = {"status": ACTIVE, "created_at": "", **image, "name": name}
    return plan_move("namespace", (old,), old.key, wanted, now_ms)


def convert_resources(ns: str, old: Old, now_ms: int) -> Move | None:
    """Return the move that turns a list of resources into counters."""
    entry: dict[str, Any] = {"GSI4PK": ns, "GSI4SK": old.key.pk}
    kept = {name: value for name, value in old.image.items() if name.startswith("r_")}
    return plan_move("registry", (old,), old.key, {**_count_resources(old.fields), **kept, **entry}, now_ms)


def _count_resources(fields: Image) -> dict[str, int]:
    found = {f"r_{name}": 1 for name in fields.get("resources") or () if isinstance(name, str)}
    for name, value in fields.items():
        if type(value) is int and not name.startswith(("r_", "GSI")) and name != "ttl":
            found[f"r_{name}"] = value
    return found


def convert_schema(old: Old, now_ms: int) -> Move | None:
    """Return the move of a namespace's version record to the present version, or None."""
    stated = old.fields.get("schema_version")
    if isinstance(stated, str) and version.major(stated) >= version.major(SCHEMA_VERSION):
        return None
    kept = {name: value for name, value in old.image.items() if name.startswith("GSI")}
    return plan_move("version", (old,), old.key, {**kept, "schema_version": SCHEMA_VERSION}, now_ms)
