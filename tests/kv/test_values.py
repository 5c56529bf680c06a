"""Policies and identities."""

from __future__ import annotations

import doctest
import hashlib
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from zae_limiter import Limit, ValidationError
from zae_limiter.kv import ClientIdentity, RateLimitPolicy, bucket


def test_the_standard_policy() -> None:
    standard = RateLimitPolicy.standard_ip_policy()
    assert standard == RateLimitPolicy.create(10) == RateLimitPolicy.create(10, 10)
    assert standard.refill_interval_ms == 6_000.0
    assert standard.calculate_refill_time(1) == 6_000
    assert standard.calculate_refill_time(10) == 60_000
    assert standard.calculate_refill_time(0) == 0


def test_examples() -> None:
    result = doctest.testmod(bucket)
    assert result.attempted == 1
    assert result.failed == 0


def test_times_are_rounded_up() -> None:
    assert RateLimitPolicy.create(7).calculate_refill_time(1) == 8_572
    assert RateLimitPolicy.create(7).calculate_refill_time(7) == 60_000


def test_a_policy_is_a_limit_of_the_exact_limiter() -> None:
    assert RateLimitPolicy.create(10, 25).to_limit() == Limit.per_minute("rpm", 10, burst=25)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, 2.5, float("nan"), float("inf"), "10", None, 10**13], ids=repr)
def test_policies_that_cannot_be(value: Any) -> None:
    with pytest.raises(ValidationError, match="requests_per_minute"):
        RateLimitPolicy.create(value)
    if value is not None:
        with pytest.raises(ValidationError, match="bucket_capacity"):
            RateLimitPolicy.create(1, value)


@pytest.mark.parametrize("value", [-1, True, 1.5, None], ids=repr)
def test_no_time_for_a_part_of_a_token(value: Any) -> None:
    with pytest.raises(ValidationError, match="tokens"):
        RateLimitPolicy.create(10).calculate_refill_time(value)


def test_a_capacity_below_the_rate_is_refused_with_the_fix() -> None:
    with pytest.raises(ValidationError, match=r"bucket_capacity = 9: must be at least requests_per_minute \(10\)"):
        RateLimitPolicy.create(10, 9)


def test_the_key_of_an_address() -> None:
    client = ClientIdentity.from_ip("203.0.113.7")
    assert client.normalized_ip == "203.0.113.7"
    assert client.key_hash == hashlib.sha256(b"203.0.113.7").hexdigest()[:16]
    assert client.kv_key == f"rate_limit:ip:{client.key_hash}"
    assert pickle.loads(pickle.dumps(client)) == client


@pytest.mark.parametrize(
    ("raw", "normalized"),
    [
        (" 203.0.113.7 ", "203.0.113.7"),
        ("203.0.113.7:4711", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("[::ffff:203.0.113.7]:443", "203.0.113.7"),
        ("2001:db8:0:1::5", "2001:db8:0:1::/64"),
        ("2001:DB8:0:1:a:b:c:d", "2001:db8:0:1::/64"),
        ("[2001:db8:0:1::5]:443", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
        ("", "unknown"),
        ("2001", "unknown"),
        ("203.0.113.7, 198.51.100.1", "unknown"),
        ("a" * 1_000_000, "unknown"),
        (None, "unknown"),
        (17, "unknown"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_normalising(raw: Any, normalized: str) -> None:
    assert ClientIdentity.from_ip(raw).normalized_ip == normalized


def test_neighbours_in_a_network_can_be_told_apart() -> None:
    one, other = (ClientIdentity.from_ip(raw, ipv6_prefix=128) for raw in ("2001:db8::1", "2001:db8::2"))
    assert one.normalized_ip == "2001:db8::1"
    assert one.kv_key != other.kv_key


@given(st.text())
def test_every_text_is_somebody(raw: str) -> None:
    assert len(ClientIdentity.from_ip(raw).key_hash) == 16
