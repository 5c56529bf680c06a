"""What comes in between while a lease is settled: other tasks, other threads, damage."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from zae_limiter import CorruptRecordError, Limit, RateLimiter, RateLimiterUnavailable, SyncRateLimiter
from zae_limiter.limiter.lease_core import LeaseCore
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from zae_limiter.records.algebra import Committed, Conflict, Write

TPM = [Limit.per_day("tpm", 10_000)]


class Interrupted(FaultyStore):
    """A store after one of whose commits something else happens, before its caller hears of it."""

    interruption: tuple[str, Callable[[], Awaitable[None]]] | None = None
    """A part of the key that the only write of the commit must have, and what happens then."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit(writes, timeout=timeout)
        if self.interruption is not None and len(writes) == 1 and self.interruption[0] in writes[0].key.pk:
            (_, happen), self.interruption = self.interruption, None
            await happen()
        return outcome

    @property
    def has_happened(self) -> bool:
        """Whether nothing is planned any more."""
        return self.interruption is None


async def test_a_bucket_that_is_made_anew_while_another_level_settles_is_charged() -> None:
    store = Interrupted(MemoryStore(ManualClock()), suspend=True)
    limiter = RateLimiter(store)
    await limiter.set_system_defaults(TPM)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)

    async def acquire_again() -> None:
        async with limiter.acquire("key", "gpt-4", {"tpm": 1}):
            pass

    async with limiter.acquire("key", "gpt-4", {"tpm": 10}) as lease:
        key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
        await store.commit([Write(key, delete=True)])
        limiter._backend.last_seen.forget(key)
        await lease.adjust(tpm=1_000)
        store.interruption = ("#org#", acquire_again)
    assert store.has_happened
    found = {each.entity_id: each.available for each in await limiter.get_status("key", "gpt-4")}
    assert found == {"key": 10_000 - 1 - 1_000, "org": 10_000 - 10 - 1_000 - 1}


async def test_a_bucket_that_is_damaged_while_a_lease_is_open_is_told_as_such() -> None:
    store = MemoryStore(ManualClock())
    limiter = RateLimiter(store)
    await limiter.set_system_defaults(TPM)
    lease = limiter.acquire("key", "gpt-4", {"tpm": 10})
    await lease.enter()
    (pk,) = [name for name in store.images if "BUCKET#key" in str(name)]
    store.images[pk] = {**store.images[pk], "b_tpm_tk": "x"}
    await lease.adjust(tpm=5)
    with pytest.raises(CorruptRecordError):
        await lease.exit()
    with pytest.raises(CorruptRecordError):
        await limiter.acquire("key", "gpt-4", {"tpm": 1}).enter()
    await limiter.reset_bucket("key", "gpt-4")
    async with limiter.acquire("key", "gpt-4", {"tpm": 1}) as fresh:
        assert fresh.available == {"tpm": 9_999}


async def test_tokens_of_a_cancelled_call_that_cannot_be_returned_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    limiter = RateLimiter(store)
    await limiter.set_system_defaults(TPM)
    lease = limiter.acquire("key", "gpt-4", {"tpm": 10})
    await lease.enter()
    assert lease._grant is not None
    store.inject(Fault.FAIL_BEFORE, verb="commit")
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        await limiter._engine._return_orphaned([lease._grant], await limiter._deadline())
    (lost,) = [record for record in caplog.records if getattr(record, "zae_event", "") == "lease.return_lost"]
    told: Any = lost
    assert (told.zae_entity_id, told.zae_resource, told.zae_tokens) == ("key", "gpt-4", {"tpm": -10})


class NeverPutsOff(FaultyStore):
    """A store that fails when it is only to put an expiry off."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if not (writes[0].put or writes[0].add):
            self.calls["put off"] += 1
            raise RateLimiterUnavailable("down")
        return await super().commit(writes, timeout=timeout)


async def test_a_settlement_stands_although_the_expiry_of_its_bucket_cannot_be_put_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = MemoryStore(ManualClock())
    store = NeverPutsOff(shared, suspend=True)
    ours, theirs = RateLimiter(store), RateLimiter(FaultyStore(shared, suspend=True))
    await ours.set_system_defaults([Limit.per_second("tpm", 1, burst=100)])
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        async with ours.acquire("key", "gpt-4", {"tpm": 1}) as mine:
            async with theirs.acquire("key", "gpt-4", {"tpm": 1}) as other:
                await other.adjust(tpm=100_000_000)
            await mine.adjust(tpm=100_000_000)
    assert store.calls["put off"] == 1
    assert not caplog.records
    assert await ours.available("key", "gpt-4") == {"tpm": 100 - 200_000_002}


def test_corrections_of_two_threads_after_the_end_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = SyncRateLimiter(MemoryStore(ManualClock()))
    limiter.set_system_defaults(TPM)
    lease = limiter.acquire("key", "gpt-4", {"tpm": 10})
    lease.enter()
    lease.exit(final=False)
    plain, others = LeaseCore._collect, [3]

    def collect_then_yield(self: LeaseCore, amounts: Mapping[str, int]) -> None:
        plain(self, amounts)
        if others:
            lease.adjust(tpm=others.pop())  # as another thread would, before this one goes on

    monkeypatch.setattr(LeaseCore, "_collect", collect_then_yield)
    lease.adjust(tpm=5)
    assert lease.consumed == {"tpm": 18}
    assert limiter.available("key", "gpt-4") == {"tpm": 10_000 - 18}


async def test_a_lease_that_was_checked_during_an_outage_is_not_degraded_once_it_is_granted() -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    limiter = RateLimiter(store, on_unavailable="allow")
    await limiter.set_system_defaults(TPM)
    lease = limiter.acquire("key", "gpt-4", {"tpm": 10})
    store.inject(Fault.FAIL_BEFORE, times=2)
    await lease.check()
    assert lease.degraded
    store.heal()
    await lease.enter()
    granted: bool = not lease.degraded
    assert granted
    await lease.exit()


def test_a_name_that_is_no_limit_is_an_error_also_where_another_limit_refuses() -> None:
    limiter = SyncRateLimiter(MemoryStore(ManualClock()))
    limiter.set_system_defaults(TPM)
    with limiter.acquire("key", "gpt-4", {"tpm": 1}):
        pass
    for cost in ({"tpm": 10_001, "typo": 1}, {"typo": 1, "tpm": 10_001}):
        with pytest.raises(ValueError, match="typo"):
            limiter.acquire("key", "gpt-4", cost).enter()


def test_a_clock_at_the_epoch_limits_too() -> None:
    limiter = SyncRateLimiter(MemoryStore(ManualClock(0)))
    limiter.set_limits("key", TPM)
    for _ in range(2):
        with limiter.acquire("key", "gpt-4", {"tpm": 4_000}) as lease:
            left = lease.available
    assert left == {"tpm": 2_000}
