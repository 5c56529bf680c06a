"""Plans: equal after they were applied, resumable, and refused where others were faster."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from zae_limiter import (
    Limit,
    ManifestError,
    PlanOutdatedError,
    RateLimiterUnavailable,
    ScheduleEntry,
    SyncRepository,
    ValidationError,
)
from zae_limiter.core.values import Access
from zae_limiter.manifest.export import export_data, write_document
from zae_limiter.manifest.parsing import parse_manifest
from zae_limiter.manifest.states import SYSTEM, Manifest, Plan, Subject, decode_plan, encode_plan
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock

FULL = """
    system: {on_unavailable: allow, limits: {rpm: 600, tpd: 1000000/day@Europe/Berlin, parallel: 10/concurrent}}
    resources:
      gpt-4: {switch: bypassed, limits: {tpm: {rate: 10, soft: true, floors: {batch: 0.3}}}}
      gpt-5: {switch: disabled}
    entities:
      key-1:
        parent: project
        cascade: true
        limits: {rpm: 5}
        resources:
          gpt-4: {switch: enabled, limits: {usd: {quota: 3, cron: 0 9 * * 0}, jobs: {concurrent: 5, max_hold: 60}}}
      project: {parent: acme}
      acme: {name: Acme}
"""


def parse(text: str, format: str = "yaml") -> Manifest:
    return parse_manifest(dedent(text), format)


def opened() -> SyncRepository:
    return SyncRepository(MemoryStore(ManualClock()))


def apply(repository: SyncRepository, text: str, *, prune: bool = False) -> Plan:
    plan = repository.plan_limits(parse(text), prune=prune)
    assert repository.apply_plan(plan, "tester") == len(plan.changes)
    return plan


def names(plan: Plan) -> list[str]:
    return [f"{change.kind} {change.subject}" for change in plan.changes]


def test_a_plan_after_an_apply_is_empty() -> None:
    repository = opened()
    first = apply(repository, FULL)
    assert names(first)[:3] == ["add entity acme", "add entity project", "add entity key-1"]
    assert repository.plan_limits(parse(FULL)).changes == ()
    assert repository.plan_limits(parse(FULL), prune=True).changes == ()
    assert repository.get_limits("key-1") == [Limit.per_minute("rpm", 5)]
    assert repository.resolve_access("key-1", "gpt-4") == (Access.ENABLED, "entity")
    assert repository.resolve_access("other", "gpt-5") == (Access.DISABLED, "resource")


CASCADES = """
    resources: {gpt-4: {cascade: false}, gpt-5: {cascade: true, limits: {rpm: 5}}}
    entities:
      org: {}
      key-1: {parent: org, cascade: true, resources: {_default_: {cascade: false}, gpt-4: {cascade: true}}}
"""


def test_cascade_policies_of_resources_and_entities() -> None:
    repository = opened()
    apply(repository, CASCADES)
    assert repository.plan_limits(parse(CASCADES), prune=True).changes == ()
    assert (repository.get_resource_cascade("gpt-4"), repository.get_resource_cascade("gpt-5")) == (False, True)
    assert (repository.get_entity_cascade("key-1"), repository.get_entity_cascade("key-1", "gpt-4")) == (False, True)
    plan = apply(
        repository,
        """
        resources: {gpt-4: {cascade: true}, gpt-5: {cascade: none}}
        entities: {key-1: {resources: {_default_: {cascade: true}}}}
        """,
    )
    assert names(plan) == ["change resource gpt-4", "remove resource gpt-5", "change entity key-1 on all resources"]
    assert decode_plan(encode_plan(plan, "default"), "default") == plan
    assert repository.get_audit_events("$RESOURCE:gpt-4")[0].details == {"cascade": True}
    assert repository.get_resource_cascade("gpt-5") is None
    with pytest.raises(ManifestError, match="must be true, false or none"):
        parse("resources: {gpt-4: {cascade: 1}}")


@pytest.mark.parametrize("format", ["yaml", "toml"])
def test_cascade_policies_are_exported(format: str) -> None:
    repository, copy = opened(), opened()
    apply(repository, CASCADES)
    text = write_document(export_data(repository.export_limits()), format)
    copy.apply_plan(copy.plan_limits(parse(text, format)))
    assert export_data(copy.export_limits()) == export_data(repository.export_limits())
    assert copy.get_entity_cascade("key-1") is False


def test_a_plan_changes_nothing() -> None:
    repository = opened()
    repository.plan_limits(parse(FULL))
    assert repository.export_limits().levels == {}
    assert repository.get_entity("acme") is None


def test_every_change_is_in_the_audit_log_with_its_principal() -> None:
    repository = opened()
    apply(repository, FULL)
    events = [event for subject in ("key-1", "$RESOURCE:gpt-4") for event in repository.get_audit_events(subject)]
    assert sorted(event.action for event in events) == [
        *("access_changed", "access_changed", "entity_created", "limits_set", "limits_set", "limits_set"),
    ]
    assert {event.principal for event in events} == {"tester"}


def test_what_a_file_does_not_state_is_left_alone() -> None:
    repository = opened()
    apply(repository, FULL)
    apply(repository, "resources: {gpt-4: {limits: {rpm: 7}}}\nentities: {acme: {cascade: true}}")
    assert repository.get_limits("key-1") == [Limit.per_minute("rpm", 5)]
    assert repository.resolve_access("x", "gpt-4") == (Access.BYPASSED, "resource")
    acme = repository.get_entity("acme")
    assert acme is not None
    assert (acme.name, acme.cascade) == ("Acme", True)
    assert repository.get_system_defaults()[1] == "allow"


def test_limits_switches_and_names_can_be_removed() -> None:
    repository = opened()
    apply(repository, FULL)
    plan = apply(
        repository,
        """
        system: {on_unavailable: null, limits: {}}
        resources: {gpt-4: {switch: none}}
        entities: {key-1: {parent: null, limits: {}}}
        """,
    )
    assert names(plan) == [
        *("change entity key-1", "remove system", "remove resource gpt-4", "remove entity key-1 on all resources"),
    ]
    assert repository.get_system_defaults() == ([], None)
    assert repository.resolve_access("x", "gpt-4") == (Access.ENABLED, None)
    key = repository.get_entity("key-1")
    assert key is not None
    assert key.parent_id is None
    assert repository.list_entities_with_custom_limits()[0] == []


def test_prune_removes_the_limits_that_are_not_stated_and_says_so() -> None:
    repository = opened()
    apply(repository, FULL)
    plan = apply(repository, "entities: {key-1: {limits: {rpm: 5}}}", prune=True)
    assert names(plan) == ["remove resource gpt-4", "remove entity key-1 on gpt-4"]
    assert repository.get_limits("key-1") == [Limit.per_minute("rpm", 5)]
    assert repository.get_resource_defaults("gpt-4") == []
    assert len(repository.get_system_defaults()[0]) == 3
    assert repository.resolve_access("x", "gpt-4") == (Access.BYPASSED, "resource")


def test_parents_come_first_in_any_order_also_when_they_change_places() -> None:
    repository = opened()
    apply(repository, "entities: {c: {parent: b}, b: {parent: a}, a: {}}")
    plan = apply(repository, "entities: {a: {parent: b}, b: {parent: c}, c: {parent: null}}")
    assert names(plan) == ["change entity c", "change entity b", "change entity a"]
    parents = {name: found.parent_id for name in "abc" if (found := repository.get_entity(name)) is not None}
    assert parents == {"a": "b", "b": "c", "c": None}


def test_a_parent_that_is_nowhere_is_a_mistake_with_its_place() -> None:
    with pytest.raises(ManifestError) as caught:
        opened().plan_limits(parse("entities:\n  key:\n    parent: acme"))
    assert str(caught.value.problems[0]) == "3:13: entities.key.parent: 'acme' is neither in the file nor stored"


def test_a_cycle_by_way_of_stored_parents_is_a_mistake_with_its_place() -> None:
    repository = opened()
    apply(repository, "entities: {a: {parent: b}, b: {}}")
    with pytest.raises(ManifestError, match="would close a cycle: b -> a -> b"):
        repository.plan_limits(parse("entities: {b: {parent: a}}"))


def test_of_two_concurrent_applies_one_wins_and_the_other_says_what_changed() -> None:
    repository = opened()
    ours = repository.plan_limits(parse("resources: {a: {limits: {rpm: 1}}, b: {limits: {rpm: 1}}}"))
    theirs = repository.plan_limits(parse("resources: {b: {limits: {rpm: 2}}, a: {limits: {rpm: 1}}}"))
    assert repository.apply_plan(theirs) == 2
    with pytest.raises(PlanOutdatedError) as caught:
        repository.apply_plan(ours)
    assert caught.value.applied == 0
    assert [conflict.partition(",")[0] for conflict in caught.value.conflicts] == ["resource b"]
    assert "now rpm 2/min, in the plan none" in str(caught.value)
    assert repository.get_resource_defaults("b") == [Limit.per_minute("rpm", 2)]


def test_of_two_plans_applied_by_two_threads_exactly_one_goes_through() -> None:
    store = MemoryStore(ManualClock())
    numbers = range(30)
    files = [
        "".join(f"\n  r{number}: {{limits: {{rpm: {rate}}}}}" for number in order)
        for rate, order in ((1, numbers), (2, reversed(numbers)))
    ]
    plans = [SyncRepository(store).plan_limits(parse(f"resources:{text}")) for text in files]
    assert names(plans[0]) == names(plans[1])
    barrier = threading.Barrier(2)

    def run(plan: Plan) -> int | str:
        barrier.wait()
        try:
            return SyncRepository(store).apply_plan(plan)
        except PlanOutdatedError as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(run, plans))
    winner = outcomes.index(30)
    assert "Changed by others since the plan" in str(outcomes[1 - winner])
    repository = SyncRepository(store)
    rates = {repository.get_resource_defaults(f"r{number}")[0].refill_amount for number in numbers}
    assert rates == {winner + 1}


def apply_in_a_process(url: str, data: Any, start: float) -> int | str:
    """Apply a plan from a moment on, and return how many changes were made, or what is in the way."""
    with SyncRepository(url) as repository:
        time.sleep(max(0.0, start - time.time()))
        try:
            return repository.apply_plan(decode_plan(data, "default"))
        except PlanOutdatedError as error:
            return str(error)


def test_of_two_plans_applied_by_two_processes_exactly_one_goes_through(tmp_path: Path) -> None:
    url, resources = f"sqlite:///{tmp_path / 'limits.db'}", range(40)
    with SyncRepository(url) as repository:
        texts = ["".join(f"\n  r{n}: {{limits: {{rpm: {rate}}}}}" for n in resources) for rate in (1, 2)]
        plans = [encode_plan(repository.plan_limits(parse(f"resources:{text}")), "default") for text in texts]
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(abs, range(2)))  # both of them are there
            outcomes = list(pool.map(apply_in_a_process, [url] * 2, plans, [time.time() + 0.5] * 2))
        winner = outcomes.index(len(resources))
        assert "Changed by others since the plan" in str(outcomes[1 - winner])
        assert "resource r" in str(outcomes[1 - winner])
        rates = {repository.get_resource_defaults(f"r{n}")[0].refill_amount for n in resources}
    assert rates == {winner + 1}


CONFLICTS: dict[str, tuple[str, Any, str]] = {
    "entity created": (
        "entities: {key: {name: A}}",
        lambda it: it.create_entity("key", "B"),
        "entity key was created, with name B",
    ),
    "entity changed": (
        "entities: {old: {name: A}}",
        lambda it: it.update_entity("old", name="B"),
        "entity old, name: now B, in the plan old",
    ),
    "entity deleted": ("entities: {old: {name: A}}", lambda it: it.delete_entity("old"), "entity old was deleted"),
    "switch set": (
        "resources: {r: {switch: bypassed}}",
        lambda it: it.disable_resource("r"),
        "resource r, switch: now disabled, in the plan none",
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
@pytest.mark.parametrize("late", [False, True])
def test_what_others_change_is_refused_before_and_during_an_apply(case: str, late: bool) -> None:
    text, meddle, told = CONFLICTS[case]
    repository = opened()
    repository.create_entity("old")
    plan = repository.plan_limits(parse(f"{text}\nsystem: {{limits: {{rpm: 1}}}}"))
    system, ours = sorted(plan.changes, key=lambda change: change.subject != SYSTEM)
    if late:
        with pytest.raises(PlanOutdatedError) as caught:
            repository.apply_plan(Plan((system, ours)), None, lambda change: meddle(repository))
    else:
        meddle(repository)
        with pytest.raises(PlanOutdatedError) as caught:
            repository.apply_plan(Plan((system, ours)))
    assert caught.value.conflicts == (told,)
    assert caught.value.applied == len(repository.get_system_defaults()[0]) == late


def test_others_who_make_the_same_change_are_no_conflict() -> None:
    repository = opened()
    plan = repository.plan_limits(parse(FULL))
    assert repository.apply_plan(plan) == len(plan.changes)
    assert repository.apply_plan(plan) == 0


@pytest.mark.parametrize("stop", range(10))
def test_an_interrupted_apply_is_finished_by_another(stop: int) -> None:
    repository = opened()
    plan = repository.plan_limits(parse(FULL))
    assert len(plan.changes) == 10

    def crash(change: object) -> None:
        done.append(change)
        if len(done) > stop:
            raise RateLimiterUnavailable("gone")

    done: list[object] = []
    with pytest.raises(RateLimiterUnavailable):
        repository.apply_plan(plan, None, crash)
    again = decode_plan(json.loads(json.dumps(encode_plan(plan, "default"))), "default")
    assert repository.apply_plan(again) == 9 - stop
    assert repository.plan_limits(parse(FULL)).changes == ()


def test_a_plan_survives_json() -> None:
    repository = opened()
    plan = repository.plan_limits(parse(FULL))
    decoded = decode_plan(json.loads(json.dumps(encode_plan(plan, "default"))), "default")
    assert decoded.changes == plan.changes  # warnings are for people who look at the plan


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"version": 2, "namespace": "default", "changes": []},
        {"version": 1, "namespace": "other", "changes": []},
        {"version": 1, "namespace": "default", "changes": [{}]},
        {
            "version": 1,
            "namespace": "default",
            "changes": [{"entity_id": "a", "resource": None, "before": None, "after": {"version": 3}}],
        },
        *(
            {
                "version": 1,
                "namespace": "default",
                "changes": [{"entity_id": who, "resource": resource, "before": None, "after": after}],
            }
            for who, resource, after in (
                ("a#b", "gpt-4", {"access": "disabled"}),
                ("a", "gpt#4", {"access": "disabled"}),
                (None, 5, {"access": "disabled"}),
                (None, "gpt-4", {"cascade": "yes"}),
                (None, "gpt-4", {"access": "off"}),
            )
        ),
    ],
)
def test_a_plan_of_anything_else_is_refused(data: object) -> None:
    with pytest.raises(ValidationError):
        decode_plan(data, "default")


@pytest.mark.parametrize("format", ["yaml", "toml"])
def test_an_export_is_a_file_with_nothing_to_do_that_makes_an_equal_store(format: str) -> None:
    repository = opened()
    apply(repository, FULL)
    repository.set_limits("never created", [Limit.quota("win", 5, every="5400s@")], "gpt-4")
    stored = repository.export_limits()
    manifest = parse(write_document(export_data(stored), format), format)
    assert repository.plan_limits(manifest, prune=True).changes == ()
    assert repository.get_entity("never created") is None
    other = opened()
    other.apply_plan(other.plan_limits(manifest))
    assert export_data(other.export_limits()) == export_data(stored)


CALENDARS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(dict, every=st.sampled_from(["hour", "day"]), tz=st.sampled_from(["UTC", "Asia/Kolkata"])),
    st.builds(dict, every=st.just("week"), on=st.sampled_from(["monday", "sunday", 3]), at=st.just("10:30")),
    st.builds(dict, every=st.just("month"), on=st.integers(1, 31), tz=st.just("Europe/Berlin")),
    st.builds(dict, every=st.just("year"), on=st.sampled_from(["01-01", "02-29", "12-31"])),
    st.builds(dict, every=st.integers(1, 10**8).map(lambda length: f"{length}ms@")),
    st.builds(dict, every=st.integers(1, 10**8).map(lambda length: f"{length}ms@first-use")),
    st.builds(
        dict, cron=st.sampled_from(["0 9 * * 1-5", "*/5,7 * L * MON#2"]), tz=st.sampled_from(["UTC", "Asia/Kolkata"])
    ),
)
POLICIES = st.fixed_dictionaries(
    {
        "soft": st.booleans(),
        "floors": st.dictionaries(st.sampled_from(["batch", "soft", "at", "on"]), st.just(0.25)),
        "alerts": st.lists(st.sampled_from([0.5, 0.8, 0.995, 1]), max_size=4),
    }
)
SCHEDULES: st.SearchStrategy[list[ScheduleEntry]] = st.lists(
    st.sampled_from(
        [
            ScheduleEntry("* 9-17 * * 1-5", "Europe/Berlin", scale=0.5),
            ScheduleEntry("0,30 * L * MON#2", capacity=7),
        ]
    )
)
AMOUNTS = st.integers(1, 10**12)
UNSCHEDULED = st.one_of(
    st.builds(
        lambda capacity, amount, period, more: Limit.custom("x", capacity, amount, period, **more),
        AMOUNTS,
        AMOUNTS,
        st.one_of(st.sampled_from([1, 60, 3600, 86_400, 7200]), st.integers(1, 10**8)),
        POLICIES,
    ),
    st.builds(
        lambda amount, rollover, calendar, more: Limit.quota("x", amount, rollover=rollover, **calendar, **more),
        st.integers(1, 10**11),
        st.integers(0, 10**11),
        CALENDARS,
        POLICIES,
    ),
)
TTLS = st.integers(1, 86_400)
SLOTS = st.builds(
    lambda slots, ttl, longer, soft, floors: Limit.concurrent(
        "x", slots, ttl=ttl, max_hold=None if longer is None else ttl + longer, soft=soft, floors=floors
    ),
    st.integers(1, 10_000),
    TTLS,
    st.none() | TTLS,
    st.booleans(),
    st.dictionaries(st.sampled_from(["batch", "soft", "ttl", "max_hold"]), st.just(0.25)),
)


@st.composite
def scheduled_limits(draw: st.DrawFn) -> Limit:
    limit, schedule = draw(st.one_of(UNSCHEDULED, SLOTS)), draw(SCHEDULES)
    try:
        return limit.with_schedule(schedule)
    except ValidationError:  # an entry that is never in force
        return limit


LIMITS = scheduled_limits()
IDS = st.one_of(
    st.sampled_from(
        ["null", "true", "1", "0x1F", "10:30", "~", "a b", "é", "'q'", '"q"', "a: b", "- a", "&a", "<<", "."]
    ),
    st.text(st.characters(exclude_characters="#", exclude_categories=["C", "Z"]), min_size=1, max_size=20),
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(IDS, st.tuples(LIMITS, st.sampled_from([None, *Access]), IDS)), st.sampled_from(["yaml", "toml"])
)
def test_any_state_survives_a_file(entries: dict[str, tuple[Limit, Access | None, str]], format: str) -> None:
    repository = opened()
    levels = {
        Subject(who, "_default_"): {"limits": (limit,), "access": access} for who, (limit, access, _) in entries.items()
    }
    entities = {who: {"name": name, "cascade": bool(access)} for who, (_, access, name) in entries.items()}
    wanted = Manifest({SYSTEM: {"limits": (Limit.per_minute("rpm", 1),)}, **levels}, entities)
    repository.apply_plan(repository.plan_limits(wanted))
    text = write_document(export_data(repository.export_limits()), format)
    again = parse_manifest(text, format)
    assert repository.plan_limits(again, prune=True).changes == ()
    named = {
        who: entities[who] if entities[who]["name"] != who else {"cascade": entities[who]["cascade"]}
        for who in entities
    }
    assert {who: dict(stated) for who, stated in again.entities.items()} == named, "the id is the name that all have"
    assert {subject: stated["limits"] for subject, stated in again.levels.items() if subject.entity_id} == {
        subject: stated["limits"] for subject, stated in levels.items()
    }
