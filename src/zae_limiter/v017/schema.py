"""Storage keys under the names of 0.17, for the layout of this version. Those of other layouts are not here."""

from __future__ import annotations

from functools import partial

from ..core import names
from ..records import keys, level, splitting
from ..repository.backend import DEFAULT_NAMESPACE as DEFAULT_NAMESPACE
from ..stores.dynamodb import table

GSI1_NAME, GSI2_NAME, GSI3_NAME, GSI4_NAME = "GSI1", "GSI2", "GSI3", "GSI4"
ENTITY_PREFIX, PARENT_PREFIX, CHILD_PREFIX, AUDIT_PREFIX = "ENTITY#", "PARENT#", "CHILD#", "AUDIT#"
RESOURCE_PREFIX, SYSTEM_PREFIX, ENTITY_CONFIG_PREFIX = "RESOURCE#", "SYSTEM#", "ENTITY_CONFIG#"
BUCKET_PREFIX, BUCKET_ATTR_PREFIX = keys.BUCKETS, level.LIMIT_PREFIX
SK_STATE, SK_META, SK_VERSION, SK_CONFIG = keys.STATE, keys.META, keys.VERSION, keys.CONFIG
SK_AUDIT, SK_USAGE, SK_RESOURCES = keys.AUDIT_PREFIX, keys.USAGE_PREFIX, keys.RESOURCES
SK_ENTITY_CONFIG_RESOURCES = keys.ENTITY_CONFIG_RESOURCES
SK_NAMESPACE_PREFIX, SK_NSID_PREFIX = keys.NAMESPACE_PREFIX, keys.NSID_PREFIX
BUCKET_FIELD_TK, BUCKET_FIELD_CP, BUCKET_FIELD_RA = "tk", "cp", "ra"
BUCKET_FIELD_RP, BUCKET_FIELD_TC, BUCKET_FIELD_RF = "rp", "tc", level.ANCHOR
DEFAULT_RESOURCE, RESERVED_NAMESPACE = names.DEFAULT_RESOURCE, names.RESERVED_NAMESPACE
WCU_LIMIT_NAME, MAX_SHARD_COUNT = names.INFRASTRUCTURE_LIMIT, splitting.MAX_SHARDS
gsi1_pk_parent, gsi1_sk_child, gsi2_pk_resource = keys.gsi1_pk_parent, keys.gsi1_sk_child, keys.gsi2_pk_resource
gsi2_sk_bucket, gsi3_pk_entity, gsi3_sk_bucket = keys.gsi2_sk_bucket, keys.gsi3_pk_entity, keys.gsi3_sk_bucket
gsi3_pk_entity_config, parse_bucket_pk = keys.gsi3_pk_entity_config, keys.parse_bucket_pk
pk_audit, pk_entity, pk_resource, pk_system = keys.pk_audit, keys.pk_entity, keys.pk_resource, keys.pk_system
sk_audit, sk_config = keys.sk_audit, keys.sk_config
bucket_attr, get_table_definition = level.attribute, table.table_definition
sk_state, sk_meta, sk_version = partial(str, SK_STATE), partial(str, SK_META), partial(str, SK_VERSION)
sk_resources, sk_entity_config_resources = partial(str, SK_RESOURCES), partial(str, SK_ENTITY_CONFIG_RESOURCES)
sk_namespace_prefix, sk_nsid_prefix = partial(str, SK_NAMESPACE_PREFIX), partial(str, SK_NSID_PREFIX)
_DAY_SECONDS = 86_400


def pk_bucket(namespace_id: str, entity_id: str, resource: str, shard_id: int) -> str:
    """Return the partition key of a bucket."""
    return keys.bucket(namespace_id, entity_id, resource, shard_id).pk


def sk_namespace(namespace_name: str) -> str:
    """Return the sort key of a namespace by its name."""
    return keys.namespace(namespace_name).sk


def sk_nsid(namespace_id: str) -> str:
    """Return the sort key of a namespace by its id."""
    return keys.nsid(namespace_id).sk


def gsi3_sk_entity(entity_id: str) -> str:
    """Return the index key of an entity's config."""
    return entity_id


def parse_namespace(key: str) -> tuple[str, str]:
    """Return the namespace id of a key, and the rest. Raise ValueError for a key without one."""
    namespace_id, slash, rest = key.partition("/")
    if not slash:
        raise ValueError(f"{key!r} has no namespace")
    return namespace_id, rest


def parse_bucket_attr(attr_name: str) -> tuple[str, str] | None:
    """Return the limit and the field of an attribute of a bucket; None for any other attribute."""
    name, _, field = attr_name.removeprefix(BUCKET_ATTR_PREFIX).rpartition("_")
    return (name, field) if attr_name.startswith(BUCKET_ATTR_PREFIX) and name and field else None


def calculate_ttl(now_ms: int, ttl_seconds: int = _DAY_SECONDS) -> int:
    """Return the expiry ``ttl_seconds`` after ``now_ms``, in seconds since the epoch."""
    return now_ms // 1000 + ttl_seconds
