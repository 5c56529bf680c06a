"""The audit record: who changed what. Written in the same commit as the change itself.

The event of an alert is the exception on a store whose changes the aggregator follows: clients that may only acquire
may not write the audit log. They leave the event under a key of alerts, and the aggregator copies it to the log.
"""

from __future__ import annotations

from copy import deepcopy

from ..core.values import AuditAction, AuditEvent
from . import keys
from .algebra import ABSENT, TTL, Image, Key, Write, drop_none
from .fields import read_fields

_REQUIRED = ("event_id", "timestamp", "action", "entity_id")
_OPTIONAL = ("principal", "resource")
"""Attributes that are fields of an event as they are."""
_INDEXES = ("GSI4PK", "GSI4SK")
_DETAILS = "details"
ALERT_ATTRIBUTES = (*_INDEXES, *_REQUIRED, "resource", _DETAILS, TTL)
"""The attributes of an alert that waits for the aggregator."""


def event_id(now_ms: int, token: str) -> str:
    """Return an id that sorts by time and is unique by ``token``."""
    return f"{now_ms:013d}-{token}"


def record(ns: str, event: AuditEvent, expires_at_ms: int | None) -> Write:
    """Return the write that stores an event."""
    key = keys.audit(ns, event.entity_id, event.event_id)
    put = {attr: getattr(event, attr) for attr in (*_REQUIRED, *_OPTIONAL)}
    put |= zip(_INDEXES, (ns, key.pk), strict=True)
    put[_DETAILS] = deepcopy(dict(event.details))
    return Write(key, (ABSENT,), drop_none(put), expires_at_ms=expires_at_ms)


def leave_alert(event: Write) -> Write:
    """Return the write that leaves an alert for the aggregator, instead of ``event``, which would store it."""
    key = keys.alert(event.put["GSI4PK"], event.put["entity_id"], event.put["event_id"])
    return event._replace(key=key, put={**event.put, "GSI4SK": key.pk})


def record_alert(key: Key, image: Image) -> Write:
    """Return the write that stores an alert, which a client has left at ``key``.

    The key says whose alert it is, whatever the record says. Raise `CorruptRecordError` if the record is damaged.
    """
    whose = keys.parse_alert(key)
    known = {"action": AuditAction.LIMIT_ALERT.value, "event_id": whose.event_id, "entity_id": whose.entity_id}
    event = decode({**image, **known, "principal": None})
    return record(whose.namespace_id, event, read_fields("alert", image, {TTL: int})[TTL] * 1000)


def decode(image: Image) -> AuditEvent:
    """Return the event that a record describes. Raise `CorruptRecordError` if it is damaged."""
    optional = {**dict.fromkeys(_OPTIONAL, str), _DETAILS: dict}
    found = read_fields("audit", image, dict.fromkeys(_REQUIRED, str), optional)
    return AuditEvent(**found | {_DETAILS: deepcopy(found[_DETAILS] or {})})
