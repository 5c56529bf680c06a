"""The audit record: who changed what. Written in the same commit as the change itself."""

from __future__ import annotations

from copy import deepcopy

from ..core.values import AuditEvent
from . import keys
from .algebra import ABSENT, Image, Write, drop_none


def event_id(now_ms: int, token: str) -> str:
    """Return an id that sorts by time and is unique by ``token``."""
    return f"{now_ms:013d}-{token}"


def record(ns: str, event: AuditEvent, expires_at_ms: int | None) -> Write:
    """Return the write that stores an event."""
    key = keys.audit(ns, event.entity_id, event.event_id)
    put = {
        "event_id": event.event_id,
        "timestamp": event.timestamp,
        "action": event.action,
        "entity_id": event.entity_id,
        "details": deepcopy(dict(event.details)),
        "GSI4PK": ns,
        "GSI4SK": key.pk,
        "principal": event.principal,
        "resource": event.resource,
    }
    return Write(key, (ABSENT,), drop_none(put), expires_at_ms=expires_at_ms)


def decode(image: Image) -> AuditEvent:
    """Return the event that a record describes."""
    return AuditEvent(
        event_id=image["event_id"],
        timestamp=image["timestamp"],
        action=image["action"],
        entity_id=image["entity_id"],
        principal=image.get("principal"),
        resource=image.get("resource"),
        details=deepcopy(image.get("details") or {}),
    )
