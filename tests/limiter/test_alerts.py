"""Thresholds of limits: the write that crosses one announces it, and no other does."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from tests.conformance.alerts import alert_events
from tests.support.acquiring import granted, take
from tests.support.charges import create, draw, written
from tests.support.deadlines import PATIENCE
from tests.support.redis import shared
from zae_limiter import (
    Alert,
    Limit,
    Observer,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.cli.spelling import spell_limit
from zae_limiter.core.alerts import AlertLevels, cross_quota, cross_rate
from zae_limiter.core.change import Change
from zae_limiter.core.kinds import parse_limit
from zae_limiter.records import charging, keys, migration
from zae_limiter.records.algebra import Committed, Conflict, Image, Write, apply_write, holds
from zae_limiter.records.charging import write_of
from zae_limiter.records.level import BucketLimits, token_limits_for
from zae_limiter.records.settlement import Receipt, settle
from zae_limiter.records.splitting import split
from zae_limiter.records.watching import watch
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

DAY = Limit.quota("tpd", 100, alerts=(0.5, 0.8, 1.0))
MINUTE = Limit.per_minute("tpm", 100, alerts=(0.8,))


class Told(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    def on_alert(self, alert: Alert) -> None:
        self.alerts.append(alert)

    def crossed(self) -> list[tuple[str, float]]:
        """Return the limits and thresholds since this was last asked."""
        found = [(alert.limit_name, alert.threshold) for alert in self.alerts]
        self.alerts.clear()
        return found


def listen(harness: Harness, store: Any = None) -> tuple[RateLimiter, Told]:
    limiter, told = harness.limiter(store) if store is not None else harness.limiter(), Told()
    limiter.observers = (told,)
    return limiter, told


async def recorded(limiter: RateLimiter, entity: str = "key") -> list[tuple[str, float]]:
    """Return what the audit log says, oldest first."""
    events = reversed(await alert_events(limiter._backend.store, limiter, entity))
    return [(event.details["limit"], event.details["threshold"]) for event in events]


# What thresholds are.


@pytest.mark.parametrize(
    ("alerts", "reason"),
    [
        (0.8, "list of at most 8"),
        ("0.8", "list of at most 8"),
        ([0.1] * 9, "list of at most 8"),
        ((0,), "above 0 and at most 1"),
        ((1.01,), "above 0 and at most 1"),
        (("0.8",), "above 0 and at most 1"),
        ((True,), "above 0 and at most 1"),
        ((0.80001,), "whole thousandths"),
        ((float("nan"),), "above 0 and at most 1"),
    ],
)
def test_invalid_thresholds_are_named(alerts: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as wrong:
        Limit.per_minute("tpm", 100, alerts=alerts)
    assert wrong.value.field == "alerts"


def test_thresholds_are_sorted_and_told_once() -> None:
    limit = Limit.per_day("t", 9, alerts=[0.95, 0.8, 1, 0.8])
    assert list(limit.alerts) == [0.8, 0.95, 1.0]
    assert Limit.from_dict(limit.to_dict()) == limit
    assert "alerts=(0.8, 0.95, 1.0)" in repr(limit)
    everywhere = [
        Limit.per_second("t", 1, alerts=(0.5,)),
        Limit.per_minute("t", 1, alerts=(0.5,)),
        Limit.per_hour("t", 1, alerts=(0.5,)),
        Limit.custom("t", 1, 1, 1, alerts=(0.5,)),
        Limit.quota("t", 1, alerts=(0.5,)),
        Limit("t", 1, 1, 1, alerts=(0.5,)),
    ]
    assert {each.alerts for each in everywhere} == {(0.5,)}


def test_the_command_line_writes_thresholds_behind_a_limit() -> None:
    limit = parse_limit("tpd:100/day@UTC,soft,batch=0.3,alert=0.8,alert=0.995")
    assert limit == Limit.quota("tpd", 100, soft=True, floors={"batch": 0.3}, alerts=(0.8, 0.995))
    assert spell_limit(limit).endswith("(soft, batch leaves 30%, alert at 80%, 99.5%)")
    with pytest.raises(ValueError, match="at most 1"):
        parse_limit("tpd:100,alert=1.2")
    with pytest.raises(ValueError, match=r"alert=0\.8"):
        parse_limit("tpd:100,alert=much")


async def test_thresholds_are_stored_with_the_limits(harness: Harness) -> None:
    await harness.limiter().set_limits("key", [DAY, MINUTE], "gpt-4")
    assert await harness.limiter().get_limits("key", "gpt-4") == [DAY, MINUTE]
    await harness.limiter().set_limits("key", [replace(DAY, alerts=())], "gpt-4")
    assert await harness.limiter().get_limits("key", "gpt-4") == [replace(DAY, alerts=())]


def test_on_alert_must_be_callable() -> None:
    with pytest.raises(ValidationError, match="function that takes an Alert"):
        SyncRateLimiter("memory://", on_alert="print")  # type: ignore[arg-type]


# Who crosses.


@given(
    capacity=st.integers(1, 50),
    alerts=st.lists(st.integers(1, 1000), min_size=1, max_size=4, unique=True),
    seen=st.integers(-60_000, 60_000),
    stored=st.integers(-60_000, 60_000),
    cost=st.integers(1, 50_000),
    quota=st.booleans(),
    soft=st.booleans(),
    states=st.tuples(st.integers(0, 3_000), st.integers(0, 3_000)),
    crowded=st.booleans(),
)
def test_whoever_may_write_crosses_what_it_has_seen_to_be_crossed(
    capacity: int,
    alerts: list[int],
    seen: int,
    stored: int,
    cost: int,
    quota: bool,
    soft: bool,
    states: tuple[int, int],
    crowded: bool,
) -> None:
    """Whatever the writer has seen and whatever is stored: where its guards hold, it announces the right thresholds."""
    parts = tuple(part / 1000 for part in alerts)
    every = timedelta(milliseconds=10**11)
    made = Limit.quota("t", capacity, every=every, soft=soft) if quota else Limit.per_second("t", capacity, soft=soft)
    limit, now = replace(made, alerts=parts), 10**11
    limits = (limit,)
    level = BucketLimits(keys.bucket("ns", "key", "r"), "ns", "key", "r", limits, token_limits_for(limits), "system", 1)
    new = apply_write(None, create(level, {}, now))
    assert new is not None
    al = {"b_t_al": states[0]} if quota else {}
    image = {**new, "b_t_tk": seen, **al}
    now += 40
    since = 0 if quota else 40 * capacity
    others = charging.Contention({"t"}, now - 100, 1) if crowded else charging.ALONE
    change = draw(level, image, {"t": cost}, now, others)
    if change is None:
        return
    told = watch(level, image, change, now)
    write = write_of(change, level.key, image)
    possible = [guard[2] for guard in write.guards if guard[1] == "between"]
    assert all(low <= high for low, high in possible), "there is something that it can meet"
    assert crowded or holds(image, write.guards), "by who has seen what is stored, it is written"
    other: Image = {**image, "b_t_tk": stored, **({"b_t_al": states[1]} if quota else {})}
    if not holds(other, write.guards):
        return
    unclipped = stored + since
    before = min(capacity * 1000, unclipped)
    left = (unclipped if "b_t_tk" not in write.put else before) - cost
    marks = AlertLevels.of(limit.alerts, capacity * 1000)
    if quota and states[1] != states[0] and not told:
        # It may not know how far others have come, but then they have: nothing of it was left to announce.
        behind = states[1] < states[0]
        assert behind or not cross_quota(marks, left, states[1], 1).crossed
        return
    found = cross_quota(marks, left, states[1], 1) if quota else cross_rate(marks, before, left)
    assert [alert.threshold for alert in told] == [marks.thresholds[place] / 1000 for place in found.crossed]
    after = apply_write(other, write)
    assert after is not None
    assert after.get("b_t_al", 0) >= other.get("b_t_al", 0), "it never falls"


def test_a_draw_among_others_is_guarded_by_what_it_can_meet() -> None:
    """Others are writing the full bucket: it is drawn as of a moment ago, and who comes first has taken some of it."""
    limits, now = (Limit.per_second("t", 10, alerts=(0.4,)),), 10**11
    level = BucketLimits(keys.bucket("ns", "key", "r"), "ns", "key", "r", limits, token_limits_for(limits), "system", 1)
    new = apply_write(None, create(level, {}, now))
    assert new is not None
    image = {**new, "b_t_tk": 12_000}
    others = charging.Contention({"t"}, now - 100, 1)
    change = draw(level, image, {"t": 5_000}, now + 40, others)
    assert change is not None
    alerts = watch(level, image, change, now + 40)
    assert [alert.threshold for alert in alerts] == [0.4]
    assert holds({**image, "b_t_tk": 10_000}, written(change).guards)


async def test_each_threshold_of_a_quota_is_announced_once_in_each_window(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.set_system_defaults([DAY])
    harness.clock.set_ms(round(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp() * 1000))
    for _ in range(2):
        assert await granted(limiter, {"tpd": 49})
        assert told.crossed() == []
        async with limiter.acquire("key", "gpt-4", {"tpd": 1}) as lease:
            assert told.crossed() == [("tpd", 0.5)]
            await lease.release(tpd=1)
        assert await granted(limiter, {"tpd": 1})
        assert told.crossed() == [], "also if tokens were given back and taken again"
        assert await granted(limiter, {"tpd": 50})
        assert [alert.used for alert in told.alerts] == [100, 100]
        assert told.crossed() == [("tpd", 0.8), ("tpd", 1.0)], "one for each of several"
        harness.clock.advance(86_400)
    assert await recorded(limiter) == [("tpd", 0.5), ("tpd", 0.8), ("tpd", 1.0)] * 2


async def test_an_alert_says_what_was_crossed(harness: Harness) -> None:
    limiter, told = listen(harness)
    harness.clock.set_ms(round(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp() * 1000))
    await limiter.set_system_defaults([replace(DAY, alerts=(0.5,)), replace(MINUTE, alerts=(0.5,))])
    await take(limiter, {"tpd": 55, "tpm": 60})
    now_ms = harness.clock.now_ms()
    day, minute = told.alerts
    assert day == Alert("key", "gpt-4", "tpd", 0.5, 55, replace(DAY, alerts=(0.5,)), now_ms)
    assert (day.instant, day.resets_at) == (datetime(2026, 6, 1, 12, tzinfo=UTC), datetime(2026, 6, 2, tzinfo=UTC))
    assert (minute.used, minute.resets_at) == (60, None)
    newest, first = await alert_events(harness.store(), limiter, "key")
    assert first.details == {
        "limit": "tpd", "threshold": 0.5, "used": 55, "capacity": 100, "resets_at": "2026-06-02T00:00:00+00:00",
    }  # fmt: skip
    assert newest.details == {"limit": "tpm", "threshold": 0.5, "used": 60, "capacity": 100}
    assert (first.resource, first.principal) == ("gpt-4", None)


async def test_a_threshold_of_a_rate_is_armed_again_when_a_draw_finds_more(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.set_system_defaults([MINUTE])
    assert await granted(limiter, {"tpm": 80})
    assert told.crossed() == [("tpm", 0.8)]
    assert await granted(limiter, {"tpm": 10})
    assert told.crossed() == [], "it is below"
    harness.clock.advance(30)
    assert await granted(limiter, {"tpm": 50})
    assert told.crossed() == [("tpm", 0.8)], "from 60 to 10"
    harness.clock.advance(30)
    assert await granted(limiter, {"tpm": 20})
    assert told.crossed() == [], "from 60 to 40"


async def test_several_clients_announce_each_threshold_once(harness: Harness) -> None:
    clients = [listen(harness) for _ in range(4)]
    await clients[0][0].set_system_defaults([DAY, MINUTE])
    for _ in range(20):
        for limiter, _ in clients:
            await granted(limiter, {"tpd": 2, "tpm": 2})
    crossed = Counter(alert for _, told in clients for alert in told.crossed())
    assert crossed == {("tpd", 0.5): 1, ("tpd", 0.8): 1, ("tpd", 1.0): 1, ("tpm", 0.8): 1}
    assert Counter(await recorded(clients[0][0])) == crossed


async def test_a_debt_crosses_thresholds(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.set_system_defaults([DAY, MINUTE])
    async with limiter.acquire("key", "gpt-4", {"tpd": 10, "tpm": 10}) as lease:
        await lease.adjust(tpd=60, tpm=200)
    assert told.crossed() == [("tpd", 0.5), ("tpm", 0.8)]
    async with limiter.acquire("key", "gpt-4", {"tpd": 1}) as lease:
        await limiter.reset_bucket("key", "gpt-4")
        await lease.adjust(tpd=90)
    assert told.crossed() == [("tpd", 0.5), ("tpd", 0.8)], "a bucket that was reset begins anew"
    assert await recorded(limiter) == [("tpd", 0.5), ("tpm", 0.8), ("tpd", 0.5), ("tpd", 0.8)]


async def test_soft_and_bypassed_limits_have_thresholds_too(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.set_system_defaults([replace(DAY, soft=True), MINUTE])
    await limiter.bypass_entity("key")
    assert await granted(limiter, {"tpd": 79, "tpm": 79})
    assert told.crossed() == [("tpd", 0.5)]
    for _ in range(2):
        assert await granted(limiter, {"tpd": 500, "tpm": 500})
    assert told.crossed() == [("tpd", 0.8), ("tpd", 1.0), ("tpm", 0.8)]


async def test_every_level_of_a_cascade_announces_its_own(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_limits("org", [replace(DAY, capacity=200, refill_amount=200)])
    await limiter.set_limits("key", [DAY])
    assert await granted(limiter, {"tpd": 100})
    whose = sorted((alert.entity_id, alert.threshold) for alert in told.alerts)
    assert whose == [("key", 0.5), ("key", 0.8), ("key", 1.0), ("org", 0.5)]
    assert await recorded(limiter, "org") == [("tpd", 0.5)]
    assert await recorded(limiter) == [("tpd", 0.5), ("tpd", 0.8), ("tpd", 1.0)]


async def test_thresholds_that_are_added_changed_and_removed(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.set_system_defaults([replace(DAY, alerts=())])
    assert await granted(limiter, {"tpd": 60})
    await limiter.set_system_defaults([replace(DAY, alerts=(0.8,))])
    assert await granted(limiter, {"tpd": 25})
    assert told.crossed() == [("tpd", 0.8)]
    await limiter.set_system_defaults([replace(DAY, alerts=(0.5, 0.9))])
    assert await granted(limiter, {"tpd": 1})
    assert told.crossed() == [], "more than 0.5 was announced in this window"
    assert await granted(limiter, {"tpd": 5})
    assert told.crossed() == [("tpd", 0.9)]
    await limiter.set_system_defaults([replace(DAY, alerts=())])
    assert await granted(limiter, {"tpd": 9})
    assert told.crossed() == []


async def test_limits_that_are_passed_have_thresholds_too(harness: Harness) -> None:
    limiter, told = listen(harness)
    plain, watched = [replace(DAY, alerts=())], [DAY]
    assert await granted(limiter, {"tpd": 60}, limits=plain)
    assert await granted(limiter, {"tpd": 1}, limits=watched)
    assert told.crossed() == [("tpd", 0.5)], "who first finds it announces it"
    assert await granted(limiter, {"tpd": 30}, limits=watched)
    assert told.crossed() == [("tpd", 0.8)]


async def test_a_refusal_crosses_nothing(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.set_system_defaults([DAY, Limit.per_minute("rpm", 1)])
    assert not await granted(limiter, {"tpd": 90, "rpm": 2})
    assert await granted(limiter, {"tpd": 10, "rpm": 1})
    assert not await granted(limiter, {"tpd": 90, "rpm": 1})
    assert told.crossed() == []
    assert await recorded(limiter) == []


async def refuse_by_the_parent(harness: Harness, limit: Limit) -> tuple[RateLimiter, Told]:
    """Return a limiter whose parent has refused 90 of 100, which it has only learnt by writing."""
    limiter, told = listen(harness)
    await limiter.set_system_defaults([limit])
    await limiter.create_entity("org")
    for key in ("key", "other"):
        await limiter.create_entity(key, parent_id="org", cascade=True)
    assert await granted(limiter, {limit.name: 1})
    assert await granted(harness.limiter(), {limit.name: 45}, "other")
    assert not await granted(limiter, {limit.name: 90})
    return limiter, told


@pytest.mark.parametrize("limit", [replace(DAY, alerts=(0.8,)), replace(MINUTE, name="tpd")], ids=["quota", "rate"])
async def test_an_acquire_that_the_parent_refuses_announces_nothing(harness: Harness, limit: Limit) -> None:
    limiter, told = await refuse_by_the_parent(harness, limit)
    assert told.crossed() == []
    assert await recorded(limiter) == []
    await limiter.reset_bucket("org", "gpt-4")
    assert await granted(limiter, {"tpd": 95})
    assert told.crossed() == [("tpd", 0.8)] * 2, "the real crossing"
    assert await recorded(limiter) == [("tpd", 0.8)]


async def test_a_refusal_of_the_parent_forgets_nothing_that_was_announced_before(harness: Harness) -> None:
    limiter, told = listen(harness)
    await limiter.set_system_defaults([DAY])
    await limiter.create_entity("org")
    for key in ("key", "other"):
        await limiter.create_entity(key, parent_id="org", cascade=True)
    assert await granted(limiter, {"tpd": 50})
    assert told.crossed() == [("tpd", 0.5)] * 2
    assert await granted(harness.limiter(), {"tpd": 20}, "other")
    assert not await granted(limiter, {"tpd": 35})
    assert told.crossed() == []
    await limiter.reset_bucket("org", "gpt-4")
    assert await granted(limiter, {"tpd": 1})
    assert await granted(limiter, {"tpd": 34})
    assert told.crossed() == [("tpd", 0.8)]
    assert await recorded(limiter) == [("tpd", 0.5), ("tpd", 0.8)]


@pytest.mark.parametrize("credit", [False, True])
async def test_a_reset_in_place_forgets_what_was_announced_of_its_limits(harness: Harness, credit: bool) -> None:
    limiter, told = listen(harness)
    month = Limit.quota("tpm", 100, every="month", alerts=(0.8,))
    await limiter.set_system_defaults([replace(DAY, alerts=(0.8,)), month])
    assert await granted(limiter, {"tpd": 90, "tpm": 90})
    assert sorted(told.crossed()) == [("tpd", 0.8), ("tpm", 0.8)]
    if credit:
        await limiter.top_up("key", "gpt-4", {"tpd": 1})
    await limiter.reset_bucket("key", "gpt-4", None if credit else ["tpd"])
    assert await granted(limiter, {"tpd": 90, "tpm": 1})
    assert told.crossed() == [("tpd", 0.8)]


async def test_a_steady_acquire_is_one_write_and_no_read(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([replace(DAY, capacity=1_000, refill_amount=1_000), MINUTE])
    cost = {"tpd": 5, "tpm": 1}
    assert await granted(limiter, cost)
    for _ in range(5):
        before = store.calls.copy()
        assert await granted(limiter, cost)
        made = store.calls - before
        assert made == {"commit": 1}


# Who is told.


async def test_the_callback_of_each_limiter_hears_of_its_own_writes(harness: Harness) -> None:
    told: list[list[Alert]] = [[], []]
    clients = [harness.limiter(on_alert=each.append) for each in told]
    await clients[0].set_system_defaults([DAY])
    await take(clients[0], {"tpd": 60})
    await take(clients[1], {"tpd": 30})
    assert [[alert.threshold for alert in each] for each in told] == [[0.5], [0.8]]


def test_the_callback_is_told_and_cannot_break_an_acquire(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Alert] = []

    def on_alert(alert: Alert) -> None:
        told.append(alert)
        raise KeyError("a bug of the application")

    limiter = SyncRateLimiter("memory://", on_alert=on_alert)
    limiter.set_system_defaults([DAY])
    with caplog.at_level(logging.INFO, "zae_limiter"), limiter.acquire("key", "gpt-4", {"tpd": 100}) as lease:
        assert lease.available == {"tpd": 0}
    assert [alert.threshold for alert in told] == [0.5, 0.8, 1.0]
    events = [record.__dict__["zae_event"] for record in caplog.records]
    assert events == ["limit.alert", "observer.failed", "limit.alert", "limit.alert"], "the failure is logged once"


class Forgetful(FaultyStore):
    """Fails to write audit events of alerts."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if any(write.put.get("action") == "limit_alert" for write in writes):
            self.inject(Fault.FAIL_BEFORE)
        return await super().commit(writes, timeout=timeout)


def test_an_alert_that_cannot_be_recorded_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = Forgetful(MemoryStore(clock), free_atomic_commit=False)
    told: list[Alert] = []
    limiter = SyncRateLimiter(SyncRepository(store), on_alert=told.append)
    limiter.set_system_defaults([DAY])
    with caplog.at_level(logging.WARNING, "zae_limiter"), limiter.acquire("key", "gpt-4", {"tpd": 50}):
        pass
    assert [record.__dict__["zae_event"] for record in caplog.records] == ["limit.alert_unrecorded", "limit.alert"]
    assert [alert.threshold for alert in told] == [0.5]


# Shards.


def test_of_a_split_bucket_the_first_shard_announces_for_all() -> None:
    limits = (DAY,)
    key, now = keys.bucket("ns", "key", "gpt-4"), 10**12
    level = BucketLimits(
        key, "ns", "key", "gpt-4", limits, token_limits_for(limits), "system", 1, partition_writes=1000
    )
    image = apply_write(None, create(level, {"tpd": 10_000}, now))
    assert image is not None
    told: list[list[float]] = []
    for place, before, write in zip((0, 1), (image, None), split(level, image, now), strict=True):
        shard, half = level.at(place, 2), apply_write(before, write)
        assert half is not None
        taken = draw(shard, half, {"tpd": 30_000}, now)
        assert taken is not None, "no shard has to be moved"
        alerts = watch(shard, half, taken, now)
        told.append([alert.threshold for alert in alerts])
        assert all(alert.used == 70 for alert in alerts), "as if all of them were used like the first"
    assert told == [[0.5], []]


def test_a_bucket_that_is_moved_crosses_in_the_same_write() -> None:
    plain, limits = (replace(DAY, alerts=()),), (DAY,)
    key, now = keys.bucket("ns", "key", "gpt-4"), 10**12
    old = BucketLimits(key, "ns", "key", "gpt-4", plain, token_limits_for(plain), "system", 1)
    image = apply_write(None, create(old, {"tpd": 10_000}, now))
    assert image is not None
    level = old._replace(limits=limits, token_limits=token_limits_for(limits), version=2)
    change = migration.migrate(level, image, {"tpd": 45_000}, now)
    assert isinstance(change, Change)
    alerts = watch(level, image, change, now)
    write = write_of(change, level.key, image)
    assert [alert.threshold for alert in alerts] == [0.5]
    assert holds(image, write.guards)
    assert not holds({**image, "b_tpd_tk": 90_001 - 45_000 + 10_000}, write.guards), "then it would not be crossed"
    assert isinstance(write, Write)


# Processes.

CLIENT = """
import json, sys, time
from zae_limiter import RateLimitExceeded, SyncRateLimiter

url, windows = sys.argv[1:]
alerts, sold = [], {}
with SyncRateLimiter(url, timeout=60, refusal_ttl=0, on_alert=alerts.append) as limiter:
    clock = limiter._inner._backend.store.clock
    limiter.available("key", "gpt-4")
    print("ready", flush=True)
    last = int(sys.stdin.readline()) + int(windows)
    while (window := clock.now_ms() // 2_000) < last:
        try:
            with limiter.acquire("key", "gpt-4", {"t": 1}) as lease:
                window = lease._grant.now_ms // 2_000
                sold[window] = sold.get(window, 0) + 1
        except RateLimitExceeded:
            time.sleep(0.005)
print(json.dumps([sold, [(alert.instant_ms // 2_000, alert.threshold) for alert in alerts]]))
"""


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the test."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_eight_processes_sell_each_window_once_and_announce_its_thresholds_once(kind: str, tmp_path: Path) -> None:
    """In real time, over the borders of windows: exactly the allowance in each, and one alert for each threshold."""
    path = f"sqlite:///{tmp_path / 'limits.db'}"
    url = path if kind == "sqlite" else f"{shared.server().url}?prefix=alerts-{uuid.uuid4().hex[:8]}"
    windows = 4
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults([Limit.quota("t", 60, every=timedelta(seconds=2), alerts=(0.5, 0.9))])
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", CLIENT, url, str(windows)]
        clients = [stack.enter_context(started(command)) for _ in range(8)]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        first = int(time.time() * 1000) // 2_000
        for client in clients:
            assert client.stdin is not None
            client.stdin.write(f"{first}\n")
            client.stdin.flush()
        answers = [json.loads(client.communicate(timeout=PATIENCE + 2 * windows)[0]) for client in clients]
    sold: Counter[int] = Counter()
    told: Counter[tuple[int, float]] = Counter()
    for grants, alerts in answers:
        sold.update({int(window): count for window, count in grants.items()})
        told.update((window, threshold) for window, threshold in alerts)
    whole = range(first + 1, first + windows)  # it may be late in the first one
    assert max(sold.values()) == 60
    assert [sold[window] for window in whole] == [60] * len(whole)
    assert set(told.values()) == {1}
    assert [told[window, part] for window in whole for part in (0.5, 0.9)] == [1] * 2 * len(whole)
    with SyncRateLimiter(url) as limiter:
        events = [event for event in limiter.get_audit_events("key", 1_000) if event.action == "limit_alert"]
    assert len(events) == told.total()


def test_a_refused_request_is_still_refused() -> None:
    limiter = SyncRateLimiter("memory://")
    limiter.set_system_defaults([DAY])
    with limiter.acquire("key", "gpt-4", {"tpd": 100}):
        pass
    with pytest.raises(RateLimitExceeded), limiter.acquire("key", "gpt-4", {"tpd": 1}):
        pass


async def test_alerts_beside_a_concurrency_limit(harness: Harness) -> None:
    """Thresholds are those of tokens: slots of the same bucket are left alone."""
    limiter = harness.limiter()
    limits = [Limit.per_minute("rpm", 100, alerts=(0.8,)), Limit.concurrent("parallel", 3, ttl=60)]
    async with limiter.acquire("key", "gpt-4", {"rpm": 90}, limits=limits) as lease:
        assert lease.available == {"rpm": 10, "parallel": 2}
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=limits) as lease:
        assert lease.available == {"rpm": 9, "parallel": 2}


def test_a_debt_by_a_client_whose_clock_is_behind_is_announced_as_of_the_instant_that_it_counts_from() -> None:
    limits, now = (Limit.per_second("t", 10, alerts=(0.5,)),), 10**11
    level = BucketLimits(keys.bucket("ns", "key", "r"), "ns", "key", "r", limits, token_limits_for(limits), "system", 1)
    taken = apply_write(None, create(level, {"t": 9_000}, now))
    assert taken is not None
    image = {**taken, "at": now + 900}  # by then it is full again, and others have charged it
    change = settle(level, image, {"t": 6_000}, Receipt.of(level, image, now + 900), now)
    assert [alert.threshold for alert in watch(level, image, change, now)] == [0.5]
