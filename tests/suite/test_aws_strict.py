"""The strict reader can fail: each rule has a request that breaks it and no other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.aws import engine
from tests.support.aws.plain import Plain
from tests.support.aws.strict import check_calls, complaints
from tests.support.aws.wire import Wire

KEY = {"PK": {"S": "p"}, "SK": {"S": "s"}}

UPDATE: dict[str, Any] = {
    "TableName": "table",
    "Key": KEY,
    "UpdateExpression": "SET #a = :a, #m.#x = if_not_exists(#a, :a) REMOVE #b ADD #c :c",
    "ConditionExpression": "(attribute_not_exists(#t) OR #t > :now) AND #c BETWEEN :c AND :now AND #a IN (:a, :c)",
    "ExpressionAttributeNames": {"#a": "a", "#b": "b", "#c": "c", "#m": "m", "#x": "x", "#t": "ttl"},
    "ExpressionAttributeValues": {":a": {"S": ""}, ":c": {"N": "-1"}, ":now": {"N": "170000"}},
    "ReturnValues": "ALL_NEW",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    "ReturnConsumedCapacity": "INDEXES",
}
PUT: dict[str, Any] = {
    "TableName": "table",
    "Item": KEY | {"GSI1PK": {"S": "g"}, "n": {"N": "1.5e3"}, "m": {"M": {"l": {"L": [{"BOOL": False}]}}}},
    "ConditionExpression": "attribute_not_exists(#p)",
    "ExpressionAttributeNames": {"#p": "PK"},
}
QUERY: dict[str, Any] = {
    "TableName": "table",
    "IndexName": "GSI1",
    "KeyConditionExpression": "#p = :p AND begins_with(#s, :s)",
    "FilterExpression": "NOT contains(#f, :s)",
    "ProjectionExpression": "#f, #s",
    "ExpressionAttributeNames": {"#p": "GSI1PK", "#s": "GSI1SK", "#f": "f"},
    "ExpressionAttributeValues": {":p": {"S": "p"}, ":s": {"S": "s"}},
    "Limit": 10,
}
BATCH_GET: dict[str, Any] = {"RequestItems": {"table": {"Keys": [KEY], "ConsistentRead": True}}}
BATCH_WRITE: dict[str, Any] = {"RequestItems": {"table": [{"DeleteRequest": {"Key": KEY}}]}}
TRANSACTION: dict[str, Any] = {
    "ClientRequestToken": "x" * 36,
    "TransactItems": [
        {"Put": PUT},
        {
            "ConditionCheck": {
                "TableName": "table",
                "Key": {"PK": {"S": "p"}, "SK": {"S": "t"}},
                "ConditionExpression": "attribute_exists(#p)",
                "ExpressionAttributeNames": {"#p": "PK"},
            }
        },
    ],
}
GOOD = {
    "UpdateItem": UPDATE,
    "PutItem": PUT,
    "Query": QUERY,
    "BatchGetItem": BATCH_GET,
    "BatchWriteItem": BATCH_WRITE,
    "TransactWriteItems": TRANSACTION,
}


def key(number: int) -> dict[str, Any]:
    return {"PK": {"S": "p"}, "SK": {"S": str(number)}}


@pytest.mark.parametrize("operation", GOOD)
def test_a_good_request_passes(operation: str) -> None:
    assert list(complaints(operation, GOOD[operation])) == []


def setting(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Changes one place of a request; ``...`` as the value takes it away."""

    def change(request: dict[str, Any]) -> None:
        *way, last = path.split("/")
        place: Any = request
        for step in way:
            place = place[int(step) if isinstance(place, list) else step]
        index = int(last) if isinstance(place, list) else last
        if value is ...:
            del place[index]
        else:
            place[index] = value

    return change


NAMES, VALUES = "ExpressionAttributeNames", "ExpressionAttributeValues"
CHANGE, ITEMS = "UpdateExpression", "TransactItems"
DELETE = {"TableName": "table", "Key": KEY}

BROKEN = [
    ("UpdateItem", setting(f"{NAMES}/#z", "z"), "name #z is not used"),
    ("UpdateItem", setting(f"{VALUES}/:z", {"S": "z"}), "value :z is not used"),
    ("UpdateItem", setting(f"{NAMES}/#b", ...), "name #b is not declared"),
    ("UpdateItem", setting(f"{VALUES}/:c", ...), "value :c is not declared"),
    ("UpdateItem", setting(f"{VALUES}/:c", {"NS": []}), "set that is empty"),
    ("UpdateItem", setting(f"{VALUES}/:c", {"NS": ["1", "1"]}), "twice"),
    ("UpdateItem", setting(f"{VALUES}/:c", {"N": "one"}), "is no number"),
    ("UpdateItem", setting(f"{VALUES}/:c", {"N": "-" + "1" * 39}), "38 digits"),
    ("UpdateItem", setting(f"{VALUES}/:c", {"N": "170001"}), "wrong way round"),
    ("UpdateItem", setting(f"{VALUES}/:c", {"S": "1"}), "of two types"),
    ("UpdateItem", setting(f"{VALUES}/:a", {"B": "?"}), "not base64"),
    ("UpdateItem", setting(f"{VALUES}/:a", {"NULL": False}), "NULL and not true"),
    ("UpdateItem", setting(f"{VALUES}/:a", {"S": "x", "N": "1"}), "types"),
    ("UpdateItem", setting(CHANGE, "SET #a = :a SET #b = :c, #m = #x"), "SET stands twice"),
    ("UpdateItem", setting(CHANGE, "SET #a = :a, #m.#x = :c REMOVE #b, #m"), "overlap"),
    ("UpdateItem", setting(CHANGE, "SET #a = :a, #m.#x = :c REMOVE #b, #b"), "overlap"),
    ("UpdateItem", setting(CHANGE, "SET #a = :a, #m.#x = :c, size = :c REMOVE #b"), "without a placeholder"),
    ("UpdateItem", setting(CHANGE, "SET #a = :a, #m.#x = size REMOVE #b"), "no placeholder and no function"),
    ("UpdateItem", setting(CHANGE, "ADD #c, #m.#x :c REMOVE #b"), "ADD takes"),
    ("UpdateItem", setting(CHANGE, "SET #a :a, #m.#x = :c REMOVE #b"), "SET takes"),
    ("UpdateItem", setting(CHANGE, "REMOVE #b, #m.#x :c"), "REMOVE takes"),
    ("UpdateItem", setting(CHANGE, "#b, #m.#x"), "begins with no clause"),
    ("UpdateItem", setting(CHANGE, ""), "is empty"),
    ("UpdateItem", setting(CHANGE, "SET #a ~ :a"), "cannot be read"),
    ("UpdateItem", setting(CHANGE, "SET #a = :a REMOVE #b, #m, #x" + " " * 4096), "too long"),
    ("UpdateItem", setting(f"{NAMES}/#b", "SK"), "SK is part of the key"),
    ("UpdateItem", setting("ConditionExpression", "#t > :now AND #c = :c AND name = :a"), "name is no placeholder"),
    ("UpdateItem", setting("ConditionExpression", "((#t > :now AND #c = :c))"), "redundant"),
    ("UpdateItem", setting("ConditionExpression", "(#t > :now AND #c = :c"), "not closed"),
    ("UpdateItem", setting("ConditionExpression", "#t > :now) AND #c = :c"), "not opened"),
    ("UpdateItem", setting("ConditionExpression", "#t > :now AND #c BETWEEN :c"), "without two bounds"),
    ("UpdateItem", setting("ConditionExpression", "#t > :now AND #c = #c"), "are the same"),
    ("UpdateItem", setting("ConditionExpression", "#t > :now AND attribute_exists #c"), "is not called"),
    ("UpdateItem", setting("ReturnValues", "ALL"), "is none of"),
    ("UpdateItem", setting("ReturnValuesOnConditionCheckFailure", "ALL_NEW"), "is none of"),
    ("UpdateItem", setting("ReturnConsumedCapacity", "ALL"), "is none of"),
    ("UpdateItem", setting("Expected", {}), "legacy"),
    ("UpdateItem", setting("Surprise", 1), "Surprise"),
    ("UpdateItem", setting("Key/SK", {"S": ""}), "the key's SK"),
    ("UpdateItem", setting("Key/PK", {"S": "p" * 2049}), "too long"),
    ("UpdateItem", setting("Key/SK", ...), "not PK and SK"),
    ("UpdateItem", setting("TableName", ...), "TableName"),
    ("PutItem", setting("ReturnValues", "ALL_NEW"), "not for PutItem"),
    ("PutItem", setting(VALUES, {}), "is empty"),
    ("PutItem", setting(NAMES, {}), "is empty"),
    ("PutItem", setting("Item/PK", ...), "not PK and SK"),
    ("PutItem", setting("Item/GSI1PK", {"S": ""}), "index key"),
    ("PutItem", setting("Item/m/M/l/L/0", {"N": ""}), "is no number"),
    ("Query", setting("ConsistentRead", True), "no consistent reads"),
    ("Query", setting("Limit", 0), "Limit"),
    ("Query", setting("KeyConditionExpression", ...), "without a key condition"),
    ("Query", setting("KeyConditionExpression", "#p = :p OR begins_with(#s, :s)"), "OR is no placeholder"),
    ("Query", setting("ProjectionExpression", "#f, #f"), "projected twice"),
    ("Query", setting("ProjectionExpression", "#f, ttl"), "no path of placeholders"),
    ("BatchGetItem", setting("RequestItems/table/Keys", [KEY, KEY]), "named twice"),
    ("BatchGetItem", setting("RequestItems/table/Keys", [key(each) for each in range(101)]), "101 items"),
    ("BatchGetItem", setting("RequestItems/table/AttributesToGet", ["PK"]), "legacy"),
    ("BatchGetItem", setting("RequestItems/table/Keys/0", {"PK": {"S": "p"}}), "not PK and SK"),
    (
        "BatchWriteItem",
        setting("RequestItems/table", [{"DeleteRequest": {"Key": key(each)}} for each in range(26)]),
        "26 items",
    ),
    ("BatchWriteItem", setting("RequestItems/table", [{"DeleteRequest": {"Key": KEY}}] * 2), "named twice"),
    ("TransactWriteItems", setting("ClientRequestToken", "x" * 37), "1 to 36"),
    ("TransactWriteItems", setting(ITEMS, [{"Put": PUT}, {"Delete": DELETE}]), "twice"),
    ("TransactWriteItems", setting(ITEMS, [{"Put": PUT, "Delete": DELETE}]), "one of"),
    (
        "TransactWriteItems",
        setting(ITEMS, [{"Delete": {"TableName": "table", "Key": key(each)}} for each in range(101)]),
        "101 items",
    ),
    ("TransactWriteItems", setting("TransactItems/0/Put/Item/n", {"SS": []}), "set that is empty"),
    ("Improvise", setting("x", 1), "is no operation"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "change", "complaint"), BROKEN, ids=[each[2] for each in BROKEN])
def test_a_broken_request_is_told(operation: str, change: Callable[[dict[str, Any]], None], complaint: str) -> None:
    request = copy.deepcopy(GOOD.get(operation, {}))
    change(request)
    assert complaint in "; ".join(complaints(operation, request))


def test_what_was_recorded_is_checked_and_shown() -> None:
    with Wire(engine.endpoint()) as wire:
        client = Plain(wire.url)
        client.call("ListTables")
        check_calls(wire.calls())
        client.call("GetItem", TableName="table", Key={"PK": {"S": "p"}, "SK": {"S": ""}})
        client.close()
        with pytest.raises(AssertionError, match="the key's SK"):
            check_calls(wire.calls())
