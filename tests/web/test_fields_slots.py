"""What clients are told of concurrency limits, profile by profile and in the body of a refusal."""

from __future__ import annotations

import json

import pytest

from tests.web.standings import NOW, RPM
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.core.values import LimitStatus
from zae_limiter.web import Fields, LimitView
from zae_limiter.web.answers import quota_exceeded

SLOTS = Limit.concurrent("parallel", 5)
GRANTED = (LimitView("parallel", SLOTS, 3, None, None, 2),)
REFUSED = (LimitView("parallel", SLOTS, 0, None, 41_300, 5),)
RATE = LimitView("rpm", RPM, 50, 30_000)
POLICY = ("RateLimit-Policy", '"parallel";q=5;qu="concurrent-requests"')
BOTH = ("RateLimit-Policy", '"parallel";q=5;qu="concurrent-requests", "rpm";q=100;w=60')


@pytest.mark.parametrize("fields", [Fields("ietf"), Fields("ietf", all_units=True), Fields("ietf-11")])
def test_ietf_lists_slots_without_a_window(fields: Fields) -> None:
    assert fields.lines(GRANTED, NOW) == [POLICY, ("RateLimit", '"parallel";r=3')]
    assert fields.lines(REFUSED, NOW, 42) == [POLICY, ("RateLimit", '"parallel";r=0;t=42')]
    assert fields.lines([*GRANTED, RATE], NOW) == [BOTH, ("RateLimit", '"parallel";r=3, "rpm";r=50;t=30')]
    assert fields.lines([*REFUSED, RATE], NOW, 42) == [BOTH, ("RateLimit", '"parallel";r=0;t=42, "rpm";r=50;t=30')]


def test_what_another_limit_has_refused_says_nothing_of_when_slots_are_free() -> None:
    refused = LimitView("rpm", RPM, 0, 59_500, 4_300)
    assert Fields("ietf").lines([*GRANTED, refused], NOW, 5)[1] == ("RateLimit", '"parallel";r=3, "rpm";r=0;t=5')


def test_a_unit_of_the_users_does_not_make_a_rate_of_slots() -> None:
    assert Fields("ietf", units={"parallel": "requests"}).lines(GRANTED, NOW)[0] == POLICY


@pytest.mark.parametrize("profile", ["ietf-07", "x-ratelimit", "openai"])
def test_the_other_profiles_tell_no_slots_on_a_success(profile: str) -> None:
    fields = Fields(profile)
    assert fields.lines(GRANTED, NOW) == []
    assert fields.lines([*GRANTED, RATE], NOW) == fields.lines([RATE], NOW)


def test_the_other_profiles_on_a_refusal() -> None:
    assert Fields("ietf-07").lines(REFUSED, NOW, 42) == []
    assert Fields("openai").lines(REFUSED, NOW, 42, 41_300) == [("retry-after-ms", "41300")]
    assert Fields("x-ratelimit").lines([*REFUSED, RATE], NOW, 42) == [
        ("X-RateLimit-Limit", "5"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1700000043"),
    ]


def test_the_body_of_a_refusal() -> None:
    answer = quota_exceeded([*REFUSED, RATE], NOW, Fields("ietf"))
    told = json.loads(answer.body)
    assert told["violated-policies"] == ["parallel"]
    assert (told["retryAfter"], told["at_latest"], told["limit"], told["remaining"]) == (42, True, 5, 0)
    assert told["limits"] == [
        {"name": "parallel", "limit": 5, "remaining": 0, "retry_after": 42, "in_flight": 5},
        {"name": "rpm", "limit": 100, "remaining": 50, "retry_after": 0},
    ]


@pytest.mark.parametrize(("rate_ms", "at_latest"), [(41_000, True), (60_000, False)])
def test_whether_it_may_fit_earlier_is_said_of_the_longest_wait(rate_ms: int, at_latest: bool) -> None:
    views = [*REFUSED, LimitView("rpm", RPM, 0, 59_500, rate_ms)]
    assert ("at_latest" in json.loads(quota_exceeded(views, NOW, Fields("ietf")).body)) is at_latest
    hidden = json.loads(quota_exceeded(REFUSED, NOW, Fields("ietf"), rate_ms).body)
    assert ("at_latest" in hidden) is at_latest


def test_more_in_flight_than_a_lowered_limit_has() -> None:
    status = LimitStatus("ann", "http", "parallel", SLOTS, -2, 1, True, 41.3)
    (view,), _ = Fields().view_statuses(RateLimitExceeded([status]).list_fields())
    assert (view.remaining, view.in_flight, view.full_in_ms, view.retry_in_ms) == (0, 7, None, 41_300)
