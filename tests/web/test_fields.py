"""What clients read in header fields: grammar by a real parser, laws over all limits, and the exact texts."""

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
from http_sfv.dictionary import Dictionary
from http_sfv.list import List
from hypothesis import given, strategies as st

from zae_limiter import Limit
from zae_limiter.core.errors import ValidationError
from zae_limiter.core.limit import MAX_AMOUNT, MAX_PERIOD_SECONDS
from zae_limiter.web.fields import Fields, Standing
from zae_limiter.web.fields.customary import duration
from zae_limiter.web.fields.ietf import MAX_INTEGER, sf_string
from zae_limiter.web.fields.standing import distinct, tightest, whole_seconds

NOW = 1_700_000_000_250
RPM = Limit.per_minute("rpm", 100)
TPM = Limit.per_minute("tpm", 10_000, burst=15_000)

GRANTED = (Standing("rpm", RPM, 50, 30_000), Standing("tpm", TPM, 9_000, 36_000))
REFUSED = (Standing("rpm", RPM, 0, 59_500, 4_300), Standing("tpm", TPM, 9_000, 36_000))
CASCADE = (
    Standing("rpm", RPM, 50, 30_000),
    Standing("parent.rpm", Limit.per_hour("rpm", 1_000), 20, 3_528_000),
    Standing("grandparent.rpd", Limit.per_day("rpd", 50_000), 49_999, 1_728),
)

AMOUNTS = st.integers(1, 10_000) | st.integers(1, MAX_AMOUNT) | st.just(MAX_AMOUNT)
PERIODS = st.sampled_from([1, 60, 3_600, 86_400, MAX_PERIOD_SECONDS]) | st.integers(1, MAX_PERIOD_SECONDS)
NAMES = ["rpm", "rpd", "tpm", "tokens", "parent.rpm", "grandparent.tpm", "a", "A", "a.b", "X_1-y.", "z" * 128]
LIMITS = st.builds(Limit, st.sampled_from(NAMES), AMOUNTS, AMOUNTS, PERIODS)
LONG = st.integers(0, 10**7) | st.integers(0, 10**24)


@st.composite
def standings(draw: st.DrawFn, names: st.SearchStrategy[str] | None = None) -> list[Standing]:
    """Limits of any size at any balance, as a chain of levels would have them."""
    made = []
    for depth in range(draw(st.integers(0, 3))):
        for limit in draw(st.lists(LIMITS, min_size=1, max_size=3, unique_by=lambda limit: limit.name)):
            name = draw(names) if names is not None else Fields().policy_name(depth, limit.name)
            held = draw(st.integers(-(10**13), limit.capacity))
            if name is not None:
                made.append(Standing(name, limit, held, draw(LONG), draw(st.none() | LONG)))
    return made


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


def longest(given: list[Standing]) -> int:
    return max((standing.retry_in_ms or 0 for standing in given), default=0)


# The grammar and the laws of draft 11.


@given(standings(), st.booleans())
def test_the_pair_is_what_the_draft_says(given: list[Standing], refused: bool) -> None:
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
def test_retry_after_is_never_before_the_end_of_a_violated_window(given: list[Standing]) -> None:
    fields = Fields("ietf", all_units=True)
    retry_after = fields.retry_after(longest(given))
    assert re.fullmatch(r"[1-9][0-9]*", str(retry_after))
    assert retry_after * 1000 >= longest(given)
    for standing in given:
        [_, (_, text)] = fields.lines([standing], NOW, retry_after)
        if standing.violated:
            assert items(text)[standing.name]["t"] == min(retry_after, MAX_INTEGER)


@given(standings())
def test_a_success_promises_nothing_before_the_bucket_is_full(given: list[Standing]) -> None:
    for standing in given:
        [_, (_, text)] = Fields("ietf", all_units=True).lines([standing], NOW)
        until = ceil(Fraction(standing.full_in_ms, 1000))
        assert items(text)[standing.name]["t"] == min(max(1, until), MAX_INTEGER)


@given(standings(names=st.text(st.characters(exclude_characters="\\"), max_size=3)))
def test_any_name_is_a_string_and_is_told_once(given: list[Standing]) -> None:
    lines = Fields("ietf", all_units=True).lines(given, NOW)
    if given:
        policies, states = pair(lines)
        assert list(policies) == list(states)
        assert len(policies) == len({standing.name for standing in given})


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_printable_names_come_back_unchanged(name: str) -> None:
    assert list(items(sf_string(name))) == [name]


@given(st.text())
def test_no_name_can_break_out_of_its_line(name: str) -> None:
    text = sf_string(name)
    assert text.isascii()
    assert text.isprintable()
    assert len(items(text)) == 1


# The exact texts of draft 11.


def test_the_refusal_of_the_documentation() -> None:
    assert Fields("ietf").lines([Standing("rpm", RPM, 0, 60_000, 5_000)], NOW, 5) == [
        ("RateLimit-Policy", '"rpm";q=100;w=60'),
        ("RateLimit", '"rpm";r=0;t=5'),
    ]


def test_the_examples_of_the_draft_mean_the_same() -> None:
    burst, daily = Limit.per_minute("burst", 100), Limit.per_day("daily", 1_000)
    lines = Fields("ietf").lines([Standing("burst", burst, 1, 0), Standing("daily", daily, 1, 0)], NOW)
    assert items(dict(lines)["RateLimit-Policy"]) == items('"burst";q=100;w=60,"daily";q=1000;w=86400')
    lines = Fields("ietf").lines([Standing("default", Limit.per_minute("default", 100), 50, 30_000)], NOW)
    assert dict(lines)["RateLimit"] == '"default";r=50;t=30'


IETF = {
    "success": (GRANTED, None, '"rpm";q=100;w=60', '"rpm";r=50;t=30'),
    "refusal": (REFUSED, 5, '"rpm";q=100;w=60', '"rpm";r=0;t=5'),
    "debt": ((Standing("rpm", RPM, -70, 102_000),), None, '"rpm";q=100;w=60', '"rpm";r=0;t=102'),
    "full": ((Standing("rpm", RPM, 100, 0),), None, '"rpm";q=100;w=60', '"rpm";r=100;t=1'),
    "burst": (
        (Standing("rpm", Limit.per_minute("rpm", 100, burst=250), 240, 6_001),),
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
        (GRANTED[0], Standing("parent.rpm", RPM, 0, 60_000, 600)),
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
    [(_, policy), (_, state)] = Fields("ietf").lines([Standing("rpm", slow, 0, slow.time_to_fill_ms)], NOW)
    assert policy == '"rpm";q=1;w=316224000;zae-burst=1000000000000'
    assert items(state) == {"rpm": {"r": 0, "t": MAX_INTEGER}}


# Draft 07.


@given(standings(), st.booleans())
def test_the_grammar_of_draft_07(given: list[Standing], refused: bool) -> None:
    retry_after = 7 if refused else None
    counted = [standing for standing in given if Fields().unit(standing.limit.name) == "requests"]
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
    "debt": ((Standing("rpm", RPM, -70, 102_000),), None, "100;w=60", "limit=100, remaining=0, reset=102"),
    "burst": (
        (Standing("rpm", Limit.per_minute("rpm", 100, burst=250), 240, 6_001),),
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


# X-RateLimit-*.

X_RATELIMIT = {
    "success": (GRANTED, None, "100", "50", "1700000031"),
    "refusal": (REFUSED, 5, "100", "0", "1700000006"),
    "refused by another unit": ((GRANTED[0], Standing("tpm", TPM, 3, 90_000, 40_000)), 40, "100", "50", "1700000041"),
    "debt": ((Standing("rpm", RPM, -70, 102_000),), None, "100", "0", "1700000103"),
    "burst": (
        (Standing("rpm", Limit.per_minute("rpm", 100, burst=250), 240, 6_001),),
        None,
        "250",
        "240",
        "1700000007",
    ),
    "cascade": (CASCADE, None, "1000", "20", "1700003529"),
    "only tokens": (GRANTED[1:], None, "15000", "9000", "1700000037"),
}


@pytest.mark.parametrize("case", X_RATELIMIT)
def test_x_ratelimit(case: str) -> None:
    given, retry_after, limit, remaining, reset = X_RATELIMIT[case]
    assert Fields("x-ratelimit").lines(given, NOW, retry_after) == [
        ("X-RateLimit-Limit", limit),
        ("X-RateLimit-Remaining", remaining),
        ("X-RateLimit-Reset", reset),
    ]


@given(standings(), st.booleans())
def test_x_ratelimit_counts_down_to_zero_and_never_resets_early(given: list[Standing], refused: bool) -> None:
    fields = Fields("x-ratelimit")
    retry_after = fields.retry_after(longest(given)) if refused else None
    told = {name: int(text) for name, text in fields.lines(given, NOW, retry_after)}
    assert bool(told) == bool(given)
    if given:
        assert 0 <= told["X-RateLimit-Remaining"] <= told["X-RateLimit-Limit"]
        assert told["X-RateLimit-Reset"] * 1000 >= NOW + (longest(given) if refused else 0)


# OpenAI's.


def parsed(text: str) -> int:
    """Milliseconds of a Go duration."""
    match = re.fullmatch(r"(?:(\d+)ms)|(?:(?:(\d+)h(?=\d+m))?(?:(\d+)m(?=\d))?(\d+(?:\.\d{1,3})?)s)", text)
    assert match is not None, text
    ms, hours, minutes, seconds = match.groups(default="0")
    assert hours == "0" or int(minutes) < 60
    assert minutes == hours == "0" or Fraction(seconds) < 60
    return int(ms) + int(hours) * 3_600_000 + int(minutes) * 60_000 + int(Fraction(seconds) * 1000)


@given(LONG)
def test_durations_come_back_unchanged(ms: int) -> None:
    assert parsed(duration(ms)) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (8_640, "8.64s"),
        (60_000, "1m0s"),
        (90_061, "1m30.061s"),
        (360_000, "6m0s"),
        (3_600_000, "1h0m0s"),
        (86_400_000, "24h0m0s"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text


def openai_lines(unit: str, limit: str, remaining: str, reset: str) -> list[tuple[str, str]]:
    return [
        (f"x-ratelimit-limit-{unit}", limit),
        (f"x-ratelimit-remaining-{unit}", remaining),
        (f"x-ratelimit-reset-{unit}", reset),
    ]


def test_openai_success() -> None:
    requests = openai_lines("requests", "100", "50", "30s")
    tokens = openai_lines("tokens", "10000", "9000", "36s")
    assert Fields("openai").lines(GRANTED, NOW) == requests + tokens
    assert Fields("openai").lines(GRANTED[1:], NOW) == tokens


def test_openai_refusal() -> None:
    expected = openai_lines("requests", "100", "0", "59.5s") + openai_lines("tokens", "10000", "9000", "36s")
    assert Fields("openai").lines(REFUSED, NOW, 5) == [*expected, ("retry-after-ms", "5000")]
    assert Fields("openai").lines(REFUSED, NOW, 5, 4_300) == [*expected, ("retry-after-ms", "4300")]


def test_openai_debt_is_zero_and_never_less() -> None:
    assert Fields("openai").lines([Standing("tpm", TPM, -5_000, 120_000)], NOW) == openai_lines(
        "tokens", "10000", "0", "2m0s"
    )


def test_openai_tells_the_rate_and_nothing_above_it() -> None:
    assert Fields("openai").lines([Standing("tpm", TPM, 15_000, 0)], NOW) == openai_lines(
        "tokens", "10000", "10000", "0s"
    )


def test_openai_cascade_tells_the_tightest_of_each_unit() -> None:
    above = Standing("parent.tpm", Limit.per_minute("tpm", 100_000), 1_000, 59_400)
    expected = openai_lines("requests", "1000", "20", "58m48s") + openai_lines("tokens", "100000", "1000", "59.4s")
    assert Fields("openai").lines([*CASCADE, GRANTED[1], above], NOW) == expected


def test_openai_knows_no_other_units() -> None:
    fields = Fields("openai", units={"images": "images"})
    assert fields.lines([Standing("images", Limit.per_day("images", 5), 1, 1)], NOW) == []


# Which of several limits matters, and how often it is told.


def test_the_violated_one_that_takes_longest_is_tightest() -> None:
    empty = Standing("empty", RPM, 0, 60_000)
    soon, late = Standing("soon", RPM, 0, 60_000, 0), Standing("late", RPM, 99, 60_000, 2)
    assert tightest([empty, soon, late]) is late
    assert tightest([empty, soon]) is soon
    assert tightest([GRANTED[1], empty]) is empty


def test_of_equals_the_first_is_tightest() -> None:
    first, second = Standing("first", RPM, 5, 57_000), Standing("second", RPM, 5, 57_000)
    assert tightest([first, second]) is first


def test_a_name_that_is_there_twice_is_told_once_by_the_tightest() -> None:
    loose, tight, other = Standing("rpm", RPM, 90, 1), Standing("rpm", RPM, 10, 54_000), Standing("rps", RPM, 1, 1)
    assert distinct([loose, other, tight]) == [tight, other]
    fields = Fields(("ietf", "openai"))
    for _ in range(2):
        assert fields.lines([loose, other, tight], NOW) == fields.lines([tight, other], NOW)


@given(standings())
def test_lines_do_not_depend_on_what_was_asked_before(given: list[Standing]) -> None:
    for profile in ("ietf", "ietf-07", "x-ratelimit", "openai"):
        used = Fields(profile)
        used.lines(given[1:], NOW)
        used.lines(given, NOW + 1, 3)
        assert used.lines(given, NOW) == used.lines(given, NOW) == Fields(profile).lines(given, NOW)


def test_what_is_remembered_is_bounded() -> None:
    fields = Fields("ietf")
    for rate in range(1, 3_000):
        [(_, policy), _] = fields.lines([Standing("rpm", Limit.per_minute("rpm", rate), 0, 0)], NOW)
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
    profile: str, given: tuple[Standing, ...], retry_after: int | None
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
    assert Fields().retry_after(ms) == whole_seconds(ms) == max(1, ceil(Fraction(ms, 1000)))


@given(st.integers(0, 10**9), st.integers(0, 3_600), st.randoms(use_true_random=False))
def test_jitter_only_ever_adds(ms: int, jitter: int, source: random.Random) -> None:
    fields = Fields(jitter_seconds=jitter, chance=source.randint)
    assert 0 <= fields.retry_after(ms) - whole_seconds(ms) <= jitter


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
    standing = Standing("rpm", RPM, -3, -1)
    assert (standing.remaining, standing.full_in_ms, standing.violated) == (0, 0, False)
    assert Standing("rpm", RPM, 0, 0, 0).violated


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
        ({"profiles": ["ietf", 7]}, "profiles", "is no profile"),
        ({"profiles": [["ietf"]]}, "profiles", "is no profile"),
        ({"profiles": 7}, "profiles", "must be one or several of"),
        ({"profiles": ["ietf", "none"]}, "profiles", "leave one of them out"),
        ({"profiles": ["ietf", "ietf-07"]}, "profiles", "keep one of them"),
        ({"profiles": ["openai", "openai"]}, "profiles", "keep one of them"),
        ({"levels": "team"}, "levels", "must be a list of names"),
        ({"levels": None}, "levels", "must be a list of names"),
        ({"levels": ["a.b"]}, "levels", "must be empty or a letter"),
        ({"levels": [7]}, "levels", "must be empty or a letter"),
        ({"levels": ["a", "a"]}, "levels", "give each its own name"),
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
