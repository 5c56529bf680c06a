"""Bringing an older table into shape: one index at a time, as DynamoDB wants it.

What is to be done next is read off the table each time, so a run that ends anywhere is gone on with by the next, and
two at once only wait for each other. An index that differs is deleted and made anew; records are left alone.
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
    expire,
    expires,
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


class Step(NamedTuple):
    """One change of the table."""

    what: str
    change: dict[str, Any]


def steps(description: Mapping[str, Any]) -> list[Step]:
    """The changes that a table needs, in their order; a key that is not ours cannot be changed."""
    wrong = key_differences(description)
    if wrong:
        name = description.get("TableName")
        raise IncompatibleSchemaError(f"DynamoDB table {name!r} is none of ours: {'; '.join(wrong)}.")
    found: list[Step] = []
    for name in INDEXES:
        if index_differences(description, name):
            if index_of(description, name) is not None:
                found.append(Step(f"delete index {name}", _deletion(name)))
            found.append(Step(f"create index {name}", _creation(description, name)))
    if not (description.get("StreamSpecification") or {}).get("StreamEnabled"):
        found.append(Step(_STREAM, {"StreamSpecification": STREAM}))
    return found


async def missing_steps(client: Client) -> list[str]:
    """What a table lacks, as the steps that `reshape` would take."""
    found = [step.what for step in steps(await _described(client))]
    return found if await expires(client) else [*found, _EXPIRY]


async def reshape(
    client: Client,
    progress: Callable[[str], object] | None = None,
    pause: Callable[[float], Awaitable[None]] | None = None,
) -> list[str]:
    """Take all steps that are missing, each when the one before is done; says which were taken."""
    taken: list[str] = []
    for _ in range(_LOOKS):
        found = await _described(client)
        wanted = steps(found)
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
            return taken + await _expiring(client)
    raise RateLimiterUnavailable(f"DynamoDB table {client.table!r} is still being changed; upgrade again later.")


async def _expiring(client: Client) -> list[str]:
    if await expires(client):
        return []
    await expire(client)
    return [_EXPIRY]


async def _described(client: Client) -> dict[str, Any]:
    found = await describe(client)
    if found is None:
        raise InfrastructureNotFoundError(
            f"DynamoDB table {client.table!r} does not exist in {client.region}: {OTHER_REGION}."
        )
    return found


async def _take(client: Client, step: Step) -> bool:
    """Ask for one change; False where the table has another one under way, or has had this one meanwhile."""
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
    """Whether the table or one of its indexes is not ready."""
    indexes = description.get("GlobalSecondaryIndexes") or ()
    states = [description.get("TableStatus", "ACTIVE"), *(each.get("IndexStatus", "ACTIVE") for each in indexes)]
    return any(state != "ACTIVE" for state in states)


def _deletion(name: str) -> dict[str, Any]:
    return {"GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": name}}]}


def _creation(description: Mapping[str, Any], name: str) -> dict[str, Any]:
    """On demand, or where the table pays for a throughput, with the same."""
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
