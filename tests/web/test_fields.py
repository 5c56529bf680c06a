"""What holds for all profiles: which limit matters, names and units, browsers, when to come again."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
import re
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.web.standings import CASCADE, GRANTED, NOW, REFUSED, RPM, standings
from zae_limiter import Limit, ValidationError
from zae_limiter.web import Fields, LimitView
from zae_limiter.web.profiles import choose_tightest, merge_names, round_up_seconds

# Which of several limits matters, and how often it is told.


def test_the_violated_one_that_takes_longest_is_tightest() -> None:
    empty = LimitView("empty", RPM, 0, 60_000)
    soon, late = LimitView("soon", RPM, 0, 60_000, 0), LimitView("late", RPM, 99, 60_000, 2)
    assert choose_tightest([empty, soon, late]) is late
    assert choose_tightest([empty, soon]) is soon
    assert choose_tightest([GRANTED[1], empty]) is empty


def test_of_equals_the_first_is_tightest() -> None:
    first, second = LimitView("first", RPM, 5, 57_000), LimitView("second", RPM, 5, 57_000)
    assert choose_tightest([first, second]) is first


def test_a_name_that_is_there_twice_is_told_once_by_the_tightest() -> None:
    loose, tight, other = LimitView("rpm", RPM, 90, 1), LimitView("rpm", RPM, 10, 54_000), LimitView("rps", RPM, 1, 1)
    assert merge_names([loose, other, tight]) == [tight, other]
    fields = Fields(("ietf", "openai"))
    for _ in range(2):
        assert fields.lines([loose, other, tight], NOW) == fields.lines([tight, other], NOW)


@given(standings())
def test_lines_do_not_depend_on_what_was_asked_before(given: list[LimitView]) -> None:
    for profile in ("ietf", "ietf-07", "x-ratelimit", "openai"):
        used = Fields(profile)
        used.lines(given[1:], NOW)
        used.lines(given, NOW + 1, 3)
        assert used.lines(given, NOW) == used.lines(given, NOW) == Fields(profile).lines(given, NOW)


def test_what_is_remembered_is_bounded() -> None:
    fields = Fields("ietf")
    for rate in range(1, 3_000):
        [(_, policy), _] = fields.lines([LimitView("rpm", Limit.per_minute("rpm", rate), 0, 0)], NOW)
        assert policy == f'"rpm";q={rate};w=60'
    assert len(fields._writers) <= 1_024


# Combinations, and browsers.


def test_profiles_follow_each_other_in_the_given_order() -> None:
    both = Fields(("openai", "ietf")).lines(REFUSED, NOW, 5)
    assert both == Fields("openai").lines(REFUSED, NOW, 5) + Fields("ietf").lines(REFUSED, NOW, 5)


@pytest.mark.parametrize("retry_after", [None, 5])
@pytest.mark.parametrize("given", [GRANTED, REFUSED, CASCADE, ()], ids=["granted", "refused", "cascade", "nothing"])
@pytest.mark.parametrize("profile", ["ietf", "ietf-07", "x-ratelimit", "openai", "none"])
def test_browsers_may_read_exactly_what_is_sent(
    profile: str, given: tuple[LimitView, ...], retry_after: int | None
) -> None:
    sent = Fields(profile).lines(given, NOW, retry_after)
    names = [*(["Retry-After"] if retry_after else []), *(name for name, _ in sent)]
    told = [("Access-Control-Expose-Headers", ", ".join(names))] if names else []
    assert Fields(profile, expose=True).lines(given, NOW, retry_after) == sent + told


def test_none_says_nothing() -> None:
    assert Fields("none").lines(REFUSED, NOW, 5) == []
    assert Fields.of(None).lines(REFUSED, NOW, 5) == []


# Names and units.


def test_levels_have_names_and_the_rest_is_not_told() -> None:
    fields = Fields()
    assert [fields.policy_name(depth, "rpm") for depth in range(5)] == [
        "rpm", "parent.rpm", "grandparent.rpm", None, None,
    ]  # fmt: skip
    assert Fields(levels=["key", "team"]).policy_name(1, "tpm") == "team.tpm"
    assert Fields(levels=[]).policy_name(0, "tpm") is None


PARTS = st.sampled_from(["a", "b", "ab", "parent"])


@given(
    st.lists(st.just("") | PARTS, unique=True),
    st.lists(st.tuples(st.integers(0, 4), st.lists(PARTS, min_size=1, max_size=3).map(".".join)), unique=True),
)
def test_different_limits_have_different_policy_names(levels: list[str], limits: list[tuple[int, str]]) -> None:
    fields = Fields(levels=levels)
    told = [fields.policy_name(depth, name) for depth, name in limits if depth < len(levels)]
    assert None not in told
    assert len(set(told)) == len(told)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *((name, "requests") for name in ("rps", "rpm", "rph", "rpd", "requests", "calls")),
        *((name, "tokens") for name in ("tps", "tpm", "tph", "tpd", "tokens")),
    ],
)
def test_units_by_name(name: str, unit: str) -> None:
    assert Fields().unit(name) == unit


def test_units_by_choice() -> None:
    fields = Fields("ietf", units={"output": "tokens", "tpm": "requests"})
    assert [fields.unit(name) for name in ("output", "tpm", "tpd", "rpm")] == [
        "tokens", "requests", "tokens", "requests",
    ]  # fmt: skip


# When to come again.


@given(st.integers(-10, 10**9))
def test_retry_after_is_whole_seconds_rounded_up(ms: int) -> None:
    assert Fields().retry_after(ms) == round_up_seconds(ms) == max(1, ceil(Fraction(ms, 1000)))


@given(st.integers(0, 10**9), st.integers(0, 3_600), st.randoms(use_true_random=False))
def test_jitter_only_ever_adds(ms: int, jitter: int, source: random.Random) -> None:
    fields = Fields(jitter_seconds=jitter, chance=source.randint)
    assert 0 <= fields.retry_after(ms) - round_up_seconds(ms) <= jitter


def test_a_crowd_of_refused_clients_spreads_upwards() -> None:
    fields = Fields(jitter_seconds=9, chance=random.Random(17).randint)
    asked = [fields.retry_after(4_300) for _ in range(1_000)]
    assert set(asked) == set(range(5, 15))
    assert max(asked.count(second) for second in set(asked)) < 200


def test_chance_is_real_by_default() -> None:
    fields = Fields(jitter_seconds=3_600)
    assert len({fields.retry_after(1_000) for _ in range(50)}) > 1


# Values.


def test_a_standing_is_never_below_zero() -> None:
    standing = LimitView("rpm", RPM, -3, -1)
    assert (standing.remaining, standing.full_in_ms, standing.violated) == (0, 0, False)
    assert LimitView("rpm", RPM, 0, 0, 0).violated


def test_fields_are_values() -> None:
    fields = Fields(["ietf", "openai"], units={"a": "tokens"}, levels=["", "team"], expose=True, jitter_seconds=3)
    before = fields.lines(GRANTED, NOW)
    assert Fields.of(fields) is fields
    assert fields == Fields(
        ("ietf", "openai"), units={"a": "tokens"}, levels=("", "team"), expose=True, jitter_seconds=3
    )
    assert hash(fields) == hash(dataclasses.replace(fields))
    assert dataclasses.replace(fields, expose=False) != fields
    assert dataclasses.replace(Fields("none")) == Fields.of(None) == Fields(())
    assert Fields.of("openai") == Fields("openai")
    assert Fields.of(["ietf", "openai"]).profiles == ("ietf", "openai")
    assert copy.copy(fields).lines(GRANTED, NOW) == before


def test_standings_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(REFUSED)) == REFUSED


@pytest.mark.parametrize(
    ("arguments", "field", "says"),
    [
        ({"profiles": "ietf-12"}, "profiles", "ietf, ietf-11, ietf-07, x-ratelimit, openai, or none"),
        ({"profiles": ["ietf", 7]}, "profiles", "is not a profile"),
        ({"profiles": [["ietf"]]}, "profiles", "is not a profile"),
        ({"profiles": 7}, "profiles", "must be one or several of"),
        ({"profiles": ["ietf", "none"]}, "profiles", "cannot be combined with other profiles"),
        ({"profiles": ["ietf", "ietf-07"]}, "profiles", "keep one of them"),
        ({"profiles": ["openai", "openai"]}, "profiles", "keep one of them"),
        ({"levels": "team"}, "levels", "must be a list of names"),
        ({"levels": None}, "levels", "must be a list of names"),
        ({"levels": ["a.b"]}, "levels", "must be empty or a letter"),
        ({"levels": [7]}, "levels", "must be empty or a letter"),
        ({"levels": ["a", "a"]}, "levels", "give each level its own"),
        ({"units": ["tpm"]}, "units", "must map limit names to units"),
        ({"units": {"tpm": "Tökens"}}, "units", "must be lower case"),
        ({"units": {"tpm": ""}}, "units", "must be lower case"),
        ({"vendor": "ACME"}, "vendor", "must be lower case"),
        ({"vendor": None}, "vendor", "must be lower case"),
        ({"jitter_seconds": -1}, "jitter_seconds", "must be between 0 and 3600"),
        ({"jitter_seconds": 0.5}, "jitter_seconds", "must be a whole number"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else None,
)
def test_bad_input_is_named(arguments: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)) as caught:
        Fields(**arguments)
    assert caught.value.field == field
