"""Whole numbers: whatever has ``__index__`` is one and is kept as a plain int, and an error names what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zae_limiter import Limit, RateLimiter, StackOptions, ValidationError
from zae_limiter.core.addresses import prefix_length
from zae_limiter.core.limit import seconds
from zae_limiter.kv import DictRepository, RateLimitPolicy, TokenBucket
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness
from zae_limiter.web import Fields, Proxies, Rule

RPM = [Limit.per_minute("rpm", 100)]


class Whole:
    """A whole number that is no int, as an integer of numpy: it has ``__index__`` and nothing else."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


def whole(number: int) -> Any:
    """Typed as callers have it who use numpy without its types."""
    return Whole(number)


def test_a_limit_of_such_numbers_is_a_limit_of_plain_ints() -> None:
    made = Limit("rpm", whole(150), whole(100), whole(60))
    assert made == Limit("rpm", 150, 100, 60)
    assert {type(value) for value in (made.capacity, made.refill_amount, made.refill_period_seconds)} == {int}
    assert Limit.per_hour("rpm", whole(5), whole(7)) == Limit.per_hour("rpm", 5, 7)
    assert Limit.from_dict({**made.to_dict(), "capacity": whole(150)}) == made


async def test_amounts_and_stored_numbers(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit("rpm", whole(100), whole(100), whole(60))])
    await limiter.create_entity("key-1", metadata={"seats": whole(3), "of": [whole(4), True, None]})
    async with limiter.acquire("key-1", "gpt-4", {"rpm": whole(10)}, max_wait=whole(1)) as lease:
        await lease.consume(rpm=whole(5))
        await lease.adjust({"rpm": whole(-2)})
        await lease.release(rpm=whole(1))
        assert lease.consumed == {"rpm": 12}
    assert await limiter.available("key-1", "gpt-4") == {"rpm": 88}
    entity = await limiter.get_entity("key-1")
    assert entity is not None
    assert entity.metadata == {"seats": 3, "of": [4, True, None]}
    limits, _ = await limiter.get_system_defaults()
    assert [type(limit.capacity) for limit in limits or ()] == [int]
    changed = await limiter.update_entity("key-1", name="one", expected_version=whole(entity.version))
    assert changed.name == "one"


async def test_lengths_of_time(harness: Harness) -> None:
    repository = harness.repository(config_cache_ttl=whole(60), timeout=whole(30))
    limiter = harness.limiter(repository, refusal_ttl=whole(1), timeout=whole(30))
    async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM, timeout=whole(30)) as lease:
        assert lease.available == {"rpm": 99}


async def test_page_sizes(harness: Harness) -> None:
    limiter = harness.limiter(bucket_ttl_refill_multiplier=whole(7))
    await limiter.set_limits("a", RPM)
    await limiter.set_limits("b", RPM)
    assert (await limiter.list_entities_with_custom_limits(limit=whole(1)))[0] == ["a"]
    assert len(await limiter.get_audit_events("a", limit=whole(1))) == 1
    assert await limiter.get_usage_snapshots("a", limit=whole(1)) == ([], None)
    survey = await limiter.repository.survey_buckets(max_records=whole(10))
    assert survey.busiest(whole(1)) == []


MADE: dict[str, tuple[Callable[[], Any], Any]] = {
    "key-value policy": (lambda: RateLimitPolicy(whole(10), whole(12)).bucket_capacity, 12),
    "refill time": (lambda: RateLimitPolicy(10, 10).calculate_refill_time(whole(1)), 6_000),
    "key-value bucket": (lambda: TokenBucket(whole(3), whole(0), whole(5)).tokens, 3),
    "ttl": (lambda: DictRepository(whole(60)).ttl_seconds, 60),
    "most entries": (lambda: DictRepository(60, None, whole(9)).max_entries, 9),
    "most buckets": (lambda: MemoryStore(max_buckets=whole(9)).max_buckets, 9),
    "days of usage": (lambda: MemoryStore(usage_retention_days=whole(9)).capabilities.usage_retention_days, 9),
    "prefix": (lambda: prefix_length(whole(56)), 56),
    "hops": (lambda: Proxies(whole(2)).trusted, 2),
    "jitter": (lambda: Fields(jitter_seconds=whole(3)).jitter_seconds, 3),
    "cost of a rule": (lambda: Rule("/a", cost=whole(3), limits=RPM).cost, 3),
    "option of a stack": (lambda: StackOptions(lambda_memory=whole(512)).lambda_memory, 512),
    "length of time": (lambda: seconds("timeout", whole(3), zero=False), 3),
}


@pytest.mark.parametrize("name", MADE)
def test_kept_as_a_plain_int(name: str) -> None:
    make, wanted = MADE[name]
    made = make()
    assert type(made) is int
    assert made == wanted


def test_options_of_a_stack_are_checked_by_their_value() -> None:
    StackOptions(lambda_memory=whole(512), log_retention_days=whole(30)).check_stack_name("my-app")
    with pytest.raises(ValidationError, match="from 128 to 10240"):
        StackOptions(lambda_memory=whole(1))


def test_amounts_of_a_rule_by_limit() -> None:
    assert Rule("/a", cost={"rpm": whole(3)}, limits=RPM).cost == {"rpm": 3}
    assert Rule("/a", refund=[whole(502)]).refund == (502,)


WRONG: dict[str, tuple[Callable[[RateLimiter, Any], Any], Any]] = {
    "limit = '2': must be a whole number of entities, not str": (
        lambda limiter, bad: limiter.list_entities_with_custom_limits(limit=bad),
        "2",
    ),
    "limit = 2.5: must be a whole number of events, not float": (
        lambda limiter, bad: limiter.get_audit_events("a", limit=bad),
        2.5,
    ),
    "limit = '9': must be a whole number of windows, not str": (
        lambda limiter, bad: limiter.get_usage_snapshots("a", limit=bad),
        "9",
    ),
    "max_records = True: must be a whole number of records, not bool": (
        lambda limiter, bad: limiter.repository.survey_buckets(None, bad),
        True,
    ),
    "consume['rpm'] = 0.5: must be a whole number of tokens, not float": (
        lambda limiter, bad: limiter.acquire("a", "b", {"rpm": bad}),
        0.5,
    ),
    "expected_version = 1.0: must be a whole number, not float": (
        lambda limiter, bad: limiter.update_entity("a", expected_version=bad),
        1.0,
    ),
    "refill_period_seconds = 1.5: must be a whole number of seconds, not float": (
        lambda _, bad: Limit("rpm", 1, 1, bad),
        1.5,
    ),
    "capacity = None: must be a whole number of tokens, not NoneType": (lambda _, bad: Limit("rpm", bad, 1, 1), None),
    "refill_amount = True: must be a whole number of tokens, not bool": (lambda _, bad: Limit("rpm", 1, bad, 1), True),
    "requests_per_minute = 1.5: must be a whole number of requests, not float": (
        lambda _, bad: RateLimitPolicy(bad, 2),
        1.5,
    ),
    "timeout = '3': must be a number of seconds, not str": (lambda _, bad: RateLimiter("memory://", timeout=bad), "3"),
}


@pytest.mark.parametrize("message", WRONG)
def test_an_error_names_the_field_and_what_it_counts(message: str) -> None:
    work, bad = WRONG[message]
    limiter = Harness(lambda clock, blocking: MemoryStore(clock), blocking=True).limiter()
    with pytest.raises(ValidationError) as caught:
        run(work(limiter, bad))
    assert str(caught.value) == message


def test_bounds_hold_for_such_numbers() -> None:
    with pytest.raises(ValidationError, match="must be between 1 and"):
        Limit("rpm", whole(0), 1, 1)
