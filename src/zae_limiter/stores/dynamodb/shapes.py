"""The shapes that DynamoDB gives its answers, down to each value.

An answer of another shape is none of DynamoDB's: a proxy or a broken engine has made it. It is refused as a whole, here
and before anything looks into it. Everything behind can rely on the shape; what a record *means* is another question,
which those who decode records answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .values import PK, SK

_KINDS: dict[str, Any] = {
    **dict.fromkeys(("S", "N", "B"), str),
    **dict.fromkeys(("BOOL", "NULL"), bool),
    **dict.fromkeys(("L", "SS", "NS", "BS"), list),
    "M": dict,
}

_MAX_DIGITS = 130
"""DynamoDB's numbers have up to 126 digits before the point."""
_NUMBER = re.compile(r"[-+]?[0-9]{1,130}(\.[0-9]{1,180})?([eE][-+]?[0-9]{1,3})?", re.ASCII)
MOST_VALUES = 1_250_000
"""A page of 1 MB has fewer brackets and commas, whatever its records hold. Reading as many takes about a second."""
_DEEPEST = 32
"""DynamoDB nests as many levels. `values` stores what is nested as deep as that in another way."""

_KEY = {"AttributeName": str, "KeyType": str}
_INDEX = {"IndexName": str, "KeySchema": [_KEY], "Projection": dict}
_TABLE = {
    "KeySchema": [_KEY],
    "AttributeDefinitions": [{"AttributeName": str, "AttributeType": str}],
    "GlobalSecondaryIndexes": [_INDEX],
    "BillingModeSummary": dict,
    "ProvisionedThroughput": {"ReadCapacityUnits": int, "WriteCapacityUnits": int},
    "StreamSpecification": dict,
}
_FIELDS: dict[str, Any] = {
    "__type": str,
    "Items": list,
    "Responses": dict,
    "UnprocessedKeys": dict,
    "UnprocessedItems": dict,
    "CancellationReasons": [{"Code": str}],
    "Table": _TABLE,
    "TimeToLiveDescription": dict,
}
"""Fields of answers. Within them texts must be there; anything else may be absent or null."""
_REQUIRED = {"Query": "Items", "Scan": "Items", "BatchGetItem": "Responses"}
_TOO_MANY = "it has more records than were asked for"


class Malformed(Exception):
    """The answer does not have the shape of an answer to this request."""


def check_size(body: bytes) -> None:
    """Raise `Malformed` if ``body`` holds so many values that reading it would outlast the deadline of its request.

    In JSON a bracket or a comma stands before every value; those within texts are counted with them.
    """
    if body.count(b",") + body.count(b"{") + body.count(b"[") > MOST_VALUES:
        raise Malformed(f"it has more than {MOST_VALUES:,} brackets and commas")


def check_shape(content: Mapping[str, Any], operation: str, request: Mapping[str, Any], status: int) -> None:
    """Raise `Malformed` unless this is the shape of DynamoDB's answer to ``request``."""
    for name, value in content.items():
        shape = _FIELDS.get(name)
        if shape is not None and type(value) is not shape and not _matches(value, shape):
            raise Malformed(f"its {name} is not as it should be")
    keys: tuple[str, ...] = ()
    if status == 200:
        required = _REQUIRED.get(operation)
        if "__type" in content or (required is not None and required not in content):
            raise Malformed("it is an answer to something else")
        if "Attributes" not in content:
            keys = (PK, SK, f"{request['IndexName']}SK") if "IndexName" in request else (PK, SK)
            if request.get("ReturnValues") == "ALL_NEW":
                raise Malformed("it lacks the new record")
    reasons: list[Any] = content.get("CancellationReasons", [])
    is_cancelled = "TransactItems" in request and "TransactionCanceled" in content.get("__type", "")
    if is_cancelled and len(reasons) != len(request["TransactItems"]):
        raise Malformed("it has not one reason for each write")
    records = [*content.get("Items", ()), *(each["Item"] for each in reasons if each.get("Item") is not None)]
    records += [content[name] for name in ("Item", "Attributes", "LastEvaluatedKey") if name in content]
    for found in content.get("Responses", {}).values():
        records += found if type(found) is list else [None]
    _check_items(records, keys)
    if len(content.get("Items", ())) > request.get("Limit", len(records)):
        raise Malformed(_TOO_MANY)
    if "Key" in request:
        shown = [content[name] for name in ("Item", "Attributes") if name in content]
        if not all(request["Key"].items() <= item.items() for item in shown):
            raise Malformed("it shows another record than the one asked for")
    elif operation == "BatchGetItem":
        _check_batch(content, request["RequestItems"])


def _check_items(items: Iterable[Any], keys: tuple[str, ...] = ()) -> None:
    for item in items:
        if type(item) is not dict:
            raise Malformed("a record is not a map")
        for name, typed in item.items():
            if type(typed) is not dict or len(typed) != 1:
                raise Malformed(f"{name[:60]!r} is not a typed value")
            for kind, value in typed.items():
                if type(value) is not _KINDS.get(kind):
                    raise Malformed(f"{name[:60]!r} is not a value of type {kind[:10]!r}")
                if kind == "N":
                    if (
                        not (value.isdecimal() and value.isascii() and len(value) <= _MAX_DIGITS)
                        and _NUMBER.fullmatch(value) is None
                    ):
                        raise Malformed(f"{name[:60]!r} is not a number")
                elif kind not in ("S", "B", "BOOL", "NULL"):
                    _check_nested(kind, value, 1)
        for key in keys:
            if "S" not in item.get(key, ()):
                raise Malformed(f"a record has no {key}")


def _check_batch(content: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for table, items in content.get("Responses", {}).items():
        wanted = {(key[PK]["S"], key[SK]["S"]) for key in asked.get(table, {}).get("Keys", ())}
        if len(items) > len(wanted):
            raise Malformed(_TOO_MANY)
        if not wanted.issuperset([(item[PK]["S"], item[SK]["S"]) for item in items]):
            raise Malformed("it shows a record that nobody asked for")


def _check_nested(kind: str, value: Any, depth: int) -> None:
    """Raise `Malformed` unless ``value``, which is a list or a map, holds what its ``kind`` says."""
    if depth > _DEEPEST:
        raise Malformed("a record is nested too deeply")
    if kind in ("SS", "NS", "BS"):
        value = [{kind[0]: each} for each in value]
    for each in value.values() if kind == "M" else value:
        if type(each) is not dict or len(each) != 1:
            raise Malformed("a nested value has no type")
        ((inner, held),) = each.items()
        if inner in ("M", "L") and type(held) is _KINDS[inner]:
            _check_nested(inner, held, depth + 1)
        else:
            _check_items(({"value": each},))


def _matches(value: Any, shape: Any) -> bool:
    """Return whether ``value`` is of a type, a list of one shape, or a map whose fields have theirs."""
    if isinstance(shape, type):
        return type(value) is shape
    if isinstance(shape, list):
        return type(value) is list and all(_matches(each, shape[0]) for each in value)
    if type(value) is not dict:
        return False
    found = [(value.get(name), part) for name, part in shape.items()]
    return all(_matches(each, part) for each, part in found if each is not None or part is str)
