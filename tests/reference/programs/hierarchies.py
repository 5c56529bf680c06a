"""Hierarchies: a project above its keys, charged by those that cascade."""

import asyncio

from zae_limiter import EntityExistsError, Limit, RateLimiter, RateLimitExceeded, Repository


async def main() -> None:
    repo = await Repository.open()
    limiter = RateLimiter(repository=repo)
    project = await limiter.create_entity("project-1", name="Production", metadata={"plan": "gold"})
    print(project.id, project.name, project.is_parent, project.is_child, project.metadata)
    await limiter.create_entity("key-a", parent_id="project-1", cascade=True)
    await limiter.create_entity("key-b", parent_id="project-1")
    try:
        await limiter.create_entity("key-a")
    except EntityExistsError as error:
        print("exists", error.entity_id)
    for child in sorted(await limiter.get_children("project-1"), key=lambda child: child.id):
        print("child", child.id, child.name, child.parent_id, child.cascade, child.is_child)

    await limiter.set_limits("project-1", [Limit.per_day("rpd", 10)])
    await limiter.set_system_defaults([Limit.per_day("rpd", 8)])
    async with limiter.acquire("key-a", "gpt-4", {"rpd": 6}):
        pass
    async with limiter.acquire("key-b", "gpt-4", {"rpd": 6}):
        pass
    print("project", await limiter.available("project-1", "gpt-4"), "key-b", await limiter.available("key-b", "gpt-4"))
    async with limiter.acquire("project-1", "gpt-4", {"rpd": 3}):
        pass
    try:
        async with limiter.acquire("key-a", "gpt-4", {"rpd": 2}):
            print("granted")
    except RateLimitExceeded as error:
        parent = next(each for each in error.violations if each.entity_id == "project-1")
        print("refused by", parent.entity_id, parent.limit_name, parent.available, parent.requested)
    async with limiter.acquire("key-a", "gpt-4", {"rpd": 1}):
        print("the last one")

    moved = await repo.set_parent("key-b", None)
    print("moved", type(moved).__name__, (await repo.get_entity("key-b")).parent_id)  # type: ignore[union-attr]
    await limiter.delete_entity("key-b")
    print("deleted", await limiter.get_entity("key-b"))
    print("children", [child.id for child in await limiter.get_children("project-1")])
    capacity = await limiter.get_resource_capacity("gpt-4", "rpd", parents_only=True)
    print(capacity.total_capacity, capacity.total_available, [each.entity_id for each in capacity.entities])
    await repo.close()


asyncio.run(main())
