"""Shards: a bucket that was split is one bucket, to every client.

These are checks of stores that take only so many writes of one record: no other one has shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.room import grants, new_limiters
from zae_limiter.core.errors import RateLimitExceeded
from zae_limiter.core.limit import Limit
from zae_limiter.limiter import shards
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

ODD = Limit.custom("rpm", capacity=101, refill_amount=7, refill_period_seconds=9)


async def split(limiter: RateLimiter, times: int = 1, entity_id: str = "key", only: int | None = None) -> None:
    """Split every shard there is, or one of them, by a client that looks first."""
    for _ in range(times):
        chain = await limiter._chains.resolve((entity_id, "gpt-4", None), limiter._backend.deadline())
        chain = await limiter._chains.read_all_shards(chain, limiter._backend.deadline())
        for step in sorted(chain.levels[0].shards, key=lambda step: step.level.shard):
            if only is None or only == step.level.shard:
                await shards._split(limiter._backend, step, limiter._backend.deadline())


async def split_unseen(limiter: RateLimiter) -> None:
    """Split a bucket by a client that does not look first."""
    chain = await limiter._chains.resolve(("key", "gpt-4", None), limiter._backend.deadline())
    await shards._split(limiter._backend, chain.primary_shards[0], limiter._backend.deadline())


async def _start(harness: Harness) -> list[RateLimiter]:
    clients = await new_limiters(harness, 2, refusal_ttl=0)
    await clients[0].set_system_defaults([ODD])
    return clients


_MORE_THAN_THERE_IS = 1_000
"""Tokens, after which draining ends: a store that forgets what was taken would grant for ever."""


async def _drain(limiter: RateLimiter) -> int:
    """Take whatever there is, and return how much that was."""
    taken = 0
    for tokens in (64, 16, 4, 1):
        while taken <= _MORE_THAN_THERE_IS and await grants(limiter, {"rpm": tokens}):
            taken += tokens
    return taken


async def _promise(limiter: RateLimiter, tokens: int) -> float:
    with raises(RateLimitExceeded, f"there are no {tokens}") as refused:
        async with limiter.acquire("key", "gpt-4", {"rpm": tokens}):
            pass
    return refused.error.retry_after_seconds or 0.0


@check
async def a_split_mints_and_loses_nothing(harness: Harness) -> None:
    """What a bucket holds, full for long or in part, its shards hold together, and they refill as it would."""
    for idle_ms in (86_400_000, 4_321):
        limiter, other = await _start(harness)
        true(await grants(limiter, {"rpm": 90}), "there is enough")
        harness.clock.advance_ms(idle_ms)
        held = min(101_000, 11_000 + _made(harness, idle_ms))
        await split(limiter, 2)
        for client in (limiter, other):
            same(await client.available("key", "gpt-4"), {"rpm": held // 1000}, "one bucket")
        same(await _drain(other), held // 1000, "and no more")
        rest, since_ms = held % 1000, harness.clock.now_ms()
        for tokens in (1, 30, 50):
            seconds = await _promise(other, tokens)
            wait_ms = round(seconds * 1000)
            harness.clock.advance_ms(wait_ms - 1)
            same(await _promise(other, tokens), 0.001, "a millisecond early")
            harness.clock.advance_ms(1)
            true(await grants(other, {"rpm": tokens}), "and to the millisecond")
            rest -= tokens * 1000
            made = _made(harness, harness.clock.now_ms() - since_ms)
            true(0 <= rest + made < 1000, f"it fitted at the first instant, with {rest + made} millitokens left")


def _made(harness: Harness, milliseconds: int) -> int:
    """Return the millitokens that the limit has made in the last so many milliseconds."""
    now_ms = harness.clock.now_ms()
    return now_ms * 7 // 9 - (now_ms - milliseconds) * 7 // 9


@check
async def a_split_finds_what_others_have_left(harness: Harness) -> None:
    """A client that has seen more than there is splits what there is, of a bucket in debt too."""
    for taken, owed in ((95, 0), (101, 20)):
        splitting, spending = await _start(harness)
        true(await grants(splitting, {"rpm": 0}), "it has seen a full bucket")
        async with spending.acquire("key", "gpt-4", {"rpm": taken}) as lease:
            await lease.adjust(rpm=owed)
        await split_unseen(splitting)
        for client in (splitting, spending):
            same(await client.available("key", "gpt-4"), {"rpm": 101 - taken - owed}, "what was left")
        same(await _drain(spending), max(0, 101 - taken - owed), "and no more")
        if owed:
            same(await _promise(spending, 30), round(50 * 9 / 7, 3), "the debt is paid first")


@check
async def leases_outlive_a_split(harness: Harness) -> None:
    """What comes back after a split does so in full, and what is owed is owed."""
    for delta in (-60, 25):
        limiter, other = await _start(harness)
        async with limiter.acquire("key", "gpt-4", {"rpm": 61}) as lease:
            await split(other, 2)
            await lease.adjust(rpm=delta)
        same(await other.available("key", "gpt-4"), {"rpm": 40 - delta}, "settled")
        same(await _drain(other), 40 - delta, "and no more")
        (state,) = await other.get_buckets("key", "gpt-4")
        same(state.total_consumed_milli, 101_000, "all of it is counted")


CHECKS = checks_of(globals())
