"""Limits files on every store, in both modes."""

from __future__ import annotations

from zae_limiter import Limit
from zae_limiter.core.values import Access
from zae_limiter.manifest.export import export_data
from zae_limiter.manifest.states import SYSTEM, Manifest, Plan, Subject
from zae_limiter.testing import Harness

RPM = (Limit.per_minute("rpm", 5),)
USD = (Limit.quota("usd", 30, every="month", on=15, tz="Europe/Berlin", soft=True, floors={"batch": 0.3}),)


async def test_what_was_applied_is_stored_exported_and_pruned(harness: Harness) -> None:
    many = {f"key-{number}": {"parent_id": "org"} for number in range(120)}  # more than are read at once
    levels = {
        SYSTEM: {"limits": RPM},
        Subject(None, "gpt-4"): {"limits": USD, "access": Access.BYPASSED},
        Subject("key-1", "gpt-4"): {"limits": USD},
        **{Subject(key, "_default_"): {"limits": RPM} for key in many},
    }
    manifest = Manifest(levels, {**many, "org": {"name": "The Org"}})
    repository = harness.limiter().repository
    async with harness.limiter().acquire("key-1", "gpt-4", {"rpm": 1}, list(RPM)):
        pass  # whose bucket and usage are not part of a file
    plan = await repository.plan_limits(manifest)
    assert await repository.apply_plan(plan, "ann") == len(plan.changes) == 245
    assert await repository.plan_limits(manifest, prune=True) == Plan()
    data = export_data(await repository.export_limits())
    assert data["entities"].keys() == manifest.entities.keys()
    assert data["entities"]["key-1"].keys() == {"parent", "cascade", "limits", "resources"}
    assert data["resources"].keys() == {"gpt-4"}
    rest = await repository.plan_limits(Manifest({SYSTEM: {"limits": RPM}}), prune=True)
    assert await repository.apply_plan(rest) == 122
    assert await repository.list_resources_with_entity_configs() == []
    assert await repository.list_resources_with_defaults() == []
