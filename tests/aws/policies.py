"""IAM as AWS documents it, for requests to DynamoDB: what a request asks for, and whether a policy allows that.

A request asks for one action on one table or index; a transaction for the action of each of its items. The keys of the
context are ``dynamodb:LeadingKeys``, the partition keys that are named, and ``dynamodb:Attributes``, the attributes
that are named. A condition over all values holds where there is no value, one over any value does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

Document: TypeAlias = Mapping[str, Any]
Request: TypeAlias = Mapping[str, Any]

PARTITION_KEYS = frozenset(("PK", "GSI1PK", "GSI2PK", "GSI3PK", "GSI4PK"))

_IN_TRANSACTION = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
    "Get": "GetItem",
}
_EXPRESSIONS = ("UpdateExpression", "ConditionExpression", "ProjectionExpression", "FilterExpression")
_NAME = re.compile(r"(?<![.:#\w])#?\w+")
_WORDS = frozenset(
    (
        *("set", "remove", "add", "delete", "and", "or", "not", "between", "in", "size", "contains", "begins_with"),
        *("attribute_exists", "attribute_not_exists", "attribute_type", "if_not_exists", "list_append"),
    )
)


class Ask(NamedTuple):
    """What IAM is asked for."""

    action: str
    resource: str
    keys: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()

    @property
    def context(self) -> dict[str, frozenset[str]]:
        """The keys that conditions can name."""
        return {"dynamodb:LeadingKeys": self.keys, "dynamodb:Attributes": self.attributes}


def asks(operation: str, request: Request, tables: str) -> list[Ask]:
    """Everything that a request asks for; ``tables`` is what the ARNs of tables begin with."""
    if "TransactItems" in request:
        items = [pair for item in request["TransactItems"] for pair in item.items()]
        return [_of_item(_IN_TRANSACTION[kind], part, tables) for kind, part in items]
    if "RequestItems" in request:
        return [_of_batch(operation, tables + table, part) for table, part in request["RequestItems"].items()]
    if operation in ("Query", "Scan"):
        return [_of_range(operation, request, tables)]
    return [_of_item(operation, request, tables)]


def _of_item(operation: str, request: Request, tables: str) -> Ask:
    item = request.get("Item") or request.get("Key") or {}
    keys = frozenset([item["PK"]["S"]] if item else [])
    return Ask(f"dynamodb:{operation}", tables + request["TableName"], keys, frozenset(item) | _named(request))


def _of_batch(operation: str, table: str, part: Any) -> Ask:
    if operation == "BatchGetItem":
        return Ask(f"dynamodb:{operation}", table, frozenset(key["PK"]["S"] for key in part["Keys"]), _named(part))
    writes = [next(iter(write.values())) for write in part]
    items = [write.get("Item") or write["Key"] for write in writes]
    named = frozenset(name for item in items for name in item)
    return Ask(f"dynamodb:{operation}", table, frozenset(item["PK"]["S"] for item in items), named)


def _of_range(operation: str, request: Request, tables: str) -> Ask:
    index = f"/index/{request['IndexName']}" if "IndexName" in request else ""
    return Ask(f"dynamodb:{operation}", tables + request["TableName"] + index, _leading(request), _named(request))


def _leading(request: Request) -> frozenset[str]:
    """The partition key of a query."""
    names = request.get("ExpressionAttributeNames", {})
    for name, value in re.findall(r"(#?\w+)\s*=\s*(:\w+)", request.get("KeyConditionExpression", "")):
        if names.get(name, name) in PARTITION_KEYS:
            return frozenset([request["ExpressionAttributeValues"][value]["S"]])
    return frozenset()


def _named(request: Request) -> frozenset[str]:
    """The attributes that the expressions of a request name."""
    names = request.get("ExpressionAttributeNames", {})
    found = (word for each in _EXPRESSIONS for word in _NAME.findall(request.get(each, "")))
    return frozenset(names.get(word, word) for word in found if word.lower() not in _WORDS)


def allows(document: Document, ask: Ask) -> bool:
    """Whether a policy allows it: some statement allows, and none denies."""
    effects = {statement["Effect"] for statement in document["Statement"] if _applies(statement, ask)}
    return effects == {"Allow"}


def for_principal(document: Document, **tags: str) -> Document:
    """The policy as it is for somebody with these tags, whose values hold no wildcards: IAM has no such values.

    A pattern with a tag that they do not have matches nothing.
    """
    text = json.dumps(document)
    for tag, value in tags.items():
        text = text.replace(f"${{aws:PrincipalTag/{tag}}}", value)
    found: Document = json.loads(text)
    return found


def refused(document: Document, wanted: Iterable[Ask]) -> Iterator[Ask]:
    """Those that a policy does not allow."""
    return (ask for ask in wanted if not allows(document, ask))


def _applies(statement: Mapping[str, Any], ask: Ask) -> bool:
    return (
        any(_like(ask.action.lower(), pattern.lower()) for pattern in _listed(statement["Action"]))
        and any(_like(ask.resource, pattern) for pattern in _listed(statement["Resource"]))
        and all(_holds(operator, keys, ask) for operator, keys in statement.get("Condition", {}).items())
    )


def _holds(operator: str, keys: Mapping[str, Any], ask: Ask) -> bool:
    if operator == "Null":
        return all((absent == "true") is not bool(ask.context[key]) for key, absent in keys.items())
    quantifiers = {"ForAllValues:StringLike": all, "ForAnyValue:StringLike": any}
    if operator not in quantifiers:
        raise ValueError(f"{operator} is no operator that is judged here")
    return all(
        quantifiers[operator](any(_like(value, pattern) for pattern in _listed(patterns)) for value in ask.context[key])
        for key, patterns in keys.items()
    )


def _like(text: str, pattern: str) -> bool:
    parts = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
