"""Namespaces: a forward record by name, a reverse one by id, and the schema version inside.

Deleting a namespace drops the forward record, which frees its name; the reverse record stays, marked, until
the namespace is recovered or purged.
"""

from __future__ import annotations

from typing import Any

from ..core.values import Namespace
from . import keys
from .algebra import ABSENT, Guard, Image, Write, drop_none
from .fields import read_fields
from .version import SCHEMA_VERSION, mismatch

ACTIVE = "active"
DELETED = "deleted"
PURGING = "purging"

_REQUIRED = dict.fromkeys(("name", "namespace_id", "status", "created_at"), str)
"""The attributes that are the first fields of a `Namespace`, in their order."""


def _attributes(namespace: Namespace) -> dict[str, Any]:
    texts = {attr: getattr(namespace, attr) for attr in ("name", "status", "created_at", "deleted_at")}
    return drop_none({"namespace_id": namespace.id, **texts})


def is_present(record: Image) -> bool:
    """Return whether a record has the present layout: older clients call the name otherwise."""
    return "name" in record


def register(namespace: Namespace) -> list[Write]:
    """Return the writes of both records and the version, if the name is free."""
    version = keys.version(namespace.id)
    return [
        Write(keys.namespace(namespace.name), (ABSENT,), _attributes(namespace)),
        Write(keys.nsid(namespace.id), (ABSENT,), _attributes(namespace)),
        Write(version, (), {"schema_version": SCHEMA_VERSION, "GSI4PK": namespace.id, "GSI4SK": version.pk}),
    ]


def delete(namespace: Namespace, deleted_at: str) -> list[Write]:
    """Return the writes that free the name and keep the data and the reverse record."""
    return [
        Write(keys.namespace(namespace.name), (Guard("namespace_id", "=", namespace.id),), delete=True),
        Write(keys.nsid(namespace.id), (Guard("status", "=", ACTIVE),), {"status": DELETED, "deleted_at": deleted_at}),
    ]


def recover(namespace: Namespace) -> list[Write]:
    """Return the writes that give the name back to the data, if nobody has taken it."""
    active = Namespace(namespace.name, namespace.id, ACTIVE, namespace.created_at)
    return [
        Write(keys.namespace(namespace.name), (ABSENT,), _attributes(active)),
        Write(keys.nsid(namespace.id), (Guard("status", "=", DELETED),), {"status": ACTIVE}, remove=("deleted_at",)),
    ]


def begin_purge(namespace: Namespace) -> Write:
    """Return the write that starts a purge: from here on there is no recovery, only another purge."""
    return Write(keys.nsid(namespace.id), (Guard("status", "=", namespace.status),), {"status": PURGING})


def end_purge(namespace: Namespace) -> Write:
    """Return the write that deletes the reverse record."""
    return Write(keys.nsid(namespace.id), (Guard("status", "=", PURGING),), delete=True)


def decode(image: Image) -> Namespace:
    """Return the namespace of either record.

    Raise `VersionMismatchError` if a client of an older layout wrote it, `CorruptRecordError` if it is damaged.
    """
    if not is_present(image):
        raise mismatch("has a namespace in the older layout of zae-limiter 0.x")
    return Namespace(*read_fields("namespace", image, _REQUIRED, {"deleted_at": str}).values())
