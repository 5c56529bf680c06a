"""Usage queries over records as the aggregator writes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest

from zae_limiter import Repository, Store, ValidationError
from zae_limiter.records import usage
from zae_limiter.records.algebra import Write
from zae_limiter.testing import FaultyStore, Harness

HOUR = 3_600_000
START = int(datetime(2026, 1, 31, 22, tzinfo=UTC).timestamp() * 1000)


async def record(
    store: Store, repo: Repository, window: str, at_ms: int, entity: str = "key", resource: str = "gpt-4", **used: int
) -> None:
    """Add to the window that holds the instant, as one consumption would."""
    ns = (await repo.register_namespace(repo.namespace)).id
    await store.commit([consumed(ns, window, at_ms, used, entity, resource)])


def consumed(
    ns: str,
    window: str,
    at_ms: int,
    used: Mapping[str, int],
    entity: str = "key",
    resource: str = "gpt-4",
    expires_at_ms: int | None = None,
) -> Write:
    """The write that adds one consumption of whole tokens."""
    whose = usage.Subject(ns, entity, resource)
    milli = {name: amount * 1000 for name, amount in used.items()}
    return usage.accrue(whose, usage.window_of(window, at_ms), milli, 1, expires_at_ms=expires_at_ms)


async def test_consumption_adds_up_in_the_window_that_holds_it(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    for at_ms, tokens in ((START, 5), (START + HOUR - 1, 7), (START + HOUR, 100)):
        await record(store, repo, "hourly", at_ms, rpm=1, tpm=tokens)
    found, cursor = await repo.get_usage_snapshots("key")
    assert cursor is None
    assert [(each.window_start, each.window_end, dict(each.counters), each.total_events) for each in found] == [
        ("2026-01-31T23:00:00Z", "2026-02-01T00:00:00Z", {"rpm": 1, "tpm": 100}, 1),
        ("2026-01-31T22:00:00Z", "2026-01-31T23:00:00Z", {"rpm": 2, "tpm": 12}, 2),
    ]
    assert {(each.entity_id, each.resource, each.window_type) for each in found} == {("key", "gpt-4", "hourly")}


async def test_the_hour_the_day_and_the_month_that_start_together_stay_apart(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    midnight = START + 2 * HOUR
    for window in usage.WINDOWS:
        await record(store, repo, window, midnight, tpm=5)
        await record(store, repo, window, midnight + 1, tpm=5)
    found, _ = await repo.get_usage_snapshots("key")
    assert {each.window_type: (each.window_end, dict(each.counters)) for each in found} == {
        "hourly": ("2026-02-01T01:00:00Z", {"tpm": 10}),
        "daily": ("2026-02-02T00:00:00Z", {"tpm": 10}),
        "monthly": ("2026-03-01T00:00:00Z", {"tpm": 10}),
    }


async def test_a_limit_may_be_called_as_one_of_our_attributes(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    used = {"ttl": 1, "resource": 2, "total_events": 3, "PK": 4, "GSI2SK": 5, "window": 6, "plain": 7}
    ns = (await repo.register_namespace("default")).id
    await store.commit([consumed(ns, "hourly", START, used)])
    (found,), _ = await repo.get_usage_snapshots("key")
    assert dict(found.counters) == used
    assert (found.resource, found.total_events) == ("gpt-4", 1)


async def test_filters(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    for hour in range(4):
        for entity in ("one", "two"):
            for resource in ("gpt-4", "gpt-4.5"):
                await record(store, repo, "hourly", START + hour * HOUR, entity, resource, tpm=1)
                await record(store, repo, "daily", START + hour * HOUR, entity, resource, tpm=1)

    async def found(*arguments: str | None, **options: datetime | str) -> list[tuple[str, str, str]]:
        some, cursor = await repo.get_usage_snapshots(*arguments, **options)  # type: ignore[arg-type]  # handed on
        assert cursor is None
        return [(each.entity_id, each.resource, each.window_start[:13]) for each in some]

    assert len(await found("one")) == 12
    assert await found("one", "gpt-4", "hourly") == [
        ("one", "gpt-4", "2026-02-01T01"),
        ("one", "gpt-4", "2026-02-01T00"),
        ("one", "gpt-4", "2026-01-31T23"),
        ("one", "gpt-4", "2026-01-31T22"),
    ]
    assert await found(None, "gpt-4", "daily") == [
        ("two", "gpt-4", "2026-02-01T00"),
        ("one", "gpt-4", "2026-02-01T00"),
        ("two", "gpt-4", "2026-01-31T00"),
        ("one", "gpt-4", "2026-01-31T00"),
    ], "newest window first"
    assert await found("one", "gpt-5") == []
    start, end = datetime(2026, 1, 31, 23, tzinfo=UTC), datetime(2026, 2, 1, 1, tzinfo=UTC)
    inside = [("one", "gpt-4", "2026-02-01T00"), ("one", "gpt-4", "2026-01-31T23")]
    assert await found("one", "gpt-4", "hourly", start_time=start, end_time=end) == inside, "the end is excluded"
    east = timezone(timedelta(hours=9))
    assert (
        await found("one", "gpt-4", "hourly", start_time=start.astimezone(east), end_time=end.astimezone(east))
        == inside
    )
    assert (
        await found("one", "gpt-4", "hourly", start_time="2026-01-31T23:00:00Z", end_time="2026-02-01T01:00:00Z")
        == inside
    )


async def test_text_moments_mean_what_moments_mean(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    for hour in range(4):
        await record(store, repo, "hourly", START + hour * HOUR, tpm=1)
    for text in ("2026-02-01T08:00:00+09:00", "2026-01-31T23:00:00.000Z", "2026-01-31T23:00:00+00:00"):
        found, _ = await repo.get_usage_snapshots("key", start_time=text)
        assert len(found) == 3, text


@pytest.mark.parametrize("by", ["entity", "resource"])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
async def test_pages_hold_everything_once(harness: Harness, by: str, size: int) -> None:
    store, repo = harness.store(), harness.repository()
    for hour in range(12):
        await record(store, repo, "hourly", START + hour * HOUR, tpm=1)
        await record(store, repo, "daily", START + hour * HOUR, tpm=1)
    start = datetime(2026, 2, 1, 2, tzinfo=UTC)
    seen: list[str] = []
    next_key: str | None = None
    while True:
        who = {"entity_id": "key"} if by == "entity" else {"resource": "gpt-4"}
        page, next_key = await repo.get_usage_snapshots(
            **who, window_type="hourly", start_time=start, limit=size, next_key=next_key
        )
        assert len(page) <= size
        seen += [each.window_start for each in page]
        if next_key is None:
            break
    assert seen == [f"2026-02-01T{hour:02}:00:00Z" for hour in range(9, 1, -1)]


@pytest.mark.parametrize("cursor", ["", "c2YQ", "c1*", "c1Y", "c1_w", "c1\u00e4", 7])
async def test_what_is_no_cursor_is_refused(harness: Harness, cursor: str) -> None:
    repo = harness.repository()
    with pytest.raises(ValidationError, match=r"next_key.*is not a cursor"):
        await repo.get_usage_snapshots("key", next_key=cursor)


async def test_a_page_is_asked_for_in_few_calls_whatever_is_passed_over(harness: Harness) -> None:
    """Four days stand among a hundred hours; a page that is nearly full does not look at one record after the other."""
    store = FaultyStore(harness.store())
    repo = harness.repository(store)
    ns = (await repo.register_namespace(repo.namespace)).id
    for window, every, count in (("hourly", HOUR, 99), ("daily", 24 * HOUR, 4)):
        await store.commit([consumed(ns, window, START + number * every, {"rpm": 1}) for number in range(count)])
    late = datetime.fromtimestamp(START / 1000, UTC) + timedelta(hours=97)
    for asked, limit, found_in in (
        ({"entity_id": "key", "window_type": "daily"}, 5, 25),
        ({"entity_id": "key", "window_type": "daily", "resource": "gpt-4"}, 5, 2),
        ({"entity_id": "key", "window_type": "hourly", "resource": "gpt-4", "start_time": late}, 5, 2),
        ({"window_type": "hourly", "resource": "gpt-4", "start_time": late}, 5, 2),
    ):
        store.calls.clear()
        found, cursor = await repo.get_usage_snapshots(limit=limit, **asked)
        assert (len(found), cursor) == (4 if asked["window_type"] == "daily" else 2, None)
        assert store.calls["query"] <= found_in


async def test_the_summary_adds_up(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    for hour in range(4):
        await record(store, repo, "hourly", START + hour * HOUR, tpm=100 * hour, rpm=1)
        await record(store, repo, "hourly", START + hour * HOUR, resource="gpt-5", tpm=1_000)
    await record(store, repo, "daily", START, tpm=999)
    summary = await repo.get_usage_summary("key", "gpt-4", "hourly")
    assert summary.snapshot_count == 4
    assert dict(summary.total) == {"tpm": 600, "rpm": 4}
    assert dict(summary.average) == {"tpm": 150.0, "rpm": 1.0}
    assert (summary.min_window_start, summary.max_window_start) == ("2026-01-31T22:00:00Z", "2026-02-01T01:00:00Z")
    late = await repo.get_usage_summary("key", "gpt-4", "hourly", start_time="2026-02-01T00:00:00Z")
    assert (late.snapshot_count, dict(late.total)) == (2, {"tpm": 500, "rpm": 2})
    empty = await repo.get_usage_summary("nobody")
    assert (empty.snapshot_count, dict(empty.total), dict(empty.average)) == (0, {}, {})
    assert (empty.min_window_start, empty.max_window_start) == (None, None)


async def test_a_summary_covers_more_than_one_page(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    ns = (await repo.register_namespace("default")).id
    for day in range(11):
        writes = [consumed(ns, "hourly", START + hour * HOUR, {"tpm": 1}) for hour in range(day * 100, day * 100 + 100)]
        await store.commit(writes)
    summary = await repo.get_usage_summary("key")
    assert (summary.snapshot_count, dict(summary.total)) == (1_100, {"tpm": 1_100})


async def test_old_usage_expires(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    ns = (await repo.register_namespace("default")).id
    until = harness.clock.now_ms() + 1_000
    await store.commit([consumed(ns, "hourly", START, {"tpm": 1}, expires_at_ms=until)])
    assert len((await repo.get_usage_snapshots("key"))[0]) == 1
    harness.clock.advance(1)
    assert await repo.get_usage_snapshots("key") == ([], None)


async def test_fractions_of_a_token_from_several_shards_add_up(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    whose = usage.Subject((await repo.register_namespace("default")).id, "key", "gpt-4")
    for at_ms, milli in ((START, 333), (START, 333), (START, 834), (START + HOUR, 500)):
        await store.commit([usage.accrue(whose, usage.window_of("hourly", at_ms), {"tpm": milli}, 1)])
    found, _ = await repo.get_usage_snapshots("key")
    assert [dict(each.counters) for each in found] == [{"tpm": 0}, {"tpm": 1}]
    assert (await repo.get_usage_summary("key")).total == {"tpm": 2}


async def test_a_window_begins_before_any_moment_after_its_beginning(harness: Harness) -> None:
    store, repo = harness.store(), harness.repository()
    await record(store, repo, "hourly", START, tpm=1)
    begun = datetime.fromtimestamp(START / 1000, UTC)
    for later in (timedelta(microseconds=1), timedelta(milliseconds=999)):
        assert len((await repo.get_usage_snapshots("key", end_time=begun + later))[0]) == 1
        assert (await repo.get_usage_snapshots("key", start_time=begun + later))[0] == []
    assert len((await repo.get_usage_snapshots("key", start_time=begun))[0]) == 1
    assert (await repo.get_usage_snapshots("key", end_time=begun))[0] == []
