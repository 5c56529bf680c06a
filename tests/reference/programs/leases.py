"""Leases: what was consumed, adjusted, released, rolled back, and after the end."""

import asyncio

from zae_limiter import LeaseExpiredError, Limit, RateLimiter, RateLimitExceeded, Repository

LIMITS = [Limit.per_day("rpd", 100), Limit.per_day("tpd", 1_000)]


async def show(limiter: RateLimiter, text: str) -> None:
    print(text, await limiter.available("user-1", "gpt-4", limits=LIMITS))


async def main() -> None:
    limiter = RateLimiter(repository=await Repository.open())
    async with limiter.acquire("user-1", "gpt-4", {"rpd": 1, "tpd": 300}, limits=LIMITS) as lease:
        print("granted", lease.consumed, lease.degraded)
        await lease.consume(tpd=100)
        print("consumed", lease.consumed)
        await lease.release(tpd=50)
        print("released", lease.consumed)
        await lease.adjust(tpd=-100)
        print("adjusted", lease.consumed)
        try:
            await lease.consume(tpd=10_000)
        except RateLimitExceeded as error:
            print("refused", error.violations[0].limit_name, lease.consumed)
    await show(limiter, "after settling")
    try:
        await lease.consume(tpd=1)
    except LeaseExpiredError:
        print("the lease has ended")

    try:
        async with limiter.acquire("user-1", "gpt-4", {"rpd": 1, "tpd": 300}, limits=LIMITS) as lease:
            await show(limiter, "inside")
            raise RuntimeError("the call failed")
    except RuntimeError as error:
        print(error)
    await show(limiter, "after a failure")

    async with limiter.acquire("user-1", "gpt-4", {"tpd": 500}, limits=LIMITS) as lease:
        await lease.adjust(tpd=2_000)
    await show(limiter, "in debt")
    try:
        async with limiter.acquire("user-1", "gpt-4", {"tpd": 0}, limits=LIMITS):
            print("granted")
    except RateLimitExceeded as error:
        print("refused with", error.violations[0].available, error.violations[0].deficit)
    async with limiter.acquire("user-1", "gpt-4", {"rpd": 1}, limits=LIMITS):
        print("others go on")
    await limiter.close()


asyncio.run(main())
