"""Buckets that hold what no bucket can: an error that names the repair, on every look, until it is repaired."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.acquiring import granted, take
from zae_limiter import CorruptRecordError, Limit
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.testing import Harness

RPM = [Limit.per_minute("rpm", 100)]


POISON: dict[str, Any] = {
    "a fraction": {"b_rpm_tk": 50_000.5},
    "text": {"b_rpm_tk": "lots"},
    "infinity": {"b_rpm_tk": float("inf")},
    "a boolean": {"b_rpm_tk": True},
    "nothing": {"b_rpm_tk": None},
    "anchor as text": {"rf": "yesterday"},
    "version as text": {"cv": "latest"},
}
RULE_POISON: dict[str, Any] = {"no capacity": {"b_rpm_cp": None}, "no time": {"b_rpm_rp": 0}}
CASES = [(name, put, warm) for name, put in POISON.items() for warm in (False, True)] + [
    (name, put, False) for name, put in RULE_POISON.items()
]


@pytest.mark.parametrize(
    ("poison", "warm"),
    [case[1:] for case in CASES],
    ids=[f"{case[0]}-{'warm' if case[2] else 'cold'}" for case in CASES],
)
async def test_a_poisoned_record_is_an_error_until_it_is_repaired(
    harness: Harness, poison: dict[str, Any], warm: bool
) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await take(limiter, {"rpm": 1})
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, put=poison)])
    victim = limiter if warm else harness.limiter()
    for policy in ("block", "allow"):
        with pytest.raises(CorruptRecordError, match=r"reset_bucket\('key', 'gpt-4'\)"):
            await take(victim, {"rpm": 1}, on_unavailable=policy)
    await victim.reset_bucket("key", "gpt-4", principal="fixer")
    assert (await take(victim, {"rpm": 1})).available == {"rpm": 99}


async def test_a_poisoned_bucket_is_an_error_also_when_buckets_are_listed(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await granted(limiter, {"rpm": 1}, limits=RPM)
    async with limiter.acquire("other", "gpt-4", {"rpm": 1}, RPM):
        pass
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, put={"b_rpm_tk": "lots"})])
    with pytest.raises(CorruptRecordError, match="reset_bucket"):
        await limiter.get_buckets("key")
    with pytest.raises(CorruptRecordError, match="reset_bucket"):
        await limiter.get_resource_capacity("gpt-4", "rpm")
    await limiter.reset_bucket("key", "gpt-4")
    assert (await limiter.get_resource_capacity("gpt-4", "rpm")).total_available == 99
