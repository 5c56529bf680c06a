"""Small stories, each of which has once broken a law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.room import beside, new_limiter, take
from zae_limiter import (
    CorruptRecordError,
    Limit,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.testing import Fault, FaultyStore, Harness

if TYPE_CHECKING:
    from zae_limiter import RateLimiter


async def left(limiter: RateLimiter, **options: Any) -> dict[str, int]:
    return await limiter.available("key", "r", **options)


# Law 1.


@pytest.mark.parametrize("by_another", [False, True], ids=["by who knows of it", "by who does not"])
async def test_debt_is_not_forgiven_by_expiry(harness: Harness, by_another: bool) -> None:
    """A bucket in debt by an hour, charged for another limit, is forgotten after the usual seven minutes."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 100)])
    other = beside(harness, limiter) if by_another else limiter
    await take(other, "key", "r", [{"rpm": 1}])
    async with limiter.acquire("key", "r", {"tpm": 1}) as lease:
        await lease.adjust(tpm=6_000)
    harness.clock.advance(2)
    await take(other, "key", "r", [{"rpm": 1}])
    harness.clock.advance(7 * 60 + 1)
    assert (await left(beside(harness, limiter)))["tpm"] < 0


async def test_debt_made_under_own_limits_is_not_forgiven_under_defaults(harness: Harness) -> None:
    """A bucket that was to stay for ever, deep in debt, becomes one that expires."""
    limiter = await new_limiter(harness)
    limits = [Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 100)]
    await limiter.set_system_defaults(limits)
    await limiter.set_limits("key", limits)
    async with limiter.acquire("key", "r", {"tpm": 1}) as lease:
        await lease.adjust(tpm=6_000)
    await limiter.delete_limits("key")
    await take(limiter, "key", "r", [{"rpm": 1}])
    harness.clock.advance(7 * 60 + 1)
    assert (await left(beside(harness, limiter)))["tpm"] < 0


async def test_a_slow_limit_is_not_forgotten_for_a_fast_one(harness: Harness) -> None:
    """Ten a day are used up; a call under ten a second lets the bucket expire in seven seconds."""
    limiter = await new_limiter(harness)
    daily, fast = [Limit.per_day("daily", 10)], [Limit.per_second("fast", 10)]
    async with limiter.acquire("key", "r", {"daily": 10}, limits=daily):
        pass
    async with limiter.acquire("key", "r", {"fast": 1}, limits=fast):
        pass
    harness.clock.advance(8)
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key", "r", {"daily": 10}, limits=daily):
            pass


async def test_unused_tokens_come_back_in_full(harness: Harness) -> None:
    """50 of 100 taken, 25 refilled, 75 taken, 50 given back: all 50 are there."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit("tpm", 100, 10, 1)])
    async with limiter.acquire("key", "r", {"tpm": 50}) as lease:
        harness.clock.advance(2.5)
        await take(limiter, "key", "r", [{"tpm": 75}])
        await lease.release(tpm=50)
    assert await left(limiter) == {"tpm": 50}


async def test_every_ancestor_is_charged(harness: Harness) -> None:
    """A tree of seven levels hung below another of seven: those at the top are silently left out."""

    async def work() -> None:
        limiter = await new_limiter(harness)
        await limiter.set_system_defaults([Limit.per_hour("rph", 10)])
        for tree in "ab":
            for depth in range(7):
                above = f"{tree}{depth - 1}" if depth else None
                await limiter.create_entity(f"{tree}{depth}", parent_id=above, cascade=True)
        try:
            await limiter.update_entity("b0", parent_id="a6")
        except ValidationError:
            return
        await take(limiter, "b6", "r", [{"rph": 1}])
        assert await limiter.available("a0", "r") == {"rph": 9}

    await work()


@pytest.mark.parametrize("look", ["available", "get_status", "time_until_available", "settle", "speculative_writes"])
async def test_a_tightened_limit_is_not_undone_by_a_client_that_has_looked(harness: Harness, look: str) -> None:
    """A limit cut from 100 to 20 is back at 100 as soon as a client with the old one in its cache looks, then takes."""
    informed = await new_limiter(harness)
    stale = beside(harness, informed, speculative_writes=look != "speculative_writes")
    await informed.set_resource_defaults("r", [Limit.per_hour("tph", 100)])
    lease = stale.acquire("key", "r", {"tph": 10})
    await lease.__aenter__()
    await informed.set_resource_defaults("r", [Limit.per_hour("tph", 20)])
    await take(informed, "key", "r", [{"tph": 5}])
    if look == "available":
        await stale.available("key", "r")
    elif look == "get_status":
        await stale.get_status("key", "r")
    elif look == "time_until_available":
        await stale.time_until_available("key", "r", {"tph": 1})
    elif look == "settle":
        await lease.adjust(tph=1)
    await lease.__aexit__(None, None, None)
    await take(stale, "key", "r", [{"tph": 1}])
    assert [state.capacity_milli for state in await informed.get_buckets("key")] == [20_000]


# Law 3.


async def test_all_of_a_crowded_bucket_can_be_taken(harness: Harness) -> None:
    """Refused, promised a moment, and at that moment AssertionError instead of the grant."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_second("rps", 1, burst=10)])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    one, two = beside(harness, limiter), beside(harness, limiter)
    await take(one, "key", "r", [{"rps": 0}])
    await take(two, "key", "r", [{"rps": 1}])
    with pytest.raises(RateLimitExceeded) as refused:
        await take(one, "key", "r", [{"rps": 10}])
    harness.clock.advance(refused.value.retry_after_seconds or 0)
    await take(one, "key", "r", [{"rps": 10}])


async def test_waiting_as_long_as_promised_is_long_enough(harness: Harness) -> None:
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_second("rps", 1_000, burst=2_000)])
    await take(limiter, "key", "r", [{"rps": 2_000}])
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, "key", "r", [{"rps": 1_001}])
    assert refused.value.retry_after_seconds == 1.001
    async with limiter.acquire("key", "r", {"rps": 1_001}, max_wait=refused.value.retry_after_seconds):
        pass


async def test_a_reset_bucket_is_full_for_the_limiter_itself(harness: Harness) -> None:
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_day("rpd", 1)])
    await take(limiter, "key", "r", [{"rpd": 1}])
    with pytest.raises(RateLimitExceeded):
        await take(limiter, "key", "r", [{"rpd": 1}])
    await limiter.reset_bucket("key", "r")
    harness.clock.advance(3_600)
    await take(limiter, "key", "r", [{"rpd": 1}])


# Law 7.


class Tired(FaultyStore):
    """Gives up on a caller that never does."""

    async def commit(self, writes: Any, *, timeout: float | None = None) -> Any:
        assert self.calls["commit"] < 50, "the same commit again and again"
        return await super().commit(writes, timeout=timeout)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(5, id="adjust"),
        pytest.param(-2, id="release"),
    ],
)
async def test_a_settlement_survives_a_bucket_made_anew(harness: Harness, change: int) -> None:
    """While the body runs, the bucket is reset and made anew under limits without one of the lease's."""
    keeper = await new_limiter(harness)
    store = Tired(harness.store())
    limiter = harness.limiter(harness.repository(store, namespace=keeper.repository.namespace))
    both = [Limit.per_hour("a", 10), Limit.per_hour("b", 10)]
    await limiter.set_limits("key", both)
    async with limiter.acquire("key", "r", {"a": 1, "b": 5}) as lease:
        await limiter.reset_bucket("key", "r")
        await limiter.set_limits("key", both[:1])
        await take(beside(harness, keeper), "key", "r", [{"a": 1}])
        await lease.adjust(b=change)
    await limiter.set_limits("key", both)
    assert "b" in await left(limiter)


async def test_a_bucket_made_anew_in_the_same_millisecond(harness: Harness) -> None:
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_hour("x", 100)])
    await take(limiter, "key", "r", [{"x": 1}] * 3)
    other = beside(harness, limiter)
    await other.reset_bucket("key", "r")
    async with other.acquire("key", "r", {"y": 1}, limits=[Limit.per_hour("y", 5)]):
        pass
    await take(limiter, "key", "r", [{"x": 1}])


# Law 8.


async def test_a_refusal_stays_a_refusal_when_the_store_fails_after_it(harness: Harness) -> None:
    """Under ALLOW the body even runs, without any limit."""
    keeper = await new_limiter(harness)
    store = FaultyStore(harness.store())
    limiter = harness.limiter(harness.repository(store, namespace=keeper.repository.namespace))
    async with limiter.acquire("key", "r", {"rpd": 10}, limits=[Limit.per_day("rpd", 10)]):
        pass
    store.inject(Fault.FAIL_BEFORE, verb="commit")
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key", "r", {"rpd": 5}, limits=[Limit.per_day("rpd", 11)], on_unavailable="allow"):
            pass


async def test_damaged_config_can_be_set_again(harness: Harness) -> None:
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_hour("rph", 10)])
    namespace = await limiter.repository.get_namespace(limiter.repository.namespace)
    await harness.store().commit([Write(keys.system_config(namespace.id), (), {"l_rph_cp": "x"})])
    with pytest.raises(CorruptRecordError):
        await take(beside(harness, limiter), "key", "r", [{"rph": 1}])
    await limiter.set_system_defaults([Limit.per_hour("rph", 10)])
    await take(limiter, "key", "r", [{"rph": 1}])


@pytest.mark.parametrize(
    "attribute",
    [
        "rf",
        "cv",
        pytest.param("b_rph_tk"),
        pytest.param("b_rph_cp"),
    ],
)
async def test_a_damaged_bucket_is_named(harness: Harness, attribute: str) -> None:
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_hour("rph", 10)])
    await take(limiter, "key", "r", [{"rph": 1}])
    namespace = await limiter.repository.get_namespace(limiter.repository.namespace)
    await harness.store().commit([Write(keys.bucket(namespace.id, "key", "r"), remove=(attribute,))])
    with pytest.raises(CorruptRecordError):
        await take(beside(harness, limiter), "key", "r", [{"rph": 1}])


@pytest.mark.parametrize("options", [{"cursor": "bogus"}, {"limit": 0}, {"limit": -1}, {"limit": "x"}], ids=str)
async def test_bad_pages_are_bad_input(harness: Harness, options: dict[str, Any]) -> None:
    limiter = await new_limiter(harness)
    await limiter.set_limits("key", [Limit.per_hour("rph", 10)])
    with pytest.raises(ValidationError):
        await limiter.list_entities_with_custom_limits(**options)


@pytest.mark.parametrize(
    "metadata",
    [{"a": "\ud800"}, {"\ud800": 1}, {"a": {1: 2}}, {"a": float("nan")}],
    ids=["lone surrogate", "lone surrogate in a name", "number as a name", "not a number"],
)
async def test_metadata_no_store_can_hold_are_bad_input(harness: Harness, metadata: dict[str, Any]) -> None:
    limiter = await new_limiter(harness)
    with pytest.raises(ValidationError):
        await limiter.create_entity("key", metadata=metadata)


async def test_metadata_come_back_the_same_from_every_store(harness: Harness) -> None:
    limiter = await new_limiter(harness)
    await limiter.create_entity("tuple", metadata={"a": (1, 2)})
    found = await limiter.get_entity("tuple")
    assert found is not None
    assert found.metadata == {"a": [1, 2]}


async def test_a_failed_give_back_does_not_keep_the_others(harness: Harness) -> None:
    """Without free atomic commits: two levels committed, the third refused, and one of the give-backs fails."""
    keeper = await new_limiter(harness)
    await keeper.set_system_defaults([Limit.per_hour("rph", 10)])
    above: str | None = None
    for who in ("org", "project", "key"):
        await keeper.create_entity(who, parent_id=above, cascade=True)
        above = who
    store = FaultyStore(harness.store(), free_atomic_commit=False)
    limiter = harness.limiter(harness.repository(store, namespace=keeper.repository.namespace))
    await take(limiter, "key", "r", [{"rph": 1}])
    await take(keeper, "org", "r", [{"rph": 9}])
    store.inject(Fault.DELAY, verb="commit", times=3)
    store.inject(Fault.FAIL_BEFORE, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await take(limiter, "key", "r", [{"rph": 1}])
    left = {row.entity_id: row.available for row in await keeper.get_status("key", "r")}
    assert sorted([left["key"], left["project"]]) == [8, 9], "one fails, and the other one has gone back"


async def test_all_that_a_floor_leaves_is_granted_beside_others(harness: Harness) -> None:
    """50 of 100 above a floor of 50, of a bucket that others write and that is full again since a moment."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit("tpm", 100, 1_000, 1, floors=(("batch", 0.5),))])
    other = beside(harness, limiter)
    await take(limiter, "key", "r", [{"tpm": 1}])
    harness.clock.advance(1)
    await take(limiter, "key", "r", [{"tpm": 1}])
    await take(other, "key", "r", [{"tpm": 20}])
    for wait_ms, is_granted in ((1, False), (20, True), (0, False)):
        harness.clock.advance_ms(wait_ms)
        try:
            async with limiter.acquire("key", "r", {"tpm": 50}, priority="batch"):
                assert is_granted
        except RateLimitExceeded:
            assert not is_granted
