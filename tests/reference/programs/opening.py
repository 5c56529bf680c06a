"""Opening: by open, connect and the builder; namespaces of one store; what a repository tells of itself."""

import asyncio
import os

from zae_limiter import (
    InfrastructureNotFoundError,
    Limit,
    NamespaceNotFoundError,
    RateLimiter,
    Repository,
    RepositoryProtocol,
    SyncRateLimiter,
    SyncRepository,
)

STACK = os.environ["ZAEL_STACK"]


async def open_and_connect() -> None:
    for namespace in (None, "tenant-a"):
        try:
            await Repository.connect(namespace, stack="nobody-has-this")
        except InfrastructureNotFoundError as error:
            print("no stack", error.stack_name)
    repo = await Repository.open("tenant-a", stack=STACK, config_cache_ttl=30)
    print("opened", repo.namespace_name, repo.stack_name == repo.table_name == STACK, len(repo.namespace_id or ""))
    print("is a repository", isinstance(repo, RepositoryProtocol))
    again = await Repository.connect("tenant-a")
    print("connected to the same", again.namespace_id == repo.namespace_id)
    try:
        await Repository.connect("tenant-z")
    except NamespaceNotFoundError as error:
        print("no namespace", error.namespace_name)
    await again.close()
    await repo.close()


async def build() -> None:
    await (await Repository.open("tenant-b")).close()
    builder = Repository.builder().stack(STACK).namespace("tenant-b").config_cache_ttl(5)
    repo = await builder.auto_update(False).bucket_ttl_multiplier(3).on_unavailable("allow").build()
    print("built", repo.namespace_name, repo.get_cache_stats().ttl_seconds, await repo.resolve_on_unavailable())
    limiter = RateLimiter(repository=repo)
    await repo.set_system_defaults([Limit.per_day("rpd", 10)], on_unavailable="block")
    print("limits", (await repo.get_system_defaults())[1], [each.name for each in await repo.get_system_limits()])
    await repo.invalidate_config_cache()
    async with limiter.acquire("key", "gpt-4", {"rpd": 4}):
        pass
    await use_namespaces(repo)
    await look(repo)
    await repo.close()


async def use_namespaces(repo: Repository) -> None:
    try:
        await repo.namespace("tenant-c")
    except NamespaceNotFoundError as error:
        print("not registered", error.namespace_name)
    await repo.register_namespace("tenant-c")
    other = await repo.namespace("tenant-c", on_unavailable="allow")
    print("scoped", other.namespace_name, await other.resolve_on_unavailable(), await other.get_entity("key"))
    await other.create_entity("key")
    await other.close()
    print("still open", (await other.get_entity("key")) is not None, await repo.get_entity("key"))
    print("namespaces", sorted(await names(repo)))


async def names(repo: Repository) -> list[str]:
    return [name for name in ("tenant-a", "tenant-b", "tenant-c") if await repo.namespace(name)]


async def look(repo: Repository) -> None:
    state = await repo.get_bucket("key", "gpt-4", "rpd")
    print("bucket", state and (state.entity_id, state.capacity_milli, state.total_consumed_milli))
    print("no bucket", await repo.get_bucket("key", "gpt-4", "tpd"), await repo.get_resource_buckets("gpt-9"))
    print("of the resource", [each.entity_id for each in await repo.get_resource_buckets("gpt-4", "rpd")])
    for org in ("org-1", "org-2"):
        await repo.create_entity(org)
    await repo.create_entity("child", parent_id="org-1")
    await repo.set_parent("child", "org-2", principal="ann")
    print("moved", [child.id for child in await repo.get_children(parent_id="org-2")])
    await repo.set_parent("child", None)
    print("on its own", await repo.get_children("org-2"))
    print("answers", await repo.ping())


def block() -> None:
    repo = SyncRepository.open("tenant-b", "serial")
    limiter = SyncRateLimiter(repository=repo)
    print("blocking", repo.namespace_name, limiter.available("key", "gpt-4"), limiter.stack_name == STACK)
    print("scoped", repo.namespace("tenant-a").namespace_name)
    print("built", SyncRepository.builder().stack(STACK).namespace("tenant-a").build().namespace_name)
    limiter.close()


asyncio.run(open_and_connect())
asyncio.run(build())
block()
