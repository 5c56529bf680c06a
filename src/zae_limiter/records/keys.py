"""Storage keys: every builder and parser, and nothing else builds or takes apart a key.

Each part is checked by `zae_limiter.core.names` before it gets here: no part contains ``#``, a namespace
id contains no ``/``, so every key can be taken apart in one way only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..core.names import RESERVED_NAMESPACE
from .algebra import Key, Query

STATE = "#STATE"
META = "#META"
CONFIG = "#CONFIG"
VERSION = "#VERSION"
RESOURCES = "#RESOURCES"
ENTITY_CONFIG_RESOURCES = "#ENTITY_CONFIG_RESOURCES"
AUDIT_PREFIX = "#AUDIT#"
ALERT_PREFIX = "#ALERT#"
BUCKETS = "BUCKET#"
USAGE_PREFIX = "#USAGE#"
ONCE_PREFIX = "#ONCE#"
NAMESPACE_PREFIX = "#NAMESPACE#"
NSID_PREFIX = "#NSID#"

AUDIT_SYSTEM = "$SYSTEM"

_shared = lru_cache(maxsize=1024)
"""For parts that many records have: one string for all of them."""


@_shared
def pk_system(ns: str) -> str:
    return f"{ns}/SYSTEM#"


@_shared
def pk_resource(ns: str, resource: str) -> str:
    return f"{ns}/RESOURCE#{resource}"


def pk_entity(ns: str, entity_id: str) -> str:
    return f"{ns}/ENTITY#{entity_id}"


gsi2_pk_resource, gsi3_pk_entity = pk_resource, pk_entity  # the indexes use the same texts


def pk_audit(ns: str, entity_id: str) -> str:
    return f"{ns}/AUDIT#{entity_id}"


def pk_alert(ns: str, entity_id: str) -> str:
    return f"{ns}/ALERT#{entity_id}"


@_shared
def sk_config(resource: str | None = None) -> str:
    return CONFIG if resource is None else f"{CONFIG}#{resource}"


def sk_audit(event_id: str) -> str:
    return f"{AUDIT_PREFIX}{event_id}"


def audit_resource(resource: str) -> str:
    return f"$RESOURCE:{resource}"


def audit_namespace(name: str) -> str:
    return f"$NAMESPACE:{name}"


def gsi1_pk_parent(ns: str, parent_id: str) -> str:
    return f"{ns}/PARENT#{parent_id}"


def gsi1_sk_child(entity_id: str) -> str:
    return f"CHILD#{entity_id}"


def gsi2_sk_bucket(entity_id: str, shard_id: int = 0) -> str:
    return f"{BUCKETS}{entity_id}#{shard_id}"


def gsi2_sk_usage(window_type: str, window_start: str, entity_id: str) -> str:
    return f"USAGE#{window_type}#{window_start}#{entity_id}"


def gsi3_pk_entity_config(ns: str, resource: str) -> str:
    return f"{ns}/ENTITY_CONFIG#{resource}"


@_shared
def gsi3_sk_bucket(resource: str, shard_id: int = 0) -> str:
    return f"{BUCKETS}{resource}#{shard_id}"


def bucket(ns: str, entity_id: str, resource: str, shard_id: int = 0) -> Key:
    return Key(f"{ns}/{BUCKETS}{entity_id}#{resource}#{shard_id}", STATE)


def meta(ns: str, entity_id: str) -> Key:
    return Key(pk_entity(ns, entity_id), META)


def entity_config(ns: str, entity_id: str, resource: str) -> Key:
    return Key(pk_entity(ns, entity_id), sk_config(resource))


def resource_config(ns: str, resource: str) -> Key:
    return Key(pk_resource(ns, resource), CONFIG)


def system_config(ns: str) -> Key:
    return Key(pk_system(ns), CONFIG)


def version(ns: str) -> Key:
    return Key(pk_system(ns), VERSION)


def resources(ns: str) -> Key:
    return Key(pk_system(ns), RESOURCES)


def entity_config_resources(ns: str) -> Key:
    return Key(pk_system(ns), ENTITY_CONFIG_RESOURCES)


def audit(ns: str, entity_id: str, event_id: str) -> Key:
    return Key(pk_audit(ns, entity_id), sk_audit(event_id))


def alert(ns: str, entity_id: str, event_id: str) -> Key:
    return Key(pk_alert(ns, entity_id), f"{ALERT_PREFIX}{event_id}")


def usage(ns: str, entity_id: str, resource: str, window_type: str, window_start: str) -> Key:
    return Key(pk_entity(ns, entity_id), f"{USAGE_PREFIX}{resource}#{window_type}#{window_start}")


def once(ns: str, entity_id: str, digest: str) -> Key:
    return Key(pk_entity(ns, entity_id), f"{ONCE_PREFIX}{digest}")


REGISTRY = pk_system(RESERVED_NAMESPACE)


def namespace(name: str) -> Key:
    return Key(REGISTRY, f"{NAMESPACE_PREFIX}{name}")


def nsid(namespace_id: str) -> Key:
    return Key(REGISTRY, f"{NSID_PREFIX}{namespace_id}")


def buckets_of_namespace(ns: str) -> Query:
    """Return the range of all buckets of a namespace, every shard."""
    return Query(ns, f"{ns}/{BUCKETS}", gsi="GSI4")


def buckets_of_resource(ns: str, resource: str) -> Query:
    """Return the range of the buckets of all entities for a resource."""
    return Query(gsi2_pk_resource(ns, resource), BUCKETS, gsi="GSI2")


def buckets_of_entity(ns: str, entity_id: str, resource: str | None = None) -> Query:
    """Return the range of the buckets of an entity, for all resources or for one."""
    prefix = BUCKETS if resource is None else f"{BUCKETS}{resource}#"
    return Query(gsi3_pk_entity(ns, entity_id), prefix, gsi="GSI3")


def owner(key: Key) -> str:
    """Return who owns a record on a store that spreads them: an entity its counters, and what was done to them once.

    The namespace owns everything else.

    So the buckets of different entities can live apart, and every change of names, limits and audit stays in one place.
    The version of a namespace is written when it is registered, so it is the registry's.
    """
    if key.sk == VERSION:
        return RESERVED_NAMESPACE
    namespace_id, _, rest = key.pk.partition("/")
    kind, _, whose = rest.partition("#")
    if kind == "BUCKET" or (kind == "ENTITY" and key.sk.startswith((USAGE_PREFIX, ONCE_PREFIX))):
        return f"{namespace_id}/{whose.partition('#')[0]}"
    return namespace_id


def owners(query: Query) -> tuple[str, ...] | None:
    """Return the owners of the records that a query can find, or None if that is anybody."""
    namespace_id, _, rest = query.pk.partition("/")
    kind, _, whose = rest.partition("#")
    entity = f"{namespace_id}/{whose.partition('#')[0]}"
    if query.gsi is None:
        other = {"BUCKET": entity, "ENTITY": entity, "SYSTEM": RESERVED_NAMESPACE}.get(kind)
        return (namespace_id,) if other is None else (namespace_id, other)
    if query.gsi == "GSI1" and kind == "PARENT":
        return (namespace_id,)
    if query.gsi == "GSI3" and kind in ("ENTITY", "ENTITY_CONFIG"):
        return (entity,) if kind == "ENTITY" else (namespace_id,)
    return None


class BucketKey(NamedTuple):
    """The parts of a bucket's partition key."""

    namespace_id: str
    entity_id: str
    resource: str
    shard_id: int


def parse_bucket_pk(pk: str) -> BucketKey:
    """Return the parts of a bucket's partition key. Raise ValueError for any other key."""
    namespace_id, slash, rest = pk.partition("/")
    parts = rest.split("#")
    if not slash or len(parts) != 4 or parts[0] != "BUCKET" or not parts[3].isdigit():
        raise ValueError(f"{pk!r} is not the partition key of a bucket")
    return BucketKey(namespace_id, parts[1], parts[2], int(parts[3]))


class AlertKey(NamedTuple):
    """The parts of the key of an alert that waits for the aggregator."""

    namespace_id: str
    entity_id: str
    event_id: str


def parse_alert(key: Key) -> AlertKey:
    """Return the parts of an alert's key. Raise ValueError for any other key."""
    namespace_id, slash, entity_id = key.pk.partition("/ALERT#")
    if not slash or not key.sk.startswith(ALERT_PREFIX):
        raise ValueError(f"{key} is not the key of an alert")
    return AlertKey(namespace_id, entity_id, key.sk.removeprefix(ALERT_PREFIX))


def bucket_indexes(whose: BucketKey) -> dict[str, str]:
    """Return the index attributes of a bucket, all of which follow from its key."""
    ns, entity_id, resource, shard_id = whose
    return {
        "GSI2PK": gsi2_pk_resource(ns, resource),
        "GSI2SK": gsi2_sk_bucket(entity_id, shard_id),
        "GSI3PK": gsi3_pk_entity(ns, entity_id),
        "GSI3SK": gsi3_sk_bucket(resource, shard_id),
        "GSI4PK": ns,
        "GSI4SK": bucket(*whose).pk,
    }


def owner_of_bucket(pk: str) -> str:
    """Return what the partition keys of all buckets of an entity begin with."""
    return pk.rsplit("#", 2)[0]


def owner_of_entity(pk: str) -> str:
    """Return the `owner_of_bucket` of the buckets of an entity with this partition key."""
    return pk.replace("/ENTITY#", f"/{BUCKETS}", 1)
