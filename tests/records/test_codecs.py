"""Codecs: what is written comes back, for every kind of record and every name that is allowed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from zae_limiter import AuditEvent, CorruptRecordError, Entity, Limit, Namespace, OnUnavailable
from zae_limiter.core.limit import MAX_AMOUNT
from zae_limiter.records import audit, config, entity, keys, namespace, usage
from zae_limiter.records.algebra import Image, Write, apply_write, holds
from zae_limiter.records.fields import iso
from zae_limiter.records.version import SCHEMA_VERSION

NASTY_NAMES = (
    "ttl",
    "resource",
    "total_events",
    "PK",
    "SK",
    "entity_id",
    "window",
    "window_start",
    "GSI2PK",
    "namespace",
)
LIMIT_NAMES = st.sampled_from(
    [*NASTY_NAMES, "a_cp", "a_cp_cp", "cp", "l_x_cp", "config_version", "rpm"]
) | st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True).filter(lambda name: name != "wcu")
AMOUNTS = st.integers(1, MAX_AMOUNT)
TTLS = st.integers(1, 86_400)
LIMITS = st.lists(
    st.builds(
        Limit, name=LIMIT_NAMES, capacity=AMOUNTS, refill_amount=AMOUNTS, refill_period_seconds=st.integers(1, 10**8)
    )
    | st.builds(Limit.concurrent, LIMIT_NAMES, st.integers(1, 10_000), ttl=TTLS, soft=st.booleans())
    | st.builds(Limit.concurrent, LIMIT_NAMES, st.integers(1, 10_000), ttl=TTLS, max_hold=TTLS.map((86_400).__add__)),
    min_size=1,
    max_size=4,
    unique_by=lambda limit: limit.name,
).map(lambda limits: tuple(sorted(limits, key=lambda limit: limit.name)))
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
INSTANTS = st.integers(0, 4 * 10**12)


def stored(*writes: Write) -> Image:
    """The record that writes to one key leave, as a store would keep it."""
    image: Image | None = None
    for write in writes:
        assert holds(image, write.guards)
        image = apply_write(image, write)
        image = None if image is None else json.loads(json.dumps(image))
    assert image is not None
    return image


# Config.


@given(LIMITS, LIMITS, st.none() | st.sampled_from(OnUnavailable))
def test_limits_come_back_and_leave_nothing_of_those_before(
    before: tuple[Limit, ...], after: tuple[Limit, ...], policy: OnUnavailable | None
) -> None:
    key = keys.system_config("ns")
    first = stored(config.replace(key, None, config.Config(before, OnUnavailable.BLOCK, changed_ms=7), {}))
    assert config.decode(key, first) == (before, OnUnavailable.BLOCK, 1, None, None, 7, {})
    second = stored(Write(key, (), first), config.replace(key, first, config.Config(after, policy), {}))
    assert config.decode(key, second) == (after, policy, 2, None, None, 0, {})
    more = sum(bool(field) for limit in after for field in (limit.ttl, limit.max_hold, limit.soft))
    assert len(config.encode(after)) == 3 * len(after) + more, "no two limits share an attribute"
    gone = stored(Write(key, (), second), config.replace(key, second, config.Config(changed_ms=9), {}))
    assert config.decode(key, gone) == (None, None, 3, None, None, 9, {}), (
        "a deleted config keeps its version and instant"
    )
    assert config.decode(key, None) == (None, None, 0, None, None, 0, {})


def test_only_other_limits_are_a_change_of_limits() -> None:
    one, other = Limit.per_minute("rpm", 1), Limit.per_hour("tpm", 5)
    seen = config.Config((one, other), changed_ms=7)
    for same in ((one, other), (other, one)):
        assert seen.replaced_by(config.Config(same, cascade=True), 9).changed_ms == 7
    for changed in ((one,), (one, Limit.per_hour("tpm", 6)), None):
        assert seen.replaced_by(config.Config(changed), 9).changed_ms == 9


def test_a_limit_keeps_its_instant_while_others_change() -> None:
    """And while nothing changes that decides how many tokens it makes."""
    key, one, other = keys.system_config("ns"), Limit.per_minute("rpm", 1), Limit.per_hour("tpm", 5)
    first = config.Config((one, other), changed_ms=7)
    alerting = Limit.per_minute("rpm", 1, alerts=(0.8,))
    second = first.replaced_by(config.Config((alerting, Limit.per_hour("tpm", 6))), 9)
    assert (second.changed_ms, second.since) == (9, {"rpm": 7})
    image = stored(config.replace(key, None, second, {}))
    assert config.decode(key, image).since == {"rpm": 7}
    third = config.decode(key, image).replaced_by(config.Config((alerting,)), 11)
    assert (third.changed_ms, third.since) == (11, {"rpm": 7})
    fourth = third.replaced_by(config.Config((alerting, other)), 13)
    assert (fourth.changed_ms, fourth.since) == (13, {"rpm": 7})
    fifth = fourth.replaced_by(config.Config((Limit.per_minute("rpm", 2), other)), 15)
    assert (fifth.changed_ms, fifth.since) == (15, {"tpm": 13})


@pytest.mark.parametrize(
    "damage",
    [
        {"l_rpm_cp": "x"},
        {"l_rpm_cp": 0},
        {"l_rpm_ra": None},
        {"on_unavailable": "perhaps"},
        {"l_wcu_cp": 5},
        {"l__cp": 1},
        {"changed_ms": "yesterday"},
        {"l_rpm_ms": -1},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_read_is_never_unlimited(damage: dict[str, Any]) -> None:
    key = keys.system_config("ns")
    image = {**stored(config.replace(key, None, config.Config((Limit.per_minute("rpm", 1),)), {})), **damage}
    with pytest.raises(CorruptRecordError, match="ns/SYSTEM# #CONFIG cannot be read"):
        config.decode(key, image)


# Entities, events, namespaces.


@given(
    st.builds(
        Entity,
        id=TEXTS,
        name=st.none() | TEXTS,
        parent_id=st.none() | TEXTS,
        cascade=st.booleans(),
        metadata=st.dictionaries(TEXTS, JSON, max_size=3),
        created_at=TEXTS,
        version=st.integers(1, 10**6),
    )
)
def test_entities_come_back(made: Entity) -> None:
    image = json.loads(json.dumps(entity.encode("ns", made)))
    assert entity.decode(image) == made
    assert ("GSI1PK" in image) == made.is_child == (not made.is_parent)


@given(
    st.builds(
        AuditEvent,
        event_id=st.builds(audit.event_id, INSTANTS, st.text("0123456789abcdef", min_size=1, max_size=12)),
        timestamp=INSTANTS.map(iso),
        action=TEXTS,
        entity_id=TEXTS,
        principal=st.none() | TEXTS,
        resource=st.none() | TEXTS,
        details=st.dictionaries(TEXTS, JSON, max_size=3),
    ),
    st.none() | st.integers(1, 10**13),
)
def test_events_come_back(event: AuditEvent, expires_ms: int | None) -> None:
    write = audit.record("ns", event, expires_ms)
    assert audit.decode(stored(write)) == event
    assert write.key == keys.audit("ns", event.entity_id, event.event_id)


@given(INSTANTS, INSTANTS, st.text("0123456789abcdef", min_size=1), st.text("0123456789abcdef", min_size=1))
def test_events_sort_by_time(one: int, other: int, token: str, other_token: str) -> None:
    if one < other:
        assert audit.event_id(one, token) < audit.event_id(other, other_token)


@given(TEXTS, st.none() | TEXTS)
def test_namespaces_come_back_from_both_records(name: str, deleted_at: str | None) -> None:
    made = Namespace(name, "abc", namespace.ACTIVE, "2026-01-01T00:00:00.000Z")
    forward, reverse, version = namespace.register(made)
    assert namespace.decode(stored(forward)) == namespace.decode(stored(reverse)) == made
    assert version.put["schema_version"] == SCHEMA_VERSION
    _, marked = namespace.delete(made, "2026-01-02T00:00:00.000Z")
    orphan = namespace.decode(stored(reverse, marked))
    assert (orphan.status, orphan.deleted_at) == (namespace.DELETED, "2026-01-02T00:00:00.000Z")
    _, back = namespace.recover(orphan)
    assert namespace.decode(stored(reverse, marked, back)) == made


# Usage.


@given(
    st.lists(
        st.tuples(st.dictionaries(LIMIT_NAMES, st.integers(0, 10**9), max_size=4), st.integers(1, 100)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(usage.WINDOWS),
    INSTANTS,
)
def test_counters_add_up_whatever_a_limit_is_called(
    parts: list[tuple[dict[str, int], int]], window: str, instant: int
) -> None:
    held = usage.window_of(window, instant)
    writes = [
        usage.accrue(
            usage.Subject("ns", "key", "gpt-4"), held, amounts, count, more={usage.mark(0): "1"}, expires_at_ms=10**13
        )
        for amounts, count in parts
    ]
    image = stored(*writes)
    found = usage.decode(image)
    total: dict[str, int] = {}
    for amounts, _ in parts:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    assert usage.counters_milli(image) == total
    assert found.counters == {name: amount // 1000 for name, amount in total.items()}
    assert found.total_events == sum(count for _, count in parts)
    assert (found.entity_id, found.resource, found.window_type) == ("key", "gpt-4", window)
    assert (found.window_type, found.window_start, found.window_end) == held


@given(st.lists(LIMIT_NAMES, unique=True, max_size=8))
def test_no_two_limits_share_a_counter(names: list[str]) -> None:
    assert len({usage.counter(name) for name in names}) == len(names)


@given(st.sampled_from(usage.WINDOWS), INSTANTS)
def test_a_window_holds_its_instants_and_the_next_begins_where_it_ends(window: str, instant: int) -> None:
    held = usage.window_of(window, instant)
    now = usage.utc_text(datetime.fromtimestamp(instant // 1000, UTC))
    assert held.start <= now < held.end
    end_ms = usage.end_ms(held)
    assert usage.window_of(window, end_ms).start == held.end
    assert usage.window_of(window, end_ms - 1) == held


@given(INSTANTS)
def test_instants_as_text_are_exact_and_sort_by_time(instant: int) -> None:
    text = iso(instant)
    assert round(datetime.fromisoformat(text).timestamp() * 1000) == instant
    assert text.endswith("Z")
    assert iso(instant) < iso(instant + 1)
