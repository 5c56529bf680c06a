"""Find records that clients from before namespaces have written after an upgrade.

They stand where no present client looks. A search of the whole table would cost as much as an upgrade, so only two
places are looked at: the partition of the system, and by index the buckets of those resources that upgrades have moved,
as clients that go on use the same ones. ``upgrade --force`` looks at every record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...records import version
from ...stores.dynamodb.values import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...records.algebra import Key
    from ...records.version import Deployed
    from ...stores.dynamodb.store import DynamoStore

MOST_RESOURCES = 100
"""So many resources are remembered, each of which costs a query."""
_EXAMPLES = 5
_MOST_RECORDS = 1000
"""So many records of one resource are counted."""
_ENTITY = "ENTITY#"


class Stragglers(NamedTuple):
    """How many records older clients have left after an upgrade, and some of the entities that they belong to."""

    records: int = 0
    examples: tuple[str, ...] = ()


def join_resources(resources: Iterable[str], before: str | None) -> str | None:
    """Return the resources to remember as one text, with those remembered before; None if there are none."""
    known = {*resources, *(before or "").split()}
    return " ".join(sorted(known)[:MOST_RESOURCES]) or None


async def find_stragglers(store: DynamoStore, deployed: Deployed) -> Stragglers:
    """Look at the places that an upgrade has emptied. The index may lag behind by a moment."""
    found = [key for key in await _query(store, "PK", "SYSTEM#") if key != version.UNPREFIXED[0]]
    for resource in (deployed.resources_moved or "").split():
        found += await _query(store, "GSI2PK", f"RESOURCE#{resource}", IndexName="GSI2")
    examples = dict.fromkeys(_name_owner(key) for key in found)
    return Stragglers(len(found), tuple(examples)[:_EXAMPLES])


def _name_owner(key: Key) -> str:
    return key.pk.removeprefix(_ENTITY) if key.pk.startswith(_ENTITY) else " ".join(key)


async def _query(store: DynamoStore, attribute: str, value: str, **more: Any) -> list[Key]:
    request = {
        "TableName": store.client.table,
        "KeyConditionExpression": f"{attribute} = :pk",
        "ExpressionAttributeValues": {":pk": {"S": value}},
        "Limit": _MOST_RECORDS,
        **more,
    }
    answer = await store.client.call("Query", request, repeatable=True)
    return [key_of(item) for item in answer.get("Items", ())]
