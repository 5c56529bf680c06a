"""Bring an older table into shape, one index at a time, as DynamoDB requires.

The next step is always derived from the table, so an interrupted run is continued by the next one, and two runs at once
only wait for each other. An index that differs is deleted and recreated; records are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from ..ranges import INDEXES
from .answers import OTHER_REGION
from .table import (
    STREAM,
    describe,
    enable_expiry,
    has_expiry,
    index_definition,
    index_differences,
    index_of,
    key_differences,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .client import Client

_LOOKS = 50_000
_PAUSE_SECONDS = 5.0
_STREAM = "turn the stream on"
_EXPIRY = "turn expiry on"
_BUSY = frozenset(("ResourceInUseException", "LimitExceededException"))


class TableChange(NamedTuple):
    """One change of the table."""

    what: str
    change: dict[str, Any]


def plan_changes(description: Mapping[str, Any]) -> list[TableChange]:
    """Return the changes that a table needs, in order. Raise `IncompatibleSchemaError` for a wrong key."""
    wrong = key_differences(description)
    if wrong:
        name = description.get("TableName")
        raise IncompatibleSchemaError(f"DynamoDB table {name!r} is not a zae-limiter table: {'; '.join(wrong)}.")
    found: list[TableChange] = []
    for name in INDEXES:
        if index_differences(description, name):
            if index_of(description, name) is not None:
                found.append(TableChange(f"delete index {name}", _delete_index(name)))
            found.append(TableChange(f"create index {name}", _create_index(description, name)))
    if not (description.get("StreamSpecification") or {}).get("StreamEnabled"):
        found.append(TableChange(_STREAM, {"StreamSpecification": STREAM}))
    return found


async def missing_steps(client: Client) -> list[str]:
    """Return the names of the steps that `reshape` would take."""
    found = [step.what for step in plan_changes(await _describe(client))]
    return found if await has_expiry(client) else [*found, _EXPIRY]


async def reshape(
    client: Client,
    progress: Callable[[str], object] | None = None,
    pause: Callable[[float], Awaitable[None]] | None = None,
) -> list[str]:
    """Make all missing changes, one after the other, and return their names."""
    taken: list[str] = []
    for _ in range(_LOOKS):
        found = await _describe(client)
        wanted = plan_changes(found)
        if _is_changing(found):
            await (pause or client.pause)(_PAUSE_SECONDS)
        elif wanted:
            if progress is not None:
                progress(wanted[0].what)
            if await _take(client, wanted[0]):
                taken.append(wanted[0].what)
            else:
                await (pause or client.pause)(_PAUSE_SECONDS)
        else:
            return taken + await _enable_expiry(client)
    raise RateLimiterUnavailable(f"DynamoDB table {client.table!r} is still being changed; rerun to keep waiting.")


async def _enable_expiry(client: Client) -> list[str]:
    if await has_expiry(client):
        return []
    await enable_expiry(client)
    return [_EXPIRY]


async def _describe(client: Client) -> dict[str, Any]:
    found = await describe(client)
    if found is None:
        raise InfrastructureNotFoundError(
            f"DynamoDB table {client.table!r} does not exist in {client.region}: {OTHER_REGION}."
        )
    return found


async def _take(client: Client, step: TableChange) -> bool:
    """Request one change. Return False if another change is in progress or this one has been made meanwhile."""
    try:
        await client.call("UpdateTable", {"TableName": client.table, **step.change})
    except InfrastructureNotFoundError:  # somebody else has deleted the index
        return False
    except InfrastructureError as error:
        said = str(error.__cause__)
        if getattr(error.__cause__, "code", None) in _BUSY or "duplicate index" in said or "already" in said:
            return False
        raise
    return True


def _is_changing(description: Mapping[str, Any]) -> bool:
    """Return whether the table or one of its indexes is not ready."""
    indexes = description.get("GlobalSecondaryIndexes") or ()
    states = [description.get("TableStatus", "ACTIVE"), *(each.get("IndexStatus", "ACTIVE") for each in indexes)]
    return any(state != "ACTIVE" for state in states)


def _delete_index(name: str) -> dict[str, Any]:
    return {"GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": name}}]}


def _create_index(description: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the change that creates an index, with the table's throughput if that is provisioned."""
    index = index_definition(name)
    names = [each["AttributeName"] for each in index["KeySchema"]]
    billing = (description.get("BillingModeSummary") or {}).get("BillingMode", "PROVISIONED")
    if billing == "PROVISIONED":
        paid = description.get("ProvisionedThroughput") or {}
        units = ("ReadCapacityUnits", "WriteCapacityUnits")
        index["ProvisionedThroughput"] = {unit: max(1, int(paid.get(unit, 1))) for unit in units}
    return {
        "AttributeDefinitions": [{"AttributeName": each, "AttributeType": "S"} for each in names],
        "GlobalSecondaryIndexUpdates": [{"Create": index}],
    }
