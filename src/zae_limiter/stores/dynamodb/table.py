"""The table: its keys and indexes; create it without CloudFormation, check it, and bring an older one into shape.

Only ``GSI1`` holds whole records (children of an entity). The others hold keys, so that a token update, which changes
no key, touches no index and is billed once.

An older table is changed one index at a time, as DynamoDB requires. The next step is always derived from the table, so
an interrupted run is continued by the next one, and two runs at once only wait for each other. An index that differs
is deleted and recreated; records are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...core.errors import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from ...records.algebra import TTL
from ..ranges import INDEXES
from .access import WHOLE
from .answers import OTHER_REGION
from .values import PK, SK

if TYPE_CHECKING:
    from .client import Client

_STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
_EXPIRY_STEP = "turn expiry on"
_BUSY = frozenset(("ResourceInUseException", "LimitExceededException"))
_CREATION_POLLS = 120
_CREATION_POLL_SECONDS = 1.0
_CHANGE_POLLS = 50_000
_CHANGE_POLL_SECONDS = 5.0


def table_definition(
    name: str, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False
) -> dict[str, Any]:
    """Return the request that creates the table: on demand, with indexes and stream."""
    request: dict[str, Any] = {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [each for index in ("", *INDEXES) for each in _attributes(index)],
        "KeySchema": _key_schema(),
        "GlobalSecondaryIndexes": [_index_definition(index) for index in INDEXES],
        "StreamSpecification": _STREAM,
    }
    if tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    if deletion_protection:
        request["DeletionProtectionEnabled"] = True
    return request


def _attributes(index: str) -> list[dict[str, str]]:
    return [{"AttributeName": f"{index}{part}", "AttributeType": "S"} for part in (PK, SK)]


def _key_schema(index: str = "") -> list[dict[str, str]]:
    return [{"AttributeName": f"{index}{PK}", "KeyType": "HASH"}, {"AttributeName": f"{index}{SK}", "KeyType": "RANGE"}]


def _index_definition(index: str) -> dict[str, Any]:
    projection = "ALL" if index in WHOLE else "KEYS_ONLY"
    return {"IndexName": index, "KeySchema": _key_schema(index), "Projection": {"ProjectionType": projection}}


async def create_table(
    client: Client, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False
) -> None:
    """Create the table and wait until it is active. A suitable existing one is left alone."""
    found = await describe(client)
    if found is None:
        request = table_definition(client.table, tags=tags, deletion_protection=deletion_protection)
        with _ignore_concurrent_change():
            await client.call("CreateTable", request)
        found = await describe(client)
    for _ in range(_CREATION_POLLS):
        if found is not None and found.get("TableStatus") == "ACTIVE":
            check_table(found)
            await _enable_expiry(client)
            return
        await client.pause(_CREATION_POLL_SECONDS)
        found = await describe(client)
    raise RateLimiterUnavailable(
        f"DynamoDB table {client.table!r} is not ready after {_CREATION_POLLS} s; rerun to keep waiting."
    )


async def delete_table(client: Client) -> None:
    """Delete the table and wait until it is gone. One that is missing or being deleted is no error."""
    with contextlib.suppress(InfrastructureNotFoundError), _ignore_concurrent_change():
        await client.call("DeleteTable", {"TableName": client.table}, repeatable=True)
    for _ in range(_CREATION_POLLS):
        if await describe(client) is None:
            return
        await client.pause(_CREATION_POLL_SECONDS)
    raise RateLimiterUnavailable(f"DynamoDB table {client.table!r} is still being deleted; rerun to keep waiting.")


async def check_existing(client: Client) -> None:
    """Raise an error if the table is missing or unsuitable. Changes nothing."""
    check_table(await _describe_existing(client, ", or create it with `zae-limiter create-table`"))


async def describe(client: Client) -> dict[str, Any] | None:
    """Return DynamoDB's description of the table, or None if it does not exist."""
    try:
        answer = await client.call("DescribeTable", {"TableName": client.table}, repeatable=True)
    except InfrastructureNotFoundError:
        return None
    found: dict[str, Any] | None = answer.get("Table")
    if found is None:
        raise RateLimiterUnavailable(f"DynamoDB table {client.table!r}: the answer cannot be read (it lacks the Table)")
    return found


async def _describe_existing(client: Client, advice: str = "") -> dict[str, Any]:
    found = await describe(client)
    if found is None:
        raise InfrastructureNotFoundError(
            f"DynamoDB table {client.table!r} does not exist in {client.region}: {OTHER_REGION}{advice}.",
            stack_name=client.table,
        )
    return found


def check_table(description: Mapping[str, Any]) -> None:
    """Raise `IncompatibleSchemaError` with every difference if keys or indexes are not as required."""
    wrong = _key_differences(description)
    for index in INDEXES:
        wrong += _index_differences(description, index)
    if wrong:
        raise _schema_error(description, wrong, " Nothing was changed; choose another name.")


def _schema_error(description: Mapping[str, Any], wrong: list[str], advice: str = "") -> IncompatibleSchemaError:
    name = description.get("TableName")
    return IncompatibleSchemaError(f"DynamoDB table {name!r} is not a zae-limiter table: {'; '.join(wrong)}.{advice}")


def _key_differences(
    description: Mapping[str, Any], index: str = "", keys: Mapping[str, Any] | None = None
) -> list[str]:
    found = {each["KeyType"]: each["AttributeName"] for each in (keys or description).get("KeySchema") or ()}
    wanted = {each["KeyType"]: each["AttributeName"] for each in _key_schema(index)}
    if found != wanted:
        what = f"index {index}" if index else "its key"
        return [f"{what} is ({', '.join(found.values())}), not ({', '.join(wanted.values())})"]
    types = {each["AttributeName"]: each["AttributeType"] for each in description.get("AttributeDefinitions") or ()}
    return [f"{name} is of type {types[name]}, not S" for name in wanted.values() if types.get(name, "S") != "S"]


def _index_differences(description: Mapping[str, Any], name: str) -> list[str]:
    found = _indexes(description).get(name)
    if found is None:
        return [f"index {name} is missing"]
    wrong = _key_differences(description, name, found)
    projection = (found.get("Projection") or {}).get("ProjectionType")
    wanted = _index_definition(name)["Projection"]["ProjectionType"]
    if projection != wanted:
        wrong.append(f"index {name} projects {projection}, not {wanted}")
    return wrong


def _indexes(description: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["IndexName"]: each for each in description.get("GlobalSecondaryIndexes") or ()}


def plan_changes(description: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the changes that a table needs, in order: the fields of an ``UpdateTable`` under a name for the step.

    Raise `IncompatibleSchemaError` for a wrong key.
    """
    wrong = _key_differences(description)
    if wrong:
        raise _schema_error(description, wrong)
    steps: dict[str, dict[str, Any]] = {}
    for name in INDEXES:
        if _index_differences(description, name):
            if name in _indexes(description):
                steps[f"delete index {name}"] = {"GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": name}}]}
            index = _index_definition(name)
            if (description.get("BillingModeSummary") or {}).get("BillingMode", "PROVISIONED") == "PROVISIONED":
                paid = description.get("ProvisionedThroughput") or {}  # the index is given as much as the table
                units = ("ReadCapacityUnits", "WriteCapacityUnits")
                index["ProvisionedThroughput"] = {unit: max(1, int(paid.get(unit, 1))) for unit in units}
            update = {"AttributeDefinitions": _attributes(name), "GlobalSecondaryIndexUpdates": [{"Create": index}]}
            steps[f"create index {name}"] = update
    if not (description.get("StreamSpecification") or {}).get("StreamEnabled"):
        steps["turn the stream on"] = {"StreamSpecification": _STREAM}
    return steps


async def missing_steps(client: Client) -> list[str]:
    """Return the names of the steps that `reshape` would take."""
    found = list(plan_changes(await _describe_existing(client)))
    return found if await _has_expiry(client) else [*found, _EXPIRY_STEP]


async def reshape(client: Client, progress: Callable[[str], object] | None = None) -> list[str]:
    """Make all missing changes, one after the other, and return their names."""
    taken: list[str] = []
    for _ in range(_CHANGE_POLLS):
        found = await _describe_existing(client)
        steps = plan_changes(found)
        states = [found.get("TableStatus"), *(each.get("IndexStatus") for each in _indexes(found).values())]
        if all(state in ("ACTIVE", None) for state in states):
            if not steps:
                return [*taken, _EXPIRY_STEP] if await _enable_expiry(client) else taken
            step, change = next(iter(steps.items()))
            if progress is not None:
                progress(step)
            if await _make_change(client, change):
                taken.append(step)
                continue
        await client.pause(_CHANGE_POLL_SECONDS)
    raise RateLimiterUnavailable(f"DynamoDB table {client.table!r} is still being changed; rerun to keep waiting.")


async def _make_change(client: Client, change: Mapping[str, Any]) -> bool:
    """Request one change. Return False if another change is in progress or this one has been made meanwhile."""
    try:
        await client.call("UpdateTable", {"TableName": client.table, **change})
    except InfrastructureNotFoundError:  # somebody else has deleted the index
        return False
    except InfrastructureError as error:
        said = str(error.__cause__)
        if getattr(error.__cause__, "code", None) in _BUSY or "duplicate index" in said or "already" in said:
            return False
        raise
    return True


async def _has_expiry(client: Client) -> bool:
    answer = await client.call("DescribeTimeToLive", {"TableName": client.table}, repeatable=True)
    return (answer.get("TimeToLiveDescription") or {}).get("TimeToLiveStatus") in ("ENABLED", "ENABLING")


async def _enable_expiry(client: Client) -> bool:
    """Let DynamoDB delete expired records. Return False if it does: enabling it twice is an error."""
    if await _has_expiry(client):
        return False
    specification = {"Enabled": True, "AttributeName": TTL}
    with _ignore_concurrent_change():
        await client.call("UpdateTimeToLive", {"TableName": client.table, "TimeToLiveSpecification": specification})
    return True


@contextlib.contextmanager
def _ignore_concurrent_change() -> Iterator[None]:
    try:
        yield
    except InfrastructureError as error:
        cause = error.__cause__
        if getattr(cause, "code", None) != "ResourceInUseException" and "already enabled" not in str(cause):
            raise
