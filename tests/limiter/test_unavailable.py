"""The store fails, hangs or loses its answer: what an acquire does then, and that nothing is charged twice."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from zae_limiter import (
    LeaseExpiredError,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.testing import Fault, FaultyStore, Harness

RPM = [Limit.per_hour("rpm", 100)]
LOGGER = "zae_limiter"


class Shaky:
    """A limiter whose store can be made to fail, and a second client that sees what really happened."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.harness = harness
        self.store = FaultyStore(harness.store())
        self.limiter = harness.limiter(self.store, **options)

    async def take(self, amount: int = 1, **options: Any) -> str:
        """``granted``, ``refused``, ``degraded`` or ``unavailable``."""
        try:
            async with self.limiter.acquire("key", "gpt-4", {"rpm": amount}, **options) as lease:
                return "degraded" if lease.degraded else "granted"
        except RateLimitExceeded:
            return "refused"
        except RateLimiterUnavailable:
            return "unavailable"

    def fail(self, times: int = 1, verb: str | None = None) -> None:
        self.store.inject(Fault.FAIL_BEFORE, verb=verb, times=times)

    async def left(self) -> int:
        return (await self.harness.limiter().available("key", "gpt-4", RPM))["rpm"]


@pytest.mark.parametrize(
    ("system", "limiter", "call", "outcome"),
    [
        (None, None, None, "unavailable"),
        ("allow", None, None, "degraded"),
        ("block", None, None, "unavailable"),
        ("allow", "block", None, "unavailable"),
        ("block", "allow", None, "degraded"),
        (None, "allow", None, "degraded"),
        ("allow", "allow", "block", "unavailable"),
        ("block", "block", "allow", "degraded"),
        (None, None, "allow", "degraded"),
    ],
)
async def test_the_call_goes_before_the_limiter_before_the_system(
    harness: Harness, system: str | None, limiter: str | None, call: str | None, outcome: str
) -> None:
    shaky = Shaky(harness, on_unavailable=limiter)
    await shaky.limiter.set_system_defaults(RPM, system)
    assert await shaky.take() == "granted"
    shaky.fail()
    assert await shaky.take(on_unavailable=call) == outcome
    assert await shaky.take(on_unavailable=call) == "granted"
    assert await shaky.left() == 98


async def test_the_policy_holds_from_the_very_first_call(harness: Harness) -> None:
    for policy, outcome in (("allow", "degraded"), ("block", "unavailable")):
        shaky = Shaky(harness)
        shaky.fail(times=10)
        assert await shaky.take(limits=RPM, on_unavailable=policy) == outcome


async def test_the_error_says_who_what_and_why(harness: Harness) -> None:
    shaky = Shaky(harness)
    shaky.fail(times=10)
    with pytest.raises(RateLimiterUnavailable, match="cannot be reached") as caught:
        async with shaky.limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM):
            pass
    assert (caught.value.entity_id, caught.value.resource) == ("key", "gpt-4")
    assert not isinstance(caught.value, RateLimitExceeded)


async def test_the_error_names_the_stack_of_the_store(harness: Harness) -> None:
    shaky = Shaky(harness)
    shaky.store.stack_name = "my-app"  # type: ignore[attr-defined]  # as a store that was deployed has it
    await shaky.limiter.set_system_defaults(RPM)
    shaky.fail(times=2)
    with pytest.raises(RateLimiterUnavailable) as told:
        await shaky.limiter.acquire("key", "gpt-4", {"rpm": 1}).enter()
    assert told.value.stack_name == "my-app"


async def test_a_degraded_lease_works_like_one_and_charges_nothing(harness: Harness) -> None:
    shaky = Shaky(harness, on_unavailable="allow")
    assert await shaky.take(limits=RPM) == "granted"
    shaky.fail()
    async with shaky.limiter.acquire("key", "gpt-4", {"rpm": 5}, RPM) as lease:
        assert lease.degraded
        assert (lease.available, lease.limits) == ({}, ())
        await lease.consume(rpm=2)
        await lease.adjust(rpm=3)
        await lease.release(rpm=1)
        with pytest.raises(ValidationError):
            await lease.adjust(rpm=0.5)  # type: ignore[arg-type]  # what is tested
        assert lease.consumed == {"rpm": 9}
    with pytest.raises(LeaseExpiredError):
        await lease.adjust(rpm=1)
    assert await shaky.left() == 99


async def test_a_refusal_is_never_answered_by_the_policy(harness: Harness) -> None:
    shaky = Shaky(harness, on_unavailable="allow", refusal_ttl=0)
    await shaky.limiter.set_system_defaults(RPM)
    assert await shaky.take(100) == "granted"
    assert await shaky.take() == "refused"
    with pytest.raises(ValidationError):
        await shaky.take(limits=[])


@pytest.mark.parametrize("policy", ["allow", "block"])
async def test_a_settlement_that_fails_leaves_the_estimate_charged(
    harness: Harness, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    shaky = Shaky(harness, on_unavailable=policy)

    async def body() -> None:
        async with shaky.limiter.acquire("key", "gpt-4", {"rpm": 10}, RPM) as lease:
            await lease.adjust(rpm=20)
            shaky.fail(verb="commit")

    with caplog.at_level(logging.WARNING, LOGGER):
        if policy == "block":
            with pytest.raises(RateLimiterUnavailable):
                await body()
        else:
            await body()
    assert any("settlement" in record.getMessage() for record in caplog.records)
    assert await shaky.left() == 90


@pytest.mark.parametrize("policy", ["allow", "block"])
async def test_more_tokens_in_the_body_follow_the_policy_too(harness: Harness, policy: str) -> None:
    shaky = Shaky(harness, on_unavailable=policy)
    async with shaky.limiter.acquire("key", "gpt-4", {"rpm": 10}, RPM) as lease:
        shaky.fail()
        if policy == "block":
            with pytest.raises(RateLimiterUnavailable):
                await lease.consume(rpm=5)
            assert lease.consumed == {"rpm": 10}
        else:
            await lease.consume(rpm=5)
            assert lease.consumed == {"rpm": 15}


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.FAIL_AFTER])
@pytest.mark.parametrize("policy", ["allow", "block"])
async def test_a_lost_answer_is_charged_once_and_never_tried_again(harness: Harness, policy: str, fault: Fault) -> None:
    shaky = Shaky(harness, timeout=0.5)
    assert await shaky.take(limits=RPM) == "granted"
    before = shaky.store.calls.total()
    shaky.store.inject(fault, verb="commit")
    outcome = await shaky.take(10, limits=RPM, on_unavailable=policy)
    assert outcome == {"allow": "degraded", "block": "unavailable"}[policy]
    assert shaky.store.calls.total() == before + 1, "no second try"
    assert await shaky.left() == 89, "charged once, on the safe side"


async def test_a_settlement_whose_answer_is_lost_is_written_once(harness: Harness) -> None:
    shaky = Shaky(harness, on_unavailable="allow", timeout=0.5)
    async with shaky.limiter.acquire("key", "gpt-4", {"rpm": 10}, RPM) as lease:
        await lease.adjust(rpm=20)
        shaky.store.inject(Fault.DROP_ANSWER, verb="commit")
    assert await shaky.left() == 70


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.FAIL_AFTER, Fault.FAIL_BEFORE])
async def test_a_cascade_without_atomic_commits_gives_back_what_it_knows_of(harness: Harness, fault: Fault) -> None:
    store = FaultyStore(harness.store(), free_atomic_commit=False)
    repository = harness.repository(store)
    await repository.set_system_defaults(RPM)
    await repository.create_entity("org")
    await repository.create_entity("key", parent_id="org", cascade=True)
    limiter: RateLimiter = harness.limiter(repository, timeout=0.5)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    store.inject(fault, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        async with limiter.acquire("key", "gpt-4", {"rpm": 10}):
            pass
    clean = harness.limiter()
    left = {entity: (await clean.get_status(entity, "gpt-4"))[0].available for entity in ("key", "org")}
    lost = 0 if fault is Fault.FAIL_BEFORE else 10
    assert sorted(left.values()) == [99 - lost, 99], "only the level nobody answered for"


@pytest.mark.parametrize("where", ["limiter", "repository", "call"])
@pytest.mark.parametrize("temperature", ["warm", "cold"])
async def test_a_slow_store_is_given_up_when_the_time_is_up(harness: Harness, where: str, temperature: str) -> None:
    store = FaultyStore(harness.store())
    repository = harness.repository(store, timeout=0.25 if where == "repository" else None)
    limiter: RateLimiter = harness.limiter(repository, timeout=0.25 if where == "limiter" else None)
    timeout = 0.25 if where == "call" else None
    await repository.ensure_infrastructure()
    if temperature == "warm":
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM):
            pass
    started = harness.clock.now_ms()
    store.inject(Fault.DELAY, seconds=10)
    with pytest.raises(RateLimiterUnavailable, match=r"0\.25 s"):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM, timeout=timeout):
            pass
    assert harness.clock.now_ms() - started == 250
    store.inject(Fault.DELAY, seconds=0.2)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM, timeout=timeout) as lease:
        assert not lease.degraded, "slow is not down"


async def test_one_log_line_per_change_of_state(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    shaky = Shaky(harness, on_unavailable="allow")
    await shaky.limiter.set_system_defaults(RPM)
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(2):
            assert await shaky.take() == "granted"
            shaky.fail(times=5)
            for _ in range(5):
                assert await shaky.take() == "degraded"
            for _ in range(3):
                assert await shaky.take() == "granted"
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO", "WARNING", "INFO"]
    assert "cannot be reached" in caplog.records[0].getMessage()


async def test_a_refusal_by_the_store_is_a_sign_of_life(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    shaky = Shaky(harness, refusal_ttl=0)
    await shaky.limiter.set_system_defaults(RPM)
    assert await shaky.take(100) == "granted"
    shaky.fail()
    with caplog.at_level(logging.INFO, LOGGER):
        assert await shaky.take() == "unavailable"
        assert await shaky.take() == "refused"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_looking_and_changing_say_that_they_could_not(harness: Harness) -> None:
    shaky = Shaky(harness, on_unavailable="allow")
    limiter = shaky.limiter
    await limiter.set_system_defaults(RPM)
    await shaky.take()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: limiter.available("key", "gpt-4"),
        lambda: limiter.get_status("key", "gpt-4"),
        lambda: limiter.get_buckets("key"),
        lambda: limiter.set_limits("key", RPM),
        lambda: limiter.create_entity("key"),
    ]
    for call in calls:
        shaky.store.heal()
        shaky.fail()
        with pytest.raises(RateLimiterUnavailable):
            await call()
    shaky.store.heal()
    shaky.fail()
    assert not await limiter.is_available()
    assert await limiter.is_available()
    shaky.fail()
    status = await limiter.repository.status()
    assert (status.available, status.latency_ms) == (False, None)
    assert (await limiter.repository.status()).available


async def test_a_lost_race_is_no_failure(harness: Harness) -> None:
    shaky = Shaky(harness)
    await shaky.limiter.set_system_defaults(RPM)
    assert await shaky.take() == "granted"
    shaky.store.inject(Fault.REFUSE, verb="commit", times=3)
    assert await shaky.take() == "granted"
    assert await shaky.left() == 98
