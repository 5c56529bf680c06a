"""Listings: the ranges in which buckets are found."""

from __future__ import annotations

from . import keys
from .algebra import Query


def buckets_of_namespace(ns: str) -> Query:
    """Return the range of all buckets of a namespace, every shard."""
    return Query(ns, keys.gsi4_buckets(ns), gsi="GSI4")


def buckets_of_resource(ns: str, resource: str) -> Query:
    """Return the range of the buckets of all entities for a resource."""
    return Query(keys.gsi2_pk_resource(ns, resource), keys.BUCKETS, gsi="GSI2")


def buckets_of_entity(ns: str, entity_id: str, resource: str | None = None) -> Query:
    """Return the range of the buckets of an entity, for all resources or for one."""
    prefix = keys.BUCKETS if resource is None else keys.gsi3_bucket_prefix(resource)
    return Query(keys.gsi3_pk_entity(ns, entity_id), prefix, gsi="GSI3")
