"""Only documented DynamoDB requests: everything that the service refuses, and some local engines let pass.

The shapes come from the service's published model; the rules that the model does not say are here.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape
from botocore.validate import ParamValidator

from tests.support.aws import expressions
from tests.support.aws.wire import Call

LEGACY = frozenset({
    "AttributesToGet", "AttributeUpdates", "ConditionalOperator", "Expected", "KeyConditions", "QueryFilter",
    "ScanFilter",
})  # fmt: skip
RETURNS = {"PutItem": {"NONE", "ALL_OLD"}, "DeleteItem": {"NONE", "ALL_OLD"}}
KEY = frozenset({"PK", "SK"})
KEY_BYTES = {"PK": 2048, "SK": 1024}
INDEX_KEY = re.compile(r"GSI\d[PS]K")
NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
DIGITS = 38
EXPRESSIONS = {
    "ConditionExpression": "condition",
    "FilterExpression": "condition",
    "KeyConditionExpression": "key",
    "UpdateExpression": "update",
    "ProjectionExpression": "projection",
}
MOST = {"BatchGetItem": 100, "BatchWriteItem": 25, "TransactWriteItems": 100, "TransactGetItems": 100}

Request = Mapping[str, Any]


def check_calls(calls: Iterable[Call]) -> None:
    """Every recorded request is one that the service takes."""
    for call in calls:
        found = list(complaints(call.operation, call.request))
        assert not found, f"{call.operation}: {'; '.join(found)}\n{json.dumps(call.request, indent=1)}"


def complaints(operation: str, request: Request) -> Iterator[str]:
    """What the service would say against a request."""
    model = _model()
    if operation not in model.operation_names:
        yield f"{operation} is no operation"
        return
    shape = model.operation_model(operation).input_shape
    report = ParamValidator().validate(dict(request), shape)
    if report.has_errors():
        yield report.generate_report()
        return
    yield from _enums(shape, request)
    if request.get("ReturnValues", "NONE") not in RETURNS.get(operation, {request.get("ReturnValues", "NONE")}):
        yield f"ReturnValues {request['ReturnValues']} is not for {operation}"
    yield from {
        "BatchGetItem": _batch_get,
        "BatchWriteItem": _batch_write,
        "TransactWriteItems": _transaction,
    }.get(operation, _single)(operation, request)


@functools.cache
def _model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("dynamodb", "service-2"), "dynamodb")


def _enums(shape: Shape, given: Any) -> Iterator[str]:
    """Values that the model lists, checked: botocore's own validator leaves that to the service."""
    if shape.type_name == "structure":
        for name, member in shape.members.items():
            if name in given:
                yield from _enums(member, given[name])
    elif shape.type_name == "list":
        for each in given:
            yield from _enums(shape.member, each)
    elif shape.type_name == "map":
        for each in given.values():
            yield from _enums(shape.value, each)
    elif shape.type_name == "string" and shape.enum and given not in shape.enum:
        yield f"{given!r} is none of {', '.join(shape.enum)}"


def _single(operation: str, request: Request) -> Iterator[str]:
    yield from (f"{name} is a legacy parameter" for name in sorted(LEGACY & request.keys()))
    if "Key" in request:
        yield from _key(request["Key"])
    for name, value in request.get("Item", {}).items():
        yield from _value(name, value)
    if "Item" in request:
        yield from _key({name: value for name, value in request["Item"].items() if name in KEY})
    if request.get("ConsistentRead") and "IndexName" in request:
        yield "an index has no consistent reads"
    if request.get("Limit", 1) < 1:
        yield "Limit is below 1"
    if operation == "Query" and "KeyConditionExpression" not in request:
        yield "Query without a key condition"
    yield from _expressions(request)


def _expressions(request: Request) -> Iterator[str]:
    names, values = request.get("ExpressionAttributeNames"), request.get("ExpressionAttributeValues")
    for label, given in (("ExpressionAttributeNames", names), ("ExpressionAttributeValues", values)):
        if given is not None and not given:
            yield f"{label} is empty"
    names, values = names or {}, values or {}
    wrong = [what for name, value in values.items() for what in _value(name, value)]
    if wrong:
        yield from wrong
        return
    used_names: set[str] = set()
    used_values: set[str] = set()
    for field, kind in EXPRESSIONS.items():
        if field not in request:
            continue
        try:
            parts = expressions.tokens(request[field])
            yield from (f"{field}: {what}" for what in _expression(kind, parts, names, values))
        except expressions.Malformed as error:
            yield f"{field}: {error}"
            continue
        if len(request[field]) > expressions.LONGEST:
            yield f"{field} is too long"
        here = expressions.placeholders(parts)
        used_names |= here[0]
        used_values |= here[1]
    yield from _declared("name", used_names, names.keys())
    yield from _declared("value", used_values, values.keys())


def _expression(kind: str, parts: list[str], names: Mapping[str, str], values: Request) -> Iterator[str]:
    if kind == "update":
        return expressions.update(parts, names, KEY)
    if kind == "projection":
        return expressions.projection(parts, names)
    return expressions.condition(parts, values, key=kind == "key")


def _declared(what: str, used: Iterable[str], declared: Iterable[str]) -> Iterator[str]:
    yield from (f"the {what} {each} is not declared" for each in sorted(set(used) - set(declared)))
    yield from (f"the {what} {each} is not used" for each in sorted(set(declared) - set(used)))


def _key(key: Request) -> Iterator[str]:
    if key.keys() != KEY:
        yield f"the key has {', '.join(sorted(key))}, not PK and SK"
    for name, value in key.items():
        text = value.get("S")
        if not text:
            yield f"the key's {name} is {value}"
        elif len(text.encode("utf-8", "surrogatepass")) > KEY_BYTES.get(name, 0):
            yield f"the key's {name} is too long"


def _value(name: str, value: Request) -> Iterator[str]:
    if len(value) != 1:
        yield f"{name} has {len(value)} types"
        return
    ((kind, held),) = value.items()
    if kind in {"SS", "NS", "BS"} and (not held or len(set(held)) != len(held)):
        yield f"{name} is a set that is empty or names something twice"
    if INDEX_KEY.fullmatch(name) and (kind != "S" or not held):
        yield f"{name} is an index key and holds {value}"
    for each in held if kind == "NS" else [held] if kind == "N" else []:
        yield from _number(name, each)
    if kind == "B":
        try:
            base64.b64decode(held, validate=True)
        except (binascii.Error, ValueError):
            yield f"{name} is not base64"
    if kind == "NULL" and held is not True:
        yield f"{name} is NULL and not true"
    for inner, each in held.items() if kind == "M" else enumerate(held) if kind == "L" else ():
        yield from _value(f"{name}.{inner}", each)


def _number(name: str, text: str) -> Iterator[str]:
    if not NUMBER.fullmatch(text):
        yield f"{name} is no number: {text!r}"
    elif len(re.sub(r"[eE].*|\D", "", text).strip("0")) > DIGITS:
        yield f"{name} has more than {DIGITS} digits"


def _bounded(operation: str, number: int) -> Iterator[str]:
    if not 1 <= number <= MOST[operation]:
        yield f"{operation} with {number} items"


def _distinct(keys: list[Any]) -> Iterator[str]:
    if len({json.dumps(key, sort_keys=True) for key in keys}) != len(keys):
        yield "a key is named twice"


def _batch_get(operation: str, request: Request) -> Iterator[str]:
    for wanted in request["RequestItems"].values():
        yield from _distinct(wanted["Keys"])
        for key in wanted["Keys"]:
            yield from _key(key)
        yield from (f"{name} is a legacy parameter" for name in sorted(LEGACY & wanted.keys()))
        yield from _expressions(wanted)
    yield from _bounded(operation, sum(len(wanted["Keys"]) for wanted in request["RequestItems"].values()))


def _batch_write(operation: str, request: Request) -> Iterator[str]:
    for wishes in request["RequestItems"].values():
        yield from _distinct([_key_of(next(iter(wish.values()))) for wish in wishes])
        for wish in wishes:
            if len(wish) != 1:
                yield "a wish is one PutRequest or one DeleteRequest"
            yield from _single(operation, next(iter(wish.values())))
    yield from _bounded(operation, sum(len(wishes) for wishes in request["RequestItems"].values()))


def _transaction(operation: str, request: Request) -> Iterator[str]:
    wishes = request["TransactItems"]
    yield from _bounded(operation, len(wishes))
    if not 1 <= len(request.get("ClientRequestToken", "-")) <= 36:
        yield "the ClientRequestToken has not 1 to 36 characters"
    for wish in wishes:
        if len(wish) != 1:
            yield "each item of a transaction is exactly one of Put, Update, Delete, ConditionCheck"
            return
        yield from _single(operation, next(iter(wish.values())))
    inner = [next(iter(wish.values())) for wish in wishes]
    yield from _distinct([(each.get("TableName"), _key_of(each)) for each in inner])


def _key_of(wish: Request) -> Request:
    found: Request = wish.get("Key") or {name: value for name, value in wish.get("Item", {}).items() if name in KEY}
    return found
