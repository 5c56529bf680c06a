"""The laws, as coroutines over a harness and a scenario.

Each raises AssertionError where the law is broken. `lawful` states every law with a few scenarios of its own; property
tests draw the scenarios.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.oracle import ExactBucket, made, same_balances
from tests.conformance.room import beside
from tests.conformance.traffic import RESOURCE, Boom, Family, Move
from zae_limiter.core.errors import (
    CapacityExceeded,
    InfrastructureError,
    RateLimitError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.testing.faults import Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from typing import Any

    from zae_limiter.core.limit import Limit
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness


async def never_over_admits(family: Family, moves: Sequence[Move]) -> None:
    """Law 1: whatever the clients do, every window of every limit keeps to ``capacity + rate * w``, and credits."""
    await family.drive(moves)
    family.check()


async def refill_is_exact(
    harness: Harness, slow: Limit, fast: Limit, drained: int, steps_ms: Sequence[int], **options: Any
) -> None:
    """Law 2: a slow limit that is looked at and written beside a fast one at every step refills what it is due.

    ``drained`` tokens are taken from it at the start, more than it holds where that makes debt.
    """
    family = await Family(harness, [slow, fast], children=2).settle_in(**options)
    polled, left = family.children
    (limiter,) = family.limiters
    start_ms = harness.clock.now_ms()
    for child in (polled, left):
        async with limiter.acquire(child, RESOURCE, {slow.name: min(drained, slow.capacity)}) as lease:
            await lease.adjust({slow.name: max(0, drained - slow.capacity)})
    for step_ms in steps_ms:
        family.advance(step_ms)
        await _poll(limiter, polled, fast)
    now_ms = harness.clock.now_ms()
    due = slow.capacity * 1000 - drained * 1000 + made(slow, now_ms) - made(slow, start_ms)
    level = min(slow.capacity * 1000, due)
    found = await family.balances((polled, left), now_ms)
    for child in (polled, left):
        same(found[child, RESOURCE, slow.name], level, f"{child} has refilled exactly")
        same((await limiter.available(child, RESOURCE))[slow.name], level // 1000, f"{child} can see it")
        await _takes_all(limiter, child, slow.name, level // 1000)
    rational_over = (due - (slow.capacity - drained) * 1000) * slow.refill_period_seconds
    rational_over -= (now_ms - start_ms) * slow.refill_amount
    true(abs(rational_over) < slow.refill_period_seconds, "which is less than a millitoken off the rational line")


async def _takes_all(limiter: RateLimiter, child: str, name: str, whole: int) -> None:
    """Check that every whole token that is there is granted, and not one more."""
    if whole > 0:
        try:
            async with limiter.acquire(child, RESOURCE, {name: whole}):
                pass
        except RateLimitExceeded as refusal:
            raise AssertionError(f"{whole} of {name} are there, but: {refusal}") from refusal
    with raises(RateLimitExceeded, f"more than the {whole} of {name} that are there"):
        async with limiter.acquire(child, RESOURCE, {name: 1}):
            pass


async def _poll(limiter: RateLimiter, entity_id: str, fast: Limit) -> None:
    await limiter.available(entity_id, RESOURCE)
    try:
        async with limiter.acquire(entity_id, RESOURCE, {fast.name: 1}):
            pass
    except RateLimitExceeded:
        pass


async def promise_is_kept(family: Family, moves: Sequence[Move], cost: Mapping[str, int], *, anew: bool) -> None:
    """Law 3: refused 1 ms before the promised moment, granted at it; by who was refused, or by somebody new."""
    await family.drive(moves)
    child = family.children[0]
    limiter = family.limiters[0]
    try:
        async with limiter.acquire(child, RESOURCE, cost):
            return
    except CapacityExceeded:
        return
    except RateLimitExceeded as refusal:
        seconds = refusal.retry_after_seconds
        asked = await limiter.time_until_available(child, RESOURCE, cost)
        same(asked, seconds, "asking when gives the promised moment")
    true(seconds is not None and seconds > 0, "a refusal names a moment to come")
    wait_ms = round((seconds or 0) * 1000)
    pots = [pot for pot in _pots(family, await _states(family, child)) if pot.limit.name in cost]
    expected = max(pot.missing_ms(cost[pot.limit.name], family.now_ms) for pot in pots)
    same(wait_ms, expected, "the promised moment is the first at which it fits")
    family.advance(wait_ms - 1)
    for who in (limiter, beside(family.harness, family.keeper)):
        with raises(RateLimitExceeded, "1 ms before the promised moment") as early:
            async with who.acquire(child, RESOURCE, cost):
                pass
        same(early.error.retry_after_seconds, 0.001, "1 ms is left")
        await family.flush()
    family.advance(1)
    who = beside(family.harness, family.keeper) if anew else limiter
    try:
        async with who.acquire(child, RESOURCE, cost):
            pass
    except RateLimitExceeded as late:
        raise AssertionError(f"refused at the promised moment: {late}") from late


async def _states(family: Family, child: str) -> dict[tuple[str, str, str], int]:
    return await family.balances([child, *family.everybody[: bool(family.parent_limits)]], family.now_ms)


def _pots(family: Family, found: Mapping[tuple[str, str, str], int]) -> list[ExactBucket]:
    limits = {("parent", limit.name): limit for limit in family.parent_limits}
    limits |= {(child, limit.name): limit for child in family.children for limit in family.limits}
    return [ExactBucket(limits[who, name], family.now_ms, milli) for (who, _, name), milli in found.items()]


async def refusal_changes_nothing(family: Family, moves: Sequence[Move], cost: Mapping[str, int]) -> None:
    """Law 4: after a refusal every balance of every entity is what it was, whoever asked."""
    await family.drive(moves)
    before = await family.balances(family.everybody, family.now_ms)
    for limiter in (*family.limiters, beside(family.harness, family.keeper)):
        for child in family.children:
            try:
                async with limiter.acquire(child, RESOURCE, cost):
                    raise Boom
            except (RateLimitExceeded, Boom):
                pass
            now = await family.balances(family.everybody, family.now_ms)
            same_balances(now, before, "a refusal, like a failure, leaves every balance as it was")


async def never_is_not_yet(family: Family, moves: Sequence[Move], cost: Mapping[str, int]) -> None:
    """Law 5: a cost above a capacity is `CapacityExceeded`, without a moment to wait for, and takes nothing."""
    await family.drive(moves)
    before = await family.balances(family.everybody, family.now_ms)
    limits = (*family.limits, *family.parent_limits)
    too_much = any(cost.get(limit.name, 0) > limit.capacity for limit in limits)
    try:
        async with family.limiters[0].acquire(family.children[0], RESOURCE, cost):
            true(not too_much, "more than the capacity is never granted")
    except RateLimitExceeded as refusal:
        same(isinstance(refusal, CapacityExceeded), too_much, "never and not yet are told apart")
        same(refusal.retry_after_seconds is None, too_much, "only not yet has a moment")
        same(refusal.retry_after_header is None, too_much, "only not yet has a header")
        now = await family.balances(family.everybody, family.now_ms)
        same_balances(now, before, "it takes nothing")


async def time_never_runs_backwards(
    family: Family, moves: Sequence[Move], back_ms: int, cost: Mapping[str, int]
) -> None:
    """Law 6: a client whose clock is behind, or steps back, drains nothing and is granted nothing extra."""
    await family.drive(moves)
    child = family.children[0]
    before = await family.balances(family.everybody, family.now_ms)
    refused = len(family.refusals)
    family.new_client(-back_ms)
    family.hosts[0].skew_ms -= back_ms
    behind = Move(0, cost, client=len(family.hosts) - 1)
    await family.drive([Move(0, cost), behind, behind])
    granted = 3 - (len(family.refusals) - refused)
    after = await family.balances(family.everybody, family.now_ms)
    for (who, resource, name), milli in before.items():
        spent = granted * cost.get(name, 0) * 1000 if who in (child, "parent") else 0
        true(after[who, resource, name] >= milli - spent, f"{name} of {who} is not drained by a clock that is behind")
        true(after[who, resource, name] <= milli, f"{name} of {who} gains nothing from it")
    true(granted == 0 or _could_take(before, child, cost), "nobody was granted what was not there")
    family.check()


def _could_take(before: Mapping[tuple[str, str, str], int], child: str, cost: Mapping[str, int]) -> bool:
    needs = ((milli, cost.get(name, 0)) for (who, _, name), milli in before.items() if who in (child, "parent"))
    return all(not need or milli >= need * 1000 for milli, need in needs)


async def nothing_leaks(
    family: Family, moves: Sequence[Move], cost: Mapping[str, int], error: BaseException, body_ms: int
) -> None:
    """Law 7: a body that ends by any exception leaves the balances where they would be without it."""
    await family.drive(moves)
    limiter, child = family.limiters[0], family.children[0]
    before = await family.balances(family.everybody, family.now_ms + body_ms)
    try:
        async with limiter.acquire(child, RESOURCE, cost) as lease:
            await lease.adjust(dict.fromkeys(cost, 7))
            await lease.consume(dict.fromkeys(cost, 0))
            await lease.consume(cost)
            family.advance(body_ms)
            raise error
    except RateLimitExceeded:
        family.advance(body_ms)
    except BaseException as caught:
        if caught is not error:
            raise
    after = await family.balances(family.everybody, family.now_ms)
    same_balances(after, before, f"nothing is left of a body that ended by {type(error).__name__}")


async def streams_do_not_leak(family: Family, cost: Mapping[str, int], chunks: int) -> None:
    """Law 7: a generator that is closed after some chunks has given back what it took."""
    limiter, child = family.limiters[0], family.children[0]
    before = dict.fromkeys([limit.name for limit in family.limits]) | await limiter.available(child, RESOURCE)

    async def stream() -> AsyncGenerator[int, None]:
        async with limiter.acquire(child, RESOURCE, cost):
            for chunk in range(10):
                yield chunk

    open_stream = stream()
    for _ in range(chunks):
        await open_stream.__anext__()
    await open_stream.aclose()
    same(await limiter.available(child, RESOURCE), before, f"closed after {chunks} chunks")


async def refusal_is_no_failure(harness: Harness, limit: Limit, fault: Fault) -> None:
    """Law 8: the store's failure, a refusal and bad input are different types, whatever the policy."""
    family = await Family(harness, [limit]).settle_in()
    child = family.children[0]
    store = FaultyStore(harness.store())
    namespace = family.keeper.repository.namespace
    limiter = harness.limiter(harness.repository(store, namespace=namespace), refusal_ttl=0, timeout=10.0)
    pot = ExactBucket.full(limit, family.now_ms)
    async with limiter.acquire(child, RESOURCE, {limit.name: 1}):
        pot.take(1, family.now_ms)
    charged = await _failing(limiter, store, child, limit, fault)
    store.heal()
    await limiter.flush()
    (left,) = (await family.balances([child], family.now_ms)).values()
    expected = pot.level(family.now_ms)
    true(left <= expected, "a failure never adds tokens")
    true(left >= expected - charged * 1000, "a failed write is made at most once")
    calls = store.calls.total()
    for wrong in ({"nobody": 1}, {limit.name: -1}, {limit.name: 0.5}, {limit.name: True}, [limit.name]):
        with raises(ValidationError, f"consume={wrong!r} is bad input"):
            async with limiter.acquire(child, RESOURCE, wrong):  # type: ignore[arg-type]  # that is the point
                pass
    same(store.calls.total(), calls, "bad input is found before the store is asked")
    for policy in ("allow", "block"):
        with raises(CapacityExceeded, "a refusal is a refusal, whatever is done about failures"):
            async with limiter.acquire(child, RESOURCE, {limit.name: limit.capacity + 1}, on_unavailable=policy):
                pass


async def _failing(limiter: RateLimiter, store: FaultyStore, child: str, limit: Limit, fault: Fault) -> int:
    """Acquire twice while the store fails, blocked and allowed; return how many writes may have been made."""
    store.inject(fault, verb="commit", seconds=60.0)
    with raises(RateLimiterUnavailable, "the store failed") as caught:
        async with limiter.acquire(child, RESOURCE, {limit.name: 1}, on_unavailable="block"):
            pass
    true(isinstance(caught.error, InfrastructureError), "a failure of the infrastructure")
    true(not isinstance(caught.error, RateLimitError), "is not about limits")
    store.inject(fault, verb="commit", seconds=60.0)
    async with limiter.acquire(child, RESOURCE, {limit.name: 1}, on_unavailable="allow") as lease:
        true(lease.degraded, "a body that runs without limits is told so")
    return 0 if fault is Fault.FAIL_BEFORE else 2
