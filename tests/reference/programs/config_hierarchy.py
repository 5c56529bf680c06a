"""Stored limits: system, resource, entity for all resources, entity for one; which of them is in force."""

import asyncio

from zae_limiter import Limit, OnUnavailable, RateLimiter, RateLimitExceeded, Repository, ValidationError


def spell(limits: list[Limit]) -> list[str]:
    return [
        f"{each.name}: {each.refill_amount} in {each.refill_period_seconds} s, up to {each.capacity}" for each in limits
    ]


async def resolve(repo: Repository, entity_id: str, resource: str) -> None:
    limits, on_unavailable, source = await repo.resolve_limits(entity_id, resource)
    print(entity_id, resource, source, on_unavailable, [(each.name, each.capacity) for each in limits or []])


async def main() -> None:
    repo = await Repository.open(config_cache_ttl=0)
    limiter = RateLimiter(repository=repo)
    try:
        async with limiter.acquire("user-0", "gpt-4", {"rpm": 1}):
            print("granted without limits")
    except ValidationError as error:
        print("refused:", error.field)

    await limiter.set_system_defaults([Limit.per_day("rpd", 100), Limit.per_day("tpd", 1_000)], OnUnavailable.ALLOW)
    await resolve(repo, "user-1", "gpt-4")
    await limiter.set_resource_defaults("gpt-4", [Limit.per_day("rpd", 50)])
    await resolve(repo, "user-1", "gpt-4")
    await limiter.set_limits("user-1", [Limit.per_day("rpd", 20)])
    await resolve(repo, "user-1", "gpt-4")
    await limiter.set_limits("user-1", [Limit.per_hour("rpd", 2, burst=10)], resource="gpt-4")
    await resolve(repo, "user-1", "gpt-4")
    await resolve(repo, "user-1", "claude-3")
    await resolve(repo, "user-2", "claude-3")

    limits, on_unavailable = await limiter.get_system_defaults()
    print("system", [each.to_dict() for each in limits], on_unavailable is OnUnavailable.ALLOW)
    print("resource", spell(await limiter.get_resource_defaults("gpt-4")))
    print("entity", spell(await limiter.get_limits("user-1")), spell(await limiter.get_limits("user-1", "gpt-4")))
    print("none", await limiter.get_limits("user-2"), await limiter.get_resource_defaults("claude-3"))
    print("resources", await limiter.list_resources_with_defaults())
    print("resources of entities", await limiter.list_resources_with_entity_configs())
    print("entities", await limiter.list_entities_with_custom_limits("gpt-4"))
    async with limiter.acquire("user-1", "gpt-4", consume={"rpd": 8}):
        print("left", await limiter.available("user-1", "gpt-4"))
    try:
        async with limiter.acquire("user-1", "gpt-4", consume={"rpd": 3}):
            print("granted")
    except RateLimitExceeded as error:
        print("refused", [(each.limit_name, each.available, each.requested) for each in error.violations])

    await limiter.delete_limits("user-1", "gpt-4")
    await resolve(repo, "user-1", "gpt-4")
    await limiter.delete_limits("user-1")
    await resolve(repo, "user-1", "gpt-4")
    await limiter.delete_resource_defaults("gpt-4")
    await resolve(repo, "user-1", "gpt-4")
    await limiter.delete_system_defaults()
    await resolve(repo, "user-1", "gpt-4")
    await repo.close()


asyncio.run(main())
