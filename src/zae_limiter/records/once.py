"""The record of a change that is made only once, however often it is asked for: what was asked, and the result.

It is written in the commit of the change itself, under the entity, and kept for `KEPT_MS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from . import keys
from .algebra import ABSENT, Image, Key, Write
from .fields import read_fields

KEPT_MS = 4 * 86_400_000
"""How long a repeated request is recognised."""


def key_of(ns: str, entity_id: str, idempotency_key: str) -> Key:
    """Return the key of the record of a request."""
    from hashlib import sha256  # on first use

    return keys.once(ns, entity_id, sha256(idempotency_key.encode()).hexdigest()[:32])


def record(
    key: Key, ns: str, asked: Mapping[str, Any], result: Mapping[str, Any], event: Mapping[str, Any], now_ms: int
) -> Write:
    """Return the write that notes a change; ``event`` are the attributes of its audit record."""
    found = {"asked": deepcopy(dict(asked)), "result": deepcopy(dict(result)), "event": deepcopy(dict(event))}
    return Write(key, (ABSENT,), {**found, "GSI4PK": ns, "GSI4SK": key.pk}, expires_at_ms=now_ms + KEPT_MS)


def decode(image: Image) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what was asked, the result, and the attributes of the audit record.

    Raise `CorruptRecordError` if it is damaged.
    """
    found = read_fields("idempotency", image, dict.fromkeys(("asked", "result", "event"), dict))
    return found["asked"], found["result"], found["event"]
