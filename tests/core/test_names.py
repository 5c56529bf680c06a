"""What may be called what: checked before any I/O, with field, value and reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from zae_limiter import InvalidIdentifierError, InvalidNameError, Limit, ValidationError
from zae_limiter.core import names
from zae_limiter.core.limit import MAX_AMOUNT, check_limits

GOOD_IDS = ["a", "a@b.c", "/v1/../x?y=z", "{}", "{tag}", "a b", "::1", "%41", "😀", "e\u0301", "$other", "x" * 256, "."]
BAD_IDS = [
    "",
    "a#b",
    "#",
    "a\nb",
    "\x00",
    "a\x7f",
    "\u2028",
    "\ud800",
    "x" * 257,
    "$SYSTEM",
    "$RESOURCE:x",
    5,
    None,
    b"a",
]

LETTERS = st.sampled_from("abcXYZ019_-./#é ")
NAMED: list[tuple[Callable[[object], str], str, int]] = [
    (names.resource, "_-./:", 128),
    (names.limit_name, "_-.", 128),
    (names.namespace, "_-.", 128),
    (names.stack, "-", 55),
]


@pytest.mark.parametrize("value", GOOD_IDS)
def test_ids_of_any_kind_are_fine(value: str) -> None:
    assert names.entity_id(value) == value


@pytest.mark.parametrize("value", BAD_IDS, ids=ascii)
def test_ids_that_cannot_be_kept_are_refused(value: object) -> None:
    with pytest.raises(InvalidIdentifierError) as caught:
        names.entity_id(value, "parent_id")
    assert caught.value.field == "parent_id"
    assert caught.value.value == value
    assert caught.value.reason


@given(st.text(max_size=300))
def test_an_id_that_passes_can_be_part_of_a_key(value: str) -> None:
    try:
        names.entity_id(value)
    except InvalidIdentifierError:
        return
    assert "#" not in value
    assert value.encode("utf-8").decode("utf-8") == value
    assert 1 <= len(value) <= 256


@pytest.mark.parametrize(("check", "extra", "longest"), NAMED, ids=lambda part: getattr(part, "__name__", None))
@given(value=st.text(LETTERS, max_size=12))
def test_names_start_with_a_letter_and_keep_to_their_letters(
    check: Callable[[object], str], extra: str, longest: int, value: str
) -> None:
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" + extra)
    shortest = 3 if check is names.stack else 1
    first = str.isalnum if check is names.namespace else str.isalpha  # customer numbers are names of namespaces
    good = len(value) >= shortest and value[0].isascii() and first(value[0]) and set(value) <= allowed
    if good:
        assert check(value) == value
    else:
        with pytest.raises(InvalidNameError):
            check(value)
    assert check("a" * longest)
    with pytest.raises(InvalidNameError):
        check("a" * (longest + 1))


@pytest.mark.parametrize("value", ["", "rpm\n", "1rpm", "-rpm", "r/m", "wcu", "é", 5, None, True], ids=ascii)
def test_names_that_are_no_limit(value: object) -> None:
    with pytest.raises(InvalidNameError):
        names.limit_name(value)


def test_the_default_resource_is_for_config_only() -> None:
    assert names.config_resource("_default_") == names.DEFAULT_RESOURCE
    with pytest.raises(InvalidNameError):
        names.resource("_default_")


# Limits.


@given(st.integers(1, MAX_AMOUNT), st.integers(1, MAX_AMOUNT), st.integers(1, 10**8))
def test_limits_come_back_from_their_dictionary(capacity: int, amount: int, period: int) -> None:
    limit = Limit("tpm", capacity, amount, period)
    assert Limit.from_dict(limit.to_dict()) == limit
    fill = limit.time_to_fill_ms
    assert (fill - 1) * amount < capacity * period * 1000 <= fill * amount, "the first millisecond at which it is full"


@pytest.mark.parametrize("field", ["capacity", "refill_amount", "refill_period_seconds"])
@pytest.mark.parametrize("value", [0, -1, 1.0, float("nan"), float("inf"), True, "1", None, 10**13], ids=str)
def test_limits_that_cannot_be_are_refused(field: str, value: object) -> None:
    given = {"name": "tpm", "capacity": 1, "refill_amount": 1, "refill_period_seconds": 1, field: value}
    with pytest.raises(ValidationError) as caught:
        Limit.from_dict(given)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (Limit.per_second("x", 5), (5, 5, 1)),
        (Limit.per_minute("x", 10_000, burst=15_000), (15_000, 10_000, 60)),
        (Limit.per_hour("x", 5, burst=1), (1, 5, 3_600)),
        (Limit.per_day("x", 5), (5, 5, 86_400)),
        (Limit.custom("x", 1, 2, 3), (1, 2, 3)),
    ],
)
def test_ways_to_say_a_limit(limit: Limit, expected: tuple[int, int, int]) -> None:
    assert (limit.capacity, limit.refill_amount, limit.refill_period_seconds) == expected


def test_limits_are_kept_by_name() -> None:
    tpm, rpm = Limit.per_minute("tpm", 1), Limit.per_minute("rpm", 1)
    assert check_limits([tpm, rpm]) == check_limits(iter((rpm, tpm))) == (rpm, tpm)


@pytest.mark.parametrize(
    "given", [[], (), None, 5, [5], Limit.per_minute("x", 1), [Limit.per_minute("x", 1)] * 2], ids=str
)
def test_what_is_no_list_of_limits(given: object) -> None:
    with pytest.raises(ValidationError):
        check_limits(given)
