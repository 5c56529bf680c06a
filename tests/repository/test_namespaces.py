"""Namespaces: tenants of one store that cannot see each other, and what becomes of their data."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.meddler import Meddler
from zae_limiter import (
    Limit,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
)
from zae_limiter.records.algebra import Committed, Conflict, Query, Write
from zae_limiter.testing import Fault, FaultyStore, Harness

RPM = [Limit.per_hour("rpm", 100)]


async def fill(repo: Repository, limiter: RateLimiter) -> None:
    """One record of every kind that a namespace holds."""
    await repo.create_entity("org", metadata={"in": repo.namespace})
    await repo.create_entity("key", parent_id="org", cascade=True)
    await repo.set_system_defaults(RPM, "allow")
    await repo.set_resource_defaults("gpt-4", RPM)
    await repo.set_limits("org", RPM)
    await repo.set_limits("org", RPM, "gpt-4")
    async with limiter.acquire("key", "gpt-4", {"rpm": 40}):
        pass


async def test_namespaces_of_one_store_see_nothing_of_each_other(harness: Harness) -> None:
    root = harness.repository()
    await root.register_namespaces(["red", "blue"])
    red, blue = (harness.repository(namespace=name) for name in ("red", "blue"))
    limiter = harness.limiter(red)
    await fill(red, limiter)
    assert await blue.get_entity("org") is None
    assert await blue.get_children("org") == []
    assert await blue.get_system_defaults() == ([], None)
    assert await blue.resolve_limits("org", "gpt-4") == (None, None, None)
    assert await blue.list_resources_with_defaults() == []
    assert await blue.list_entities_with_custom_limits("gpt-4") == ([], None)
    assert await blue.get_buckets("key") == []
    assert await blue.get_audit_events("org") == []
    other = harness.limiter(blue)
    assert (await other.get_resource_capacity("gpt-4", "rpm")).entities == ()
    await fill(blue, other)
    assert await limiter.available("key", "gpt-4") == await other.available("key", "gpt-4") == {"rpm": 60}
    mine = await red.get_entity("org")
    assert mine is not None
    assert mine.metadata == {"in": "red"}


async def test_an_unregistered_namespace_is_an_error_and_the_default_one_is_not(harness: Harness) -> None:
    repo = harness.repository(namespace="red")
    with pytest.raises(NamespaceNotFoundError, match="register it first"):
        await repo.get_entity("key")
    with pytest.raises(NamespaceNotFoundError, match="register it first"):
        await repo.set_system_defaults(RPM)
    await repo.register_namespace("red")
    assert await repo.get_entity("key") is None
    assert await harness.repository().get_entity("key") is None
    assert [space.name for space in await repo.list_namespaces()] == ["default", "red"]


async def test_the_registry(harness: Harness) -> None:
    repo = harness.repository()
    made = await repo.register_namespaces(["red", "blue"], principal="me")
    assert [(space.name, space.status, space.deleted_at) for space in made] == [
        ("red", "active", None),
        ("blue", "active", None),
    ]
    assert len({space.id for space in made}) == 2
    assert await repo.register_namespace("red") == made[0], "registering again changes nothing"
    assert await repo.get_namespace("blue") == made[1]
    assert [space.name for space in await repo.list_namespaces()] == ["blue", "red"]
    with pytest.raises(NamespaceNotFoundError) as unknown:
        await repo.get_namespace("green")
    assert unknown.value.namespace_name == "green"
    with pytest.raises(NamespaceNotFoundError):
        await repo.delete_namespace("green")
    with pytest.raises(NamespaceNotFoundError, match="no-such-id"):
        await repo.recover_namespace("no-such-id")
    with pytest.raises(NamespaceNotFoundError, match="no-such-id"):
        await repo.purge_namespace("no-such-id")


async def test_delete_and_recover(harness: Harness) -> None:
    root = harness.repository()
    made = await root.register_namespace("red")
    await fill(red := harness.repository(namespace="red"), harness.limiter(red))
    gone = await root.delete_namespace("red")
    assert (gone.id, gone.status) == (made.id, "deleted")
    assert gone.deleted_at is not None
    assert await root.list_namespaces() == []
    assert await root.list_orphan_namespaces() == [gone]
    with pytest.raises(NamespaceNotFoundError):
        await harness.repository(namespace="red").get_entity("org")
    assert await root.recover_namespace(made.id) == made
    assert await root.list_orphan_namespaces() == []
    again = harness.limiter(harness.repository(namespace="red"))
    assert await again.available("key", "gpt-4") == {"rpm": 60}
    with pytest.raises(NamespaceStateError, match="active") as busy:
        await root.recover_namespace(made.id)
    assert (busy.value.namespace_name, busy.value.state) == ("red", "active")


async def test_a_name_that_was_taken_meanwhile_is_not_given_back(harness: Harness) -> None:
    repo = harness.repository()
    old = await repo.register_namespace("red")
    await repo.delete_namespace("red")
    new = await repo.register_namespace("red")
    assert new.id != old.id
    with pytest.raises(NamespaceStateError, match="taken"):
        await repo.recover_namespace(old.id)
    assert await repo.get_namespace("red") == new
    assert [space.id for space in await repo.list_orphan_namespaces()] == [old.id]
    await repo.delete_namespace("red")
    assert (await repo.recover_namespace(old.id)).status == "active"


async def test_a_client_does_not_write_into_a_namespace_it_has_deleted(harness: Harness) -> None:
    repo = harness.repository(namespace="red")
    await repo.register_namespace("red")
    limiter = harness.limiter(repo)
    await fill(repo, limiter)
    await repo.delete_namespace("red")
    with pytest.raises(NamespaceNotFoundError):
        await repo.get_entity("org")
    with pytest.raises(NamespaceNotFoundError):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            pass
    await repo.register_namespace("red")
    assert await repo.get_entity("org") is None, "a new namespace of an old name starts empty"


async def test_purge_takes_everything_and_nothing_else(harness: Harness) -> None:
    root = harness.repository()
    await root.register_namespaces(["red", "blue"])
    for name in ("red", "blue"):
        repo = harness.repository(namespace=name)
        await fill(repo, harness.limiter(repo))
    made = await root.get_namespace("red")
    with pytest.raises(NamespaceStateError, match="is active"):
        await root.purge_namespace(made.id)
    await root.delete_namespace("red")
    progress: list[int] = []
    count = await root.purge_namespace(made.id, on_progress=progress.append)
    assert count >= 12
    assert progress[-1] == count
    assert (await harness.store().query(Query(made.id, gsi="GSI4"))).items == ()
    assert await root.list_orphan_namespaces() == []
    with pytest.raises(NamespaceNotFoundError):
        await root.recover_namespace(made.id)
    blue = harness.limiter(harness.repository(namespace="blue"))
    assert await blue.available("key", "gpt-4") == {"rpm": 60}
    actions = [event.action for event in await root.get_audit_events("$NAMESPACE:red")]
    assert set(actions) == {"namespace_registered", "namespace_deleted", "namespace_purged"}


async def test_nothing_of_a_purged_namespace_is_left_in_the_store(harness: Harness) -> None:
    """Every record of a namespace must be found by the purge, whatever wrote it."""
    store = Recorder(harness.store())
    root = harness.repository(store)
    made = await root.register_namespace("red")
    repo = harness.repository(store, namespace="red")
    limiter = harness.limiter(repo)
    await fill(repo, limiter)
    async with limiter.acquire("org", "gpt-4", {"rpm": 1}) as lease:
        await lease.adjust(rpm=5)
    await repo.update_entity("org", name="n")
    await repo.reset_bucket("org", "gpt-4")
    await repo.delete_limits("org")
    await repo.delete_resource_defaults("gpt-4")
    await repo.delete_system_defaults()
    await repo.delete_entity("key")
    await root.delete_namespace("red")
    await root.purge_namespace(made.id)
    mine = [write.key for write in store.seen if write.key.pk.startswith(f"{made.id}/")]
    assert len(mine) > 10
    assert [image for image in await store.read(mine) if image is not None] == []


class Recorder(FaultyStore):
    """Remembers every write."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # handed through
        self.seen: list[Write] = []

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        self.seen += writes
        return await super().commit(writes, timeout=timeout)


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_an_interrupted_purge_is_finished_by_the_next(harness: Harness, commits: int) -> None:
    store = FaultyStore(harness.store())
    repo = harness.repository(store)
    made = await repo.register_namespace("red")
    await fill(red := harness.repository(namespace="red"), harness.limiter(red))
    await repo.delete_namespace("red")
    store.inject(Fault.DELAY, verb="commit", times=commits - 1)
    store.inject(Fault.FAIL_BEFORE, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await repo.purge_namespace(made.id)
    assert [space.id for space in await repo.list_orphan_namespaces()] == [made.id]
    if commits > 1:
        with pytest.raises(NamespaceStateError, match="purging"):
            await repo.recover_namespace(made.id)
    await repo.purge_namespace(made.id)
    assert await repo.list_orphan_namespaces() == []


async def test_a_namespace_that_is_recovered_while_its_purge_starts_keeps_its_data(harness: Harness) -> None:
    store = Meddler(harness.store())
    repo = harness.repository(store)
    made = await repo.register_namespace("red")
    await fill(red := harness.repository(namespace="red"), harness.limiter(red))
    await repo.delete_namespace("red")
    store.before_commit = lambda: harness.repository().recover_namespace(made.id)
    with pytest.raises(NamespaceStateError):
        await repo.purge_namespace(made.id)
    assert await harness.repository(namespace="red").get_entity("org") is not None


async def test_two_who_register_at_once_get_the_same(harness: Harness) -> None:
    store = Meddler(harness.store())
    store.before_commit = lambda: harness.repository().register_namespace("red")
    mine = await harness.repository(store).register_namespace("red")
    assert mine == await harness.repository().get_namespace("red")
    assert len(await harness.repository().list_namespaces()) == 1


async def test_a_limit_in_one_namespace_is_none_in_another(harness: Harness) -> None:
    root = harness.repository()
    await root.register_namespaces(["red", "blue"])
    red, blue = (harness.limiter(harness.repository(namespace=name)) for name in ("red", "blue"))
    async with red.acquire("key", "gpt-4", {"rpm": 100}, limits=RPM):
        pass
    async with blue.acquire("key", "gpt-4", {"rpm": 100}, limits=RPM):
        pass
    with pytest.raises(RateLimitExceeded):
        async with red.acquire("key", "gpt-4", {"rpm": 1}, limits=RPM):
            pass
