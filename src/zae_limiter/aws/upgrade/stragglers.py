"""Find records that clients of versions before 1.0 have written after an upgrade.

A search of the whole table would cost as much as an upgrade, so only those places are looked at where such clients
leave a trace:

    before namespaces   the partition of the system, and by index the buckets of those resources that upgrades have
                        moved, as clients that go on use the same ones
    since namespaces    the registry of namespaces, the registries of resources of each namespace, and by index the
                        buckets of each namespace, as those of the present layout sort elsewhere there, and the limits
                        of entities, which they may write over

``upgrade --force`` looks at every record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...records import keys, version
from ...records.algebra import Query
from ...stores.dynamodb.values import decode, key_of
from .moves import Move, Old
from .partition import Partition, PartitionKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...records.algebra import Key
    from ...records.version import Deployed
    from ...stores.dynamodb.store import DynamoStore

MOST_RESOURCES = 100
"""So many resources are remembered, each of which costs a query."""
_MOST_NAMESPACES = 100
"""So many namespaces are looked at, each of which costs two queries, and one for each resource of `MOST_RESOURCES`
for which entities have limits of their own."""
_EXAMPLES = 5
_MOST_RECORDS = 1000
"""So many records of one resource are counted."""
_ENTITY = "ENTITY#"
_BUCKET = "BUCKET#"
"""How older clients begin the sort key of a bucket in the index of its namespace; here it begins with the namespace."""


class Stragglers(NamedTuple):
    """How many records older clients have left after an upgrade, and some of the entities that they belong to."""

    records: int = 0
    examples: tuple[str, ...] = ()


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
        found += map(key_of, items)
    found += await _find_in_namespaces(store, look_at_buckets=not deployed.records_left)
    examples = dict.fromkeys(_name_owner(key) for key in found)
    return Stragglers(len(found), tuple(examples)[:_EXAMPLES])


async def _find_in_namespaces(store: DynamoStore, *, look_at_buckets: bool) -> list[Key]:
    """Return records of clients that know namespaces; among the buckets may also be those that an upgrade has left."""
    registry = _decode(await _query(store, "PK = :pk", keys.REGISTRY))
    found = _find_movable(store, registry)
    prefix = keys.NSID_PREFIX
    ids = [key.sk.removeprefix(prefix) for key, _ in registry if key.sk.startswith(prefix)]
    for ns in ids[:_MOST_NAMESPACES]:
        system = _decode(await _query(store, "PK = :pk", keys.pk_system(ns)))
        found += _find_movable(store, system)
        counts = next((old.image for old in system if old.key == keys.entity_config_resources(ns)), {})
        for resource in [attr[2:] for attr in sorted(counts) if attr.startswith("r_")][:MOST_RESOURCES]:
            found += await _find_limits(store, ns, resource)
        if look_at_buckets:
            condition = "GSI4PK = :pk AND begins_with(GSI4SK, :start)"
            found += map(key_of, await _query(store, condition, ns, start=_BUCKET, IndexName="GSI4"))
    return found


async def _find_limits(store: DynamoStore, ns: str, resource: str) -> list[Key]:
    """Return the limits of entities for a resource that an upgrade would move, of the first `_MOST_RECORDS`."""
    pk = keys.gsi3_pk_entity_config(ns, resource)
    page = await store.query(Query(pk, gsi="GSI3", limit=_MOST_RECORDS, namespace=keys.pk_entity(ns, "")))
    return [each for row in page.items for each in _find_movable(store, [Old(*row)])]


def _decode(items: Iterable[Any]) -> list[Old]:
    return [Old(key_of(item), decode(item)) for item in items]


def _find_movable(store: DynamoStore, olds: list[Old]) -> list[Key]:
    """Return those of some records of one partition, the system's or an entity's, that an upgrade would move."""
    place = PartitionKey.of(olds[0].key.pk) if olds else None
    if place is None:
        return []
    plan = Partition(place, place.namespace_id or "", olds, store.clock.now_ms()).plan()
    return [old.key for each in plan if isinstance(each, Move) for old in each.olds]


def _name_owner(key: Key) -> str:
    return key.pk.removeprefix(_ENTITY) if key.pk.startswith(_ENTITY) else " ".join(key)


async def _query(store: DynamoStore, condition: str, pk: str, *, start: str | None = None, **more: Any) -> list[Any]:
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
