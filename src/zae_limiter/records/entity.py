"""The entity record: who is limited, and under whom."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ..core.values import Entity
from . import keys
from .algebra import Image, drop_none
from .fields import read_fields

CHILDREN = "children"
"""How many entities have it as their parent: kept by their commits, so that a parent cannot vanish under a child."""

_OPTIONAL = {"name": str, "parent_id": str, "cascade": bool, "metadata": dict, "created_at": str, "version": int}


def encode(ns: str, entity: Entity) -> dict[str, Any]:
    """Return the attributes of an entity record."""
    image = {
        "entity_id": entity.id,
        "cascade": entity.cascade,
        "metadata": deepcopy(dict(entity.metadata)),
        "created_at": entity.created_at,
        "version": entity.version,
        "GSI4PK": ns,
        "GSI4SK": keys.pk_entity(ns, entity.id),
        "name": None if entity.name == entity.id else entity.name,
        "parent_id": entity.parent_id,
    }
    if entity.parent_id is not None:
        image |= {"GSI1PK": keys.gsi1_pk_parent(ns, entity.parent_id), "GSI1SK": keys.gsi1_sk_child(entity.id)}
    return drop_none(image)


def decode(image: Image) -> Entity:
    """Return the entity that a record describes. Raise `CorruptRecordError` if it is damaged."""
    found = read_fields("entity", image, {"entity_id": str}, _OPTIONAL)
    version = found["version"]
    return Entity(
        id=found["entity_id"],
        name=found["name"],
        parent_id=found["parent_id"],
        cascade=bool(found["cascade"]),
        metadata=deepcopy(found["metadata"] or {}),
        created_at=found["created_at"] or "",
        version=1 if version is None else version,
    )


def inspect(image: Image) -> Image:
    """Return ``image`` if its attributes have their types, else raise `CorruptRecordError`."""
    read_fields("entity", image, {}, _OPTIONAL)
    return image
