"""The table: created as the schema says, refused where it differs, never created by mistake."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.aws import engine
from tests.support.aws.strict import complaints
from tests.support.backends import REGION, dynamodb_client, dynamodb_table
from zae_limiter import (
    IncompatibleSchemaError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
    Repository,
    SyncRepository,
)
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.client import Client
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.table import check_existing, check_table, create_table, describe, table_definition
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository

NAMES = iter(range(10**9))


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a table that does not exist; if it comes to exist it is deleted."""
    made = dynamodb_client(f"zae-table-{os.getpid()}-{next(NAMES)}", blocking=True)
    yield made
    if run(describe(made)) is not None:
        run(made.call("UpdateTable", {"TableName": made.table, "DeletionProtectionEnabled": False}))
        run(made.call("DeleteTable", {"TableName": made.table}))
    run(made.close())


def ttl_of(client: Client) -> dict[str, Any]:
    answer = run(client.call("DescribeTimeToLive", {"TableName": client.table}))
    found: dict[str, Any] = answer["TimeToLiveDescription"]
    return found


def test_a_new_table_is_as_the_schema_says(client: Client) -> None:
    run(create_table(client, tags={"team": "limits"}, deletion_protection=True))
    found = run(describe(client))
    assert found is not None
    check_table(found)
    assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert found["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    assert found["DeletionProtectionEnabled"] is True
    projections = {each["IndexName"]: each["Projection"]["ProjectionType"] for each in found["GlobalSecondaryIndexes"]}
    assert projections == {"GSI1": "ALL", "GSI2": "KEYS_ONLY", "GSI3": "KEYS_ONLY", "GSI4": "KEYS_ONLY"}
    ttl = ttl_of(client)
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "ttl")
    tags = run(client.call("ListTagsOfResource", {"ResourceArn": found["TableArn"]}))["Tags"]
    assert tags == [{"Key": "team", "Value": "limits"}]


def test_creating_it_again_changes_nothing(client: Client) -> None:
    run(create_table(client))
    before = run(describe(client))
    run(create_table(client, deletion_protection=True))
    assert run(describe(client)) == before
    assert client.stats.snapshot().calls["CreateTable"] == 1
    assert client.stats.snapshot().calls["UpdateTimeToLive"] == 1


def test_several_may_create_it_at_once(client: Client) -> None:
    clients = [dynamodb_client(client.table, blocking=True) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda each: run(create_table(each)), clients))
    run(check_existing(client))


def test_a_foreign_table_is_named_as_such_also_by_an_acquire(client: Client) -> None:
    key = [{"AttributeName": "id", "KeyType": "HASH"}]
    attributes = [{"AttributeName": "id", "AttributeType": "S"}]
    request = {"TableName": client.table, "KeySchema": key, "AttributeDefinitions": attributes}
    run(client.call("CreateTable", {**request, "BillingMode": "PAY_PER_REQUEST"}))
    limiter = BlockingRateLimiter(BlockingRepository(DynamoStore(client)))
    with pytest.raises(
        IncompatibleSchemaError, match=r"not a zae-limiter table; `zae-limiter create-table` lists the differences"
    ):
        run(limiter.available("key", "gpt-4"))


def test_the_request_is_one_that_the_service_takes() -> None:
    request = table_definition("my-app", tags={"a": "b"}, deletion_protection=True)
    assert list(complaints("CreateTable", request)) == []
    assert "Tags" not in table_definition("my-app")


class Slow:
    """A client of a table that takes its time."""

    table = "my-app"

    def __init__(self, polls: int) -> None:
        self.polls = polls
        self.pauses: list[float] = []

    async def call(self, operation: str, request: dict[str, Any], **_: Any) -> dict[str, Any]:
        if operation != "DescribeTable":
            return {}
        self.polls -= 1
        if self.polls < 0:
            return {"Table": {**table_definition(self.table), "TableStatus": "ACTIVE"}}
        if not self.pauses:
            raise InfrastructureNotFoundError("it does not exist yet")
        return {"Table": {**table_definition(self.table), "TableStatus": "CREATING"}}

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_it_waits_until_the_table_is_there() -> None:
    slow = Slow(polls=4)
    run(create_table(slow))  # type: ignore[arg-type]  # as much of a client as is needed
    assert len(slow.pauses) == 3


def test_it_does_not_wait_for_ever() -> None:
    slow = Slow(polls=10**6)
    with pytest.raises(RateLimiterUnavailable, match="not ready after"):
        run(create_table(slow))  # type: ignore[arg-type]  # as much of a client as is needed


def index(description: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in description["GlobalSecondaryIndexes"] if each["IndexName"] == name)
    return found


DIFFERENT: list[tuple[str, Callable[[dict[str, Any]], object], list[str]]] = [
    (
        "other keys",
        lambda table: table["KeySchema"][0].update(AttributeName="id"),
        ["its key is (id, SK), not (PK, SK)"],
    ),
    ("no sort key", lambda table: table["KeySchema"].pop(), ["its key is (PK), not (PK, SK)"]),
    ("numbers", lambda table: table["AttributeDefinitions"][1].update(AttributeType="N"), ["SK is of type N, not S"]),
    ("no index", lambda table: table.pop("GlobalSecondaryIndexes"), [f"index GSI{n} is missing" for n in (1, 2, 3, 4)]),
    (
        "the reference's GSI2",
        lambda table: index(table, "GSI2")["Projection"].update(ProjectionType="ALL"),
        ["index GSI2 projects ALL, not KEYS_ONLY"],
    ),
    (
        "index keys",
        lambda table: index(table, "GSI3")["KeySchema"][1].update(AttributeName="SK"),
        ["index GSI3 is (GSI3PK, SK), not (GSI3PK, GSI3SK)"],
    ),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT])
def test_every_difference_is_named(change: Callable[[dict[str, Any]], object], words: list[str]) -> None:
    description = copy.deepcopy(table_definition("my-app"))
    check_table(description)
    change(description)
    with pytest.raises(IncompatibleSchemaError, match="'my-app' is not a zae-limiter table") as caught:
        check_table(description)
    for word in words:
        assert word in str(caught.value)


def open_sync(table: str, **options: Any) -> SyncRepository:
    return SyncRepository(f"dynamodb://{table}", region=REGION, endpoint_url=engine.endpoint(), **options)


def test_a_foreign_table_is_left_alone(client: Client) -> None:
    foreign = {
        "TableName": client.table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    }
    run(client.call("CreateTable", foreign))
    with open_sync(client.table) as repo:
        for attempt in (repo.create_table, repo.ensure_infrastructure):
            with pytest.raises(IncompatibleSchemaError, match="its key is"):
                attempt()
    assert ttl_of(client)["TimeToLiveStatus"] == "DISABLED"


def test_a_mistyped_name_provisions_nothing(client: Client) -> None:
    """Only who asks for a table gets one."""
    with open_sync(client.table) as repo:
        with pytest.raises(InfrastructureNotFoundError, match=client.table):
            repo.ensure_infrastructure()
        with pytest.raises(InfrastructureNotFoundError, match=client.table):
            repo.create_entity("key")
    assert run(describe(client)) is None


def test_asked_for_it_is_created(client: Client) -> None:
    with open_sync(client.table) as repo:
        repo.create_table(tags={"team": "limits"}, deletion_protection=True)
        repo.create_entity("key")
    found = run(describe(client))
    assert found is not None
    assert found["DeletionProtectionEnabled"] is True
    with open_sync(client.table) as repo:
        repo.ensure_infrastructure()
        assert repo.get_entity("key") is not None


def test_stores_without_a_table_need_none() -> None:
    repo = SyncRepository(MemoryStore())
    repo.create_table(tags={"a": "b"})
    assert repo.get_backend_stats().total_calls == 0


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_calls_and_their_cost_can_be_read_off(blocking: bool) -> None:
    async def work(repo: Repository) -> None:
        await repo.create_table()
        await repo.ensure_infrastructure()
        await repo.create_entity("key")
        stats = repo.get_backend_stats()
        assert stats.calls["TransactWriteItems"] > 0
        assert stats.total_calls == sum(stats.calls.values())
        assert stats.read_units > 0
        assert stats.write_units > 0
        await repo.close()

    with dynamodb_table() as name:
        options: dict[str, Any] = {"region": REGION, "endpoint_url": engine.endpoint()}
        if blocking:
            run(work(SyncRepository(f"dynamodb://{name}", **options)._inner))
        else:
            await work(Repository(f"dynamodb://{name}", **options))
