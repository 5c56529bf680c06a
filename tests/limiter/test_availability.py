"""A store that hangs, where calls may go on without it: it costs one caller its deadline, not every one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from zae_limiter import (
    AccessDeniedError,
    CapacityExceeded,
    Lease,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.limiter.availability import RETRY_SECONDS
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.testing import Fault, FaultyStore, Harness

RPM = [Limit.per_hour("rpm", 100)]
TIMEOUT = 2.0


class Hanging:
    """A limiter that goes on without its store, and the store, which can be made to hang."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.harness = harness
        self.clock = harness.clock
        self.store = FaultyStore(harness.store())
        self.limiter: RateLimiter = harness.limiter(
            self.store, **{"on_unavailable": "allow", "timeout": TIMEOUT, **options}
        )

    async def prepare(self) -> None:
        assert await self.take(timeout=60) == "granted"

    def hang(self) -> None:
        self.store.inject(Fault.DELAY, times=10_000, seconds=3_600)

    async def take(self, entity: str = "key", amount: int = 1, **options: Any) -> str:
        """``granted``, ``degraded``, ``refused`` or ``unavailable``."""
        try:
            async with self.limiter.acquire(entity, "gpt-4", {"rpm": amount}, RPM, **options) as lease:
                return "degraded" if lease.degraded else "granted"
        except RateLimitExceeded:
            return "refused"
        except AccessDeniedError:
            raise
        except RateLimiterUnavailable:
            return "unavailable"

    async def timed(self, **options: Any) -> tuple[str, float, int]:
        """What becomes of an acquire, how many seconds it takes, and how often the store is asked."""
        started_ms, asked = self.clock.now_ms(), self.store.calls.total()
        outcome = await self.take(**options)
        return outcome, (self.clock.now_ms() - started_ms) / 1000, self.store.calls.total() - asked


async def test_a_store_that_hangs_costs_one_deadline_per_interval(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    scene.hang()
    assert await scene.timed() == ("degraded", TIMEOUT, 1)
    for _ in range(3):
        for entity in ("key", "other", "key"):
            assert await scene.timed(entity=entity) == ("degraded", 0.0, 0)
        scene.clock.advance(RETRY_SECONDS)
        assert await scene.timed() == ("degraded", TIMEOUT, 1), "one caller tries"


async def test_the_first_answer_brings_the_limits_back_by_itself(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    scene.hang()
    assert await scene.take() == "degraded"
    scene.store.heal()
    assert await scene.take() == "degraded", "not asked yet"
    scene.clock.advance(RETRY_SECONDS)
    for _ in range(3):
        assert await scene.take() == "granted"
    assert (await harness.limiter().available("key", "gpt-4", RPM))["rpm"] == 96


async def test_it_is_told_once_that_a_store_hangs_and_once_that_it_answers(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "zae_limiter"):
        scene = Hanging(harness)
        await scene.prepare()
        scene.hang()
        for _ in range(3):
            await scene.take()
            await scene.take()
            scene.clock.advance(RETRY_SECONDS)
        scene.store.heal()
        await scene.take()
        await scene.take()
    told = [(record.zae_event, record.levelname) for record in caplog.records]  # type: ignore[attr-defined]
    assert told == [
        ("store.unavailable", "WARNING"),
        ("breaker.opened", "WARNING"),
        ("store.available", "INFO"),
        ("breaker.closed", "INFO"),
    ]


async def test_who_would_not_go_on_without_the_store_asks_it(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    scene.hang()
    assert await scene.take() == "degraded"
    assert await scene.timed(on_unavailable="block") == ("unavailable", TIMEOUT, 1)
    scene.store.heal()
    assert await scene.timed(on_unavailable="block") == ("granted", 0.0, 1)
    assert await scene.take() == "granted", "the store answers: everybody asks it"


async def test_under_block_nobody_is_spared(harness: Harness) -> None:
    scene = Hanging(harness, on_unavailable="block")
    await scene.prepare()
    scene.hang()
    for _ in range(3):
        assert await scene.timed() == ("unavailable", TIMEOUT, 1)


async def test_a_store_that_fails_at_once_is_asked_every_time(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    scene.store.inject(Fault.FAIL_BEFORE, times=5)
    for _ in range(5):
        assert await scene.timed() == ("degraded", 0.0, 1)
    assert await scene.take() == "granted"


async def test_one_key_that_hangs_switches_no_other_limit_off(harness: Harness) -> None:
    """The store answers others meanwhile: it does not hang."""
    scene = Hanging(harness)
    await scene.prepare()
    inner = scene.store.commit

    async def commit(writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if any("hot" in write.key.pk for write in writes):
            assert await scene.take("calm") == "granted"
            await scene.clock.pause(timeout or 0)
            raise RateLimiterUnavailable("throttled")
        return await inner(writes, timeout=timeout)

    scene.store.commit = commit  # type: ignore[method-assign]  # only one key hangs
    assert await scene.take("hot") == "degraded"
    assert await scene.take() == "granted"


async def test_a_refusal_that_is_known_stands_while_the_store_hangs(harness: Harness) -> None:
    scene = Hanging(harness, refusal_ttl=60)
    assert await scene.take(amount=100, timeout=60) == "granted"
    assert await scene.take() == "refused"
    scene.hang()
    assert await scene.take("other") == "degraded"
    assert await scene.timed() == ("refused", 0.0, 0)


async def test_what_can_never_fit_and_what_is_wrong_is_refused_while_the_store_hangs(harness: Harness) -> None:
    scene = Hanging(harness, refusal_ttl=0)
    await scene.prepare()
    scene.hang()
    assert await scene.take() == "degraded"
    with pytest.raises(CapacityExceeded):
        await scene.limiter.acquire("key", "gpt-4", {"rpm": 101}, RPM).__aenter__()
    with pytest.raises(ValidationError):
        await scene.limiter.acquire("key", "gpt-4", {"tpm": 1}, RPM).__aenter__()


async def test_who_would_wait_longer_than_anybody_has_asks(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    scene.store.inject(Fault.DELAY, seconds=0.2)
    assert await scene.timed(timeout=0.1) == ("degraded", 0.1, 1)
    assert await scene.timed(timeout=0.1) == ("degraded", 0.0, 0)
    assert await scene.take() == "granted", "an impatient caller speaks for no other"


async def test_more_of_a_lease_is_not_waited_for_either(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    async with scene.limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
        scene.hang()
        assert await scene.take() == "degraded"
        started_ms = scene.clock.now_ms()
        await lease.consume(rpm=1)
        assert lease.degraded
        assert scene.clock.now_ms() == started_ms
        scene.store.heal()


LOST = ("lease.settlement_lost", "lease.return_lost")


def _told(caplog: pytest.LogCaptureFixture, *events: str) -> int:
    """How often one of these events was logged."""
    return sum(record.zae_event in events for record in caplog.records)  # type: ignore[attr-defined]


async def _open_leases(scene: Hanging, count: int, **options: Any) -> list[Lease]:
    leases = []
    for number in range(count):
        lease = scene.limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 2}, RPM, **options)
        leases.append(await lease.__aenter__())
    return leases


async def _end(leases: Sequence[Lease], *, failed: bool) -> None:
    """End each of them with something to write: a correction, or what goes back after an exception."""
    for lease in leases:
        if failed:
            await lease.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        else:
            await lease.adjust(rpm=1)
            await lease.__aexit__(None, None, None)


@pytest.mark.parametrize("failed", [False, True], ids=["settling", "giving back"])
async def test_many_settlements_with_a_store_that_hangs_cost_one_deadline(
    harness: Harness, caplog: pytest.LogCaptureFixture, *, failed: bool
) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    leases = await _open_leases(scene, 5)
    scene.hang()
    started_ms, asked = scene.clock.now_ms(), scene.store.calls.total()
    await _end(leases, failed=failed)
    assert scene.clock.now_ms() - started_ms == TIMEOUT * 1000
    assert scene.store.calls.total() - asked == 1
    assert _told(caplog, *LOST) == 5, "each that is lost is told of"
    assert _told(caplog, "breaker.opened") == 1
    assert await scene.timed() == ("degraded", 0.0, 0), "it has opened the breaker for all"


@pytest.mark.parametrize("failed", [False, True], ids=["settling", "giving back"])
async def test_a_settlement_may_be_the_one_that_tries_again(
    harness: Harness, caplog: pytest.LogCaptureFixture, *, failed: bool
) -> None:
    with caplog.at_level(logging.INFO, "zae_limiter"):
        scene = Hanging(harness)
        await scene.prepare()
        leases = await _open_leases(scene, 3)
        scene.hang()
        assert await scene.take() == "degraded"
        scene.store.heal()
        await _end(leases[:1], failed=failed)
        assert _told(caplog, *LOST) == 1, "not asked yet"
        scene.clock.advance(RETRY_SECONDS)
        await _end(leases[1:], failed=failed)
        assert _told(caplog, *LOST) == 1
        assert _told(caplog, "breaker.closed") == 1
        left = [(await harness.limiter().available(f"key-{number}", "gpt-4", RPM))["rpm"] for number in range(3)]
        assert left == ([98, 100, 100] if failed else [98, 97, 97])


@pytest.mark.parametrize("failed", [False, True], ids=["settling", "giving back"])
async def test_under_block_every_settlement_is_tried(harness: Harness, *, failed: bool) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    leases = await _open_leases(scene, 2, on_unavailable="block")
    scene.hang()
    assert await scene.take() == "degraded"
    for lease in leases:
        asked = scene.store.calls.total()
        with contextlib.nullcontext() if failed else pytest.raises(RateLimiterUnavailable):
            await _end([lease], failed=failed)
        assert scene.store.calls.total() - asked == 1


async def test_a_lease_that_gives_nothing_back_says_nothing_of_the_store(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()
    scene.hang()
    with pytest.raises(ZeroDivisionError):
        async with scene.limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
            assert lease.degraded
            raise ZeroDivisionError
    assert await scene.timed() == ("degraded", 0.0, 0)


async def test_missing_rights_open_nothing(harness: Harness) -> None:
    scene = Hanging(harness)
    await scene.prepare()

    async def commit(writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        await scene.clock.pause(TIMEOUT)
        raise AccessDeniedError("not yours")

    kept, scene.store.commit = scene.store.commit, commit  # type: ignore[method-assign]  # what is tested
    with pytest.raises(AccessDeniedError):
        await scene.take()
    assert not scene.limiter._availability.is_open
    scene.store.commit = kept  # type: ignore[method-assign]  # as it was
    assert await scene.take() == "granted"
