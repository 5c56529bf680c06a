"""Tables as older clients left them, item by item, and what must be true of them after an upgrade."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

from tests.support.aws import engine
from tests.support.aws.plain import Plain
from tests.support.backends import dynamodb_client
from zae_limiter.core.production import Rule
from zae_limiter.records.algebra import Image, Key
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.table import table_definition
from zae_limiter.stores.dynamodb.values import encode_item
from zae_limiter.testing import ManualClock

NOW = 1_800_000_000_000
OTHER = "Zx9_other-1a"
"""The id of a namespace that another client registered."""

_COUNT = itertools.count()


class Pool(NamedTuple):
    """One limit of an old bucket: tokens, burst and refill as the old client keeps them, in millitokens and ms."""

    limit: str
    tokens: int
    refilled: int
    capacity: int
    amount: int
    period: int
    burst: int = 0
    consumed: int = 0

    @property
    def rule(self) -> Rule:
        """What the bucket can hold, and its rate."""
        return Rule(max(self.capacity, self.burst), self.amount, self.period)

    def level(self, instant: int) -> int:
        """The balance by the old formula."""
        return min(self.rule.capacity, self.tokens + (instant - self.refilled) * self.amount // self.period)


class Item(NamedTuple):
    """A record to be put."""

    key: Key
    image: Image


def per_limit_bucket(entity: str, resource: str, pool: Pool, *, nested: bool, prefix: str = "", **extra: Any) -> Item:
    """``#BUCKET#{resource}#{limit}``."""
    fields = {
        "resource": resource,
        "limit_name": pool.limit,
        "tokens_milli": pool.tokens,
        "last_refill_ms": pool.refilled,
        "capacity_milli": pool.capacity,
        "burst_milli": pool.burst,
        "refill_amount_milli": pool.amount,
        "refill_period_ms": pool.period,
    }
    own = {
        "entity_id": entity,
        "total_consumed_milli": pool.consumed,
        "GSI2PK": f"{prefix}RESOURCE#{resource}",
        "GSI2SK": f"BUCKET#{entity}#{pool.limit}",
        **extra,
    }
    key = Key(f"{prefix}ENTITY#{entity}", f"#BUCKET#{resource}#{pool.limit}")
    return Item(key, {**own, "data": fields} if nested else {**own, **fields})


def per_limit_config(
    pk: str, limit: str, numbers: tuple[int, int, int, int], resource: str = "", *, nested: bool = False
) -> Item:
    """``#LIMIT#...`` with capacity, burst, amount and period."""
    names = ("capacity", "burst", "refill_amount", "refill_period_seconds")
    fields: Image = {"limit_name": limit, **dict(zip(names, numbers, strict=True))}
    if resource:
        fields["resource"] = resource
    key = Key(pk, f"#LIMIT#{resource}#{limit}" if resource else f"#LIMIT#{limit}")
    return Item(key, {"data": fields} if nested else fields)


def composite_attributes(pools: list[Pool], *, burst: bool = True) -> Image:
    """``b_{limit}_{field}`` of several limits with one refill."""
    image: Image = {"rf": pools[0].refilled}
    for pool in pools:
        fields = {"tk": pool.tokens, "cp": pool.capacity, "ra": pool.amount, "rp": pool.period, "tc": pool.consumed}
        if burst:
            fields["bx"] = pool.burst
        image |= {f"b_{pool.limit}_{field}": value for field, value in fields.items()}
    return image


def composite_bucket(entity: str, resource: str, pools: list[Pool], *, prefix: str = "", **extra: Any) -> Item:
    """``#BUCKET#{resource}`` under the entity's key."""
    own = {"entity_id": entity, "resource": resource, "GSI2PK": f"{prefix}RESOURCE#{resource}", "GSI2SK": "BUCKET#"}
    key = Key(f"{prefix}ENTITY#{entity}", f"#BUCKET#{resource}")
    return Item(key, {**own, **composite_attributes(pools), **extra})


def sharded_bucket(entity: str, resource: str, pools: list[Pool], shard: int = 0, count: int = 1, **extra: Any) -> Item:
    """``{ns}/BUCKET#{id}#{resource}#{shard}`` as other clients write it, with their write limit."""
    pressure = Pool("wcu", 999_000, pools[0].refilled, 1_000_000, 1_000_000, 1000, consumed=1000)
    own = {
        "entity_id": entity,
        "resource": resource,
        "shard_count": count,
        "cascade": False,
        "GSI2PK": f"{OTHER}/RESOURCE#{resource}",
        "GSI2SK": f"BUCKET#{entity}#{shard}",
        "GSI3PK": f"{OTHER}/ENTITY#{entity}",
        "GSI3SK": f"BUCKET#{resource}#{shard}",
    }
    key = Key(f"{OTHER}/BUCKET#{entity}#{resource}#{shard}", "#STATE")
    return Item(key, {**own, **composite_attributes([*pools, pressure], burst=False), **extra})


def composite_config(pk: str, sk: str, limits: dict[str, tuple[int, int, int, int]], **extra: Any) -> Item:
    """``#CONFIG...`` with capacity, burst, amount and period of each limit."""
    image: Image = {"config_version": 3, **extra}
    for name, numbers in limits.items():
        fields = zip(("cp", "bx", "ra", "rp"), numbers, strict=True)
        image |= {f"l_{name}_{field}": value for field, value in fields}
    return Item(Key(pk, sk), image)


def entity(entity_id: str, *, nested: bool = False, prefix: str = "", **fields: Any) -> Item:
    """``#META``; what the old client leaves open it stores as nothing."""
    fields = {"name": None, "parent_id": None, "metadata": {}, "created_at": "2024-03-01T12:00:00Z", **fields}
    own: Image = {"entity_id": entity_id}
    if fields["parent_id"]:
        own |= {"GSI1PK": f"{prefix}PARENT#{fields['parent_id']}", "GSI1SK": f"CHILD#{entity_id}"}
    key = Key(f"{prefix}ENTITY#{entity_id}", "#META")
    return Item(key, {**own, "data": fields} if nested else {**own, **fields})


def event(subject: str, event_id: str, *, nested: bool = False, prefix: str = "", **fields: Any) -> Item:
    """``#AUDIT#{id}``."""
    fields = {
        "event_id": event_id,
        "timestamp": "2024-03-01T12:00:00Z",
        "action": "limits_set",
        "entity_id": subject,
        "principal": None,
        "resource": None,
        "details": {},
        **fields,
    }
    key = Key(f"{prefix}AUDIT#{subject}", f"#AUDIT#{event_id}")
    return Item(key, {"data": fields} if nested else fields)


def usage(entity_id: str, resource: str, window: str, start: str, prefix: str = "", **counters: int) -> Item:
    """``#USAGE#{resource}#{start}``, counters in whole tokens."""
    image: Image = {
        "entity_id": entity_id,
        "resource": resource,
        "window": window,
        "window_start": start,
        "GSI2PK": f"{prefix}RESOURCE#{resource}",
        "GSI2SK": f"USAGE#{start}#{entity_id}",
        **counters,
    }
    return Item(Key(f"{prefix}ENTITY#{entity_id}", f"#USAGE#{resource}#{start}"), image)


def version(schema: str = "0.8.0", prefix: str = "") -> Item:
    """``SYSTEM#`` ``#VERSION``."""
    return Item(Key(f"{prefix}SYSTEM#", "#VERSION"), {"schema_version": schema, "client_min_version": "0.0.0"})


def registered(name: str = "default") -> list[Item]:
    """A namespace as another client registers it."""
    fields = {"namespace_id": OTHER, "namespace_name": name, "status": "active", "created_at": "2024-03-01T12:00:00Z"}
    return [Item(Key("_/SYSTEM#", f"#NAMESPACE#{name}"), fields), Item(Key("_/SYSTEM#", f"#NSID#{OTHER}"), fields)]


class OldTable:
    """A table of the engine under test with old items in it."""

    def __init__(self, name: str, direct: Plain) -> None:
        self.name = name
        self._direct = direct
        self.clock = ManualClock(NOW)
        self._opened: list[DynamoStore] = []

    def put(self, *items: Item) -> None:
        """Write items as they are."""
        self._write([{"PutRequest": {"Item": encode_item(*item)}} for item in items])

    def put_raw(self, typed: dict[str, Any]) -> None:
        """Write an item in DynamoDB's own types."""
        self._write([{"PutRequest": {"Item": typed}}])

    def _write(self, requests: list[dict[str, Any]]) -> None:
        for start in range(0, len(requests), 25):
            status, answer = self._direct.call("BatchWriteItem", RequestItems={self.name: requests[start : start + 25]})
            assert (status, answer.get("UnprocessedItems")) == (HTTPStatus.OK, {}), answer

    def items(self) -> list[dict[str, Any]]:
        """Everything in the table, by key."""
        status, answer = self._direct.call("Scan", TableName=self.name, ConsistentRead=True)
        assert status == HTTPStatus.OK, answer
        assert "LastEvaluatedKey" not in answer
        return sorted(answer["Items"], key=lambda item: (item["PK"]["S"], item["SK"]["S"]))

    def present(self) -> set[Key]:
        """The keys of everything in the table."""
        return {Key(item["PK"]["S"], item["SK"]["S"]) for item in self.items()}

    def empty(self) -> None:
        """Delete all items."""
        found = [{part: item[part] for part in ("PK", "SK")} for item in self.items()]
        self._write([{"DeleteRequest": {"Key": key}} for key in found])

    def store(self) -> DynamoStore:
        """A blocking client of the table, by the table's manual clock."""
        store = DynamoStore(dynamodb_client(self.name, blocking=True), self.clock)
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close what was opened."""
        for store in self._opened:
            store.client.connections.close()


@contextlib.contextmanager
def old_table(*, shaped: bool = True, prefix: str = "old-") -> Iterator[OldTable]:
    """A table; not ``shaped``: with the two indexes of the oldest one, no stream and no expiry."""
    name = f"{prefix}{os.getpid()}-{next(_COUNT)}"
    with contextlib.closing(Plain(engine.endpoint())) as direct:
        status, answer = direct.call("CreateTable", **(table_definition(name) if shaped else _oldest(name)))
        assert status == HTTPStatus.OK, answer
        table = OldTable(name, direct)
        try:
            yield table
        finally:
            table.close()
            direct.call("DeleteTable", TableName=name)


@contextlib.contextmanager
def open_table(name: str) -> Iterator[OldTable]:
    """A table that somebody else has made, and deletes."""
    with contextlib.closing(Plain(engine.endpoint())) as direct:
        table = OldTable(name, direct)
        try:
            yield table
        finally:
            table.close()


def _oldest(name: str) -> dict[str, Any]:
    request = table_definition(name)
    del request["StreamSpecification"]
    request["GlobalSecondaryIndexes"] = request["GlobalSecondaryIndexes"][:2]
    for index in request["GlobalSecondaryIndexes"]:
        index["Projection"] = {"ProjectionType": "ALL"}
    request["AttributeDefinitions"] = request["AttributeDefinitions"][:6]
    return request
