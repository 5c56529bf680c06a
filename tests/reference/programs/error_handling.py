"""Errors: what a refusal says, what invalid input is, what is not there."""

import asyncio
from collections.abc import Awaitable

from zae_limiter import (
    InfrastructureError,
    InfrastructureNotFoundError,
    Limit,
    NamespaceNotFoundError,
    RateLimiter,
    RateLimitError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
    ValidationError,
    ZAELimiterError,
)


async def fail(text: str, call: Awaitable[object]) -> None:
    try:
        print(text, "done", await call)
    except ValidationError as error:
        print(text, type(error).__name__, error.field)


async def main() -> None:
    repo = await Repository.open()
    limiter = RateLimiter(repository=repo)
    limits = [Limit.per_day("rpd", 5), Limit.per_day("tpd", 1_000)]
    try:
        for _ in range(6):
            async with limiter.acquire("user-1", "gpt-4", {"rpd": 1, "tpd": 10}, limits):
                pass
    except RateLimitExceeded as error:
        print("statuses", sorted((each.limit_name, each.exceeded, each.requested) for each in error.statuses))
        print("violations", [each.limit_name for each in error.violations], [each.limit_name for each in error.passed])
        first = error.primary_violation
        assert first is not None
        print("primary", first.entity_id, first.resource, first.limit.capacity, first.available, first.deficit)
        print("retry", error.retry_after_seconds == first.retry_after_seconds, str(error.retry_after_header).isdigit())
        body = error.as_dict()
        known = {"error", "message", "retry_after_seconds", "retry_after_ms", "limits"}
        print("body", known <= body.keys(), body["error"], body["retry_after_ms"] > 8_000_000)
        names = ("entity_id", "resource", "limit_name", "capacity", "refill_amount", "refill_period_seconds")
        more = ("available", "requested", "exceeded")
        print("limits", [{name: each[name] for name in names + more} for each in body["limits"]])
        print("family", isinstance(error, RateLimitError), isinstance(error, ZAELimiterError))

    await fail("bad entity", limiter.create_entity("no#hash"))
    await fail("no limits", limiter.time_until_available("user-1", "unknown", {"rpd": 1}))
    try:
        Limit.per_day("1x", 5)
    except ValidationError as error:
        print("bad name", type(error).__name__)
    try:
        Limit.per_day("rpd", 0)
    except ValueError:
        print("bad capacity")
    try:
        await Repository.connect(stack="does-not-exist")
    except InfrastructureNotFoundError as error:
        print("no stack", error.stack_name, isinstance(error, InfrastructureError))
    try:
        await Repository.connect("does-not-exist")
    except NamespaceNotFoundError as error:
        print("no namespace", error.namespace_name)
    caused = RateLimiterUnavailable("no answer", ValueError("x"), stack_name="s", entity_id="e", resource="r")
    print("unavailable", caused.stack_name, caused.entity_id, caused.resource, type(caused.cause).__name__)
    await repo.close()


asyncio.run(main())
