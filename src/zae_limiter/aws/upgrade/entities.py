"""Convert entities to the present form, which counts children.

An entity without that count was never counted by its own parent either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import names
from ...core.values import Entity
from ...records import entity, keys
from .items import Move, plan_move

if TYPE_CHECKING:
    from ...records.algebra import Image
    from .items import Old

KIND = "entity"


def convert(ns: str, entity_id: str, old: Old, now_ms: int) -> Move | None:
    """Return the move of an entity to its present form, or None if it has it."""
    names.entity_id(entity_id)
    key = keys.meta(ns, entity_id)
    if old.key == key and entity.CHILDREN in old.image:
        return None
    found = _decode(entity_id, old.fields)
    move = plan_move(KIND, (old,), key, {**entity.encode(ns, found), entity.CHILDREN: 0}, now_ms)
    if move is None or found.parent_id is None:
        return move
    names.entity_id(found.parent_id, "parent_id")
    return move._replace(parent=keys.meta(ns, found.parent_id))


def _decode(entity_id: str, fields: Image) -> Entity:
    found = entity.decode({**fields, "entity_id": entity_id})
    version = found.version if isinstance(found.version, int) and found.version > 0 else 1
    return replace(found, created_at=found.created_at or "", parent_id=found.parent_id or None, version=version)
