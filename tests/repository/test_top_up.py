"""`top_up` and `reset_bucket`: exactly once per key, audited, checked, and gone with the entity."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.acquiring import granted, take
from tests.support.meddler import Meddler
from zae_limiter import (
    BucketOperationResult,
    CorruptRecordError,
    Limit,
    RateLimiterUnavailable,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

if TYPE_CHECKING:
    from pathlib import Path

TPM = Limit.custom("tpm", capacity=100, refill_amount=1, refill_period_seconds=10**8)
RPM = Limit.custom("rpm", capacity=10, refill_amount=1, refill_period_seconds=10**8)


def moment(harness: Harness, seconds: float) -> datetime:
    return datetime.fromtimestamp(harness.clock.now_ms() / 1000 + seconds, UTC)


@pytest.mark.parametrize("fault", [Fault.FAIL_AFTER, Fault.DROP_ANSWER, Fault.FAIL_BEFORE])
async def test_a_retry_after_a_failure_returns_the_first_result(harness: Harness, fault: Fault) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([TPM])
    await take(limiter, {"tpm": 90})
    store.inject(fault, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await limiter.top_up("key", "gpt-4", {"tpm": 50}, idempotency_key="order-1", principal="ann")
    done = await limiter.top_up("key", "gpt-4", {"tpm": 50}, idempotency_key="order-1", principal="ann")
    assert done == BucketOperationResult("key", "gpt-4", 1, {"tpm": 50})
    assert await limiter.available("key", "gpt-4") == {"tpm": 60}
    store.inject(fault, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await limiter.reset_bucket("key", "gpt-4", ["tpm"], idempotency_key="order-2")
    await take(harness.limiter(), {"tpm": 10})
    await limiter.reset_bucket("key", "gpt-4", ["tpm"], idempotency_key="order-2")
    first = fault is not Fault.FAIL_BEFORE
    assert await limiter.available("key", "gpt-4") == {"tpm": 140 if first else 150}
    events = await limiter.get_audit_events("key")
    assert [(event.action, event.principal) for event in events] == [
        ("bucket_reset", None),
        ("bucket_topped_up", "ann"),
    ]


async def test_a_lost_race_against_the_same_key_returns_the_winners_result(harness: Harness) -> None:
    store = Meddler(harness.store())
    first, second = harness.limiter(store), harness.limiter()
    await second.set_system_defaults([TPM])
    store.before_commit = lambda: second.top_up("key", "gpt-4", {"tpm": 50}, idempotency_key="k")
    await first.top_up("key", "gpt-4", {"tpm": 50}, idempotency_key="k")
    assert await first.available("key", "gpt-4") == {"tpm": 150}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_threads_with_the_same_key_top_up_once(kind: str, tmp_path: Path) -> None:
    store: Any = MemoryStore(ManualClock()) if kind == "memory" else f"sqlite:///{tmp_path / 'limits.db'}"
    repositories = [SyncRepository(store) for _ in range(4)]
    repositories[0].set_system_defaults([TPM])

    def work(number: int) -> BucketOperationResult:
        key = f"order-{number % 3}"
        return repositories[number % 4].top_up("key", "gpt-4", {"tpm": 5}, idempotency_key=key)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(48)))
    assert {(done.shards, done.amounts["tpm"]) for done in results} == {(1, 5)}
    with SyncRateLimiter(repositories[0]) as limiter:
        assert limiter.available("key", "gpt-4") == {"tpm": 115}
    assert len(SyncRepository(store).get_audit_events("key")) == 3


async def test_a_key_is_remembered_for_three_days_and_then_forgotten(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    for wait, total in ((0, 110), (3 * 86_400, 110), (86_400, 120)):
        harness.clock.advance(wait)
        await limiter.top_up("key", "gpt-4", {"tpm": 10}, idempotency_key="k")
        assert await limiter.available("key", "gpt-4") == {"tpm": total}


async def test_lots_of_one_expiry_are_one(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM, RPM])
    soon, late = moment(harness, 60), moment(harness, 120)
    await take(limiter, {"tpm": 1})
    for expiry in (late, soon, None, soon.isoformat()):
        done = await limiter.top_up("key", "gpt-4", {"tpm": 10, "rpm": 1}, expires_at=expiry)
        assert (done.shards, dict(done.amounts)) == (1, {"tpm": 10, "rpm": 1})
    states = {state.limit_name: state for state in await limiter.get_buckets("key", "gpt-4")}
    ms = [round(each.timestamp() * 1000) for each in (soon, late)]
    found = [(lot.tokens_milli, lot.expires_ms) for lot in states["tpm"].credits]
    assert found == [(20_000, ms[0]), (10_000, ms[1]), (10_000, None)]


async def test_the_number_of_lots_is_bounded(harness: Harness) -> None:
    """Empty ones give way."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    for number in range(16):
        await limiter.top_up("key", "gpt-4", {"tpm": 1}, expires_at=moment(harness, 60 + number))
    with pytest.raises(ValidationError, match="has 16 lots with different expiries"):
        await limiter.top_up("key", "gpt-4", {"tpm": 1})
    await limiter.top_up("key", "gpt-4", {"tpm": 1}, expires_at=moment(harness, 60))
    assert await granted(limiter, {"tpm": 102})  # the first lot is empty
    await limiter.top_up("key", "gpt-4", {"tpm": 1})
    assert await limiter.available("key", "gpt-4") == {"tpm": 16}
    for amount in (10**12, 10**12):
        await limiter.top_up("other", "gpt-4", {"tpm": amount})
    with pytest.raises(
        ValidationError, match="a lot holds at most 2251799813685 tokens, and this one has 2000000000000"
    ):
        await limiter.top_up("other", "gpt-4", {"tpm": 10**12})
    harness.clock.advance(100)
    await limiter.top_up("key", "gpt-4", {"tpm": 1}, expires_at=moment(harness, 60))
    (state,) = await limiter.get_buckets("key", "gpt-4")
    assert len(state.credits) == 2


BAD: list[tuple[dict[str, Any], str]] = [
    ({"entity_id": ""}, "entity_id"),
    ({"resource": "a b"}, "resource"),
    ({"amounts": {}}, "must map limit names"),
    ({"amounts": ["tpm"]}, "must map limit names"),
    ({"amounts": {"tpm": 0}}, "between 1 and"),
    ({"amounts": {"tpm": 1.5}}, "whole number"),
    ({"amounts": {"wcu": 1}}, "reserved"),
    ({"expires_at": "tomorrow"}, "expires_at.*time zone"),
    ({"expires_at": datetime(2040, 1, 1)}, "expires_at.*time zone"),  # noqa: DTZ001  # that is the mistake
    ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "must be in the future"),
    ({"idempotency_key": ""}, "1 to 256"),
    ({"idempotency_key": "k" * 257}, "1 to 256"),
    ({"idempotency_key": 7}, "must be a string"),
    ({"principal": 7}, "principal"),
]


@pytest.mark.parametrize(("wrong", "reason"), BAD, ids=lambda each: str(each)[:40])
async def test_bad_input_is_an_error_before_any_call(harness: Harness, wrong: dict[str, Any], reason: str) -> None:
    store = FaultyStore(harness.store())
    repository = harness.repository(store)
    await repository.set_system_defaults([TPM])
    store.calls.clear()
    given = {"entity_id": "key", "resource": "gpt-4", "amounts": {"tpm": 1}} | wrong
    with pytest.raises(ValidationError, match=reason):
        await repository.top_up(**given)
    assert not store.calls


@pytest.mark.parametrize("limits", ["tpm", [], [""], ["wcu"], 7])
async def test_bad_names_of_limits_to_reset(harness: Harness, limits: Any) -> None:
    with pytest.raises(ValidationError):
        await harness.repository().reset_bucket("key", "gpt-4", limits)


async def test_a_limit_that_there_is_not_is_an_error(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM, RPM])
    with pytest.raises(ValidationError, match="no such limit; there are rpm, tpm"):
        await limiter.top_up("key", "gpt-4", {"tmp": 5})
    await take(limiter, {"tpm": 50})
    with pytest.raises(ValidationError, match="no such limit; there are rpm, tpm"):
        await limiter.reset_bucket("key", "gpt-4", ["tmp"])
    assert await limiter.available("key", "gpt-4") == {"tpm": 50, "rpm": 10}


async def test_limits_that_are_only_given_can_be_topped_up(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    assert await granted(limiter, {"tpm": 150}, limits=[TPM])
    assert not await granted(limiter, {"tpm": 1}, limits=[TPM])


async def test_a_reset_fills_the_limits_that_are_named(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM, RPM])
    async with limiter.acquire("key", "gpt-4", {"tpm": 80, "rpm": 8}) as lease:
        done = await harness.limiter().reset_bucket("key", "gpt-4", ["tpm"], "ann", "once")
        assert done == BucketOperationResult("key", "gpt-4", 1, {"tpm": 80})
        assert await limiter.available("key", "gpt-4") == {"tpm": 100, "rpm": 2}
        await take(harness.limiter(), {"tpm": 30})
        await lease.release(tpm=80, rpm=8)
    # A partial reset does not void open leases: 80 come back to 70, up to the capacity.
    assert await limiter.available("key", "gpt-4") == {"tpm": 100, "rpm": 10}
    assert await harness.limiter().reset_bucket("key", "gpt-4", ["tpm"], idempotency_key="once") == done
    assert await limiter.available("key", "gpt-4") == {"tpm": 100, "rpm": 10}
    (event,) = await limiter.get_audit_events("key")
    assert (event.action, event.principal, event.details) == ("bucket_reset", "ann", {"limit_names": ["tpm"]})


async def test_a_reset_forgives_debt(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 5})
    async with limiter.acquire("key", "gpt-4", {"tpm": 100}) as lease:
        await lease.adjust(tpm=400)
    assert await limiter.available("key", "gpt-4") == {"tpm": -395}
    assert (await limiter.reset_bucket("key", "gpt-4")).amounts == {"tpm": 500}
    assert await limiter.available("key", "gpt-4") == {"tpm": 105}


async def test_the_whole_reset_is_made_once_too(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    assert (await limiter.reset_bucket("nobody", "gpt-4")).amounts == {}
    await take(limiter, {"tpm": 60})
    done = await limiter.reset_bucket("key", "gpt-4", idempotency_key="k")
    assert done == BucketOperationResult("key", "gpt-4", 1, {"tpm": 60})
    await take(limiter, {"tpm": 20})
    assert await limiter.reset_bucket("key", "gpt-4", idempotency_key="k") == done
    assert await limiter.available("key", "gpt-4") == {"tpm": 80}
    assert len(await limiter.get_audit_events("key")) == 1


async def test_a_top_up_during_a_reset_is_not_lost(harness: Harness) -> None:
    store = Meddler(harness.store())
    limiter, other = harness.limiter(store), harness.limiter()
    await other.set_system_defaults([TPM])
    await take(limiter, {"tpm": 60})
    store.before_commit = lambda: other.top_up("key", "gpt-4", {"tpm": 50})
    await limiter.reset_bucket("key", "gpt-4")
    assert await other.available("key", "gpt-4") == {"tpm": 150}


async def test_only_a_whole_reset_repairs(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 5})
    ns = await limiter._backend.ns(limiter._backend.deadline())
    await harness.store().commit([Write(keys.bucket(ns, "key", "gpt-4"), put={"rf": "soon"})])
    for attempt in (limiter.reset_bucket("key", "gpt-4", ["tpm"]), limiter.top_up("key", "gpt-4", {"tpm": 5})):
        with pytest.raises(CorruptRecordError):
            await attempt
    await limiter.reset_bucket("key", "gpt-4")
    assert await limiter.available("key", "gpt-4") == {"tpm": 100}


async def test_credits_go_with_the_entity(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.create_entity("key")
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    async with limiter.acquire("key", "gpt-4", {"tpm": 140}) as lease:
        await limiter.delete_entity("key")
        await limiter.top_up("key", "gpt-4", {"tpm": 7})
        await lease.release(tpm=140)
    assert await limiter.available("key", "gpt-4") == {"tpm": 107}


async def test_the_event_says_what_was_given(harness: Harness) -> None:
    repository = harness.repository()
    expiry = moment(harness, 3600)
    await repository.top_up("key", "gpt-4", {"tpm": 50}, expires_at=expiry, principal="support")
    (event,) = await repository.get_audit_events("key")
    assert (event.action, event.principal, event.resource) == ("bucket_topped_up", "support", "gpt-4")
    text = expiry.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert event.details == {"amounts": {"tpm": 50}, "expires_at": text}
    assert timedelta(hours=1) == expiry - datetime.fromtimestamp(harness.clock.now_ms() / 1000, UTC)


async def test_a_retry_after_the_credit_has_expired_returns_the_first_result(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    until = moment(harness, 60)
    first = await limiter.top_up("key", "gpt-4", {"tpm": 50}, expires_at=until, idempotency_key="order-1")
    harness.clock.advance(3_600)
    again = await limiter.top_up("key", "gpt-4", {"tpm": 50}, expires_at=until, idempotency_key="order-1")
    assert again == first
    for key in (None, "order-2"):
        with pytest.raises(ValidationError, match="must be in the future"):
            await limiter.top_up("key", "gpt-4", {"tpm": 50}, expires_at=until, idempotency_key=key)


async def test_a_retry_with_another_expiry_leaves_the_first_one(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    for seconds in (60, 90):
        await limiter.top_up(
            "key", "gpt-4", {"tpm": 50}, expires_at=moment(harness, seconds), idempotency_key="order-1"
        )
    assert await limiter.available("key", "gpt-4") == {"tpm": 150}
    harness.clock.advance(61)
    assert await limiter.available("key", "gpt-4") == {"tpm": 100}


@pytest.mark.parametrize("late", ["9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-12:00"])
def test_an_expiry_without_a_date_is_refused(late: str) -> None:
    with SyncRateLimiter("memory://") as limiter:
        limiter.set_system_defaults([TPM])
        with pytest.raises(ValidationError, match="must be in the year 9999 UTC at the latest; use None for never"):
            limiter.top_up("key", "gpt-4", {"tpm": 1}, expires_at=late)
        with pytest.raises(ValidationError, match="must be in the future"):
            limiter.top_up("key", "gpt-4", {"tpm": 1}, expires_at="0001-01-01T00:00:00+12:00")
        limiter.top_up("key", "gpt-4", {"tpm": 1}, expires_at="9999-12-31T23:59:59.999Z")
        assert limiter.available("key", "gpt-4") == {"tpm": 101}


@pytest.mark.parametrize("topped_up", [False, True])
async def test_a_reset_of_a_limit_that_there_is_not_is_refused_without_a_bucket_too(
    harness: Harness, topped_up: bool
) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM, RPM])
    if topped_up:
        await limiter.top_up("key", "gpt-4", {"tpm": 1})
    with pytest.raises(ValidationError, match="no such limit; there are rpm, tpm"):
        await limiter.reset_bucket("key", "gpt-4", ["nope"])
    await limiter.reset_bucket("key", "gpt-4", ["tpm"])
    mapping: Any = {"tpm": 1}
    with pytest.raises(ValidationError, match="must be names of limits"):
        await limiter.reset_bucket("key", "gpt-4", mapping)
