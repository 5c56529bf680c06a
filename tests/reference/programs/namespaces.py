"""Namespaces: tenants with the same names and limits of their own; deleted, recovered, purged."""

import asyncio

from zae_limiter import (
    Limit,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimiter,
    Repository,
    ValidationError,
)


async def take(repo: Repository, amount: int) -> dict[str, int]:
    limiter = RateLimiter(repository=repo)
    async with limiter.acquire("user-1", "gpt-4", {"rpd": amount}):
        pass
    return await limiter.available("user-1", "gpt-4")


async def main() -> None:
    repo = await Repository.open()
    print("opened", repo.namespace_name, len(repo.namespace_id or ""))
    await repo.register_namespace("tenant-a")
    await repo.register_namespaces(["tenant-a", "tenant-b"])
    tenant_a, tenant_b = await repo.namespace("tenant-a"), await repo.namespace("tenant-b")
    first = tenant_a.namespace_id
    assert first is not None
    print("views", tenant_a.namespace_name, tenant_b.namespace_name, first != tenant_b.namespace_id)
    print("the same again", (await Repository.connect("tenant-a")).namespace_id == first)
    await tenant_a.set_system_defaults([Limit.per_day("rpd", 10)])
    await tenant_b.set_system_defaults([Limit.per_day("rpd", 1_000)])
    print("left", await take(tenant_a, 4), await take(tenant_b, 4))
    await tenant_a.create_entity("user-1", name="Ann")
    print("entity", (await tenant_a.get_entity("user-1")) is not None, await tenant_b.get_entity("user-1"))

    print("all", len(await repo.list_namespaces()))
    try:
        await repo.namespace("tenant-c")
    except NamespaceNotFoundError as error:
        print("not found", error.namespace_name)
    await repo.delete_namespace("tenant-a")
    print("orphans", len(await repo.list_orphan_namespaces()))
    try:
        await Repository.connect("tenant-a")
    except NamespaceNotFoundError as error:
        print("not found", error.namespace_name)
    await repo.recover_namespace(first)
    print("left", await take(await repo.namespace("tenant-a"), 1))
    try:
        await repo.purge_namespace(first)
    except NamespaceStateError as error:
        print("cannot purge", type(error).__name__)
    await repo.delete_namespace("tenant-a")
    await repo.purge_namespace(first)
    print("purged", await repo.list_orphan_namespaces())
    try:
        await repo.register_namespace("_")
    except ValidationError as error:
        print("invalid", error.field)
    await repo.close()


asyncio.run(main())
