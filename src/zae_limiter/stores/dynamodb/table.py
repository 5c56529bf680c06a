"""The table: its keys and indexes, how it is created without CloudFormation, and whether an existing one fits.

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
from .ranges import WHOLE
from .values import PK, SK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from .client import Client

STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}

_POLLS = 120
_POLL_SECONDS = 1.0


def definition(
    name: str, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False
) -> dict[str, Any]:
    """The request that creates the table: on demand, with its indexes and its stream."""
    names = [PK, SK, *(f"{index}{part}" for index in INDEXES for part in (PK, SK))]
    request: dict[str, Any] = {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": each, "AttributeType": "S"} for each in names],
        "KeySchema": _key_schema(),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": index,
                "KeySchema": _key_schema(index),
                "Projection": {"ProjectionType": _projection(index)},
            }
            for index in INDEXES
        ],
        "StreamSpecification": STREAM,
    }
    if tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    if deletion_protection:
        request["DeletionProtectionEnabled"] = True
    return request


async def create_table(
    client: Client,
    *,
    wait: bool = True,
    tags: Mapping[str, str] | None = None,
    deletion_protection: bool = False,
    ttl: bool = True,
    pause: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Create the table and wait until it can be used; one that is there already and fits is left as it is."""
    found = await describe(client)
    if found is None:
        request = definition(client.table, tags=tags, deletion_protection=deletion_protection)
        with _made_meanwhile():
            await client.call("CreateTable", request)
        if not wait:
            return
    if found is None or found.get("TableStatus") != "ACTIVE":
        found = await _when_active(client, pause or client.pause)
    check_table(found)
    if ttl:
        with _made_meanwhile():
            await _expire(client)


@contextlib.contextmanager
def _made_meanwhile() -> Iterator[None]:
    """Somebody else is doing the same at this moment: that is as good."""
    try:
        yield
    except InfrastructureError as error:
        cause = error.__cause__
        if getattr(cause, "code", None) != "ResourceInUseException" and "already enabled" not in str(cause):
            raise


async def check_existing(client: Client) -> None:
    """Refuse a table that is missing or does not fit; nothing is changed."""
    found = await describe(client)
    if found is None:
        raise InfrastructureNotFoundError(
            f"DynamoDB table {client.table!r} does not exist in {client.region}. Check the name and the region, "
            "or create it with create_table()."
        )
    check_table(found)


async def describe(client: Client) -> dict[str, Any] | None:
    """What DynamoDB says about the table, None where there is none."""
    try:
        answer = await client.call("DescribeTable", {"TableName": client.table}, repeatable=True)
    except InfrastructureNotFoundError:
        return None
    found: dict[str, Any] = answer["Table"]
    return found


def check_table(description: Mapping[str, Any]) -> None:
    """Refuse a table whose keys or indexes are not ours, naming every difference."""
    wrong = _differences(description)
    if wrong:
        raise IncompatibleSchemaError(
            f"DynamoDB table {description.get('TableName')!r} does not fit: {'; '.join(wrong)}. "
            "Nothing was changed; give another name, or create the table with create_table()."
        )


def _differences(description: Mapping[str, Any]) -> list[str]:
    types = {each["AttributeName"]: each["AttributeType"] for each in description.get("AttributeDefinitions", ())}
    wrong = _key_differences("its key", description, _key_schema(), types)
    indexes = {each["IndexName"]: each for each in description.get("GlobalSecondaryIndexes") or ()}
    for name in INDEXES:
        if name not in indexes:
            wrong.append(f"index {name} is missing")
            continue
        wrong += _key_differences(f"index {name}", indexes[name], _key_schema(name), types)
        projection = indexes[name].get("Projection", {}).get("ProjectionType")
        if projection != _projection(name):
            wrong.append(f"index {name} projects {projection}, not {_projection(name)}")
    return wrong


def _key_differences(
    what: str, described: Mapping[str, Any], schema: list[dict[str, str]], types: Mapping[str, str]
) -> list[str]:
    found = {each["KeyType"]: each["AttributeName"] for each in described.get("KeySchema", ())}
    wanted = {each["KeyType"]: each["AttributeName"] for each in schema}
    if found != wanted:
        return [f"{what} is ({', '.join(found.values())}), not ({', '.join(wanted.values())})"]
    return [f"{name} is of type {types[name]}, not S" for name in wanted.values() if types.get(name, "S") != "S"]


def _key_schema(index: str = "") -> list[dict[str, str]]:
    return [
        {"AttributeName": f"{index}{PK}", "KeyType": "HASH"},
        {"AttributeName": f"{index}{SK}", "KeyType": "RANGE"},
    ]


def _projection(index: str) -> str:
    return "ALL" if index in WHOLE else "KEYS_ONLY"


async def _when_active(client: Client, pause: Callable[[float], Awaitable[None]]) -> dict[str, Any]:
    for _ in range(_POLLS):
        found = await describe(client)
        if found is not None and found.get("TableStatus") == "ACTIVE":
            return found
        await pause(_POLL_SECONDS)
    raise RateLimiterUnavailable(f"DynamoDB table {client.table!r} is still not ready after {_POLLS} tries.")


async def _expire(client: Client) -> None:
    """Let DynamoDB delete expired records; asking twice is refused, so a table that does it already is left alone."""
    answer = await client.call("DescribeTimeToLive", {"TableName": client.table}, repeatable=True)
    if answer.get("TimeToLiveDescription", {}).get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return
    specification = {"Enabled": True, "AttributeName": TTL}
    await client.call("UpdateTimeToLive", {"TableName": client.table, "TimeToLiveSpecification": specification})
