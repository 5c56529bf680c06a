"""The table: its keys and indexes, how to create it without CloudFormation, and checks of an existing one.

Only ``GSI1`` holds whole records (children of an entity). The others hold keys, so that a token update, which changes
no key, touches no index and is billed once.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ...core.errors import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from ...records.algebra import TTL
from ..ranges import INDEXES
from .answers import OTHER_REGION
from .ranges import WHOLE
from .values import PK, SK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from .client import Client

STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}

_POLLS = 120
_POLL_SECONDS = 1.0


def table_definition(
    name: str, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False
) -> dict[str, Any]:
    """Return the request that creates the table: on demand, with indexes and stream."""
    names = [PK, SK, *(f"{index}{part}" for index in INDEXES for part in (PK, SK))]
    request: dict[str, Any] = {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": each, "AttributeType": "S"} for each in names],
        "KeySchema": _key_schema(),
        "GlobalSecondaryIndexes": [index_definition(index) for index in INDEXES],
        "StreamSpecification": STREAM,
    }
    if tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    if deletion_protection:
        request["DeletionProtectionEnabled"] = True
    return request


def index_definition(index: str) -> dict[str, Any]:
    """Return the definition of one index."""
    projection = {"ProjectionType": _projection(index)}
    return {"IndexName": index, "KeySchema": _key_schema(index), "Projection": projection}


async def create_table(
    client: Client,
    *,
    wait: bool = True,
    tags: Mapping[str, str] | None = None,
    deletion_protection: bool = False,
    ttl: bool = True,
    pause: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Create the table and wait until it is active. A suitable existing one is left alone."""
    found = await describe(client)
    if found is None:
        request = table_definition(client.table, tags=tags, deletion_protection=deletion_protection)
        with _ignore_concurrent_change():
            await client.call("CreateTable", request)
        if not wait:
            return
    if found is None or found.get("TableStatus") != "ACTIVE":
        found = await _wait_until_active(client, pause or client.pause)
    check_table(found)
    if ttl:
        await enable_expiry(client)


@contextlib.contextmanager
def _ignore_concurrent_change() -> Iterator[None]:
    """Ignore the error if somebody else is making the same change."""
    try:
        yield
    except InfrastructureError as error:
        cause = error.__cause__
        if getattr(cause, "code", None) != "ResourceInUseException" and "already enabled" not in str(cause):
            raise


async def check_existing(client: Client) -> None:
    """Raise an error if the table is missing or unsuitable. Changes nothing."""
    found = await describe(client)
    if found is None:
        raise InfrastructureNotFoundError(
            f"DynamoDB table {client.table!r} does not exist in {client.region}: {OTHER_REGION}, "
            "or create it with `zae-limiter create-table`."
        )
    check_table(found)


async def describe(client: Client) -> dict[str, Any] | None:
    """Return DynamoDB's description of the table, or None if it does not exist."""
    try:
        answer = await client.call("DescribeTable", {"TableName": client.table}, repeatable=True)
    except InfrastructureNotFoundError:
        return None
    found: dict[str, Any] = answer["Table"]
    return found


def check_table(description: Mapping[str, Any]) -> None:
    """Raise `IncompatibleSchemaError` with every difference if keys or indexes are not as required."""
    wrong = _differences(description)
    if wrong:
        raise IncompatibleSchemaError(
            f"DynamoDB table {description.get('TableName')!r} is not a zae-limiter table: {'; '.join(wrong)}. "
            "Nothing was changed; choose another name."
        )


def _differences(description: Mapping[str, Any]) -> list[str]:
    wrong = key_differences(description)
    for name in INDEXES:
        wrong += index_differences(description, name)
    return wrong


def key_differences(description: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the key of a table."""
    return _key_differences("its key", description, _key_schema(), _types(description))


def index_differences(description: Mapping[str, Any], name: str) -> list[str]:
    """Return what is wrong with one index of a table."""
    found = index_of(description, name)
    if found is None:
        return [f"index {name} is missing"]
    wrong = _key_differences(f"index {name}", found, _key_schema(name), _types(description))
    projection = found.get("Projection", {}).get("ProjectionType")
    if projection != _projection(name):
        wrong.append(f"index {name} projects {projection}, not {_projection(name)}")
    return wrong


def index_of(description: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return DynamoDB's description of one index, or None."""
    indexes = description.get("GlobalSecondaryIndexes") or ()
    return next((each for each in indexes if each["IndexName"] == name), None)


def _types(description: Mapping[str, Any]) -> dict[str, str]:
    return {each["AttributeName"]: each["AttributeType"] for each in description.get("AttributeDefinitions", ())}


def _key_differences(
    what: str, described: Mapping[str, Any], schema: list[dict[str, str]], types: Mapping[str, str]
) -> list[str]:
    found = {each["KeyType"]: each["AttributeName"] for each in described.get("KeySchema", ())}
    wanted = {each["KeyType"]: each["AttributeName"] for each in schema}
    if found != wanted:
        return [f"{what} is ({', '.join(found.values())}), not ({', '.join(wanted.values())})"]
    return [f"{name} is of type {types[name]}, not S" for name in wanted.values() if types.get(name, "S") != "S"]


def _key_schema(index: str = "") -> list[dict[str, str]]:
    return [{"AttributeName": f"{index}{PK}", "KeyType": "HASH"}, {"AttributeName": f"{index}{SK}", "KeyType": "RANGE"}]


def _projection(index: str) -> str:
    return "ALL" if index in WHOLE else "KEYS_ONLY"


async def _wait_until_active(client: Client, pause: Callable[[float], Awaitable[None]]) -> dict[str, Any]:
    for _ in range(_POLLS):
        found = await describe(client)
        if found is not None and found.get("TableStatus") == "ACTIVE":
            return found
        await pause(_POLL_SECONDS)
    raise RateLimiterUnavailable(
        f"DynamoDB table {client.table!r} is not ready after {_POLLS} s; rerun to keep waiting."
    )


async def enable_expiry(client: Client) -> None:
    """Let DynamoDB delete expired records. Asks first, because enabling it twice is an error."""
    if await has_expiry(client):
        return
    specification = {"Enabled": True, "AttributeName": TTL}
    with _ignore_concurrent_change():
        await client.call("UpdateTimeToLive", {"TableName": client.table, "TimeToLiveSpecification": specification})


async def has_expiry(client: Client) -> bool:
    """Return whether DynamoDB deletes expired records."""
    answer = await client.call("DescribeTimeToLive", {"TableName": client.table}, repeatable=True)
    return answer.get("TimeToLiveDescription", {}).get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
