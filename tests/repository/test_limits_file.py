"""Limits files on every store, in both modes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tests.support.meddler import Meddler
from zae_limiter import Limit, PlanOutdatedError, Repository
from zae_limiter.core.values import Access
from zae_limiter.manifest.export import export_data
from zae_limiter.manifest.states import SYSTEM, Manifest, Plan, Subject
from zae_limiter.testing import Harness

RPM = (Limit.per_minute("rpm", 5),)
USD = (Limit.quota("usd", 30, every="month", on=15, tz="Europe/Berlin", soft=True, floors={"batch": 0.3}),)


async def test_what_was_applied_is_stored_exported_and_pruned(harness: Harness) -> None:
    many = {f"key-{number}": {"parent_id": "org"} for number in range(120)}  # more than are read at once
    levels: dict[Subject, dict[str, object]] = {
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
    applied = (await repository.get_audit_events("$SYSTEM"))[0]
    assert (applied.action, applied.principal) == ("limits_applied", "ann")
    assert (applied.details["made"], applied.details["planned"], len(applied.details["changes"])) == (245, 245, 200)
    again = await repository.plan_limits(manifest, prune=True)
    assert again == Plan(warnings=("the floors of usd have no effect while it is soft",))
    data = export_data(await repository.export_limits())
    assert data["entities"].keys() == manifest.entities.keys()
    assert data["entities"]["key-1"].keys() == {"parent", "cascade", "limits", "resources"}
    assert data["resources"].keys() == {"gpt-4"}
    rest = await repository.plan_limits(Manifest({SYSTEM: {"limits": RPM}}), prune=True)
    assert await repository.apply_plan(rest) == 122
    assert await repository.list_resources_with_entity_configs() == []
    assert await repository.list_resources_with_defaults() == []


RACES: dict[str, tuple[Manifest, Callable[[Repository], Awaitable[object]], str]] = {
    "limits": (
        Manifest({SYSTEM: {"limits": RPM}}),
        lambda other: other.set_system_defaults(list(USD)),
        "system, limits: now usd {quota: 30, every: month",
    ),
    "switch": (
        Manifest({Subject(None, "gpt-4"): {"access": Access.BYPASSED}}),
        lambda other: other.disable_resource("gpt-4"),
        "resource gpt-4, switch: now disabled, in the plan none",
    ),
    "creation": (
        Manifest(entities={"key": {"name": "ours"}}),
        lambda other: other.create_entity("key", "theirs"),
        "entity key was created, with name theirs",
    ),
    "update": (
        Manifest(entities={"old": {"name": "ours"}}),
        lambda other: other.update_entity("old", name="theirs"),
        "entity old, name: now theirs, in the plan old",
    ),
    "parent": (
        Manifest(entities={"key": {"parent_id": "old"}}),
        lambda other: other.delete_entity("old"),
        "entity old was deleted",
    ),
    "deletion": (
        Manifest(entities={"old": {"name": "ours"}}),
        lambda other: other.delete_entity("old"),
        "entity old was deleted",
    ),
}


@pytest.mark.parametrize("race", RACES)
async def test_a_change_in_the_moment_of_the_write_is_refused(harness: Harness, race: str) -> None:
    manifest, act, told = RACES[race]
    other = harness.repository()
    await other.create_entity("old")
    store = Meddler(harness.store())
    repository = harness.repository(store)
    plan = await repository.plan_limits(manifest)
    store.before_commit = lambda: act(other)
    with pytest.raises(PlanOutdatedError) as caught:
        await repository.apply_plan(plan)
    assert caught.value.conflicts[0].startswith(told)
    assert caught.value.applied == 0


async def test_the_same_change_in_the_moment_of_the_write_is_no_conflict(harness: Harness) -> None:
    other = harness.repository()
    await other.create_entity("old")
    changes: list[Manifest] = [
        Manifest({SYSTEM: {"limits": RPM}}),
        Manifest(entities={"old": {"name": "same"}}),
        Manifest(entities={"key": {}}),
    ]
    for manifest in changes:
        store = Meddler(harness.store())
        repository = harness.repository(store)
        plan = await repository.plan_limits(manifest)
        store.before_commit = partial(other.apply_plan, plan)
        await repository.apply_plan(plan)
        assert await repository.plan_limits(manifest) == Plan()
