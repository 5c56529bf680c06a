"""Find records that clients of versions before 1.0 have written after an upgrade.

A search of the whole table would cost as much as an upgrade, so only those places are looked at where such clients
leave a trace:

    before namespaces   the partition of the system, and by index the buckets of those resources that upgrades have
                        moved, as clients that go on use the same ones
    since namespaces    the registry of namespaces, the registries of resources of each namespace, and by index the
                        buckets of each namespace, as those of the present layout sort elsewhere there, and the limits
                        of entities, which they may write over

A record that cannot be read counts as found. What a client has put into an index that is not its own does not.

``upgrade --force`` looks at every record.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from ...core.errors import CorruptRecordError
from ...records import keys, version
from ...records.algebra import Key
from ...records.version import Deployed
from ...stores.dynamodb.access import Access
from ...stores.dynamodb.store import DynamoStore
from ...stores.dynamodb.values import Item, decode, encode_key, key_of
from .moves import Move, Old
from .partition import Partition, PartitionKey

MOST_RESOURCES = 100
"""Resources that are remembered; each costs a query."""
_MOST_NAMESPACES = 100
"""Namespaces that are looked at; each costs two queries, and one per resource with limits of entities."""
_EXAMPLES = 5
_MOST_RECORDS = 1000
"""Records that are counted per resource."""
_MOST_LIMITS = 10_000
"""Limits of entities that are read in all."""
_LONGEST_NAME = 256
"""No resource has a longer name."""
_SECONDS = 30.0
"""The time for reading the limits of one resource."""
_ENTITY = "ENTITY#"
_BUCKET = "BUCKET#"
"""How older clients begin the sort key of a bucket in the index of its namespace; here it begins with the namespace."""


class Stragglers(NamedTuple):
    """How many records older clients have left after an upgrade, and some of the entities that they belong to."""

    records: int = 0
    examples: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return both for JSON."""
        return {"records": self.records, "examples": list(self.examples)}


def join_resources(resources: Iterable[str], before: str | None) -> str | None:
    """Return the resources to remember as one text, with those remembered before; None if there are none."""
    known = {*resources, *(before or "").split()}
    return " ".join(sorted(known)[:MOST_RESOURCES]) or None


async def find_stragglers(store: DynamoStore, deployed: Deployed) -> Stragglers:
    """Look at the places where older clients write. The index may lag behind by a moment."""
    items = await _query(store, "PK = :pk", "SYSTEM#")
    found = [key for key in map(key_of, items) if key != version.UNPREFIXED[0]]
    for resource in (deployed.resources_moved or "").split():
        items = await _query(store, "GSI2PK = :pk", f"RESOURCE#{resource}", IndexName="GSI2")
        found += [key for key in map(key_of, items) if key.pk.startswith(_ENTITY)]
    found += await _find_in_namespaces(store, nothing_left=not deployed.records_left)
    owners = (key.pk.removeprefix(_ENTITY) if key.pk.startswith(_ENTITY) else " ".join(key) for key in found)
    examples = dict.fromkeys(owners)
    return Stragglers(len(found), tuple(examples)[:_EXAMPLES])


async def _find_in_namespaces(store: DynamoStore, *, nothing_left: bool) -> list[Key]:
    """Return records of clients that know namespaces.

    Where an upgrade has left records, those of them cannot be told from newer ones that it would leave: they are not
    looked for then.
    """
    registry = await _query(store, "PK = :pk", keys.REGISTRY)
    found = _find_old(store, registry, refused=nothing_left)
    prefix, limits_left = keys.NSID_PREFIX, _MOST_LIMITS
    ids = [key.sk.removeprefix(prefix) for key in map(key_of, registry) if key.sk.startswith(prefix)]
    for ns in ids[:_MOST_NAMESPACES]:
        system = await _query(store, "PK = :pk", keys.pk_system(ns))
        found += _find_old(store, system, refused=nothing_left)
        for resource in _resources_with_limits(ns, system):
            items = await _read_limits(store, ns, resource, min(_MOST_RECORDS, limits_left))
            limits_left -= len(items)
            found += [key for item in items for key in _find_old(store, [item], refused=nothing_left)]
        if nothing_left:
            condition = "GSI4PK = :pk AND begins_with(GSI4SK, :start)"
            items = await _query(store, condition, ns, start=_BUCKET, IndexName="GSI4")
            found += [key for key in map(key_of, items) if key.pk.startswith(f"{ns}/{_BUCKET}")]
    return found


def _resources_with_limits(ns: str, system: Iterable[Item]) -> list[str]:
    """Return the resources for which entities have limits of their own, by the system's records of a namespace."""
    counts: Iterable[str] = next((item for item in system if key_of(item) == keys.entity_config_resources(ns)), ())
    names = (attr.removeprefix("r_") for attr in counts if attr.startswith("r_"))
    return sorted(name for name in names if len(name) <= _LONGEST_NAME)[:MOST_RESOURCES]


async def _read_limits(store: DynamoStore, ns: str, resource: str, most: int) -> list[Item]:
    """Return the first ``most`` records of the limits of entities for a resource."""
    if most < 1:
        return []
    pk = keys.gsi3_pk_entity_config(ns, resource)
    rows = map(key_of, await _query(store, "GSI3PK = :pk", pk, IndexName="GSI3", Limit=most))
    wanted = [encode_key(key) for key in rows if key.pk.startswith(f"{ns}/{_ENTITY}")]
    access = Access(store.client, store.clock, _SECONDS, time.monotonic() + _SECONDS)
    batches = [await access.read_batch(wanted[start : start + 100]) for start in range(0, len(wanted), 100)]
    return [item for batch in batches for item in batch]


def _find_old(store: DynamoStore, items: Iterable[Item], *, refused: bool) -> list[Key]:
    """Return those of some records of one partition that an upgrade would move, or (``refused``) would leave."""
    olds: list[Old] = []
    found: list[Key] = []
    for item in items:
        try:
            olds.append(Old(key_of(item), decode(item)))
        except CorruptRecordError:
            found += [key_of(item)] if refused else []
    place = PartitionKey.of(olds[0].key.pk) if olds else None
    if place is None:
        return found
    for each in Partition(place, place.namespace_id or "", olds, store.clock.now_ms()).plan():
        if isinstance(each, Move):
            found += [old.key for old in each.olds]
        elif refused:
            found.append(each.key)
    return found


async def _query(store: DynamoStore, condition: str, pk: str, *, start: str | None = None, **more: Any) -> list[Item]:
    """Return the items of the first page."""
    values = {":pk": {"S": pk}} | ({} if start is None else {":start": {"S": start}})
    request = {
        "TableName": store.client.table,
        "KeyConditionExpression": condition,
        "ExpressionAttributeValues": values,
        "Limit": _MOST_RECORDS,
        **more,
    }
    answer = await store.client.call("Query", request, repeatable=True)
    return list(answer.get("Items", ()))
