"""Tenants: namespaces, entities, the lists and logs that are kept of them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.room import beside, new_limiter, take
from tests.conformance.traffic import RESOURCE
from zae_limiter.core.errors import (
    EntityExistsError,
    EntityNotFoundError,
    EntityVersionError,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimitExceeded,
)
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from zae_limiter.testing.harness import Harness

LIMIT = Limit.per_hour("rph", 10)


@check
async def apart(harness: Harness) -> None:
    """Namespaces share nothing: not limits, not entities, not buckets."""
    one, other = await new_limiter(harness), await new_limiter(harness)
    await one.set_system_defaults([LIMIT])
    await other.set_system_defaults([Limit.per_hour("rph", 20)])
    await one.create_entity("key", name="one")
    await take(one, "key", RESOURCE, [{"rph": 10}])
    with raises(RateLimitExceeded, "used up here"):
        await take(one, "key", RESOURCE, [{"rph": 1}])
    same(await other.available("key", RESOURCE), {"rph": 20}, "untouched there")
    same(await other.get_entity("key"), None, "unknown there")
    same(await other.get_audit_events("key"), [], "no trace there")


@check
async def end_and_return(harness: Harness) -> None:
    """A deleted namespace frees its name, can be recovered with its data, and is gone once purged."""
    limiter = await new_limiter(harness)
    repository = limiter.repository
    name = repository.namespace
    await limiter.set_system_defaults([LIMIT])
    await limiter.create_entity("key")
    await take(limiter, "key", RESOURCE, [{"rph": 4}])
    first = await repository.get_namespace(name)
    same(await repository.register_namespace(name), first, "registering again changes nothing")
    await repository.delete_namespace(name)
    with raises(NamespaceNotFoundError, "the name is free"):
        await repository.get_namespace(name)
    true(first.id in [each.id for each in await repository.list_orphan_namespaces()], "the data are orphans")
    await repository.recover_namespace(first.id)
    same(await beside(harness, limiter).available("key", RESOURCE), {"rph": 6}, "recovered as it was")
    with raises(NamespaceStateError, "an active namespace is not purged"):
        await repository.purge_namespace(first.id)
    await repository.delete_namespace(name)
    true(await repository.purge_namespace(first.id) > 3, "its records are deleted")
    with raises(NamespaceNotFoundError, "gone for good"):
        await repository.recover_namespace(first.id)
    again = await repository.register_namespace(name)
    true(again.id != first.id, "the name begins anew")
    same(await beside(harness, limiter).get_entity("key"), None, "with nothing in it")


@check
async def entities(harness: Harness) -> None:
    """An entity is what was last written of it; creating twice and changing what has moved are errors."""
    limiter = await new_limiter(harness)
    metadata = {
        "plan": "gold",
        "tags": ["a", "b"],
        "seats": 3,
        "ratio": 0.5,
        "on": True,
        "none": None,
        "map": {"x": []},
    }
    made = await limiter.create_entity("key-1", name="Kéy 😀", metadata=metadata)
    same(await limiter.get_entity("key-1"), made, "as it was created")
    same(dict(made.metadata), metadata, "with its metadata")
    with raises(EntityExistsError, "it is there already"):
        await limiter.create_entity("key-1")
    changed = await limiter.update_entity("key-1", name=None, metadata={}, expected_version=made.version)
    same((changed.name, dict(changed.metadata), changed.version), ("key-1", {}, made.version + 1), "what was given")
    same(await limiter.get_entity("key-1"), changed, "as it was changed")
    with raises(EntityVersionError, "somebody else was faster"):
        await limiter.update_entity("key-1", name="late", expected_version=made.version)
    with raises(EntityNotFoundError, "there is none to change"):
        await limiter.update_entity("nobody", name="x")
    with raises(EntityNotFoundError, "there is none to delete"):
        await limiter.delete_entity("nobody")


@check
async def ids_of_any_kind(harness: Harness) -> None:
    """Ids that look alike or like paths, patterns and addresses are different entities."""
    limiter = await new_limiter(harness)
    ids = ("a", "A", "a/b", "a/../b", "a b", "a@b.c", "{a}", "{}", "a:b", "%61", "*", "é", "e\u0301", "😀", "x" * 256)
    await limiter.set_system_defaults([Limit.per_hour("rph", 100)])
    for number, entity_id in enumerate(ids):
        await limiter.create_entity(entity_id)
        await take(limiter, entity_id, "a/b.c-d_e", [{"rph": number + 1}])
    for number, entity_id in enumerate(ids):
        same(await limiter.available(entity_id, "a/b.c-d_e"), {"rph": 99 - number}, f"the bucket of {entity_id!r}")
    capacity = await limiter.get_resource_capacity("a/b.c-d_e", "rph")
    found = {each.entity_id: each.available for each in capacity.entities}
    same(found, {entity_id: 99 - number for number, entity_id in enumerate(ids)}, "all of them by resource")


@check
async def deleted_with_all_it_had(harness: Harness) -> None:
    """Deleting an entity deletes its limits and buckets; one created anew starts full, under the defaults."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([LIMIT])
    await limiter.create_entity("key")
    await limiter.set_limits("key", [Limit.per_hour("rph", 5)])
    for resource in ("r1", "r2"):
        await take(limiter, "key", resource, [{"rph": 5}])
    await limiter.delete_entity("key")
    same(await limiter.get_buckets("key"), [], "no bucket is left")
    same(await limiter.get_limits("key"), [], "no limit is left")
    same((await limiter.list_entities_with_custom_limits())[0], [], "it is in no list")
    same(await beside(harness, limiter).available("key", "r1"), {"rph": 10}, "a new life")


@check
async def lists(harness: Harness) -> None:
    """Entities and resources with limits of their own are listed, page by page, while they have them."""
    limiter = await new_limiter(harness)
    ids = [f"key-{number:02d}" for number in range(7)]
    for entity_id in reversed(ids):
        await limiter.set_limits(entity_id, [LIMIT], resource="r1")
    await limiter.set_limits("key-00", [LIMIT])
    await limiter.delete_limits("key-03", resource="r1")
    found: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await limiter.list_entities_with_custom_limits("r1", limit=2, cursor=cursor)
        found += page
        if cursor is None:
            break
    same(found, [each for each in ids if each != "key-03"], "each once, by id")
    same(await limiter.list_resources_with_entity_configs(), ["_default_", "r1"], "the resources they are for")
    for resource in ("b", "a"):
        await limiter.set_resource_defaults(resource, [LIMIT])
    same(await limiter.list_resources_with_defaults(), ["a", "b"], "resources with defaults")
    await limiter.delete_resource_defaults("a")
    same(await limiter.list_resources_with_defaults(), ["b"], "no longer")


@check
async def audit(harness: Harness) -> None:
    """Every change leaves an event with who did it, newest first, page by page."""
    limiter = await new_limiter(harness)
    await limiter.create_entity("key", principal="ann")
    for number in range(4):
        harness.clock.advance(1)
        await limiter.set_limits("key", [Limit.per_hour("rph", number + 1)], principal=f"bob-{number}")
    harness.clock.advance(1)
    await limiter.delete_limits("key", principal="cy")
    events = await limiter.get_audit_events("key")
    who = ["cy", "bob-3", "bob-2", "bob-1", "bob-0", "ann"]
    same([event.principal for event in events], who, "newest first")
    same([event.action for event in events[-2:]], ["limits_set", "entity_created"], "what they did")
    same(events[1].details["limits"][0]["capacity"], 4, "and what they set")
    rest = await limiter.get_audit_events("key", limit=2, start_event_id=events[1].event_id)
    same(rest, events[2:4], "the next page")
    await limiter.set_system_defaults([LIMIT], principal="dee")
    same([event.principal for event in await limiter.get_audit_events("$SYSTEM")], ["dee"], "the system's own")


@check
async def health(harness: Harness) -> None:
    """A store that is there says so, and an unregistered namespace is an error of its own."""
    limiter = await new_limiter(harness)
    true(await limiter.is_available(), "it answers")
    status = await limiter.repository.status()
    true(status.available and status.schema_version, "and knows its version")
    nowhere = harness.limiter(harness.repository(namespace=f"n{secrets.token_hex(8)}"))
    with raises(NamespaceNotFoundError, "nobody registered it"):
        await nowhere.get_entity("key")


CHECKS = checks_of(globals())
