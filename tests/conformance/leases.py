"""Leases: taken before the body, settled after it, given back when it fails."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.room import at_once, beside, new_limiter, read, take
from tests.conformance.traffic import RESOURCE, Boom
from zae_limiter.core.errors import LeaseExpiredError, RateLimitExceeded, ValidationError
from zae_limiter.core.limit import Limit
from zae_limiter.records import keys
from zae_limiter.records.algebra import TTL
from zae_limiter.records.ledger import kept_ms
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.limiter.options import OnError
    from zae_limiter.records.algebra import Image
    from zae_limiter.testing.harness import Harness

LIMITS = (Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 6_000))


async def _limiter(harness: Harness, limits: Sequence[Limit] = LIMITS) -> RateLimiter:
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults(limits)
    return limiter


async def _left(limiter: RateLimiter, entity_id: str = "key") -> dict[str, int]:
    return await limiter.available(entity_id, RESOURCE)


@check
async def estimate_is_taken_first(harness: Harness) -> None:
    """The estimate is in the store before the body runs, for everybody to see, and stays when it ends."""
    limiter = await _limiter(harness)
    other = beside(harness, limiter)
    same(await _left(limiter), {"rpm": 60, "tpm": 6_000}, "a new bucket is full")
    async with limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 500}) as lease:
        same(lease.consumed, {"rpm": 1, "tpm": 500}, "the lease knows what it took")
        same(lease.available, {"rpm": 59, "tpm": 5_500}, "and what it left")
        same(await _left(other), {"rpm": 59, "tpm": 5_500}, "another client sees it in the body")
    same(await _left(other), {"rpm": 59, "tpm": 5_500}, "and after it")


@check
async def adjust_into_debt(harness: Harness) -> None:
    """An adjustment is never refused: what is more than there is becomes debt, which is paid before the next grant."""
    limiter = await _limiter(harness)
    async with limiter.acquire("key", RESOURCE, {"tpm": 6_000}) as lease:
        await lease.adjust(tpm=1_000)
        await lease.adjust({"rpm": 2, "tpm": 200})
        same(lease.consumed, {"tpm": 7_200, "rpm": 2}, "the lease adds up")
    same(await _left(limiter), {"rpm": 58, "tpm": -1_200}, "debt is a negative balance")
    with raises(RateLimitExceeded, "in debt nothing is granted") as refused:
        await take(limiter, "key", RESOURCE, [{"tpm": 1}])
    same(refused.error.retry_after_seconds, 12.01, "1,201 tokens at 100 a second")
    with raises(RateLimitExceeded, "in debt not even nothing is granted of a limit that is named") as refused:
        await take(limiter, "key", RESOURCE, [{"rpm": 1, "tpm": 0}])
    same(refused.error.retry_after_seconds, 12.0, "until the debt is paid")
    await take(limiter, "key", RESOURCE, [{"rpm": 1}])
    harness.clock.advance(12)
    await take(limiter, "key", RESOURCE, [{"tpm": 0}])
    harness.clock.advance(0.01)
    await take(limiter, "key", RESOURCE, [{"tpm": 1}])


@check
async def give_back(harness: Harness) -> None:
    """A negative adjustment and a release give tokens back, once."""
    limiter = await _limiter(harness)
    async with limiter.acquire("key", RESOURCE, {"rpm": 5, "tpm": 500}) as lease:
        await lease.adjust(tpm=-200)
        await lease.release(rpm=1, tpm=100)
        same(lease.consumed, {"rpm": 4, "tpm": 200}, "the lease adds up")
    same(await _left(limiter), {"rpm": 56, "tpm": 5_800}, "given back")


@check
async def never_beyond_the_ceiling(harness: Harness) -> None:
    """Neither giving back more than was taken nor a long time raises the ceiling."""
    limiter = await _limiter(harness)
    async with limiter.acquire("key", RESOURCE, {"tpm": 100}) as lease:
        await lease.release(tpm=5_000)
    same(await _left(limiter), {"rpm": 60, "tpm": 6_000}, "full is full")
    harness.clock.advance(5)
    same(await _left(limiter), {"rpm": 60, "tpm": 6_000}, "full stays full")
    await take(limiter, "key", RESOURCE, [{"tpm": 6_000}])
    with raises(RateLimitExceeded, "no more than the ceiling was there"):
        await take(limiter, "key", RESOURCE, [{"tpm": 1}])


@check
async def late_give_back_counts(harness: Harness) -> None:
    """Unused tokens come back in full, however late: also after the bucket was full without them and was emptied."""
    limiter = await _limiter(harness, [Limit("tpm", 100, 10, 1)])
    other = beside(harness, limiter)
    for who in (limiter, other):
        await take(who, "key", RESOURCE, [{"tpm": 1}, {"tpm": 1}, {"tpm": 1}])
        async with limiter.acquire("key", RESOURCE, {"tpm": 50}) as lease:
            harness.clock.advance(20)
            await take(who, "key", RESOURCE, [{"tpm": 100}])
            await lease.release(tpm=50)
        same(await _left(limiter), {"tpm": 50}, "the fifty are back")
        harness.clock.advance(10)
    async with limiter.acquire("key", RESOURCE, {"tpm": 0}) as lease:
        harness.clock.advance_ms(1)
        await take(other, "key", RESOURCE, [{"tpm": 40}])
        await lease.adjust(tpm=10)
    same(await _left(limiter), {"tpm": 50}, "debt counts as well")


@check
async def given_back_elsewhere_is_not_taken_twice(harness: Harness) -> None:
    """A client that last saw a bucket nearly empty takes from one that is full by now."""
    limiter = await _limiter(harness, [Limit("tpm", 100, 10, 1)])
    other = beside(harness, limiter)
    async with limiter.acquire("key", RESOURCE, {"tpm": 80}) as lease:
        await take(other, "key", RESOURCE, [{"tpm": 1}])
        await lease.release(tpm=80)
    harness.clock.advance(1)
    await take(other, "key", RESOURCE, [{"tpm": 10}])
    same(await _left(limiter), {"tpm": 90}, "what ran over is not there to be spent")


@check
async def unestimated_use_is_not_swallowed(harness: Harness) -> None:
    """A bucket that was full when the lease began owes all that the lease turned out to use."""
    limiter = await _limiter(harness)
    await take(limiter, "key", RESOURCE, [{"tpm": 1, "rpm": 1}])
    harness.clock.advance(100)
    async with limiter.acquire("key", RESOURCE, {"rpm": 1}) as lease:
        await lease.adjust(tpm=5_000)
    same(await _left(limiter), {"rpm": 59, "tpm": 1_000}, "not paid by the time in which it was full")


@check
async def consume_more(harness: Harness) -> None:
    """Taking more inside the body is checked; a refusal takes nothing and the body may go on."""
    limiter = await _limiter(harness)
    async with limiter.acquire("key", RESOURCE, {"tpm": 5_000}) as lease:
        await lease.consume(tpm=500)
        with raises(RateLimitExceeded, "only 500 are left"):
            await lease.consume({"tpm": 501, "rpm": 1})
        same(lease.consumed, {"tpm": 5_500}, "what was refused was not taken")
    same(await _left(limiter), {"rpm": 60, "tpm": 500}, "both are kept")


@check
async def failure_gives_all_back(harness: Harness) -> None:
    """A body that raises has taken nothing: not the estimate, not what it took or adjusted later."""
    limiter = await _limiter(harness)
    with raises(Boom):
        async with limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 500}) as lease:
            await lease.consume(tpm=300)
            await lease.adjust(tpm=9_000)
            raise Boom
    same(await _left(limiter), {"rpm": 60, "tpm": 6_000}, "as before")


@check
async def settle_states_the_usage(harness: Harness) -> None:
    """What was used replaces the estimate and earlier corrections; later corrections add to it."""
    limiter = await _limiter(harness)
    async with limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 500}) as lease:
        await lease.adjust(tpm=3_000)
        await lease.settle(tpm=900)
        await lease.settle(tpm=1_730, rpm=2)
        same(lease.consumed, {"rpm": 2, "tpm": 1_730}, "the last word counts")
    same(await _left(limiter), {"rpm": 58, "tpm": 4_270}, "once, not as a difference")
    async with limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 4_000}) as lease:
        await lease.settle(tpm=120)
        await lease.adjust(tpm=5)
    same(await _left(limiter), {"rpm": 57, "tpm": 4_145}, "the rest has come back")


@check
async def failure_is_charged_as_agreed(harness: Harness) -> None:
    """A body that raises keeps what ``on_error`` says, and what `settle` has named before."""
    limiter = await _limiter(harness)
    left = {"rpm": 60, "tpm": 6_000}
    endings: tuple[tuple[OnError, dict[str, int]], ...] = (
        ("give_back", {}),
        ("keep", {"rpm": 1, "tpm": 520}),
        ({"tpm": 120}, {"tpm": 120}),
        ({"rpm": 1, "tpm": 700}, {"rpm": 1, "tpm": 700}),
    )
    for on_error, kept in endings:
        with raises(Boom):
            async with limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 500}, on_error=on_error) as lease:
                await lease.adjust(tpm=20)
                raise Boom
        left = {name: amount - kept.get(name, 0) for name, amount in left.items()}
        same(await _left(limiter), left, f"on_error={on_error!r}")
        with raises(Boom):
            async with limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 500}, on_error=on_error) as lease:
                await lease.settle(tpm=300)
                raise Boom
        left = {"rpm": left["rpm"] - kept.get("rpm", 0), "tpm": left["tpm"] - 300}
        same(await _left(limiter), left, f"settled, on_error={on_error!r}")


@check
async def consumption_is_counted(harness: Harness) -> None:
    """Each limit counts what was consumed on balance: estimates and adjustments, less what came back."""
    limiter = await _limiter(harness)
    async with limiter.acquire("key", RESOURCE, {"rpm": 2, "tpm": 500}) as lease:
        await lease.consume(tpm=40)
        await lease.adjust(tpm=300)
        await lease.release(rpm=1)
    with raises(Boom):
        async with limiter.acquire("key", RESOURCE, {"rpm": 5, "tpm": 50}):
            raise Boom
    harness.clock.advance(120)
    await take(limiter, "key", RESOURCE, [{"rpm": 1}])
    found = {state.limit_name: state.total_consumed_milli for state in await limiter.get_buckets("key")}
    same(found, {"rpm": 2_000, "tpm": 840_000}, "in millitokens, whatever was refilled meanwhile")


@check
async def refusal_tells_which(harness: Harness) -> None:
    """A refusal shows every limit as it was, and names only those that stood in the way."""
    limiter = await _limiter(harness)
    await take(limiter, "key", RESOURCE, [{"rpm": 59, "tpm": 5_000}])
    with raises(RateLimitExceeded, "1 of rpm is left, 1,000 of tpm") as refused:
        await take(limiter, "key", RESOURCE, [{"rpm": 1, "tpm": 1_001}])
    same([status.limit_name for status in refused.error.violations], ["tpm"], "one is short")
    same([status.limit_name for status in refused.error.passed], ["rpm"], "the other just fits")
    shown = {status.limit_name: (status.available, status.requested) for status in refused.error.statuses}
    same(shown, {"rpm": (1, 1), "tpm": (1_000, 1_001)}, "both as they were")
    same(refused.error.retry_after_seconds, 0.01, "1 token at 100 a second")


@check
async def a_cost_names_limits(harness: Harness) -> None:
    """One that names something else is an error, of a new bucket and of any other, and takes nothing."""
    limiter = await _limiter(harness)
    for left in (6_000, 5_999, 5_998):
        with raises(ValidationError, "there is no such limit"):
            await take(limiter, "key", RESOURCE, [{"tpm": 1, "tokens": 1}])
        same(await _left(limiter), {"rpm": 60, "tpm": left}, "nothing is taken")
        await take(limiter, "key", RESOURCE, [{"tpm": 1}])


@check
async def over_is_over(harness: Harness) -> None:
    """A lease is used inside its block only."""
    limiter = await _limiter(harness)
    async with limiter.acquire("key", RESOURCE, {"rpm": 1}) as lease:
        pass
    for verb in (lease.settle, lease.adjust, lease.release, lease.consume):
        with raises(LeaseExpiredError, "the block is over"):
            await verb(rpm=1)
    same(await _left(limiter), {"rpm": 59, "tpm": 6_000}, "and changes nothing any more")


@check
async def waiting(harness: Harness) -> None:
    """With ``max_wait`` an acquire waits for the promised moment, or to the end: tokens may come back before."""
    limiter = await _limiter(harness)
    await take(limiter, "key", RESOURCE, [{"rpm": 60}])
    start_ms = harness.clock.now_ms()
    with raises(RateLimitExceeded, "a second is not enough for 2 tokens"):
        async with limiter.acquire("key", RESOURCE, {"rpm": 2}, max_wait=1.5):
            pass
    same(harness.clock.now_ms(), start_ms + 1_500, "it waited to the end")
    async with limiter.acquire("key", RESOURCE, {"rpm": 2}, max_wait=2):
        same(harness.clock.now_ms(), start_ms + 2_000, "it waited as long as it took")


@check
async def exactly_as_many(harness: Harness) -> None:
    """Of many who come at once, over several clients, exactly as many are granted as there are tokens."""
    limiter = await _limiter(harness, [Limit.per_day("rpd", 10)])
    clients = [limiter, beside(harness, limiter), beside(harness, limiter)]
    left = await at_once(harness, [partial(_ask, clients[max(0, number - 20) % 3]) for number in range(30)])
    granted = sorted(each for each in left if each is not None)
    same(granted, list(range(10)), "ten were granted, and each saw what its own write had left")


async def _ask(limiter: RateLimiter) -> int | None:
    try:
        async with limiter.acquire("key", RESOURCE, {"rpd": 1}) as lease:
            return lease.available["rpd"]
    except RateLimitExceeded:
        return None


@check
async def default_buckets_expire(harness: Harness) -> None:
    """A bucket under default limits is forgotten when it has long been full; one under an entity's own never is."""
    limiter = await _limiter(harness)
    await limiter.set_limits("own", LIMITS)
    for entity_id in ("key", "own"):
        await take(limiter, entity_id, RESOURCE, [{"tpm": 6_000}])
    expires = (await _image(harness, limiter, "key"))[TTL] * 1000
    true(expires >= harness.clock.now_ms() + 60_000, "not before it is full")
    true(TTL not in await _image(harness, limiter, "own"), "one under limits of its own stays")
    harness.clock.set_ms(expires)
    same(await limiter.get_buckets("key"), [], "forgotten")
    same(len(await limiter.get_buckets("own")), 2, "kept")
    same(await _left(beside(harness, limiter)), {"rpm": 60, "tpm": 6_000}, "nothing is lost by that")
    await take(limiter, "key", RESOURCE, [{"tpm": 6_000}])
    harness.clock.advance(410)
    await take(limiter, "key", RESOURCE, [{"tpm": 6_000}])
    harness.clock.advance(15)
    same(await _left(limiter), {"rpm": 60, "tpm": 1_500}, "each charge puts the expiry off")
    for own in (LIMITS, [*LIMITS, Limit.per_hour("more", 1)]):
        await limiter.set_limits("key", own)
        await take(limiter, "key", RESOURCE, [{"rpm": 1}])
        true(TTL not in await _image(harness, limiter, "key"), "with limits of its own it stays from then on")
        await limiter.delete_limits("key")
        await take(limiter, "key", RESOURCE, [{"rpm": 1}])
        true(TTL in await _image(harness, limiter, "key"), "and without them it does not")


@check
async def debt_is_not_forgotten(harness: Harness) -> None:
    """A bucket in debt is kept until the debt is paid, whatever else is taken from it meanwhile."""
    limiter = await _limiter(harness)
    kept = _kept_seconds(limiter)
    await take(limiter, "key", RESOURCE, [{"rpm": 1}, {"rpm": 1}])
    async with limiter.acquire("key", RESOURCE, {"tpm": 1}) as lease:
        await lease.adjust(tpm=600_000 + 100 * kept)
    for _ in range(9):
        harness.clock.advance(600)
        await take(limiter, "key", RESOURCE, [{"rpm": 1}, {"rpm": 1}])
    harness.clock.advance(kept + 300)
    left = (await _left(beside(harness, limiter)))["tpm"]
    same(left, 5_999 - 600_000 + 540_000 + 30_000, "nearly all of it is paid")


@check
async def debt_outlives_what_others_take(harness: Harness) -> None:
    """A charge of another limit does not bring the expiry of a bucket in debt nearer."""
    limiter = await _limiter(harness)
    days = 9 + _kept_seconds(limiter) // 86_400
    async with limiter.acquire("key", RESOURCE, {"tpm": 1}) as lease:
        await lease.adjust(tpm=8_640_000 * (days + 1))
    await take(limiter, "key", RESOURCE, [{"rpm": 1}])
    harness.clock.advance(86_400 * days)
    same((await _left(beside(harness, limiter)))["tpm"], 5_999 - 8_640_000, "a day is left to be paid")


@check
async def debt_outlives_a_cut(harness: Harness) -> None:
    """Limits that refill more slowly keep a bucket in debt for as long as it now takes."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_second("tpm", 100)])
    async with limiter.acquire("key", RESOURCE, {"tpm": 1}) as lease:
        await lease.adjust(tpm=1_999)
    await limiter.set_system_defaults([Limit.per_day("tpm", 100)])
    with raises(RateLimitExceeded, "in debt"):
        await take(limiter, "key", RESOURCE, [{"tpm": 1}])
    harness.clock.advance(8 * 86_400)
    same(await _left(limiter), {"tpm": -1_900 + 800}, "eight days of a hundred a day, and not a new bucket")


def _kept_seconds(limiter: RateLimiter) -> int:
    """For how long a bucket stays for the sake of its usage."""
    return kept_ms(limiter.repository.capabilities.usage_retention_days) // 1000


async def _image(harness: Harness, limiter: RateLimiter, entity_id: str) -> Image:
    namespace = await limiter.repository.get_namespace(limiter.repository.namespace)
    image = await read(harness.store(), keys.bucket(namespace.id, entity_id, RESOURCE))
    if image is None:
        raise AssertionError(f"the bucket of {entity_id} is stored")
    return image


@check
async def settled_after_the_bucket_is_gone(harness: Harness) -> None:
    """A long body whose bucket has expired meanwhile still settles: all that it used beyond the estimate is owed."""
    limiter = await _limiter(harness)
    seconds = 3_600 + _kept_seconds(limiter)
    for change, tokens in ((7_000, -1_000), (90_000, -84_000), (-500, 6_000)):
        async with limiter.acquire(f"key{change}", RESOURCE, {"tpm": 1_000}) as lease:
            await lease.adjust(tpm=change)
            harness.clock.advance(seconds)
        same((await _left(limiter, f"key{change}"))["tpm"], tokens, f"a bucket that is gone was full, then {change}")
        states = {state.limit_name: state for state in await limiter.get_buckets(f"key{change}")}
        if change > 0:
            same(states["tpm"].total_consumed_milli, change * 1_000, "the new one has seen that alone")


@check
async def hammering_does_not_prolong(harness: Harness) -> None:
    """Refusals leave the expiry of a bucket alone."""
    limiter = await _limiter(harness)
    await take(limiter, "key", RESOURCE, [{"tpm": 6_000}])
    before = await _image(harness, limiter, "key")
    for _ in range(5):
        harness.clock.advance(0.5)
        with raises(RateLimitExceeded, "not yet"):
            await take(beside(harness, limiter), "key", RESOURCE, [{"tpm": 6_000}])
    same(await _image(harness, limiter, "key"), before, "not a single attribute has changed")


CHECKS = checks_of(globals())
