"""What a client gets that is not served: 429, 413 and 503, as headers and as problem details."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.web.standings import CASCADE, GRANTED, NOW, REFUSED, RPM, TPM, longest, standings
from zae_limiter import Limit
from zae_limiter.web import Answer, Fields, LimitView
from zae_limiter.web.answers import cost_above_capacity, quota_exceeded, unavailable

IETF = Fields("ietf")


def body(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body.decode("ascii"))
    assert answer.body == json.dumps(found, separators=(",", ":")).encode()
    assert found["status"] == answer.status
    return found


def headers(answer: Answer) -> dict[str, str]:
    found = dict(answer.headers)
    assert len(found) == len(answer.headers)
    assert found["Content-Type"] == "application/problem+json"
    assert found["Content-Length"] == str(len(answer.body))
    assert found["Cache-Control"] == "no-store"
    return found


# 429.


def test_a_refusal_to_the_letter() -> None:
    answer = quota_exceeded(REFUSED, NOW, IETF, 4_300)
    assert answer.status == 429
    assert answer.headers == (
        ("Content-Type", "application/problem+json"),
        ("Content-Length", "470"),
        ("Cache-Control", "no-store"),
        ("Retry-After", "5"),
        ("RateLimit-Policy", '"rpm";q=100;w=60'),
        ("RateLimit", '"rpm";r=0;t=5'),
    )
    assert answer.body == (
        b'{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",'
        b'"title":"Request cannot be satisfied as assigned quota has been exceeded",'
        b'"status":429,'
        b'"violated-policies":["rpm"],'
        b'"error":"Rate Limit Exceeded",'
        b'"message":"Too many requests. Please try again later.",'
        b'"retryAfter":5,'
        b'"limit":100,'
        b'"remaining":0,'
        b'"resetTime":1700000004550,'
        b'"limits":[{"name":"rpm","limit":100,"remaining":0,"retry_after":5},'
        b'{"name":"tpm","limit":15000,"remaining":9000,"retry_after":0}]}'
    )


def test_the_violated_policy_that_takes_longest_speaks() -> None:
    late = LimitView("parent.tpm", TPM, 7, 90_000, 40_000)
    told = body(quota_exceeded([REFUSED[0], late, GRANTED[1]], NOW, IETF))
    assert told["violated-policies"] == ["rpm", "parent.tpm"]
    assert (told["limit"], told["remaining"], told["retryAfter"]) == (15_000, 7, 40)
    assert told["resetTime"] == NOW + 40_000
    assert [entry["retry_after"] for entry in told["limits"]] == [5, 40, 0]


def test_a_refusal_from_a_level_that_is_not_told_names_no_policy() -> None:
    answer = quota_exceeded(CASCADE, NOW, IETF, 90_001)
    told = body(answer)
    assert told["violated-policies"] == []
    assert "limit" not in told
    assert "remaining" not in told
    assert told["retryAfter"] == 91
    assert told["resetTime"] == NOW + 90_001
    assert headers(answer)["Retry-After"] == "91"
    assert headers(answer)["RateLimit"].startswith('"rpm";r=50;t=30, ')


def test_nothing_known_is_still_an_answer() -> None:
    answer = quota_exceeded([], NOW, IETF)
    assert headers(answer)["Retry-After"] == "1"
    assert (body(answer)["violated-policies"], body(answer)["limits"]) == ([], [])


def test_a_policy_that_is_there_twice_is_told_once() -> None:
    told = body(quota_exceeded([REFUSED[0], LimitView("rpm", RPM, 1, 58_000, 200)], NOW, IETF))
    assert told["violated-policies"] == ["rpm"]
    assert [entry["retry_after"] for entry in told["limits"]] == [5]


@given(standings(), st.integers(0, 10**9), st.integers(0, 60), st.randoms(use_true_random=False))
def test_header_and_body_agree_and_nobody_is_called_early(
    given: list[LimitView], hidden: int, jitter: int, source: random.Random
) -> None:
    fields = Fields(("ietf", "openai"), jitter_seconds=jitter, chance=source.randint)
    answer = quota_exceeded(given, NOW, fields, hidden)
    sent, told = headers(answer), body(answer)
    wait = max(hidden, longest(given))
    assert re.fullmatch(r"[1-9][0-9]*", sent["Retry-After"])
    assert int(sent["Retry-After"]) == told["retryAfter"]
    assert wait <= told["resetTime"] - NOW == int(sent["retry-after-ms"]) <= told["retryAfter"] * 1000
    assert told["retryAfter"] * 1000 < wait + 1_000 + jitter * 1000 + (wait == 0)
    assert told["violated-policies"] == [standing.name for standing in given if standing.violated]
    assert [entry["name"] for entry in told["limits"]] == [standing.name for standing in given]
    assert all(entry["remaining"] >= 0 and entry["retry_after"] >= 0 for entry in told["limits"])


def test_a_crowd_is_spread_in_every_field_alike() -> None:
    fields = Fields(("x-ratelimit", "openai"), jitter_seconds=20, chance=random.Random(3).randint)
    moments = set()
    for _ in range(1_000):
        answer = quota_exceeded(REFUSED, NOW, fields, 4_300)
        told, sent = body(answer), headers(answer)
        later = told["retryAfter"] - 5
        assert told["resetTime"] == NOW + 4_300 + later * 1000
        assert sent["X-RateLimit-Reset"] == str(1_700_000_006 + later)
        assert sent["retry-after-ms"] == str(4_300 + later * 1000)
        moments.add(later)
    assert moments == set(range(21))


def test_names_are_escaped_in_json_too() -> None:
    odd = LimitView('ü"\n', Limit.per_minute("rpm", 1), 0, 60_000, 60_000)
    assert body(quota_exceeded([odd], NOW, IETF))["violated-policies"] == ['ü"\n']


def test_a_refusal_can_be_read_by_browsers() -> None:
    sent = headers(quota_exceeded(REFUSED, NOW, Fields("ietf", expose=True), 4_300))
    assert sent["Access-Control-Expose-Headers"] == "Retry-After, RateLimit-Policy, RateLimit"


# 413.


def test_a_cost_above_the_capacity() -> None:
    answer = cost_above_capacity("tpm", 15_000, 20_000)
    assert answer.status == 413
    assert headers(answer).keys() == {"Content-Type", "Content-Length", "Cache-Control"}
    message = "The request costs 20000 tpm, above the maximum 15000; retrying will not help. Send a smaller request."
    assert list(body(answer).items()) == [
        ("type", "urn:problem-type:zae-limiter:cost-above-capacity"),
        ("title", "Request costs more than its limit can ever hold"),
        ("status", 413),
        ("detail", message),
        ("violated-policies", ["tpm"]),
        ("error", "Cost Above Capacity"),
        ("message", message),
        ("limit", 15_000),
        ("requested", 20_000),
    ]


def test_a_capacity_that_is_not_told_stays_untold() -> None:
    told = body(cost_above_capacity(None, 15_000, 20_000))
    assert "limit" not in told
    assert "15000" not in json.dumps(told)
    assert (told["violated-policies"], told["requested"]) == ([], 20_000)


# 503.


def test_a_limiter_that_cannot_be_asked() -> None:
    answer = unavailable()
    assert answer.status == 503
    assert headers(answer).keys() == {"Content-Type", "Content-Length", "Cache-Control", "Retry-After"}
    assert headers(answer)["Retry-After"] == "5"
    message = "Rate limiting is temporarily unavailable. Please try again later."
    assert list(body(answer).items()) == [
        ("type", "about:blank"),
        ("title", "Service Unavailable"),
        ("status", 503),
        ("detail", message),
        ("error", "Service Unavailable"),
        ("message", message),
        ("retryAfter", 5),
    ]


@pytest.mark.parametrize("given", [0, 1, 30])
def test_an_outage_calls_nobody_back_at_once(given: int) -> None:
    answer = unavailable(given)
    assert headers(answer)["Retry-After"] == str(max(1, given))
    assert body(answer)["retryAfter"] == max(1, given)


def test_an_outage_spreads_and_exposes_like_a_refusal() -> None:
    fields = Fields(("ietf", "openai"), expose=True, jitter_seconds=10, chance=lambda low, high: high)
    sent = headers(unavailable(5, fields))
    assert (sent["Retry-After"], sent["retry-after-ms"]) == ("15", "15000")
    assert sent["Access-Control-Expose-Headers"] == "Retry-After, retry-after-ms"
    assert "RateLimit" not in sent
