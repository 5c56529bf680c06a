"""Values as programs read them, those written for 0.17 too."""

from __future__ import annotations

from datetime import timedelta

import pytest

from zae_limiter import (
    AuditEvent,
    BackendCapabilities,
    BucketState,
    CacheStats,
    Entity,
    InvalidIdentifierError,
    InvalidNameError,
    Limit,
    LimiterInfo,
    LimitStatus,
    Namespace,
    ScheduleEntry,
    ValidationError,
)
from zae_limiter.bucket import calculate_available
from zae_limiter.models import validate_identifier, validate_name, validate_resource
from zae_limiter.stores.dynamodb.store import CAPABILITIES
from zae_limiter.stores.memory import MemoryStore

LIMITS = [
    Limit.per_minute("rpm", 60, burst=90),
    Limit.quota("tpd", 1_000, every="day", tz="Europe/Berlin", rollover=500),
    Limit.quota("tpm", 1_000, cron="0 0 1 * *"),
    Limit.quota("session", 10, reset_after=timedelta(hours=5)),
]


def test_an_entity_without_a_name_is_called_by_its_id() -> None:
    assert (Entity("key").name, Entity("key", "Key").name) == ("key", "Key")


def test_an_audit_event_becomes_a_dictionary_and_comes_back() -> None:
    bare = AuditEvent("1", "2026-01-01T00:00:00Z", "limits_set", "key")
    assert bare.to_dict() == {
        "event_id": "1",
        "timestamp": "2026-01-01T00:00:00Z",
        "action": "limits_set",
        "entity_id": "key",
    }
    full = AuditEvent("1", "2026-01-01T00:00:00Z", "limits_set", "key", "eve", "gpt-4", {"limits": []})
    assert full.to_dict() == bare.to_dict() | {"principal": "eve", "resource": "gpt-4", "details": {"limits": []}}
    assert [AuditEvent.from_dict(event.to_dict()) for event in (bare, full)] == [bare, full]


def test_a_namespace_is_read_like_the_dictionary_that_it_was() -> None:
    found = Namespace("tenant", "abc", "active", "2026-01-01T00:00:00Z")
    assert (found["name"], found["namespace"], found["namespace_id"], found.namespace_id) == (
        *("tenant", "tenant"),
        *("abc", "abc"),
    )
    assert (found["status"], found["created_at"], found["deleted_at"]) == ("active", "2026-01-01T00:00:00Z", None)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_the_bucket_of_a_limit_is_full_and_knows_its_limit(limit: Limit) -> None:
    state = BucketState.from_limit("key", "gpt-4", limit, 1_800_000_000_000)
    assert (state.tokens, state.capacity, state.total_consumed_milli) == (limit.capacity, limit.capacity, 0)
    assert calculate_available(state, 1_800_000_000_000) == limit.capacity
    assert Limit.from_bucket_state(state) == limit


def test_tokens_of_a_bucket_are_rounded_down_also_in_debt() -> None:
    state = BucketState("key", "gpt-4", "rpm", -1, 0, 1_999, 1_000, 1_000)
    assert (state.tokens, state.capacity) == (-1, 1)


def test_a_quota_says_when_it_is_back() -> None:
    rate, day, month, session = LIMITS
    assert [limit.is_quota for limit in LIMITS] == [False, True, True, True]
    assert [limit.reset_after_seconds for limit in LIMITS] == [None, None, None, 18_000]
    assert [(each.cron, each.tz) for each in month.reset_schedule] == [("0 0 1 * *", "UTC")]
    assert (rate.reset_schedule, day.reset_schedule, session.reset_schedule) == ((), (), ())


def test_a_quota_gets_another_reset_schedule() -> None:
    monday = ScheduleEntry.reset("0 0 * * 1", "Europe/Berlin")
    day = LIMITS[1]
    assert day.with_reset_schedule([monday]) == Limit.quota(
        "tpd", 1_000, cron="0 0 * * 1", tz="Europe/Berlin", rollover=500
    )
    for entries, limit in (([], day), ([monday, monday], day), ([monday], LIMITS[0])):
        with pytest.raises(ValidationError, match="reset_schedule"):
            limit.with_reset_schedule(entries)


def test_a_status_says_when_a_quota_is_back_in_milliseconds_too() -> None:
    quota = Limit.quota("tpd", 10, soft=True)
    status = LimitStatus("key", "gpt-4", "tpd", quota, 0, 1, True, 1.0, instant_ms=1_800_000_000_000)
    assert status.resets_at is not None
    assert status.resets_at_ms == status.resets_at.timestamp() * 1000
    assert (status.soft, status.as_dict()["resets_at_ms"]) == (True, status.resets_at_ms)
    assert LimitStatus("key", "gpt-4", "rpm", LIMITS[0], 0, 1, True, 1.0).resets_at_ms is None


def test_statistics_of_the_cache_have_defaults_and_a_form_for_json() -> None:
    assert CacheStats().as_dict() == {"hits": 0, "misses": 0, "size": 0, "ttl": 0, "local_rejections": 0}
    assert CacheStats(1, 2, 3, 60).as_dict() == {"hits": 1, "misses": 2, "size": 3, "ttl": 60, "local_rejections": 0}


def test_what_a_store_supports() -> None:
    def supported(found: BackendCapabilities) -> list[bool]:
        return [
            found.supports_audit_logging,
            found.supports_batch_operations,
            found.supports_usage_snapshots,
            found.supports_infrastructure_management,
            found.supports_change_streams,
        ]

    assert supported(CAPABILITIES) == [True] * 5
    assert supported(MemoryStore().capabilities) == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        ("CREATE_COMPLETE", (True, False, False)),
        ("UPDATE_IN_PROGRESS", (False, True, False)),
        ("ROLLBACK_COMPLETE", (False, False, True)),
        ("DELETE_FAILED", (False, False, True)),
    ],
)
def test_how_a_deployed_limiter_is_doing(status: str, seen: tuple[bool, bool, bool]) -> None:
    info = LimiterInfo("app", "us-east-1", status, "1.0.0")
    assert (info.is_healthy, info.is_in_progress, info.is_failed) == seen
    assert (info.user_name, info.stack_status, info.lambda_version, info.stack_type) == ("app", status, "1.0.0", None)


def test_names_are_checked_as_arguments_are() -> None:
    validate_identifier("key", "entity_id")
    validate_name("rpm", "name")
    validate_resource("gpt-4")
    with pytest.raises(InvalidIdentifierError, match="parent_id = 'a#b'"):
        validate_identifier("a#b", "parent_id")
    with pytest.raises(InvalidNameError, match="limit = '1'"):
        validate_name("1", "limit")
    with pytest.raises(InvalidNameError, match="resource = ''"):
        validate_resource("")
