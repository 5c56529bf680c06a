"""Fields that no standard describes: `X-RateLimit-*`, and OpenAI's."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from tests.web.standings import CASCADE, GRANTED, LONG, NOW, REFUSED, RPM, TPM, longest, standings
from zae_limiter import Limit
from zae_limiter.web import Fields, LimitView
from zae_limiter.web.profiles import format_duration

# X-RateLimit-*.

X_RATELIMIT = {
    "success": (GRANTED, None, "100", "50", "1700000031"),
    "refusal": (REFUSED, 5, "100", "0", "1700000006"),
    "refused by another unit": ((GRANTED[0], LimitView("tpm", TPM, 3, 90_000, 40_000)), 40, "15000", "3", "1700000041"),
    "debt": ((LimitView("rpm", RPM, -70, 102_000),), None, "100", "0", "1700000103"),
    "burst": (
        (LimitView("rpm", Limit.per_minute("rpm", 100, burst=250), 240, 6_001),),
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
def test_x_ratelimit_counts_down_to_zero_and_never_resets_early(given: list[LimitView], refused: bool) -> None:
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
    assert parsed(format_duration(ms)) == ms


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
    assert format_duration(ms) == text


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
    assert Fields("openai").lines([LimitView("tpm", TPM, -5_000, 120_000)], NOW) == openai_lines(
        "tokens", "10000", "0", "2m0s"
    )


def test_openai_tells_the_rate_and_nothing_above_it() -> None:
    assert Fields("openai").lines([LimitView("tpm", TPM, 15_000, 0)], NOW) == openai_lines(
        "tokens", "10000", "10000", "0s"
    )


def test_openai_cascade_tells_the_tightest_of_each_unit() -> None:
    above = LimitView("parent.tpm", Limit.per_minute("tpm", 100_000), 1_000, 59_400)
    expected = openai_lines("requests", "1000", "20", "58m48s") + openai_lines("tokens", "100000", "1000", "59.4s")
    assert Fields("openai").lines([*CASCADE, GRANTED[1], above], NOW) == expected


def test_openai_knows_no_other_units() -> None:
    fields = Fields("openai", units={"images": "images"})
    assert fields.lines([LimitView("images", Limit.per_day("images", 5), 1, 1)], NOW) == []
