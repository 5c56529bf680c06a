"""The audit record: who changed what. Written in the same commit as the change itself."""

from __future__ import annotations

from copy import deepcopy

from ..core.values import AuditEvent
from . import keys
from .algebra import ABSENT, Image, Write, drop_none
from .fields import read_fields

_REQUIRED = ("event_id", "timestamp", "action", "entity_id")
_OPTIONAL = ("principal", "resource")
"""Attributes that are fields of an event as they are."""


def event_id(now_ms: int, token: str) -> str:
    """Return an id that sorts by time and is unique by ``token``."""
    return f"{now_ms:013d}-{token}"


def record(ns: str, event: AuditEvent, expires_at_ms: int | None) -> Write:
    """Return the write that stores an event."""
    key = keys.audit(ns, event.entity_id, event.event_id)
    put = {attr: getattr(event, attr) for attr in (*_REQUIRED, *_OPTIONAL)} | {"GSI4PK": ns, "GSI4SK": key.pk}
    put["details"] = deepcopy(dict(event.details))
    return Write(key, (ABSENT,), drop_none(put), expires_at_ms=expires_at_ms)


def decode(image: Image) -> AuditEvent:
    """Return the event that a record describes. Raise `CorruptRecordError` if it is damaged."""
    optional = {**dict.fromkeys(_OPTIONAL, str), "details": dict}
    found = read_fields("audit", image, dict.fromkeys(_REQUIRED, str), optional)
    return AuditEvent(**found | {"details": deepcopy(found["details"] or {})})
