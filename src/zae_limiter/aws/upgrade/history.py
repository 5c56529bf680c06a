"""Convert audit events and usage snapshots, keeping every number."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...core import names
from ...core.bucket import MILLI
from ...core.values import AuditEvent
from ...records import audit, keys, usage
from ...records.algebra import TTL
from .items import Move, delete_if_unchanged, plan_move, whole_number

if TYPE_CHECKING:
    from ...records.algebra import Image
    from .items import Old

_OWN_IDS = "1"
"""Ids of ours begin with the time in ms, and so do not sort before this."""


def convert_event(ns: str, subject: str, old: Old, now_ms: int) -> Move | None:
    """Return the move of an audit event. An id that would sort among later events is prefixed with its time."""
    names.audit_subject(subject)
    fields = old.fields
    found_id = old.key.sk.removeprefix(keys.AUDIT_PREFIX)
    stamp = str(fields.get("timestamp") or found_id)
    if found_id >= _OWN_IDS and not found_id[:13].isdigit():
        found_id = audit.event_id(_instant_ms(stamp), found_id)
    whole = {**fields, "event_id": found_id, "timestamp": stamp, "entity_id": subject}
    made = audit.record(ns, _decode_event(whole), None)
    return plan_move("audit event", (old,), made.key, made.put, now_ms)


def _decode_event(fields: Image) -> AuditEvent:
    found = audit.decode({"action": "", **fields})
    return found if isinstance(found.details, dict) else audit.decode({**fields, "details": {"details": found.details}})


def convert_snapshot(ns: str, entity_id: str, resource: str, old: Old, now_ms: int) -> Move:
    """Return the move that adds old usage to what the present aggregator has counted of the window."""
    names.entity_id(entity_id)
    names.resource(resource)
    fields = old.fields
    window_type = fields.get("window")
    if window_type not in usage.WINDOWS:
        raise ValueError(f"window is {window_type!r}, not one of {', '.join(usage.WINDOWS)}")
    start = str(fields.get("window_start") or old.key.sk.rpartition("#")[2])
    counters = [name for name in fields if name not in usage.OWN]
    used = {name: whole_number(fields, name) * MILLI for name in counters}
    ttl = fields.get(TTL)
    write = usage.accrue(
        usage.Subject(ns, entity_id, resource),
        usage.window_of(window_type, _instant_ms(start)),
        used,
        whole_number(fields, usage.EVENTS, default=0),
        expires_at_ms=ttl * MILLI if isinstance(ttl, int) else None,
    )
    return Move("usage snapshot", (old,), (write, delete_if_unchanged(old, now_ms)))


def _instant_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * MILLI)
