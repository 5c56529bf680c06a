"""Stacks: one that the builder deploys, found again, connected to and deleted."""

import asyncio
import os

from zae_limiter import InfrastructureNotFoundError, Limit, RateLimiter, Repository

STACK = f"{os.environ['ZAEL_STACK']}-built"


async def main() -> None:
    repo = await (
        Repository.builder()
        .stack(STACK)
        .region("us-east-1")
        .namespace("tenant-a")
        .config_cache_ttl(30)
        .on_unavailable("allow")
        .enable_aggregator(False)
        .enable_alarms(False)
        .enable_audit_archival(False)
        .create_iam(False)
        .tags({"team": "ml"})
        .build()
    )
    print(repo.stack_name == STACK, repo.table_name == STACK, repo.region, repo.namespace_name)
    print(await repo.resolve_on_unavailable(), repo.get_cache_stats().ttl_seconds)
    limiter = RateLimiter(repository=repo)
    async with limiter.acquire("user-1", "gpt-4", {"rpd": 1}, limits=[Limit.per_day("rpd", 10)]):
        print("granted")

    (found,) = [each for each in await RateLimiter.list_deployed(region="us-east-1") if each.stack_name == STACK]
    print(found.region, found.is_healthy, found.is_in_progress, found.is_failed)
    again = await Repository.connect("tenant-a", stack=STACK, region="us-east-1")
    print("the same namespace", again.namespace_id == repo.namespace_id, await again.ping())
    await again.close()
    await repo.delete_stack()
    try:
        await Repository.connect(stack=STACK, region="us-east-1")
    except InfrastructureNotFoundError as error:
        print("gone", error.stack_name == STACK)
    await repo.close()


asyncio.run(main())
