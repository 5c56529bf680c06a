"""Cycles of parents, which tables of 0.17 may hold: each entity is charged once, and the cycle can be undone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.acquiring import granted, take
from zae_limiter import Entity, Limit, RateLimiter, ValidationError
from zae_limiter.records import entity, keys
from zae_limiter.records.algebra import Write
from zae_limiter.testing import Harness

CYCLES = {
    "own parent": {"key": "key"},
    "two": {"key": "other", "other": "key"},
    "above": {"key": "a", "a": "b", "b": "c", "c": "a"},
}


async def store_parents(harness: Harness, limiter: RateLimiter, parents: dict[str, str]) -> None:
    """Store entities with these parents, as an upgraded table has them."""
    await limiter.set_system_defaults([Limit.per_hour("rpm", 10)])
    ns = (await limiter.repository.get_namespace("default")).id
    for each, parent in parents.items():
        made = await limiter.create_entity(each)
        image = entity.encode(ns, replace(made, parent_id=parent, cascade=True))
        await harness.store().commit([Write(keys.meta(ns, each), put={**image, entity.CHILDREN: 1})])


@pytest.mark.parametrize("name", CYCLES)
async def test_each_entity_of_a_cycle_is_charged_once(harness: Harness, name: str) -> None:
    await store_parents(harness, harness.limiter(), CYCLES[name])
    limiter = harness.limiter()
    lease = await take(limiter, {"rpm": 4})
    assert lease.available == {"rpm": 6}
    for each in CYCLES[name]:
        assert [(found.limit_name, found.tokens) for found in await limiter.repository.get_buckets(each)] == [
            ("rpm", 6)
        ]
    assert await granted(limiter, {"rpm": 6})
    assert not await granted(limiter, {"rpm": 1})
    answers = await limiter.check_availability([*CYCLES[name]], "gpt-4", {"rpm": 1})
    assert [each.allowed for each in answers] == [False] * len(CYCLES[name])


async def test_a_cycle_can_be_undone(harness: Harness) -> None:
    for name in ("own parent", "two"):
        limiter = harness.limiter()
        await store_parents(harness, limiter, CYCLES[name])
        await limiter.repository.set_parent("key", None)
        found = await limiter.get_entity("key")
        assert isinstance(found, Entity)
        assert found.parent_id is None
        for each in reversed(CYCLES[name]):
            await limiter.delete_entity(each)
        with pytest.raises(ValidationError, match="cycle"):
            await limiter.create_entity("key", parent_id="key")
