"""`check_availability`: what an acquire would be told, for one or for many at once, without taking anything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.acquiring import granted, take
from zae_limiter import (
    CapacityExceeded,
    Limit,
    LimitStatus,
    RateLimiter,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.models import Availability
from zae_limiter.testing import FaultyStore, Harness

MODEL = [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1_000)]
TOOLS = [Limit.per_minute("rpm", 3)]


async def prepare(harness: Harness, **options: Any) -> RateLimiter:
    limiter = harness.limiter(**options)
    await limiter.set_resource_defaults("gpt-4", MODEL)
    await limiter.set_resource_defaults("tools", TOOLS)
    await limiter.create_entity("org")
    for who in ("key", "other"):
        await limiter.create_entity(who, parent_id="org", cascade=True)
    async with limiter.acquire("key", {"gpt-4": {"rpm": 1, "tpm": 900}, "tools": {"rpm": 2}}):
        pass
    return limiter


async def test_it_says_what_an_acquire_is_told(harness: Harness) -> None:
    limiter = await prepare(harness)
    checked = await limiter.check_availability("key", "gpt-4", {"rpm": 1, "tpm": 600})
    assert isinstance(checked, Availability)
    assert (checked.entity_id, checked.resource, checked.bypassed, checked.disabled) == ("key", "gpt-4", False, False)
    assert checked.checked_at_ms == harness.clock.now_ms()
    assert not checked.allowed
    assert (checked.exceeded, checked.deficit, checked.retry_after_seconds) == (["tpm"], {"tpm": 500}, 30)
    assert (checked.available, checked.needed) == ({"rpm": 9, "tpm": 100}, {"rpm": 1, "tpm": 600})
    assert checked.limits == MODEL
    status = checked.status("tpm")
    assert status is not None
    assert status.exceeded
    assert checked.status("nothing") is None
    with pytest.raises(RateLimitExceeded) as refused:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 600}):
            pass
    assert refused.value.statuses == checked.statuses
    harness.clock.advance(30)
    checked = await limiter.check_availability("key", "gpt-4", {"rpm": 1, "tpm": 600})
    assert checked.allowed
    assert (checked.exceeded, checked.deficit, checked.retry_after_seconds) == ([], {}, 0)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 600}):
        pass


async def test_it_takes_nothing(harness: Harness) -> None:
    limiter = await prepare(harness)
    before = await limiter.repository.get_buckets("key")
    await limiter.check_availability(["key", "nobody"], ["gpt-4", "tools"], {"rpm": 1})
    assert await limiter.repository.get_buckets("key") == before
    assert not await limiter.repository.get_buckets("nobody")


async def test_without_a_need_it_says_what_is_left(harness: Harness) -> None:
    limiter = await prepare(harness)
    checked = await limiter.check_availability("other", "tools")
    assert checked.allowed
    assert (checked.available, checked.needed) == ({"rpm": 1}, {"rpm": 0}), "the organisation has one left"


async def test_many_at_once(harness: Harness) -> None:
    limiter = await prepare(harness)
    await limiter.disable_entity("other", "tools")
    await limiter.bypass_entity("nobody", "gpt-4")
    needs = {"gpt-4": {"tpm": 600}, "tools": {"rpm": 2}}
    found = await limiter.check_availability(["key", "other", "nobody"], needs)
    told = [(each.entity_id, each.resource, each.allowed, each.disabled, each.bypassed) for each in found]
    assert told == [
        ("key", "gpt-4", False, False, False),
        ("key", "tools", False, False, False),
        ("other", "gpt-4", False, False, False),
        ("other", "tools", False, True, False),
        ("nobody", "gpt-4", True, False, True),
        ("nobody", "tools", True, False, False),
    ]
    assert [each.retry_after_seconds for each in found] == [30, 20, 30, None, 0, 0]
    assert [each.resource for each in await limiter.check_availability("key", ["tools", "gpt-4"])] == ["tools", "gpt-4"]
    assert [each.entity_id for each in await limiter.check_availability(("key", "other"), "gpt-4")] == ["key", "other"]
    assert await limiter.check_availability([], "gpt-4") == []


async def test_limits_that_are_given_count_instead(harness: Harness) -> None:
    limiter = await prepare(harness)
    checked = await limiter.check_availability("key", "gpt-4", {"x": 5}, limits=[Limit.per_minute("x", 4)])
    assert not checked.allowed
    assert checked.retry_after_seconds is None
    with pytest.raises(CapacityExceeded):
        async with limiter.acquire("key", "gpt-4", {"x": 5}, limits=[Limit.per_minute("x", 4)]):
            pass


async def test_all_are_read_in_as_few_calls_as_there_are_levels(harness: Harness) -> None:
    await prepare(harness)
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    if store.capabilities.instant:
        pytest.skip("a call costs nothing here")
    await limiter.available("somebody", "gpt-4")
    before = store.calls.total()
    found = await limiter.check_availability([f"key-{number}" for number in range(20)] + ["key"], ["gpt-4", "tools"])
    assert len(found) == 42
    assert store.calls.total() - before == 3, "config and buckets of two levels, and all buckets as they are now"
    before = store.calls.total()
    await limiter.check_availability([f"key-{number}" for number in range(20)] + ["key"], ["gpt-4", "tools"])
    assert store.calls.total() - before == 1


async def test_a_cold_acquire_of_several_resources_reads_each_level_once(harness: Harness) -> None:
    await prepare(harness)
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    if store.capabilities.instant:
        pytest.skip("a call costs nothing here")
    await limiter.available("somebody", "gpt-4")
    before = store.calls["read"]
    async with limiter.acquire("key", {"gpt-4": {"rpm": 1}, "tools": {"rpm": 1}}):
        pass
    assert store.calls["read"] - before == 2


async def test_bad_input(harness: Harness) -> None:
    limiter: Any = await prepare(harness)
    calls: list[tuple[Any, ...]] = [
        ("", "gpt-4"),
        ("key", ""),
        ("key", 5),
        (["key", ""], "gpt-4"),
        ("key", ["gpt-4", ""]),
        ("key", "gpt-4", {"rpm": -1}),
        ("key", "gpt-4", {"nothing": 1}),
        ("key", {"gpt-4": {"rpm": 1}}, {"rpm": 1}),
        ("key", "gpt-4", None, []),
    ]
    for arguments in calls:
        with pytest.raises(ValidationError):
            await limiter.check_availability(*arguments)


def test_the_level_that_refuses_goes_before_the_one_that_has_least() -> None:
    limit = Limit.per_minute("rpm", 10)
    own = LimitStatus("key", "r", "rpm", limit, 2, 3, True, 6.0)
    above = LimitStatus("org", "r", "rpm", limit, 1, 3, True, 12.0)
    soft = LimitStatus("top", "r", "rpm", limit, -5, 3, False, 0.0)
    checked = Availability("key", "r", 0, (own, above, soft))
    assert checked.status("rpm") is above
    assert checked.limits == [limit]
    assert checked.deficit == {"rpm": 2}
    assert checked.available == {"rpm": -5}


async def test_a_deficit_counts_the_floor_that_a_priority_has_to_leave(harness: Harness) -> None:
    """Refused with 350 left: 300 of them are the floor, so 10 of 60 are missing; a third of a token is one, too."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("tpm", 600, floors={"batch": 0.5, "odd": 0.1111})])
    await take(limiter, {"tpm": 250})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tpm": 60}, priority="batch")
    (status,) = refused.value.statuses
    assert (status.available, status.floor, status.deficit) == (350, 300, 10)
    assert refused.value.as_dict()["limits"][0]["floor"] == 300
    answer = await limiter.check_availability("key", "gpt-4", {"tpm": 60}, priority="batch")
    assert answer.deficit == {"tpm": 10}
    for cost, missing in ((283, 0), (284, 1)):  # the floor is 66.66
        (status,) = await limiter.get_status("key", "gpt-4", needed={"tpm": cost}, priority="odd")
        assert (status.exceeded, status.deficit) == (missing > 0, missing)


async def test_whoever_asks_with_a_priority_hears_what_it_would_be_granted(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("tpm", 600, floors={"batch": 0.5})])
    await take(limiter, {"tpm": 250})
    whose = ("key", "gpt-4")
    assert await limiter.available(*whose) == {"tpm": 350}
    assert await limiter.available(*whose, priority="batch") == {"tpm": 50}
    assert await limiter.time_until_available(*whose, {"tpm": 60}) == 0
    assert await limiter.time_until_available(*whose, {"tpm": 60}, priority="batch") == 1
    (status,) = await limiter.get_status(*whose, needed={"tpm": 60}, priority="batch")
    assert (status.available, status.floor, status.retry_after_seconds) == (350, 300, 1)
    for needed, fits in ((50, True), (60, False)):
        answer = await limiter.check_availability(*whose, {"tpm": needed}, priority="batch")
        assert (answer.allowed, answer.available) == (fits, {"tpm": 50})
        assert await limiter.check_availability(["key"], "gpt-4", {"tpm": needed}, priority="batch") == [answer]
        assert await granted(limiter, {"tpm": needed}, priority="batch") is fits
        await limiter.reset_bucket(*whose)
        await take(limiter, {"tpm": 250})
    with pytest.raises(ValidationError, match="is not a priority of these limits; there are batch"):
        await limiter.check_availability(*whose, priority="vip")
