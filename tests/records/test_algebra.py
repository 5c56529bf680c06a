"""Guarded writes as plain functions: what the stores share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from zae_limiter.records.algebra import (
    ABSENT,
    NEVER,
    PRESENT,
    TTL,
    Guard,
    Image,
    Key,
    Query,
    Write,
    apply_write,
    expiry_seconds,
    holds,
    is_live,
)
from zae_limiter.stores.ranges import page_of

KEY = Key("pk", "sk")
NUMBERS = st.integers(-(2**53), 2**53)
IMAGES = st.dictionaries(st.sampled_from("abcd"), NUMBERS)
STORED = st.tuples(IMAGES, st.just({}) | st.integers(0, 10**10).map(lambda ttl: {TTL: ttl})).map(
    lambda two: two[0] | two[1]
)
WRITES = st.builds(
    Write,
    key=st.just(KEY),
    guards=st.just(()),
    put=IMAGES,
    add=IMAGES,
    remove=st.lists(st.sampled_from("abcd"), max_size=2).map(tuple),
    expires_at_ms=st.none() | st.just(NEVER) | st.integers(1, 10**13),
    delete=st.just(False),
    seen=st.none(),
)

OPERATORS = {
    "=": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


@given(IMAGES, st.sampled_from("abcd"), st.sampled_from(sorted(OPERATORS)), NUMBERS)
def test_a_comparison_is_about_an_attribute_that_is_there(image: Image, attr: str, op: str, value: int) -> None:
    assert holds(image, (Guard(attr, op, value),)) == (attr in image and OPERATORS[op](image[attr], value))
    assert not holds(None, (Guard(attr, op, value),))


@given(IMAGES, st.sampled_from("abcd"), NUMBERS, NUMBERS)
def test_between_is_both_ends(image: Image, attr: str, low: int, high: int) -> None:
    both = (Guard(attr, ">=", low), Guard(attr, "<=", high))
    assert holds(image, (Guard(attr, "between", (low, high)),)) == holds(image, both)


@given(IMAGES)
def test_absent_and_present(image: Image) -> None:
    assert holds(image, (PRESENT,))
    assert not holds(image, (ABSENT,))
    assert holds(None, (ABSENT,))
    assert not holds(None, (PRESENT,))
    assert holds(image, ())
    assert holds(None, ())


@given(st.none() | STORED, WRITES)
def test_put_then_add_then_remove_and_an_expiry_that_is_only_put_off(image: Image | None, write: Write) -> None:
    before = None if image is None else dict(image)
    expected: Image = dict(image or {})
    expected.update(write.put)
    for attr, amount in write.add.items():
        expected[attr] = expected.get(attr, 0) + amount
    expected = {attr: value for attr, value in expected.items() if attr not in write.remove}
    if write.expires_at_ms:
        expected[TTL] = max(expected.get(TTL, 0), expiry_seconds(write.expires_at_ms))
    elif write.expires_at_ms == NEVER:
        expected.pop(TTL, None)
    assert apply_write(image, write) == expected
    assert image == before, "the image that was given stays as it is"
    assert apply_write(image, write._replace(delete=True)) is None


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_an_expiry_is_never_too_early_and_at_most_a_second_late(expires_ms: int, now_ms: int) -> None:
    image = {TTL: expiry_seconds(expires_ms)}
    if now_ms < expires_ms:
        assert is_live(image, now_ms)
    if now_ms >= expires_ms + 1000:
        assert not is_live(image, now_ms)


def test_what_has_no_expiry_lives_and_what_is_not_there_does_not() -> None:
    assert is_live({}, 10**15)
    assert not is_live(None, 0)


@pytest.mark.parametrize(
    ("write", "checks"),
    [
        (Write(KEY), True),
        (Write(KEY, (PRESENT,)), True),
        (Write(KEY, (), {"a": 1}), False),
        (Write(KEY, add={"a": 0}), False),
        (Write(KEY, remove=("a",)), False),
        (Write(KEY, expires_at_ms=NEVER), False),
        (Write(KEY, delete=True), False),
    ],
)
def test_a_write_without_a_change_only_checks(write: Write, checks: bool) -> None:
    assert write.is_check is checks


SORTS = st.text("ab#", max_size=3)


@given(
    st.lists(st.tuples(SORTS, st.integers(0, 3)), max_size=12, unique=True),
    st.integers(1, 5),
    st.booleans(),
    SORTS,
    st.none() | SORTS,
    st.none() | SORTS,
)
def test_pages_add_up_to_the_range(
    rows: list[tuple[str, int]], size: int, descending: bool, prefix: str, start: str | None, end: str | None
) -> None:
    """For any sort keys, shared ones too: every record once, in order, nothing outside the range."""
    records: list[tuple[Key, Image]] = [(Key(f"p{n}", "sk"), {"GSI1PK": "x", "GSI1SK": sort}) for sort, n in rows]
    records = [(Key(f"{key.pk}/{image['GSI1SK']}", key.sk), image) for key, image in records]
    query = Query("x", prefix, "GSI1", size, descending=descending, start=start, end=end)
    found: list[Any] = []
    while True:
        page = page_of(records, query)
        assert len(page.items) <= size
        found += page.items
        if page.cursor is None:
            break
        query = query._replace(after=page.cursor)
    inside = [
        row
        for row in records
        if row[1]["GSI1SK"].startswith(prefix)
        and (start is None or row[1]["GSI1SK"] >= start)
        and (end is None or row[1]["GSI1SK"] <= end)
    ]
    assert sorted(key for key, _ in found) == sorted(key for key, _ in inside)
    order = [image["GSI1SK"] for _, image in found]
    assert order == sorted(order, reverse=descending)
