"""What an engine has to be able to do, as DynamoDB documents it: asked of the engine itself, before it is blamed.

An engine that lacks what every decision needs would fail hundreds of tests for one reason. Then one test fails and
names all that is lacking (`tests/suite/test_aws_abilities.py`), and those that need the engine are skipped.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.aws import engine
from tests.support.aws.plain import Plain
from tests.support.waiting import NeverHappened, until
from zae_limiter.stores.dynamodb.table import table_definition

Ability = Callable[["Probe"], bool]
SEEN = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


class Probe:
    """A table of its own in the engine."""

    patience = 5.0
    """The seconds after which an index must show what was written."""

    def __init__(self, direct: Plain, table: str) -> None:
        self.direct = direct
        self.table = table

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        """What the engine answers, whatever it is."""
        return self.direct.call(operation, **request)[1]

    def put(self, key: str, **attributes: Any) -> dict[str, Any]:
        """Put a record."""
        item = {"PK": {"S": key}, "SK": {"S": "s"}, "n": {"N": "1"}, **attributes}
        return self.call("PutItem", TableName=self.table, Item=item, ReturnConsumedCapacity="TOTAL")

    def get(self, key: str) -> dict[str, Any]:
        """Get it back, without its keys."""
        key_of = {"PK": {"S": key}, "SK": {"S": "s"}}
        found = self.call("GetItem", TableName=self.table, Key=key_of, ConsistentRead=True).get("Item", {})
        return {name: value for name, value in found.items() if name not in key_of}

    def update(self, key: str, condition: str) -> dict[str, Any]:
        """Return an update that adds one to ``n`` under a condition."""
        return {
            "TableName": self.table,
            "Key": {"PK": {"S": key}, "SK": {"S": "s"}},
            "UpdateExpression": "ADD #n :one",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#n": "n"},
            "ExpressionAttributeValues": {":one": {"N": "1"}},
            **SEEN,
        }


def shows_the_image(probe: Probe) -> bool:
    """An update whose condition fails answers with the record."""
    probe.put("image")
    found = probe.call("UpdateItem", **probe.update("image", "#n > :one")).get("Item", {})
    return bool(found.get("n") == {"N": "1"})


def has_transactions(probe: Probe) -> bool:
    """A transaction takes effect as a whole or not at all."""
    for key in ("all", "none"):
        probe.put(key)
    good, bad = probe.update("all", "#n >= :one"), probe.update("none", "#n > :one")
    for writes in ([good], [good, bad]):
        probe.call("TransactWriteItems", TransactItems=[{"Update": write} for write in writes])
    return probe.get("all").get("n") == {"N": "2"}


def shows_images_of_transactions(probe: Probe) -> bool:
    """A cancelled transaction has a reason for each write, with the record where its condition failed."""
    for key in ("one", "two"):
        probe.put(key)
    good, bad = probe.update("one", "#n = :one"), probe.update("two", "#n > :one")
    answer = probe.call("TransactWriteItems", TransactItems=[{"Update": good}, {"Update": bad}])
    reasons = answer.get("CancellationReasons") or [{}]
    return len(reasons) == 2 and (reasons[-1].get("Item") or {}).get("n") == {"N": "1"}


def knows_tokens(probe: Probe) -> bool:
    """A transaction that is sent twice with one token takes effect once."""
    probe.put("token")
    token = os.urandom(16).hex()  # an engine remembers tokens for longer than a run
    for _ in range(2):
        update = probe.update("token", "#n >= :one")
        probe.call("TransactWriteItems", TransactItems=[{"Update": update}], ClientRequestToken=token)
    return probe.get("token").get("n") == {"N": "2"}


def has_indexes(probe: Probe) -> bool:
    """Records are found by an index; one that projects keys shows keys."""
    probe.put("indexed", GSI2PK={"S": "r"}, GSI2SK={"S": "x"})
    found: dict[str, Any] = {}

    def shows_a_record() -> bool:
        """Query once. An index may lag behind the table."""
        nonlocal found
        found = probe.call(
            "Query",
            TableName=probe.table,
            IndexName="GSI2",
            KeyConditionExpression="GSI2PK = :r",
            ExpressionAttributeValues={":r": {"S": "r"}},
        )
        return bool(found.get("Items"))

    with contextlib.suppress(NeverHappened):
        until(shows_a_record, "a record in the index", seconds=probe.patience, pause=0.05)
    return [sorted(item) for item in found.get("Items", ())] == [["GSI2PK", "GSI2SK", "PK", "SK"]]


def keeps_numbers(probe: Probe) -> bool:
    """Numbers of 38 digits are kept exactly."""
    probe.put("digits", n={"N": "9" * 38})
    return probe.get("digits").get("n") == {"N": "9" * 38}


def turns_expiry_on(probe: Probe) -> bool:
    """Records can be made to expire."""
    wanted = {"Enabled": True, "AttributeName": "ttl"}
    probe.call("UpdateTimeToLive", TableName=probe.table, TimeToLiveSpecification=wanted)
    found = probe.call("DescribeTimeToLive", TableName=probe.table).get("TimeToLiveDescription", {})
    return found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")


def tells_the_cost(probe: Probe) -> bool:
    """A write costs a unit for each begun kilobyte."""
    small, large = probe.put("small"), probe.put("large", text={"S": "x" * 3000})
    units = [each.get("ConsumedCapacity", {}).get("CapacityUnits") for each in (small, large)]
    return units == [1.0, 3.0]


ESSENTIAL: dict[str, Ability] = {
    "ReturnValuesOnConditionCheckFailure": shows_the_image,
    "transactions": has_transactions,
    "CancellationReasons with items": shows_images_of_transactions,
    "global secondary indexes": has_indexes,
    "numbers of 38 digits": keeps_numbers,
}
"""What every store operation relies on."""

FURTHER: dict[str, Ability] = {
    "ClientRequestToken": knows_tokens,
    "time to live": turns_expiry_on,
    "consumed capacity by size": tells_the_cost,
}
"""What is needed when an answer is lost, by and by, and by tests that count."""


@functools.lru_cache(maxsize=1)
def lacking() -> dict[str, bool]:
    """The abilities that the engine under test lacks, and whether each is essential. Asked once per process."""
    found: dict[str, bool] = {}
    name = f"zae-probe-{engine.RUN}-{os.getpid()}"
    definition = table_definition(name)
    with contextlib.closing(Plain(engine.endpoint())) as direct:
        direct.create(definition.pop("TableName"), **definition)
        try:
            probe = Probe(direct, name)
            for ability, has in (ESSENTIAL | FURTHER).items():
                if not has(probe):
                    found[ability] = ability in ESSENTIAL
        finally:
            direct.call("DeleteTable", TableName=name)
    return found


def skip_where_lacking() -> None:
    """Skip a test that needs an engine which cannot do what is essential. Our own engine is not asked: it can."""
    if engine.URL in os.environ:
        missing = [ability for ability, essential in lacking().items() if essential]
        if missing:
            pytest.skip(f"the engine lacks: {', '.join(missing)}")
