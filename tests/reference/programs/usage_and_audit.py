"""Usage and audit: who has changed what, and what was used."""

import asyncio
from datetime import UTC, datetime, timedelta

from zae_limiter import AuditAction, AuditEvent, Limit, RateLimiter, Repository


async def main() -> None:
    repo = await Repository.open()
    limiter = RateLimiter(repository=repo)
    await limiter.create_entity("user-1", name="Ann", metadata={"plan": "gold"}, principal="admin@example.com")
    await limiter.set_limits("user-1", [Limit.per_day("rpd", 10)], resource="gpt-4", principal="admin@example.com")
    await limiter.delete_limits("user-1", "gpt-4", principal="ops@example.com")
    await limiter.set_resource_defaults("gpt-4", [Limit.per_day("rpd", 5)], principal="admin@example.com")
    await limiter.set_system_defaults([Limit.per_day("rpd", 3)], principal="admin@example.com")

    events = await limiter.get_audit_events("user-1")
    print([(event.action, event.principal, event.resource) for event in events])
    print(events[-1].details["name"], events[-1].details["metadata"], events[-1].action == AuditAction.ENTITY_CREATED)
    print(events[1].details["limits"])
    print([event.action for event in await limiter.get_audit_events("user-1", limit=1)])
    print([event.action for event in await limiter.get_audit_events("user-1", start_event_id=events[0].event_id)])
    print([(event.action, event.entity_id) for event in await limiter.get_audit_events("$SYSTEM")])
    print([(event.action, event.entity_id) for event in await limiter.get_audit_events("$RESOURCE:gpt-4")])
    print(AuditEvent.from_dict(events[0].to_dict()) == events[0], events[0].to_dict()["action"])

    now = datetime.now(UTC)
    snapshots, next_key = await limiter.get_usage_snapshots(
        entity_id="user-1", resource="gpt-4", window_type="hourly", start_time=now - timedelta(days=1), end_time=now
    )
    print("snapshots", snapshots, next_key)
    summary = await limiter.get_usage_summary(entity_id="user-1", resource="gpt-4")
    print(summary.snapshot_count, summary.total, summary.average, summary.min_window_start, summary.max_window_start)
    await limiter.delete_entity("user-1", principal="admin@example.com")
    events = await limiter.get_audit_events("user-1")
    print(events[0].action)
    await repo.close()


asyncio.run(main())
