"""Convert entities, audit events, usage snapshots, namespaces and lists of resources."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...core import names
from ...core.bucket import MILLI
from ...records import audit, entity, keys, usage, version
from ...records.algebra import TTL
from ...records.namespace import ACTIVE, SCHEMA_VERSION
from .moves import Move, delete_if_unchanged, plan_move, whole_number

if TYPE_CHECKING:
    from .moves import Old

_OWN_IDS = "1"
"""Ids of ours begin with the time in ms, and so do not sort before this."""


def convert_entity(ns: str, entity_id: str, old: Old, now_ms: int) -> Move | None:
    """Return the move of an entity to its present form, which counts children, or None if it has it.

    An entity without that count was never counted by its own parent either.
    """
    names.entity_id(entity_id)
    key = keys.meta(ns, entity_id)
    if old.key == key and entity.CHILDREN in old.image:
        return None
    found = entity.decode({**old.fields, "entity_id": entity_id})
    stated = found.version if isinstance(found.version, int) and found.version > 0 else 1
    found = replace(found, created_at=found.created_at or "", parent_id=found.parent_id or None, version=stated)
    move = plan_move("entity", (old,), key, {**entity.encode(ns, found), entity.CHILDREN: 0}, now_ms)
    if move is None or found.parent_id is None:
        return move
    names.entity_id(found.parent_id, "parent_id")
    return move._replace(parent=keys.meta(ns, found.parent_id))


def convert_event(ns: str, subject: str, old: Old, now_ms: int) -> Move | None:
    """Return the move of an audit event. An id that would sort among later events is prefixed with its time."""
    names.audit_subject(subject)
    fields = old.fields
    found_id = old.key.sk.removeprefix(keys.AUDIT_PREFIX)
    stamp = str(fields.get("timestamp") or found_id)
    if found_id >= _OWN_IDS and not found_id[:13].isdigit():
        found_id = audit.event_id(_instant_ms(stamp), found_id)
    event = audit.decode({"action": "", **fields, "event_id": found_id, "timestamp": stamp, "entity_id": subject})
    if not isinstance(event.details, dict):
        event = replace(event, details={"details": event.details})
    made = audit.record(ns, event, None)
    return plan_move("audit event", (old,), made.key, made.put, now_ms)


def convert_snapshot(ns: str, entity_id: str, resource: str, old: Old, now_ms: int) -> Move:
    """Return the move that adds old usage to what the present aggregator has counted of the window."""
    names.entity_id(entity_id)
    names.resource(resource)
    fields = old.fields
    window_type = fields.get("window")
    if window_type not in usage.WINDOWS:
        raise ValueError(f"window is {window_type!r}, not one of {', '.join(usage.WINDOWS)}")
    start = str(fields.get("window_start") or old.key.sk.rpartition("#")[2])
    ttl = fields.get(TTL)
    write = usage.accrue(
        usage.Subject(ns, entity_id, resource),
        usage.window_of(window_type, _instant_ms(start)),
        {name: whole_number(fields, name) * MILLI for name in fields if name not in usage.OWN},
        whole_number(fields, usage.EVENTS, default=0),
        expires_at_ms=ttl * MILLI if isinstance(ttl, int) else None,
    )
    return Move("usage snapshot", (old,), (write, delete_if_unchanged(old, now_ms)))


def _instant_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * MILLI)


def convert_namespace(old: Old, now_ms: int) -> Move | None:
    """Return the move that adds our fields to a namespace record, by name or by id."""
    image = old.image
    name = image.get("name") or image.get("namespace_name") or old.key.sk.removeprefix(keys.NAMESPACE_PREFIX)
    wanted = {"status": ACTIVE, "created_at": "", **image, "name": name}
    return plan_move("namespace", (old,), old.key, wanted, now_ms)


def convert_resources(ns: str, old: Old, now_ms: int) -> Move | None:
    """Return the move that turns a list of resources into counters."""
    fields = old.fields
    counts = {f"r_{name}": 1 for name in fields.get("resources") or () if isinstance(name, str)}
    for name, value in fields.items():
        if type(value) is int and not name.startswith(("r_", "GSI")) and name != TTL:
            counts[f"r_{name}"] = value
    kept = {name: value for name, value in old.image.items() if name.startswith("r_")}
    return plan_move("registry", (old,), old.key, {**counts, **kept, "GSI4PK": ns, "GSI4SK": old.key.pk}, now_ms)


def convert_schema(old: Old, now_ms: int) -> Move | None:
    """Return the move of a namespace's version record to the present version, or None."""
    stated = old.fields.get("schema_version")
    if isinstance(stated, str) and version.major(stated) >= version.major(SCHEMA_VERSION):
        return None
    kept = {name: value for name, value in old.image.items() if name.startswith("GSI")}
    return plan_move("version", (old,), old.key, {**kept, "schema_version": SCHEMA_VERSION}, now_ms)
