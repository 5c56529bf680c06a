"""The audit log: every change with its principal, in the same commit as the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from zae_limiter import AuditEvent, Limit, RateLimiterUnavailable, Repository
from zae_limiter.testing import Fault, FaultyStore, Harness

RPM = [Limit.per_minute("rpm", 100)]
SHOWN = {"name": "rpm", "capacity": 100, "refill_amount": 100, "refill_period_seconds": 60}


def actions(events: list[AuditEvent]) -> list[str]:
    return [event.action for event in events]


async def test_every_change_of_an_entity_is_told_newest_first(harness: Harness) -> None:
    repo = harness.repository()
    changes: list[Awaitable[object]] = [
        repo.create_entity("org", principal="ann"),
        repo.create_entity("key", "Key", "org", True, {"a": 1}, principal="ann"),
        repo.update_entity("key", name="New", principal="bob"),
        repo.set_limits("key", RPM, principal="cid"),
        repo.set_limits("key", RPM, "gpt-4", principal="cid"),
        repo.delete_limits("key", "gpt-4", principal="dan"),
        repo.reset_bucket("key", "gpt-4", principal="eve"),
        repo.delete_entity("key", principal="flo"),
    ]
    for change in changes:
        harness.clock.advance(1)
        await change
    events = await repo.get_audit_events("key")
    assert [(event.action, event.principal, event.resource) for event in events] == [
        ("entity_deleted", "flo", None),
        ("bucket_reset", "eve", "gpt-4"),
        ("limits_deleted", "dan", "gpt-4"),
        ("limits_set", "cid", "gpt-4"),
        ("limits_set", "cid", "_default_"),
        ("entity_updated", "bob", None),
        ("entity_created", "ann", None),
    ]
    assert [event.timestamp for event in events] == [f"2027-01-15T08:00:{second:02}.000Z" for second in range(8, 1, -1)]
    assert {event.entity_id for event in events} == {"key"}
    assert len({event.event_id for event in events}) == 7
    assert events[-1].details == {"name": "Key", "parent_id": "org", "cascade": True, "metadata": {"a": 1}}
    assert events[-2].details == {"name": "New"}
    assert events[-3].details == {"limits": [SHOWN]}
    assert actions(await repo.get_audit_events("org")) == ["entity_created"]


async def test_system_resources_and_namespaces_have_subjects_of_their_own(harness: Harness) -> None:
    repo = harness.repository()
    changes: list[Awaitable[object]] = [
        repo.set_system_defaults(RPM, "allow", principal="ann"),
        repo.delete_system_defaults(principal="bob"),
        repo.set_resource_defaults("gpt-4", RPM, principal="cid"),
        repo.delete_resource_defaults("gpt-4", principal="dan"),
        repo.register_namespace("red", principal="eve"),
        repo.delete_namespace("red", principal="flo"),
    ]
    for change in changes:
        harness.clock.advance(1)
        await change
    for subject, first, second, resource in (
        ("$SYSTEM", ("limits_deleted", "bob"), ("limits_set", "ann"), None),
        ("$RESOURCE:gpt-4", ("limits_deleted", "dan"), ("limits_set", "cid"), "gpt-4"),
        ("$NAMESPACE:red", ("namespace_deleted", "flo"), ("namespace_registered", "eve"), None),
    ):
        events = await repo.get_audit_events(subject)
        assert [(event.action, event.principal) for event in events] == [first, second]
        assert {(event.entity_id, event.resource) for event in events} == {(subject, resource)}
    set_up = (await repo.get_audit_events("$SYSTEM"))[1]
    assert set_up.details == {"limits": [SHOWN], "on_unavailable": "allow"}


async def test_what_changed_nothing_is_not_told(harness: Harness) -> None:
    repo = harness.repository()
    await repo.delete_system_defaults()
    await repo.delete_resource_defaults("gpt-4")
    await repo.delete_limits("key")
    for subject in ("$SYSTEM", "$RESOURCE:gpt-4", "key", "$NAMESPACE:none"):
        assert await repo.get_audit_events(subject) == []


async def test_changes_of_one_millisecond_keep_their_order(harness: Harness) -> None:
    repo = harness.repository()
    for number in range(8):
        await repo.set_system_defaults(RPM, principal=str(number))
    events = await repo.get_audit_events("$SYSTEM")
    assert [event.principal for event in events] == list("76543210")


@pytest.mark.parametrize("size", [1, 3, 10, 100])
async def test_pages(harness: Harness, size: int) -> None:
    repo = harness.repository()
    for number in range(10):
        harness.clock.advance_ms(1)
        await repo.set_system_defaults(RPM, principal=str(number))
    seen: list[str | None] = []
    start: str | None = None
    while page := await repo.get_audit_events("$SYSTEM", limit=size, start_event_id=start):
        assert len(page) <= size
        seen += [event.principal for event in page]
        start = page[-1].event_id
    assert seen == list("9876543210")


async def test_more_events_than_a_page_of_the_store(harness: Harness) -> None:
    repo = harness.repository()
    for number in range(230):
        harness.clock.advance_ms(1)
        await repo.set_system_defaults(RPM, principal=str(number))
    assert len(await repo.get_audit_events("$SYSTEM")) == 100
    events = await repo.get_audit_events("$SYSTEM", limit=10_000)
    assert [event.principal for event in events] == [str(number) for number in range(229, -1, -1)]


async def test_events_are_kept_for_90_days(harness: Harness) -> None:
    repo = harness.repository()
    await repo.create_entity("key")
    harness.clock.advance(90 * 86_400 - 1)
    assert len(await repo.get_audit_events("key")) == 1
    harness.clock.advance(1)
    assert await repo.get_audit_events("key") == []


async def test_an_acquire_is_no_change(harness: Harness) -> None:
    limiter = harness.limiter()
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=RPM) as lease:
        await lease.adjust(rpm=5)
    assert await limiter.get_audit_events("key") == []


Change = Callable[[Repository], Awaitable[object]]
CHANGES: dict[str, tuple[str, Change]] = {
    "entity_created": ("new", lambda repo: repo.create_entity("new", parent_id="org", principal="p")),
    "entity_updated": ("org", lambda repo: repo.update_entity("org", name="n", principal="p")),
    "entity_deleted": ("old", lambda repo: repo.delete_entity("old", principal="p")),
    "limits_set": ("org", lambda repo: repo.set_limits("org", RPM, "gpt-5", principal="p")),
    "limits_deleted": ("org", lambda repo: repo.delete_limits("org", principal="p")),
    "resource_set": ("$RESOURCE:gpt-5", lambda repo: repo.set_resource_defaults("gpt-5", RPM, principal="p")),
    "resource_deleted": ("$RESOURCE:gpt-4", lambda repo: repo.delete_resource_defaults("gpt-4", principal="p")),
    "system_set": ("$SYSTEM", lambda repo: repo.set_system_defaults(RPM, "allow", principal="p")),
    "bucket_reset": ("org", lambda repo: repo.reset_bucket("org", "gpt-4", principal="p")),
    "bucket_topped_up": ("org", lambda repo: repo.top_up("org", "gpt-4", {"rpm": 5}, principal="p")),
    "namespace_registered": ("$NAMESPACE:new", lambda repo: repo.register_namespace("new", principal="p")),
    "namespace_deleted": ("$NAMESPACE:side", lambda repo: repo.delete_namespace("side", principal="p")),
}


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER], ids=["lost", "answer lost"])
@pytest.mark.parametrize("name", CHANGES)
async def test_change_and_audit_happen_both_or_neither(harness: Harness, name: str, fault: Fault) -> None:
    subject, change = CHANGES[name]

    async def facts(repo: Repository) -> list[object]:
        """Everything the changes could have touched, without the audit log."""
        return [
            await repo.get_entity("org"),
            await repo.get_entity("old"),
            await repo.get_entity("new"),
            await repo.get_limits("org"),
            await repo.get_limits("org", "gpt-5"),
            await repo.get_resource_defaults("gpt-4"),
            await repo.get_resource_defaults("gpt-5"),
            await repo.get_system_defaults(),
            await repo.get_buckets("org"),
            await repo.get_buckets("old"),
            [space.name for space in await repo.list_namespaces()],
        ]

    clean = harness.repository()
    await clean.create_entity("org")
    await clean.create_entity("old")
    await clean.set_limits("org", RPM)
    await clean.set_resource_defaults("gpt-4", RPM)
    await clean.register_namespace("side")
    async with harness.limiter(clean).acquire("org", "gpt-4", {"rpm": 1}):
        pass
    await clean.get_usage_summary("org")  # on a cluster what a reset would forget is booked by a commit of its own
    faulty = FaultyStore(harness.store())
    repo = harness.repository(faulty)
    await repo.get_entity("org")
    harness.clock.advance(1)
    before, logged = await facts(clean), await clean.get_audit_events(subject)
    faulty.inject(fault, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await change(repo)
    after = await clean.get_audit_events(subject)
    if fault is Fault.FAIL_BEFORE:
        assert (await facts(clean), after) == (before, logged)
    else:
        assert await facts(clean) != before
        if name in ("bucket_topped_up", "bucket_reset") and not faulty.capabilities.wide_commits:
            # On a cluster the event follows in a commit of its own, which a repeated request with a key makes good.
            assert after == logged
            return
        assert len(after) == len(logged) + 1
        assert after[0].principal == "p"


async def test_a_deleted_entity_leaves_no_bucket_behind_when_the_store_fails(harness: Harness) -> None:
    """Entity and buckets go together, or the deletion can be repeated until they have gone."""
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.create_entity("key")
    async with limiter.acquire("key", "gpt-4", {"rpm": 100}, limits=RPM):
        pass
    store.inject(Fault.DELAY, verb="commit")
    store.inject(Fault.FAIL_BEFORE, verb="commit")
    failed = True
    try:
        await limiter.delete_entity("key")
        failed = False
    except RateLimiterUnavailable:
        pass
    store.heal()
    if failed:
        await limiter.delete_entity("key")
    assert await limiter.get_buckets("key") == []
