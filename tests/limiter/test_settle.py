"""`settle` states what a call has used; ``on_error`` states what a call that fails is charged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from zae_limiter import (
    CapacityExceeded,
    LeaseExpiredError,
    Limit,
    Observer,
    RateLimiter,
    RateLimiterUnavailable,
    Settlement,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

RPM, TPM, PARALLEL = Limit.per_day("rpm", 100), Limit.per_day("tpm", 10_000), Limit.concurrent("parallel", 3)
COST = {"rpm": 1, "tpm": 500}


class Boom(Exception):
    """What a body raises."""


async def prepare(harness: Harness, *more: Limit, **options: Any) -> RateLimiter:
    """Return a limiter with a key below an organisation."""
    limiter = harness.limiter(**options)
    await limiter.set_system_defaults([RPM, TPM, *more])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    return limiter


async def read_spent(limiter: RateLimiter, resource: str = "gpt-4") -> tuple[int, int]:
    """Return what was spent of rpm and tpm, which is the same at both levels; no slot is held."""
    found = [await limiter.available(who, resource) for who in ("key", "org")]
    assert found[0] == found[1]
    assert found[0].get("parallel", 3) == 3
    return 100 - found[0]["rpm"], 10_000 - found[0]["tpm"]


# Settling.


@pytest.mark.parametrize("actual", [0, 120, 500, 1_730, 20_000])
async def test_settle_states_the_usage_at_every_level(harness: Harness, actual: int) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", "gpt-4", COST) as lease:
        await lease.settle(tpm=actual)
        assert lease.consumed == {"rpm": 1, "tpm": actual}
        assert await read_spent(limiter) == (1, 500), "it is written when the lease ends"
    assert await read_spent(limiter) == (1, actual)


async def test_the_last_settle_counts_and_replaces_corrections_of_what_it_names(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", "gpt-4", {"rpm": 5, "tpm": 500}) as lease:
        await lease.adjust(rpm=2, tpm=3_000)
        await lease.settle({"tpm": 900})
        await lease.release(rpm=1)
        await lease.settle({"tpm": 1_000}, rpm=6)
        await lease.settle(tpm=1_730)
        assert lease.consumed == {"rpm": 6, "tpm": 1_730}
    assert await read_spent(limiter) == (6, 1_730)


async def test_a_correction_after_settle_adds_to_it(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", "gpt-4", COST) as lease:
        await lease.settle(tpm=900)
        await lease.adjust(tpm=100)
        await lease.release(tpm=30)
        await lease.consume(tpm=7)
        assert lease.consumed == {"rpm": 1, "tpm": 977}
    assert await read_spent(limiter) == (1, 977)


async def test_settle_counts_what_was_consumed_in_the_block(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", "gpt-4", COST) as lease:
        await lease.consume(tpm=300)
        await lease.consume(tpm=200)
        await lease.settle(tpm=350)
    assert await read_spent(limiter) == (1, 350)


async def test_settle_of_a_limit_that_was_not_reserved_charges_it(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        await lease.settle(tpm=1_730)
        await lease.settle(tpm=1_000)
    assert await read_spent(limiter) == (1, 1_000)


async def test_settle_at_the_estimate_writes_nothing(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    async with limiter.acquire("key", "gpt-4", COST, [RPM, TPM]) as lease:
        before = store.calls.total()
        await lease.settle(tpm=500)
    assert store.calls.total() == before


async def test_settle_after_an_exit_that_is_not_final_is_a_write_of_its_own(harness: Harness) -> None:
    limiter = await prepare(harness)
    lease = limiter.acquire("key", "gpt-4", COST)
    await lease.enter()
    await lease.settle(tpm=900)
    await lease.exit(final=False)
    for actual in (1_730, 200, 300):
        await lease.settle(tpm=actual)
        assert await read_spent(limiter) == (1, actual)
    await lease.adjust(tpm=11)
    assert await read_spent(limiter) == (1, 311)
    assert lease.consumed == {"rpm": 1, "tpm": 311}


async def test_settle_from_a_thread(harness: Harness) -> None:
    limiter = await prepare(harness)
    lease = limiter.acquire("key", "gpt-4", COST)
    with pytest.raises(LeaseExpiredError):
        lease.settle_nowait(tpm=1)
    async with lease:
        lease.settle_nowait({"rpm": 2}, tpm=900)
        lease.settle_nowait(tpm=1_730)
    with pytest.raises(LeaseExpiredError):
        lease.settle_nowait(tpm=1)
    assert await read_spent(limiter) == (2, 1_730)


async def test_settle_without_a_store_only_notes(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store, on_unavailable="allow")
    store.inject(Fault.FAIL_BEFORE, times=100)
    async with limiter.acquire("key", "gpt-4", COST, [RPM, TPM], on_error="keep") as lease:
        assert lease.degraded
        await lease.settle(tpm=1_730)
        assert lease.consumed == {"rpm": 1, "tpm": 1_730}
    store.heal()
    assert await limiter.available("key", "gpt-4", [RPM, TPM]) == {"rpm": 100, "tpm": 10_000}


@pytest.mark.parametrize("ending", ["normal", "raised", "not begun"])
async def test_settle_outside_of_the_block_is_an_error(harness: Harness, ending: str) -> None:
    limiter = harness.limiter()
    lease = limiter.acquire("key", "gpt-4", {"rpm": 5}, [RPM], on_error="keep")
    try:
        if ending != "not begun":
            async with lease:
                if ending == "raised":
                    raise Boom
    except Boom:
        pass
    with pytest.raises(LeaseExpiredError, match=r"settle\(\)"):
        await lease.settle(rpm=1)
    assert await limiter.available("key", "gpt-4", [RPM]) == {"rpm": 100 if ending == "not begun" else 95}


BAD_USAGE: list[tuple[Any, str]] = [
    ({"typo": 1}, r"settle\w*\['typo'\].*no such limit.*rpm, tpm"),
    ({"tpm": -1}, r"settle\w*\['tpm'\].*-1"),
    ({"tpm": True}, r"settle\w*\['tpm'\].*True"),
    ({"tpm": 1.5}, r"settle\w*\['tpm'\].*1.5"),
    ({"tpm": "9"}, r"settle\w*\['tpm'\].*9"),
    ({"tpm": None}, r"settle\w*\['tpm'\].*None"),
    ({3: 1}, r"settle.*3.*strings"),
    ([("tpm", 1)], r"settle.*must map limit names"),
    (1_730, r"settle.*1730.*must map limit names"),
    ({"parallel": 1}, r"settle\w*\['parallel'\].*concurrency limit"),
    ({"parallel": 0}, r"settle\w*\['parallel'\].*concurrency limit"),
]


@pytest.mark.parametrize(("amounts", "message"), BAD_USAGE, ids=[repr(amounts) for amounts, _ in BAD_USAGE])
def test_bad_usage_is_refused_before_anything_is_asked(amounts: Any, message: str) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    limiter = SyncRateLimiter(store)
    with limiter.acquire("key", "gpt-4", COST, [RPM, TPM, PARALLEL]) as lease:
        before = store.calls.copy()
        for settle in (lease.settle, lease.settle_nowait):
            with pytest.raises(ValidationError, match=message):
                settle(amounts)
        assert store.calls == before
        assert lease.consumed == {**COST, "parallel": 1}, "nothing was noted"


# Failing.


@pytest.mark.parametrize(
    ("on_error", "spent"),
    [
        ("give_back", (0, 0)),
        ("keep", (3, 1_000)),
        ({}, (0, 0)),
        ({"tpm": 120}, (0, 120)),
        ({"rpm": 1, "tpm": 500}, (1, 500)),
        ({"rpm": 2, "tpm": 20_000}, (2, 20_000)),
    ],
    ids=repr,
)
async def test_a_call_that_fails_is_charged_as_on_error_says(
    harness: Harness, on_error: Any, spent: tuple[int, int]
) -> None:
    """Corrections are part of what is given back or kept. Amounts above the estimate are owed."""
    limiter = await prepare(harness, PARALLEL)
    with pytest.raises(Boom):
        async with limiter.acquire("key", "gpt-4", COST, on_error=on_error) as lease:
            await lease.consume(rpm=2)
            await lease.adjust(tpm=700)
            await lease.release(tpm=200)
            raise Boom
    assert await read_spent(limiter) == spent
    used = {state.limit_name: state.total_consumed_milli for state in await limiter.get_buckets("key")}
    assert (used["rpm"], used["tpm"]) == (spent[0] * 1_000, spent[1] * 1_000)


@pytest.mark.parametrize("on_error", ["give_back", "keep", {"rpm": 1, "tpm": 120}], ids=repr)
@pytest.mark.parametrize("actual", [0, 300, 1_730])
async def test_what_settle_has_named_does_not_depend_on_the_failure(
    harness: Harness, on_error: Any, actual: int
) -> None:
    limiter = await prepare(harness, PARALLEL)
    with pytest.raises(Boom):
        async with limiter.acquire("key", "gpt-4", COST, on_error=on_error) as lease:
            await lease.adjust(tpm=9)
            await lease.settle(tpm=actual)
            await lease.adjust(tpm=5)
            raise Boom
    assert await read_spent(limiter) == (0 if on_error == "give_back" else 1, actual + 5)


async def test_a_failed_call_that_is_kept_as_it_is_writes_nothing(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    for on_error in ("keep", COST):
        with pytest.raises(Boom):
            async with limiter.acquire("key", "gpt-4", COST, [RPM, TPM], on_error=on_error):
                before = store.calls.total()
                raise Boom
        assert store.calls.total() == before


async def test_an_exit_that_gives_back_overrides_everything(harness: Harness) -> None:
    limiter = await prepare(harness, PARALLEL)
    for on_error in ("keep", {"tpm": 100}):
        lease = limiter.acquire("key", "gpt-4", COST, on_error=on_error)
        await lease.enter()
        await lease.settle(tpm=900)
        await lease.exit(give_back=True)
        assert await read_spent(limiter) == (0, 0)


@pytest.mark.parametrize("on_error", ["keep", {"tpm": 120}], ids=repr)
async def test_an_end_without_a_failure_is_settled_as_ever(harness: Harness, on_error: Any) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", "gpt-4", COST, on_error=on_error) as lease:
        await lease.adjust(tpm=-100)
    assert await read_spent(limiter) == (1, 400)


async def test_a_refused_acquire_takes_nothing_whatever_on_error_says(harness: Harness) -> None:
    limiter = await prepare(harness)
    for on_error in ("keep", {"tpm": 20_000}):
        with pytest.raises(CapacityExceeded):
            async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 20_000}, on_error=on_error):
                raise AssertionError
    assert await read_spent(limiter) == (0, 0)


async def test_a_failure_that_cannot_be_settled_does_not_hide_the_exception(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    for on_error in ("keep", {"tpm": 120}, {"tpm": 900}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "zae_limiter"), pytest.raises(Boom):
            async with limiter.acquire("key", "gpt-4", COST, [RPM, TPM], on_error=on_error) as lease:
                await lease.adjust(tpm=100)
                store.inject(Fault.FAIL_BEFORE, verb="commit")
                raise Boom
        (record,) = caplog.records
        assert getattr(record, "zae_event", "") == "lease.return_lost"


async def streamed(limiter: RateLimiter, on_error: Any) -> AsyncIterator[int]:
    async with limiter.acquire("key", "gpt-4", COST, on_error=on_error):
        for number in range(3):
            yield number


@pytest.mark.parametrize(("on_error", "spent"), [("keep", (1, 500)), ({"rpm": 1, "tpm": 120}, (1, 120))], ids=repr)
async def test_an_aborted_stream_is_not_free(harness: Harness, on_error: Any, spent: tuple[int, int]) -> None:
    limiter = await prepare(harness)
    stream = streamed(limiter, on_error)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert await read_spent(limiter) == spent


def test_an_aborted_blocking_stream_is_not_free() -> None:
    limiter = SyncRateLimiter(MemoryStore(ManualClock()))
    limiter.set_system_defaults([RPM, TPM])

    def stream() -> Iterator[int]:
        with limiter.acquire("key", "gpt-4", COST, on_error={"tpm": 120}) as lease:
            yield 1
            lease.settle(rpm=3)
            yield 2

    for steps, spent in ((1, {"rpm": 100, "tpm": 9_880}), (2, {"rpm": 97, "tpm": 9_760})):
        running = stream()
        for _ in range(steps):
            next(running)
        running.close()  # type: ignore[attr-defined]  # it is a generator
        assert limiter.available("key", "gpt-4") == spent


async def test_a_cancelled_body_is_charged_as_on_error_says(harness: Harness) -> None:
    if harness.blocking:
        pytest.skip("nobody cancels blocking code")
    limiter = await prepare(harness)
    entered = asyncio.Event()

    async def body() -> None:
        async with limiter.acquire("key", "gpt-4", COST, on_error={"rpm": 1, "tpm": 120}):
            entered.set()
            await asyncio.sleep(3_600)

    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await read_spent(limiter) == (1, 120)


BAD_ON_ERROR: list[tuple[Any, str]] = [
    ("refund", r"on_error.*'refund'.*give_back.*keep"),
    (None, r"on_error.*None.*give_back.*keep"),
    (True, r"on_error.*True.*give_back.*keep"),
    (100, r"on_error.*100.*give_back.*keep"),
    ([("tpm", 1)], r"on_error.*give_back.*keep"),
    ({"tpm": -1}, r"on_error\['tpm'\].*-1"),
    ({"tpm": True}, r"on_error\['tpm'\].*True"),
    ({"tpm": 1.0}, r"on_error\['tpm'\].*1.0"),
    ({"tpm": {"gpt-4": 1}}, r"on_error\['tpm'\]"),
    ({"typo": 1}, r"on_error\['typo'\].*1.*not in consume"),
    ({3: 1}, r"on_error.*3.*strings"),
]


@pytest.mark.parametrize(("on_error", "message"), BAD_ON_ERROR, ids=[repr(on_error) for on_error, _ in BAD_ON_ERROR])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_bad_on_error_is_refused_before_anything_is_asked(blocking: bool, on_error: Any, message: str) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    limiter: Any = SyncRateLimiter(store) if blocking else RateLimiter(store)
    with pytest.raises(ValidationError, match=message):
        limiter.acquire("key", "gpt-4", COST, on_error=on_error)
    assert not store.calls


async def test_slots_cannot_stay_taken(harness: Harness) -> None:
    limiter = await prepare(harness, PARALLEL)
    cost = {"rpm": 1, "parallel": 1}
    for acquire in (
        limiter.acquire("key", "gpt-4", cost, on_error={"parallel": 1}),
        limiter.acquire("key", {"gpt-4": cost, "tools": cost}, on_error={"tools": {"parallel": 1}}),
    ):
        with pytest.raises(ValidationError, match=r"on_error\['parallel'\].*1.*concurrency limit.*always freed"):
            await acquire.enter()
    assert await read_spent(limiter) == (0, 0)


# Several resources.

BOTH = {"gpt-4": {"rpm": 1, "tpm": 500}, "tools": {"rpm": 2, "tpm": 50}}


async def test_each_resource_is_settled_on_its_own(harness: Harness) -> None:
    limiter = await prepare(harness, PARALLEL)
    async with limiter.acquire("key", BOTH) as lease:
        await lease.settle(tpm=1_730)
        await lease.resource("tools").settle(rpm=1)
        with pytest.raises(ValidationError, match="no such limit"):
            await lease.settle({"rpm@tools": 1})
    assert await read_spent(limiter) == (1, 1_730)
    assert await read_spent(limiter, "tools") == (1, 50)


@pytest.mark.parametrize(
    ("on_error", "spent"),
    [
        ("give_back", ((0, 0), (0, 9))),
        ("keep", ((1, 510), (2, 9))),
        ({"gpt-4": {"tpm": 120}}, ((0, 120), (0, 9))),
        ({"gpt-4": {"tpm": 120}, "tools": {"rpm": 5, "tpm": 1}}, ((0, 120), (5, 9))),
    ],
    ids=repr,
)
@pytest.mark.parametrize("also", [False, True])
async def test_each_resource_is_charged_as_on_error_says(
    harness: Harness, on_error: Any, spent: tuple[tuple[int, int], tuple[int, int]], also: bool
) -> None:
    limiter = await prepare(harness, PARALLEL)
    first, more = BOTH["gpt-4"], {"tools": BOTH["tools"]}
    if also:
        lease = limiter.acquire("key", "gpt-4", first, also=more, on_error=on_error)
    else:
        lease = limiter.acquire("key", BOTH, on_error=on_error)
    with pytest.raises(Boom):
        async with lease:
            await lease.adjust(tpm=10)
            await lease.resource("tools").settle(tpm=9)
            raise Boom
    assert (await read_spent(limiter), await read_spent(limiter, "tools")) == spent


@pytest.mark.parametrize(
    ("on_error", "message"),
    [
        ({"tpm": 120}, r"on_error\['tpm'\].*120.*must name a resource.*gpt-4, tools"),
        ({"search": {"rpm": 1}}, r"on_error\['search'\].*must name a resource.*gpt-4, tools"),
        ({"tools": {"typo": 1}}, r"on_error\['tools'\]\['typo'\].*not in consume"),
        ({"tools": {"rpm": -1}}, r"on_error\['tools'\]\['rpm'\].*-1"),
        ("refund", r"on_error.*'refund'"),
    ],
    ids=repr,
)
def test_a_bad_on_error_of_several_resources(on_error: Any, message: str) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    with pytest.raises(ValidationError, match=message):
        SyncRateLimiter(store).acquire("key", BOTH, on_error=on_error)
    assert not store.calls


def test_one_resource_as_a_mapping_names_it_in_on_error_too() -> None:
    limiter = SyncRateLimiter(MemoryStore(ManualClock()))
    limiter.set_system_defaults([RPM, TPM])
    with pytest.raises(Boom), limiter.acquire("key", {"gpt-4": COST}, on_error={"gpt-4": {"tpm": 120}}):
        raise Boom
    assert limiter.available("key", "gpt-4") == {"rpm": 100, "tpm": 9_880}


# Around it.


def test_observers_hear_of_the_usage_that_settle_states_also_after_a_failure() -> None:
    heard: list[Settlement] = []

    class Ears(Observer):
        def on_settlement(self, settlement: Settlement) -> None:
            heard.append(settlement)

    limiter = SyncRateLimiter(MemoryStore(ManualClock()), observer=Ears())
    limiter.set_system_defaults([RPM, TPM])
    with limiter.acquire("key", "gpt-4", COST) as lease:
        lease.settle(tpm=1_730)
    with pytest.raises(Boom), limiter.acquire("key", "gpt-4", COST) as lease:
        lease.settle(tpm=300)
        raise Boom
    with pytest.raises(Boom), limiter.acquire("key", "gpt-4", COST, on_error={"tpm": 120}):
        raise Boom
    told = [(each.estimated, each.correction) for each in heard]
    assert told == [({"tpm": 500}, {"tpm": 1_230}), ({"tpm": 500}, {"tpm": -200})]


async def test_a_lease_for_another_entity_fails_alike(harness: Harness) -> None:
    limiter = await prepare(harness)
    lease = limiter.acquire("stranger", "gpt-4", COST, on_error={"tpm": 120}).for_entity("key")
    with pytest.raises(Boom):
        async with lease:
            raise Boom
    assert await read_spent(limiter) == (0, 120)


async def test_a_settlement_that_is_lost_is_told_unless_the_policy_allows(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    lease = limiter.acquire("key", "gpt-4", COST, [RPM, TPM])
    await lease.enter()
    await lease.settle(tpm=1_730)
    store.inject(Fault.FAIL_BEFORE, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await lease.exit()


@pytest.mark.parametrize("policy", ["allow", "block"])
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
@pytest.mark.parametrize(("first", "second"), [(900, 500), (900, 600), (900, 100), (100, 120), (100, 500), (900, 900)])
async def test_what_is_settled_after_a_lost_settlement_never_charges_less_than_the_usage(
    harness: Harness, policy: str, fault: Fault, first: int, second: int
) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(harness.repository(store), on_unavailable=policy)
    await limiter.set_system_defaults([TPM])
    lease = limiter.acquire("key", "gpt-4", {"tpm": 500})
    await lease.enter()
    await lease.settle(tpm=first)
    store.inject(fault, verb="commit")
    with contextlib.suppress(RateLimiterUnavailable):
        await lease.exit(final=False)
    await lease.settle(tpm=second)
    charged = 10_000 - (await limiter.available("key", "gpt-4"))["tpm"]
    assert second <= charged <= max(first, 500) + max(0, second - min(first, 500))
