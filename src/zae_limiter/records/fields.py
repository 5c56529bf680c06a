"""The attributes of a stored record, checked where it is decoded: damage is named and never taken for a value.

Instants that people read are stored as RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from ..core.errors import CorruptRecordError
from .algebra import Image

_NONE: Mapping[str, type] = MappingProxyType({})


def read_fields(
    kind: str, image: Image, required: Mapping[str, type], optional: Mapping[str, type] = _NONE
) -> dict[str, Any]:
    """Return these attributes of a record, None for an optional one that is absent.

    Raise `CorruptRecordError`, which names the ``kind`` of record, unless each has its type. Optional ones
    may also be null, as older versions store them, but no numbers: these are counted with.
    """
    found = {attr: image.get(attr) for attr in (*required, *optional)}
    types = {**required, **optional}
    wrong = [
        f"{attr} is {value!r:.60}"
        for attr, value in found.items()
        if type(value) is not types[attr]
        and not (value is None and attr in optional and (attr not in image or types[attr] is not int))
    ]
    if wrong:
        where = " ".join(f"{attr}={image[attr]!r:.60}" for attr in ("GSI4SK", "entity_id", "name") if attr in image)
        raise CorruptRecordError(
            f"The {kind} record ({where}) is damaged: {', '.join(wrong)}; write or delete it again."
        )
    return found


def iso(instant_ms: int) -> str:
    """Return an instant with milliseconds: ``2026-01-31T12:00:00.250Z``."""
    moment = datetime.fromtimestamp(instant_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
