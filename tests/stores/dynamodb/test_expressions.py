"""Guarded writes as DynamoDB's expressions: always valid, one text per shape, and values to the last digit."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.aws.strict import complaints
from zae_limiter import CorruptRecordError
from zae_limiter.records.algebra import ABSENT, NEVER, PRESENT, TTL, Guard, Key, Write
from zae_limiter.stores.dynamodb.commits import (
    Form,
    changes_nothing,
    first_form,
    next_form,
    write_request,
)
from zae_limiter.stores.dynamodb.values import decode, encode, encode_item, key_of

KEY = Key("ns/BUCKET#a#gpt-4#0", "#STATE")
NOW_S = 1_000

NAMES = st.sampled_from(["rf", "b_rpm_tk", "b_a.b-c_tk", "name", "size", "n", "m"])
NUMBERS = st.integers(-(2**53), 2**53)
GUARDS = st.one_of(
    st.builds(Guard, NAMES, st.sampled_from(["=", "<", "<=", ">", ">="]), NUMBERS),
    st.builds(Guard, NAMES, st.just("between"), st.tuples(NUMBERS, NUMBERS)),
    st.just(PRESENT),
    st.just(ABSENT),
)
WRITES = st.builds(
    Write,
    st.just(KEY),
    st.lists(GUARDS, max_size=4).map(tuple),
    st.dictionaries(NAMES, NUMBERS, max_size=3),
    st.dictionaries(NAMES, NUMBERS, max_size=3),
    st.lists(NAMES, max_size=3).map(tuple),
    st.sampled_from([None, NEVER, 500_001, 2_000_000]),
    st.booleans(),
    st.none(),
)
OPERATIONS = {
    Form.CHANGE: ("UpdateItem", "Update"),
    Form.KEEP: ("UpdateItem", "Update"),
    Form.CREATE: ("PutItem", "Put"),
    Form.DELETE: ("DeleteItem", "Delete"),
    Form.CHECK: ("", "ConditionCheck"),
}


def forms(write: Write) -> list[Form]:
    """Every form that a write can come to take; none if its guards hold for no record."""
    first = first_form(write)
    if first is None:
        return []
    if first is not Form.CHANGE:
        return [first]
    created = [] if write.guards else [Form.CREATE]
    return [first, *created, *([Form.KEEP] if write.expires_at_ms else [])]


@settings(max_examples=400)
@given(WRITES)
def test_every_write_is_a_request_that_the_service_takes(write: Write) -> None:
    for form in forms(write):
        single, in_transaction = OPERATIONS[form]
        request = write_request("table", write, form, NOW_S)
        if single and not changes_nothing(write, form):
            assert list(complaints(single, request)) == []
        if "ConditionExpression" in request or form is not Form.CHECK:
            kind = "ConditionCheck" if changes_nothing(write, form) else in_transaction
            assert list(complaints("TransactWriteItems", {"TransactItems": [{kind: request}]})) == []


def test_a_steady_acquire_is_this_request() -> None:
    guards = (Guard("rf", "=", 5), Guard("b_rpm_tk", "between", (1, 9)))
    assert write_request("table", Write(KEY, guards, add={"b_rpm_tk": -1, "b_rpm_tc": 1}), Form.CHANGE, NOW_S) == {
        "TableName": "table",
        "Key": {"PK": {"S": KEY.pk}, "SK": {"S": KEY.sk}},
        "ConditionExpression": "#0 = :0 AND #1 >= :1 AND #1 <= :2 AND (attribute_not_exists(#3) OR #3 > :now)",
        "UpdateExpression": "ADD #1 :3, #2 :4",
        "ExpressionAttributeNames": {"#0": "rf", "#1": "b_rpm_tk", "#2": "b_rpm_tc", "#3": TTL},
        "ExpressionAttributeValues": {
            ":0": {"N": "5"},
            ":1": {"N": "1"},
            ":2": {"N": "9"},
            ":3": {"N": "-1"},
            ":4": {"N": "1"},
            ":now": {"N": "1000"},
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def test_the_text_is_made_once_per_shape() -> None:
    one = write_request("table", Write(KEY, (Guard("n", "=", 1),), {"m": 2}, {"n": 3}), Form.CHANGE, NOW_S)
    other = write_request(
        "table", Write(Key("x", "y"), (Guard("n", "=", 7),), {"m": "x"}, {"n": 9}), Form.CHANGE, NOW_S + 9
    )
    assert one["ConditionExpression"] is other["ConditionExpression"]
    assert one["ExpressionAttributeNames"] is other["ExpressionAttributeNames"]
    assert one["ExpressionAttributeValues"] != other["ExpressionAttributeValues"]


@pytest.mark.parametrize(
    ("write", "update"),
    [
        (Write(KEY, (), {"n": 5}, {"n": 3}), "SET n = 8"),
        (Write(KEY, (), {"n": 5, "m": 1}, {"m": 1}, ("n",)), "SET m = 2 REMOVE n"),
        (Write(KEY, (), {}, {"n": 3, "m": 1}, ("n", "n")), "REMOVE n ADD m 1"),
        (Write(KEY, (), {"n": 5}, {"m": 3}, ("o",)), "SET n = 5 REMOVE o ADD m 3"),
        (Write(KEY, expires_at_ms=2_000_001), "SET ttl = 2001"),
        (Write(KEY, (), {"n": 5}, expires_at_ms=NEVER), "SET n = 5 REMOVE ttl"),
    ],
)
def test_put_then_add_then_remove(write: Write, update: str) -> None:
    request = write_request("table", write, Form.CHANGE, NOW_S)
    text = request["UpdateExpression"]
    for placeholder, name in request["ExpressionAttributeNames"].items():
        text = text.replace(placeholder, name)
    for placeholder, value in request.get("ExpressionAttributeValues", {}).items():
        text = text.replace(placeholder, value["N"])
    assert text == update


def test_a_later_expiry_is_kept_of_a_live_record_only() -> None:
    for until_ms, floor in ((NOW_S * 1000 + 5_000, NOW_S + 5), (NOW_S * 1000 - 5_000, NOW_S)):
        request = write_request("table", Write(KEY, add={"n": 1}, expires_at_ms=until_ms), Form.KEEP, NOW_S)
        assert request["ConditionExpression"] == "#1 > :1"
        assert request["ExpressionAttributeValues"][":1"] == {"N": str(floor)}
        assert request["UpdateExpression"] == "ADD #0 :0", "the expiry stays as it is"


def test_adding_to_what_was_put_as_text_is_an_error_before_any_call() -> None:
    with pytest.raises(CorruptRecordError, match="not a number"):
        write_request("table", Write(KEY, (), {"n": "text"}, {"n": 1}), Form.CHANGE, NOW_S)


FITTING: list[tuple[Write, dict[str, Any] | None, Form | None]] = [
    (Write(KEY, add={"n": 1}), None, Form.CREATE),
    (Write(KEY, add={"n": 1}), {"n": 1}, Form.CHANGE),
    (Write(KEY, (PRESENT,), add={"n": 1}), None, None),
    (Write(KEY, (Guard("n", "=", 1),), add={"n": 1}), {"n": 1}, Form.CHANGE),
    (Write(KEY, (Guard("n", "=", 1),), add={"n": 1}), {"n": 2}, None),
    (Write(KEY, (ABSENT,), {"n": 1}), {"n": 2}, None),
    (Write(KEY, (ABSENT,), {"n": 1}), None, Form.CREATE),
    (Write(KEY, expires_at_ms=5_001), {TTL: 6}, Form.CHANGE),
    (Write(KEY, expires_at_ms=5_001), {TTL: 7}, Form.KEEP),
    (Write(KEY, expires_at_ms=NEVER), {TTL: 7}, Form.CHANGE),
    (Write(KEY, (PRESENT,), delete=True), {"n": 1}, Form.DELETE),
    (Write(KEY, (PRESENT,), delete=True), None, None),
    (Write(KEY, (PRESENT,)), {"n": 1}, Form.CHECK),
]


@pytest.mark.parametrize(("write", "image", "form"), FITTING)
def test_the_image_names_the_form(write: Write, image: dict[str, Any] | None, form: Form | None) -> None:
    assert next_form(write, image) is form


@pytest.mark.parametrize(
    ("guards", "impossible"),
    [
        ((), False),
        ((ABSENT,), False),
        ((ABSENT, ABSENT), False),
        ((ABSENT, PRESENT), True),
        ((Guard("n", "=", 0), ABSENT), True),
        ((Guard("n", "=", None),), True),
        ((Guard("n", "=", 0), PRESENT), False),
    ],
)
def test_guards_that_hold_for_no_record(guards: tuple[Guard, ...], impossible: bool) -> None:
    assert (first_form(Write(KEY, guards, {"n": 1})) is None) is impossible


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "GSI1PK", "x.y"]), JSON), st.none() | st.integers())
def test_what_goes_in_comes_out(image: dict[str, Any], ttl: int | None) -> None:
    image |= {} if ttl is None else {"ttl": ttl}
    item = encode_item(KEY, image)
    found = decode(json.loads(json.dumps(item)))
    assert found == image
    assert repr(found) == repr(image), "of the same types too: 1 is not True and not 1.0"
    assert key_of(item) == KEY


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, "N"), (10**38 - 1, "N"), (-(10**38) + 1, "N"), (10**38, "B"), (0.5, "B"), (1.0, "B"), ("", "S"),
        (True, "BOOL"), (None, "NULL"), ([], "L"), ({}, "M"), ([1, {"a": None}], "L"), ([1, 2.5], "B"),
        ({"a": {"": 1}}, "B"), ({1: 2}, "B"), ((1, 2), "L"),
    ],
)  # fmt: skip
def test_types(value: Any, kind: str) -> None:
    assert list(encode(value)) == [kind]


def test_deep_nesting_is_kept() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert list(encode(deep)) == ["B"]
    assert decode({"a": encode(deep)}) == {"a": deep}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ({"N": "1E+3"}, 1000),
        ({"N": "5.0"}, 5),
        ({"N": "0.5"}, 0.5),
        ({"SS": ["b", "a"]}, ["a", "b"]),
        ({"NS": ["10", "9"]}, [9, 10]),
        ({"M": {"a": {"N": "1"}}}, {"a": 1}),
    ],
)
def test_what_others_may_have_written(typed: dict[str, Any], value: Any) -> None:
    assert decode({"a": typed}) == {"a": value}


@pytest.mark.parametrize(
    "typed", [{"N": "many"}, {"X": "1"}, {"B": "?"}, {"B": base64.b64encode(b"\xff").decode()}, "text", {"N": None}]
)
def test_what_is_no_value_is_a_corrupt_record(typed: Any) -> None:
    with pytest.raises(CorruptRecordError, match="ns/BUCKET#a"):
        decode({"PK": {"S": KEY.pk}, "SK": {"S": KEY.sk}, "a": typed})
