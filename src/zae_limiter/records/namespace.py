"""Namespaces: a forward record by name, a reverse one by id, and the schema version inside.

Deleting a namespace drops the forward record, which frees its name; the reverse record stays, marked, until
the namespace is recovered or purged.
"""

from __future__ import annotations

from typing import Any

from ..core.values import Namespace
from . import keys
from .algebra import ABSENT, Guard, Image, Write

ACTIVE = "active"
DELETED = "deleted"
PURGING = "purging"
SCHEMA_VERSION = "1.0.0"


def _attributes(namespace: Namespace) -> dict[str, Any]:
    put = {
        "name": namespace.name,
        "namespace_id": namespace.id,
        "status": namespace.status,
        "created_at": namespace.created_at,
    }
    return put if namespace.deleted_at is None else {**put, "deleted_at": namespace.deleted_at}


def is_present(record: Image) -> bool:
    """Return whether a record has the present layout: older clients call the name otherwise."""
    return "name" in record


def register(namespace: Namespace) -> list[Write]:
    """Return the writes of both records and the version, if the name is free."""
    version = {
        "schema_version": SCHEMA_VERSION,
        "GSI4PK": namespace.id,
        "GSI4SK": keys.pk_system(namespace.id),
    }
    return [
        Write(keys.namespace(namespace.name), (ABSENT,), _attributes(namespace)),
        Write(keys.nsid(namespace.id), (ABSENT,), _attributes(namespace)),
        Write(keys.version(namespace.id), (), version),
    ]


def delete(namespace: Namespace, deleted_at: str) -> list[Write]:
    """Return the writes that free the name and keep the data and the reverse record."""
    return [
        Write(keys.namespace(namespace.name), (Guard("namespace_id", "=", namespace.id),), delete=True),
        Write(keys.nsid(namespace.id), (_in(ACTIVE),), {"status": DELETED, "deleted_at": deleted_at}),
    ]


def recover(namespace: Namespace) -> list[Write]:
    """Return the writes that give the name back to the data, if nobody has taken it."""
    active = Namespace(namespace.name, namespace.id, ACTIVE, namespace.created_at)
    return [
        Write(keys.namespace(namespace.name), (ABSENT,), _attributes(active)),
        Write(keys.nsid(namespace.id), (_in(DELETED),), {"status": ACTIVE}, remove=("deleted_at",)),
    ]


def begin_purge(namespace: Namespace) -> Write:
    """Return the write that starts a purge: from here on there is no recovery, only another purge."""
    return Write(keys.nsid(namespace.id), (_in(namespace.status),), {"status": PURGING})


def end_purge(namespace: Namespace) -> Write:
    """Return the write that deletes the reverse record."""
    return Write(keys.nsid(namespace.id), (_in(PURGING),), delete=True)


def _in(status: str) -> Guard:
    return Guard("status", "=", status)


def decode(image: Image) -> Namespace:
    """Return the namespace that either record describes."""
    return Namespace(
        name=image["name"],
        id=image["namespace_id"],
        status=image["status"],
        created_at=image["created_at"],
        deleted_at=image.get("deleted_at"),
    )
