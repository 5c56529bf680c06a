"""Entities: the same, and counted with their parent.

Ours count their children; one without that count was never counted with its own parent either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import names
from ...core.values import Entity
from ...records import entity, keys
from .items import Move, moved

if TYPE_CHECKING:
    from ...records.algebra import Image
    from .items import Old

KIND = "entity"


def convert(ns: str, entity_id: str, old: Old, now_ms: int) -> Move | None:
    """The entity in its present form; None for one that has it."""
    names.entity_id(entity_id)
    key = keys.meta(ns, entity_id)
    if old.key == key and entity.CHILDREN in old.image:
        return None
    found = _decoded(entity_id, old.fields)
    move = moved(KIND, (old,), key, {**entity.encode(ns, found), entity.CHILDREN: 0}, now_ms)
    if move is None or found.parent_id is None:
        return move
    names.entity_id(found.parent_id, "parent_id")
    return move._replace(parent=keys.meta(ns, found.parent_id))


def _decoded(entity_id: str, fields: Image) -> Entity:
    found = entity.decode({**fields, "entity_id": entity_id})
    version = found.version if isinstance(found.version, int) and found.version > 0 else 1
    return replace(found, created_at=found.created_at or "", parent_id=found.parent_id or None, version=version)
