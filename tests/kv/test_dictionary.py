"""Buckets in a dictionary: they expire, there are never too many, and a flood does not wash out the empty ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kv.support import CLIENT, KEY
from zae_limiter import ValidationError
from zae_limiter.kv import DictRepository, RateLimitPolicy, SyncEnforceRateLimit, TokenBucket
from zae_limiter.runtime.blocking import run
from zae_limiter.testing import ManualClock


def bucket(tokens: int, clock: ManualClock) -> TokenBucket:
    return TokenBucket(tokens, clock.now_ms(), 10)


def test_what_was_saved_is_there_until_it_expires(clock: ManualClock) -> None:
    repository = DictRepository(clock=clock)
    kept = bucket(3, clock)
    run(repository.save(KEY, kept))
    clock.advance_ms(299_999)
    assert run(repository.get(KEY)) == kept
    clock.advance_ms(1)
    assert run(repository.get(KEY)) is None
    assert len(repository) == 0


def test_saving_again_begins_the_time_again(clock: ManualClock) -> None:
    repository = DictRepository(ttl_seconds=60, clock=clock)
    run(repository.save(KEY, bucket(3, clock)))
    clock.advance(50)
    run(repository.save(KEY, bucket(2, clock)))
    clock.advance(50)
    assert run(repository.get(KEY)) is not None


def test_a_clock_that_steps_back_does_not_make_buckets_expire_early(clock: ManualClock) -> None:
    repository = DictRepository(ttl_seconds=60, clock=clock)
    written = bucket(0, clock)
    clock.advance(-30)
    run(repository.save(KEY, written))
    clock.advance(89)
    assert run(repository.get(KEY)) == written


def test_expired_buckets_make_room_first(clock: ManualClock) -> None:
    repository = DictRepository(clock=clock, max_entries=100)
    for number in range(50):
        run(repository.save(f"old-{number}", bucket(0, clock)))
    clock.advance(300)
    for number in range(51):
        run(repository.save(f"new-{number}", bucket(9, clock)))
    assert len(repository) == 51
    assert repository.evicted == 0


def test_the_fullest_go_then_the_longest_untouched(clock: ManualClock) -> None:
    repository = DictRepository(clock=clock, max_entries=3)
    for name, tokens in (("empty", 0), ("older", 9), ("newer", 9), ("newest", 10)):
        run(repository.save(name, bucket(tokens, clock)))
        clock.advance_ms(1)
    assert [run(repository.get(name)) is None for name in ("empty", "older", "newer", "newest")] == [
        False,
        True,
        False,
        False,
    ]
    assert repository.evicted == 1


def test_a_flood_of_addresses_does_not_refill_an_empty_bucket(clock: ManualClock) -> None:
    repository = DictRepository(clock=clock, max_entries=100)
    check = SyncEnforceRateLimit(repository, clock=clock).check
    while check(CLIENT).allowed:
        pass
    for number in range(1_000):
        assert check(f"10.0.{number // 250}.{number % 250}").allowed
        assert len(repository) <= 100
    assert not check(CLIENT).allowed
    assert repository.evicted > 0


def test_even_one_entry_is_enough_to_limit_one_client(clock: ManualClock) -> None:
    check = SyncEnforceRateLimit(DictRepository(clock=clock, max_entries=1), RateLimitPolicy.create(1), clock).check
    assert check(CLIENT).allowed
    assert not check(CLIENT).allowed


def test_threads(clock: ManualClock) -> None:
    repository = DictRepository(clock=clock, max_entries=64)
    check = SyncEnforceRateLimit(repository, clock=clock).check

    def work(thread: int) -> int:
        return sum(check(f"10.0.{thread}.{number % 100}").allowed for number in range(500))

    with ThreadPoolExecutor(8) as threads:
        assert all(granted > 0 for granted in threads.map(work, range(8)))
    assert len(repository) <= 64


@pytest.mark.parametrize("value", [0, -1, True, 1.5, None, "300"], ids=repr)
@pytest.mark.parametrize("option", ["ttl_seconds", "max_entries"])
def test_options_that_cannot_be(option: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=option):
        DictRepository(**{option: value})
