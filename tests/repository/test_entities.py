"""Entities: create, change, move, delete; hierarchies and who is charged."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.support.meddler import Meddler
from zae_limiter import (
    CapacityExceeded,
    EntityExistsError,
    EntityNotFoundError,
    EntityVersionError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.testing import Harness

RPM = [Limit.per_hour("rpm", 100)]


async def take(limiter: RateLimiter, entity: str, amount: int, name: str = "rpm", **options: Any) -> bool:
    try:
        async with limiter.acquire(entity, "gpt-4", {name: amount}, **options):
            return True
    except RateLimitExceeded:
        return False


async def test_what_is_created_is_what_is_read(harness: Harness) -> None:
    limiter = harness.limiter()
    org = await limiter.create_entity("org", "The Org", metadata={"plan": "pro", "tags": ["a", 1, None, {"b": 0.5}]})
    key = await limiter.create_entity("key", parent_id="org", cascade=True)
    assert await harness.limiter().get_entity("org") == org
    assert await harness.limiter().get_entity("key") == key
    assert (org.id, org.name, org.parent_id, org.cascade, org.version) == ("org", "The Org", None, False, 1)
    assert org.metadata == {"plan": "pro", "tags": ["a", 1, None, {"b": 0.5}]}
    assert org.created_at == "2027-01-15T08:00:00.000Z"
    assert (key.name, key.parent_id, key.cascade, key.metadata) == ("key", "org", True, {})
    assert (org.is_parent, org.is_child, key.is_parent, key.is_child) == (True, False, False, True)
    assert await limiter.get_entity("nobody") is None
    with pytest.raises(EntityExistsError) as caught:
        await limiter.create_entity("org")
    assert caught.value.entity_id == "org"
    assert pickle.loads(pickle.dumps(caught.value)).entity_id == "org"


async def test_what_was_handed_in_or_out_is_no_door_into_the_store(harness: Harness) -> None:
    limiter = harness.limiter()
    given: dict[str, Any] = {"tags": ["a"]}
    made = await limiter.create_entity("org", metadata=given)
    given["tags"].append("b")
    made.metadata["tags"].append("c")
    seen = await limiter.get_entity("org")
    assert seen is not None
    assert seen.metadata == {"tags": ["a"]}
    seen.metadata["tags"].append("d")
    again = await limiter.get_entity("org")
    assert again is not None
    assert again.metadata == {"tags": ["a"]}


async def test_an_update_changes_what_is_given_and_counts(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("org")
    before = await limiter.create_entity("key", "Key", "org", True, {"a": 1})
    harness.clock.advance(5)
    after = await limiter.update_entity("key", name="New")
    assert (after.name, after.parent_id, after.cascade, after.metadata) == ("New", "org", True, {"a": 1})
    assert (after.version, after.created_at) == (2, before.created_at)
    after = await limiter.update_entity("key", metadata={"b": 2}, cascade=False)
    assert (after.name, after.metadata, after.cascade, after.version) == ("New", {"b": 2}, False, 3)
    after = await limiter.update_entity("key", name=None, parent_id=None)
    assert (after.name, after.parent_id, after.version) == ("key", None, 4)
    assert await harness.limiter().get_entity("key") == after
    with pytest.raises(EntityNotFoundError):
        await limiter.update_entity("nobody", name="x")


async def test_an_update_on_a_version_that_has_moved_is_refused(harness: Harness) -> None:
    limiter = harness.limiter()
    seen = await limiter.create_entity("org")
    await harness.limiter().update_entity("org", name="theirs", expected_version=seen.version)
    with pytest.raises(EntityVersionError) as caught:
        await limiter.update_entity("org", name="mine", expected_version=seen.version)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.entity_id, again.expected, again.actual) == ("org", 1, 2)
    current = await limiter.get_entity("org")
    assert current is not None
    assert (current.name, current.version) == ("theirs", 2)


@pytest.mark.parametrize("expected", [None, 1])
async def test_two_updates_at_once_do_not_lose_one(harness: Harness, expected: int | None) -> None:
    store = Meddler(harness.store())
    limiter = harness.limiter(store)
    await limiter.create_entity("org")
    store.before_commit = lambda: harness.limiter().update_entity("org", metadata={"by": "them"})
    if expected is None:
        merged = await limiter.update_entity("org", name="mine")
        assert (merged.name, merged.metadata, merged.version) == ("mine", {"by": "them"}, 3)
    else:
        with pytest.raises(EntityVersionError):
            await limiter.update_entity("org", name="mine", expected_version=expected)


async def test_children_follow_every_change(harness: Harness) -> None:
    limiter = harness.limiter()
    for org in ("org", "other"):
        await limiter.create_entity(org)
    for key in ("b", "a", "c"):
        await limiter.create_entity(key, parent_id="org")

    async def children(of: str) -> list[str]:
        return [child.id for child in await harness.limiter().get_children(of)]

    assert await children("org") == ["a", "b", "c"]
    await limiter.update_entity("b", parent_id="other")
    await limiter.update_entity("c", parent_id=None)
    await limiter.update_entity("a", name="still there")
    assert (await children("org"), await children("other"), await children("c")) == (["a"], ["b"], [])
    await limiter.delete_entity("a")
    assert await children("org") == []
    assert await children("nobody") == []


async def test_deleting_takes_limits_and_buckets_along(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("key")
    await limiter.set_limits("key", [Limit.per_hour("rpm", 5)])
    await limiter.set_limits("key", [Limit.per_hour("rpm", 3)], "gpt-4")
    assert await take(limiter, "key", 3)
    assert not await take(limiter, "key", 1)
    await limiter.delete_entity("key")
    assert await limiter.get_entity("key") is None
    assert await limiter.get_buckets("key") == []
    assert (await limiter.get_limits("key"), await limiter.get_limits("key", "gpt-4")) == ([], [])
    assert await limiter.list_resources_with_entity_configs() == []
    assert await limiter.list_entities_with_custom_limits("gpt-4") == ([], None)
    with pytest.raises(EntityNotFoundError):
        await limiter.delete_entity("key")
    await limiter.create_entity("key")
    assert await take(limiter, "key", 100), "a new entity starts full, under the limits that are left"


async def test_an_entity_with_children_is_not_deleted(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org")
    with pytest.raises(ValidationError, match="'key'"):
        await limiter.delete_entity("org")
    await limiter.delete_entity("key")
    await limiter.delete_entity("org")


async def test_a_child_that_comes_while_its_parent_is_deleted_is_not_orphaned(harness: Harness) -> None:
    store = Meddler(harness.store())
    limiter = harness.limiter(store)
    await limiter.create_entity("org")
    store.before_commit = lambda: harness.limiter().create_entity("key", parent_id="org", cascade=True)
    with pytest.raises(ValidationError, match="'key'"):
        await limiter.delete_entity("org")
    assert await limiter.get_entity("org") is not None


async def test_a_parent_that_goes_while_its_child_is_made_is_an_error(harness: Harness) -> None:
    store = Meddler(harness.store())
    limiter = harness.limiter(store)
    await limiter.create_entity("org")
    store.before_commit = lambda: harness.limiter().delete_entity("org")
    with pytest.raises(EntityNotFoundError):
        await limiter.create_entity("key", parent_id="org")
    assert await limiter.get_entity("key") is None


async def test_a_cascade_reaches_every_level_and_is_all_or_nothing(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    chain = [f"level-{depth}" for depth in range(8)]
    for depth, entity in enumerate(chain):
        await limiter.create_entity(entity, parent_id=chain[depth - 1] if depth else None, cascade=True)
    assert await take(limiter, chain[-1], 30)
    assert {entity: (await limiter.available(entity, "gpt-4"))["rpm"] for entity in chain} == dict.fromkeys(chain, 70)
    assert len(await limiter.get_status(chain[-1], "gpt-4")) == 8
    assert await take(limiter, chain[0], 60)
    with pytest.raises(RateLimitExceeded) as refused:
        async with limiter.acquire(chain[-1], "gpt-4", {"rpm": 20}):
            pass
    assert [status.entity_id for status in refused.value.violations] == ["level-0"]
    assert {(await limiter.get_status(entity, "gpt-4"))[0].available for entity in chain[1:]} == {70}


async def test_a_level_without_cascade_ends_the_chain(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("org")
    await limiter.create_entity("team", parent_id="org", cascade=False)
    await limiter.create_entity("key", parent_id="team", cascade=True)
    assert await take(limiter, "key", 40)
    assert (await limiter.available("team", "gpt-4"), await limiter.available("org", "gpt-4")) == (
        {"rpm": 60},
        {"rpm": 100},
    )
    await limiter.update_entity("team", cascade=True)
    assert await take(limiter, "key", 10), "a changed hierarchy is in force at once"
    assert await limiter.available("org", "gpt-4") == {"rpm": 90}
    await limiter.create_entity("other")
    await limiter.update_entity("key", parent_id="other")
    assert await take(limiter, "key", 10)
    assert await limiter.available("other", "gpt-4") == {"rpm": 90}
    assert await limiter.available("org", "gpt-4") == {"rpm": 90}


async def test_each_level_has_limits_of_its_own(harness: Harness) -> None:
    """Requests are counted per key and tokens per organisation; one acquire charges both."""
    limiter = harness.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_limits("key", [Limit.per_hour("rpm", 10)])
    await limiter.set_limits("org", [Limit.per_hour("tpm", 1_000)])
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 400}) as lease:
        await lease.adjust(tpm=100)
    assert await limiter.available("key", "gpt-4") == {"rpm": 9, "tpm": 500}
    with pytest.raises(CapacityExceeded):
        async with limiter.acquire("key", "gpt-4", {"tpm": 1_001}):
            pass
    with pytest.raises(ValidationError):
        await take(limiter, "key", 1, "tmp")


async def build(limiter: RateLimiter, *entities: str) -> None:
    """A chain, the top first."""
    for number, entity in enumerate(entities):
        await limiter.create_entity(entity, parent_id=entities[number - 1] if number else None, cascade=True)


@pytest.mark.parametrize("bottom", ["a", "b", "c"])
async def test_a_cycle_is_refused_and_changes_nothing(harness: Harness, bottom: str) -> None:
    limiter = harness.limiter()
    await build(limiter, "a", "b", "c")
    with pytest.raises(ValidationError, match="cycle") as caught:
        await limiter.update_entity("a", parent_id=bottom)
    assert (caught.value.field, caught.value.value) == ("parent_id", bottom)
    top = await limiter.get_entity("a")
    assert top is not None
    assert (top.parent_id, top.version) == (None, 1)
    with pytest.raises(ValidationError, match="cycle"):
        await limiter.create_entity("new", parent_id="new")


async def test_two_moves_at_once_do_not_close_a_cycle(harness: Harness) -> None:
    store = Meddler(harness.store())
    limiter = harness.limiter(store)
    await limiter.create_entity("a")
    await limiter.create_entity("b")
    store.before_commit = lambda: harness.limiter().update_entity("b", parent_id="a")
    with pytest.raises(ValidationError, match="cycle"):
        await limiter.update_entity("a", parent_id="b")


async def test_a_hierarchy_deeper_than_its_bound_is_refused(harness: Harness) -> None:
    limiter = harness.limiter()
    await build(limiter, *(f"level-{depth}" for depth in range(8)))
    with pytest.raises(ValidationError, match="deeper than 8") as caught:
        await limiter.create_entity("level-8", parent_id="level-7")
    assert caught.value.field == "parent_id"
    await limiter.create_entity("loose")
    with pytest.raises(ValidationError, match="deeper than 8"):
        await limiter.update_entity("loose", parent_id="level-7")


async def test_moving_a_tall_tree_keeps_the_bound_for_those_below(harness: Harness) -> None:
    """Otherwise the lowest entity would be too far from the top to charge it, and nobody would notice."""
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await build(limiter, *(f"level-{depth}" for depth in range(8)))
    await limiter.create_entity("top")
    with pytest.raises(ValidationError, match="deeper than 8"):
        await limiter.update_entity("level-0", parent_id="top")


async def test_a_reset_bucket_is_full_at_once(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    assert await take(limiter, "key", 100)
    assert not await take(limiter, "key", 1)
    await limiter.reset_bucket("key", "gpt-4")
    assert await take(limiter, "key", 100)
    await limiter.reset_bucket("nobody", "gpt-4")


async def test_capacity_over_all_entities_or_the_top_ones_alone(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    for entity in ("org", "solo", "key"):
        await limiter.create_entity(entity)
        assert await take(limiter, entity, 25)

    async def tops() -> list[str]:
        found = await limiter.get_resource_capacity("gpt-4", "rpm", parents_only=True)
        return [each.entity_id for each in found.entities]

    every = await limiter.get_resource_capacity("gpt-4", "rpm")
    assert (every.total_capacity, every.total_available, every.utilization_pct) == (300, 225, 25.0)
    assert await tops() == ["key", "org", "solo"]
    await limiter.update_entity("key", parent_id="org", cascade=True)
    assert await take(limiter, "key", 1)
    assert await tops() == ["org", "solo"], "a child from now on"
    nothing = await limiter.get_resource_capacity("gpt-4", "tpm")
    assert (nothing.entities, nothing.total_capacity, nothing.utilization_pct) == ((), 0, 0.0)


async def test_available_counts_the_cascading_parent(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("org")
    for key in ("one", "two"):
        await limiter.create_entity(key, parent_id="org", cascade=True)
    assert await take(limiter, "one", 90)
    assert await limiter.available("two", "gpt-4") == {"rpm": 10}
    rows = {row.entity_id: row.available for row in await limiter.get_status("two", "gpt-4")}
    assert rows == {"two": 100, "org": 10}


async def test_an_unknown_parent_is_an_error_and_a_grandparent_is_charged(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    with pytest.raises(EntityNotFoundError, match="'nobody'"):
        await limiter.create_entity("key", parent_id="nobody", cascade=True)
    assert await limiter.get_entity("key") is None
    await limiter.create_entity("org")
    await limiter.create_entity("team", parent_id="org", cascade=True)
    await limiter.create_entity("key", parent_id="team", cascade=True)
    assert await take(limiter, "key", 30)
    for who in ("key", "team", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 70}
