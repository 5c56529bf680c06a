"""Getting started: limits at the call, a lease that is adjusted, a refusal."""

import asyncio

from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository


async def main() -> None:
    repo = await Repository.open()
    limiter = RateLimiter(repository=repo)
    limits = [Limit.per_day("rpd", 3), Limit.per_day("tpd", 10_000, burst=15_000)]

    async with limiter.acquire(
        entity_id="api-key-123", resource="gpt-4", limits=limits, consume={"rpd": 1, "tpd": 500}
    ) as lease:
        print("granted", lease.consumed)
        await lease.adjust(tpd=1_500)
        print("adjusted", lease.consumed)
    print("left", await limiter.available("api-key-123", "gpt-4", limits=limits))

    for number in range(3):
        try:
            async with limiter.acquire("api-key-123", "gpt-4", {"rpd": 1, "tpd": 1}, limits):
                print("request", number, "granted")
        except RateLimitExceeded as error:
            first = error.primary_violation
            assert first is not None
            print("request", number, "refused by", first.limit_name, (first.retry_after_seconds or 0) > 8_000)
    waiting = await limiter.time_until_available("api-key-123", "gpt-4", {"rpd": 1}, limits)
    print("must wait", 8_000 < waiting < 86_400)
    print("is there", await limiter.is_available())
    await limiter.close()


asyncio.run(main())
