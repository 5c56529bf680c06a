"""The entity record: who is limited, and under whom."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ..core.values import Entity
from . import keys
from .algebra import Image, drop_none

CHILDREN = "children"
"""How many entities have it as their parent: kept by their commits, so that a parent cannot vanish under a child."""


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
    """Return the entity that a record describes."""
    return Entity(
        id=image["entity_id"],
        name=image.get("name"),
        parent_id=image.get("parent_id"),
        cascade=bool(image.get("cascade", False)),
        metadata=deepcopy(image.get("metadata") or {}),
        created_at=image.get("created_at", ""),
        version=image.get("version", 1),
    )
