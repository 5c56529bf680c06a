"""The records of namespaces and the lists of resources, as other clients write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...records import keys, version
from ...records.namespace import ACTIVE, SCHEMA_VERSION
from .items import Move, moved

if TYPE_CHECKING:
    from ...records.algebra import Image
    from .items import Old


def namespace(old: Old, now_ms: int) -> Move | None:
    """A namespace, by name or by id: it gets the fields that ours have, and keeps its own."""
    image = old.image
    name = image.get("name") or image.get("namespace_name") or old.key.sk.removeprefix(keys.NAMESPACE_PREFIX)
    wanted = {"status": ACTIVE, "created_at": "", **image, "name": name}
    return moved("namespace", (old,), old.key, wanted, now_ms)


def resources(ns: str, old: Old, now_ms: int) -> Move | None:
    """A list of resources, one per attribute or all in one set, as counters."""
    entry: dict[str, Any] = {"GSI4PK": ns, "GSI4SK": old.key.pk}
    kept = {name: value for name, value in old.image.items() if name.startswith("r_")}
    return moved("registry", (old,), old.key, {**_counted(old.fields), **kept, **entry}, now_ms)


def _counted(fields: Image) -> dict[str, int]:
    found = {f"r_{name}": 1 for name in fields.get("resources") or () if isinstance(name, str)}
    for name, value in fields.items():
        if type(value) is int and not name.startswith(("r_", "GSI")) and name != "ttl":
            found[f"r_{name}"] = value
    return found


def schema(old: Old, now_ms: int) -> Move | None:
    """The version of a namespace: the present one, once its records are."""
    stated = old.fields.get("schema_version")
    if isinstance(stated, str) and version.major(stated) >= version.major(SCHEMA_VERSION):
        return None
    kept = {name: value for name, value in old.image.items() if name.startswith("GSI")}
    return moved("version", (old,), old.key, {**kept, "schema_version": SCHEMA_VERSION}, now_ms)
