"""The IETF drafts: grammar by a real parser, laws over all limits, and the exact texts."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from http_sfv.dictionary import Dictionary
from http_sfv.list import List
from hypothesis import given, strategies as st

from tests.web.standings import CASCADE, GRANTED, NOW, REFUSED, RPM, longest, standings
from zae_limiter import Limit
from zae_limiter.core.limit import MAX_AMOUNT, MAX_PERIOD_SECONDS
from zae_limiter.web import Fields, LimitView
from zae_limiter.web.profiles import MAX_INTEGER, quote_sf_string


def items(text: str) -> dict[str, dict[str, Any]]:
    """A List of Strings as the library reads it: no name twice."""
    parsed = List()
    parsed.parse(text.encode("ascii"))
    assert all(type(item.value) is str for item in parsed)
    found = {item.value: dict(item.params) for item in parsed}
    assert len(found) == len(parsed)
    return found


def pair(lines: list[tuple[str, str]]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """``RateLimit-Policy`` and ``RateLimit``, parsed."""
    assert [name for name, _ in lines] == ["RateLimit-Policy", "RateLimit"]
    return items(lines[0][1]), items(lines[1][1])


# The grammar and the laws of draft 11.


@given(standings(), st.booleans())
def test_the_pair_is_what_the_draft_says(given: list[LimitView], refused: bool) -> None:
    fields = Fields("ietf", all_units=True)
    retry_after = fields.retry_after(longest(given)) if refused else None
    lines = fields.lines(given, NOW, retry_after)
    if not given:
        assert lines == []
        return
    policies, states = pair(lines)
    assert list(policies) == list(states) == [standing.name for standing in given]
    for standing in given:
        policy, state = policies[standing.name], states[standing.name]
        assert all(type(number) is int for number in (policy["q"], policy["w"], state["r"], state["t"]))
        assert (policy["q"], policy["w"]) == (standing.limit.refill_amount, standing.limit.refill_period_seconds)
        assert policy.get("zae-burst", policy["q"]) == standing.limit.capacity
        assert policy.keys() <= {"q", "w", "qu", "zae-burst"}
        assert state.keys() == {"r", "t"}
        assert state["r"] == max(0, standing.remaining)
        assert 1 <= state["t"] <= MAX_INTEGER


@given(standings())
def test_retry_after_is_never_before_the_end_of_a_violated_window(given: list[LimitView]) -> None:
    fields = Fields("ietf", all_units=True)
    retry_after = fields.retry_after(longest(given))
    assert re.fullmatch(r"[1-9][0-9]*", str(retry_after))
    assert retry_after * 1000 >= longest(given)
    for standing in given:
        [_, (_, text)] = fields.lines([standing], NOW, retry_after)
        if standing.violated:
            assert items(text)[standing.name]["t"] == min(retry_after, MAX_INTEGER)


@given(standings())
def test_a_success_promises_nothing_before_the_bucket_is_full(given: list[LimitView]) -> None:
    for standing in given:
        [_, (_, text)] = Fields("ietf", all_units=True).lines([standing], NOW)
        until = ceil(Fraction(standing.full_in_ms or 0, 1000))
        assert items(text)[standing.name]["t"] == min(max(1, until), MAX_INTEGER)


@given(standings(names=st.text(st.characters(exclude_characters="\\"), max_size=3)))
def test_any_name_is_a_string_and_is_told_once(given: list[LimitView]) -> None:
    lines = Fields("ietf", all_units=True).lines(given, NOW)
    if given:
        policies, states = pair(lines)
        assert list(policies) == list(states)
        assert len(policies) == len({standing.name for standing in given})


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_printable_names_come_back_unchanged(name: str) -> None:
    assert list(items(quote_sf_string(name))) == [name]


@given(st.text())
def test_no_name_can_break_out_of_its_line(name: str) -> None:
    text = quote_sf_string(name)
    assert text.isascii()
    assert text.isprintable()
    assert len(items(text)) == 1


# The exact texts of draft 11.


def test_the_refusal_of_the_documentation() -> None:
    assert Fields("ietf").lines([LimitView("rpm", RPM, 0, 60_000, 5_000)], NOW, 5) == [
        ("RateLimit-Policy", '"rpm";q=100;w=60'),
        ("RateLimit", '"rpm";r=0;t=5'),
    ]


def test_the_examples_of_the_draft_mean_the_same() -> None:
    burst, daily = Limit.per_minute("burst", 100), Limit.per_day("daily", 1_000)
    lines = Fields("ietf").lines([LimitView("burst", burst, 1, 0), LimitView("daily", daily, 1, 0)], NOW)
    assert items(dict(lines)["RateLimit-Policy"]) == items('"burst";q=100;w=60,"daily";q=1000;w=86400')
    lines = Fields("ietf").lines([LimitView("default", Limit.per_minute("default", 100), 50, 30_000)], NOW)
    assert dict(lines)["RateLimit"] == '"default";r=50;t=30'


IETF = {
    "success": (GRANTED, None, '"rpm";q=100;w=60', '"rpm";r=50;t=30'),
    "refusal": (REFUSED, 5, '"rpm";q=100;w=60', '"rpm";r=0;t=5'),
    "debt": ((LimitView("rpm", RPM, -70, 102_000),), None, '"rpm";q=100;w=60', '"rpm";r=0;t=102'),
    "full": ((LimitView("rpm", RPM, 100, 0),), None, '"rpm";q=100;w=60', '"rpm";r=100;t=1'),
    "burst": (
        (LimitView("rpm", Limit.per_minute("rpm", 100, burst=250), 240, 6_001),),
        None,
        '"rpm";q=100;w=60;zae-burst=250',
        '"rpm";r=240;t=7',
    ),
    "cascade": (
        CASCADE,
        None,
        '"rpm";q=100;w=60, "parent.rpm";q=1000;w=3600, "grandparent.rpd";q=50000;w=86400',
        '"rpm";r=50;t=30, "parent.rpm";r=20;t=3528, "grandparent.rpd";r=49999;t=2',
    ),
    "a cascade refused above": (
        (GRANTED[0], LimitView("parent.rpm", RPM, 0, 60_000, 600)),
        1,
        '"rpm";q=100;w=60, "parent.rpm";q=100;w=60',
        '"rpm";r=50;t=30, "parent.rpm";r=0;t=1',
    ),
}


@pytest.mark.parametrize("case", IETF)
@pytest.mark.parametrize("profile", ["ietf", "ietf-11"])
def test_ietf(profile: str, case: str) -> None:
    given, retry_after, policy, state = IETF[case]
    assert Fields(profile).lines(given, NOW, retry_after) == [("RateLimit-Policy", policy), ("RateLimit", state)]


def test_other_units_are_told_only_on_demand() -> None:
    assert Fields("ietf", all_units=True).lines(GRANTED, NOW) == [
        ("RateLimit-Policy", '"rpm";q=100;w=60, "tpm";q=10000;qu="tokens";w=60;zae-burst=15000'),
        ("RateLimit", '"rpm";r=50;t=30, "tpm";r=9000;t=36'),
    ]
    assert Fields("ietf").lines(GRANTED[1:], NOW) == []


def test_the_vendor_names_the_burst() -> None:
    lines = Fields("ietf", all_units=True, vendor="acme").lines(GRANTED[1:], NOW)
    assert lines[0] == ("RateLimit-Policy", '"tpm";q=10000;qu="tokens";w=60;acme-burst=15000')


def test_the_largest_limit_fits_into_integers() -> None:
    slow = Limit.custom("rpm", MAX_AMOUNT, 1, MAX_PERIOD_SECONDS)
    [(_, policy), (_, state)] = Fields("ietf").lines([LimitView("rpm", slow, 0, slow.time_to_fill_ms)], NOW)
    assert policy == '"rpm";q=1;w=316224000;zae-burst=1000000000000'
    assert items(state) == {"rpm": {"r": 0, "t": MAX_INTEGER}}


# Draft 07.


@given(standings(), st.booleans())
def test_the_grammar_of_draft_07(given: list[LimitView], refused: bool) -> None:
    retry_after = 7 if refused else None
    counted = [
        standing
        for standing in given
        if Fields().unit(standing.limit.name) == "requests" or (refused and standing.violated)
    ]
    lines = Fields("ietf-07").lines(given, NOW, retry_after)
    assert [name for name, _ in lines] == (["RateLimit-Policy", "RateLimit"] if counted else [])
    if counted:
        policies = List()
        policies.parse(lines[0][1].encode())
        expected = [(each.limit.refill_amount, each.limit.refill_period_seconds) for each in counted]
        assert [(item.value, item.params["w"]) for item in policies] == expected
        state = Dictionary()
        state.parse(lines[1][1].encode())
        assert list(state) == ["limit", "remaining", "reset"]
        assert 0 <= state["remaining"].value <= state["limit"].value
        assert 1 <= state["reset"].value <= MAX_INTEGER


IETF_07 = {
    "success": (GRANTED, None, "100;w=60", "limit=100, remaining=50, reset=30"),
    "refusal": (REFUSED, 5, "100;w=60", "limit=100, remaining=0, reset=5"),
    "debt": ((LimitView("rpm", RPM, -70, 102_000),), None, "100;w=60", "limit=100, remaining=0, reset=102"),
    "burst": (
        (LimitView("rpm", Limit.per_minute("rpm", 100, burst=250), 240, 6_001),),
        None,
        "100;w=60;zae-burst=250",
        "limit=100, remaining=100, reset=7",
    ),
    "cascade": (
        CASCADE,
        None,
        "100;w=60, 1000;w=3600, 50000;w=86400",
        "limit=1000, remaining=20, reset=3528",
    ),
}


@pytest.mark.parametrize("case", IETF_07)
def test_ietf_07(case: str) -> None:
    given, retry_after, policy, state = IETF_07[case]
    assert Fields("ietf-07").lines(given, NOW, retry_after) == [("RateLimit-Policy", policy), ("RateLimit", state)]


def test_draft_07_has_no_units() -> None:
    assert Fields("ietf-07", all_units=True).lines(GRANTED[1:], NOW) == []
