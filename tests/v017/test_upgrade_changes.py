"""What a dry run says of records that mean something else afterwards, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.v017 import old_tables
from tests.v017.old_layouts import upgrade
from tests.v017.old_tables import NOW, OTHER, Item, OldTable, Pool, old_table
from tests.v017.test_upgrade_cli import answer, shell
from zae_limiter.records.algebra import Key, Write
from zae_limiter.v017.upgrade.changes import MOST_KEYS, ChangeLog
from zae_limiter.v017.upgrade.moves import Move, Old

PREFIX = f"{OTHER}/"
QUOTA = {"l_tpy_cp": 100, "l_tpy_ra": 0, "l_tpy_rp": 1}
FULL = Pool("rpm", 60_000, NOW, 60_000, 60_000, 60_000)


@pytest.fixture
def table() -> Iterator[OldTable]:
    with old_table() as made:
        yield made


def resource_config(resource: str, **fields: Any) -> Item:
    return old_tables.composite_config(f"{PREFIX}RESOURCE#{resource}", "#CONFIG", {}, **fields)


def burst(**fields: int) -> Item:
    return Item(
        Key("RESOURCE#r", "#LIMIT#rpm"), {"capacity": 5, "refill_amount": 1, "refill_period_seconds": 1, **fields}
    )


CASES: list[tuple[str, Item, str | None]] = [
    ("quota", resource_config("r", **QUOTA, l_tpy_rsched="1m0h0D1M1"), "debt was forgiven"),
    ("first use", resource_config("r", w_tpy_cp=9, w_tpy_ra=0, w_tpy_rp=1, w_tpy_rsa=60), "debt was forgiven"),
    ("resets", resource_config("r", **QUOTA, l_tpy_rsched="1m0h0D1M1;m0h0D1M7"), "one cron expression"),
    ("scale", resource_config("r", l_x_cp=1, l_x_ra=1, l_x_rp=1, l_x_sched="1m0h9s500"), "its capacity is then 1"),
    ("larger scale", resource_config("r", l_x_cp=2, l_x_ra=1, l_x_rp=1, l_x_sched="1m0h9s500"), None),
    ("bypass", resource_config("r", disabled="bypass"), "can leave debt"),
    ("switched off", resource_config("r", disabled=True), None),
    ("unknown", Item(Key(f"{PREFIX}CUSTOM#x", "#META"), {"a": 1}), "no version writes"),
    ("rate", resource_config("r", l_x_cp=1, l_x_ra=1, l_x_rp=1), None),
    ("burst", burst(burst=9), "the larger one is the capacity"),
    ("no burst", burst(burst=5), None),
    ("overfull", old_tables.sharded_bucket("a", "r", [FULL._replace(tokens=61_000)]), "cut to it"),
    ("full", old_tables.sharded_bucket("a", "r", [FULL]), None),
    (
        "debt",
        old_tables.composite_bucket("a", "r", [FULL, FULL._replace(limit="tpm", tokens=-1)]),
        "it refuses those that take from it",
    ),
    ("debt alone", old_tables.composite_bucket("a", "r", [FULL._replace(tokens=-1)]), None),
    ("cascade", old_tables.entity("a", parent_id="b"), "`entity set-cascade`"),
    ("own cascade", old_tables.entity("a", parent_id="b", cascade=True), None),
    ("midnight", old_tables.usage("a", "r", "daily", "2024-03-01T00:00:00Z", PREFIX, rpm=1), "shared a record"),
    ("noon", old_tables.usage("a", "r", "hourly", "2024-03-01T12:00:00Z", PREFIX, rpm=1), None),
    ("event", old_tables.event("a", "xyz", prefix=PREFIX), "begins with the time"),
    ("sorted event", old_tables.event("a", "01HXYZ", prefix=PREFIX), None),
    ("file", Item(Key(f"{PREFIX}SYSTEM#", "#PROVISIONER"), {"managed_system": True}), "`limits apply --prune`"),
]


@pytest.mark.parametrize(("item", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_changes_is_said_with_the_record(table: OldTable, item: Item, said: str | None) -> None:
    table.put(*old_tables.registered(), item)
    before = table.items()
    report = upgrade(table, dry_run=True)
    assert (report.refused, table.items()) == ({}, before)
    ignored = ("records without a namespace", "buckets of 'r'")
    found = [change for change in report.changes if not change.what.startswith(ignored)]
    if said is None:
        assert found == []
    else:
        assert any(said in change.what and change.keys == (" ".join(item.key),) for change in found), found


def test_hierarchies_that_charge_otherwise_are_said(table: OldTable) -> None:
    """Version 0.17 charges one parent, and looks at no other."""
    parents = {"b": "a", "c": "b", "x": "y", "y": "x", **{f"d{n}": f"d{n - 1}" for n in range(1, 9)}}
    entities = [old_tables.entity(name, prefix=PREFIX, parent_id=up, cascade=True) for name, up in parents.items()]
    table.put(*old_tables.registered(), *entities, old_tables.entity("a", prefix=PREFIX))
    told = {change.what: set(change.keys) for change in upgrade(table, dry_run=True).changes}
    found = {what.split(":")[0]: {key.split("#")[1].split()[0] for key in keys} for what, keys in told.items()}
    assert found == {
        "an entity whose parent has a parent": {"c", *(f"d{n}" for n in range(2, 8))},
        "an entity whose parents lead back to it, which this version does not allow": {"x", "y"},
        "an entity below more than 7 parents, which this version does not allow": {"d8"},
    }


@pytest.mark.parametrize("name", ["-weird", "n" * 200, "_"])
def test_a_namespace_whose_name_is_invalid_here_is_refused_by_name(table: OldTable, name: str) -> None:
    table.put(*old_tables.registered(name))
    refused = upgrade(table, dry_run=True).refused
    assert {key.sk for key in refused} == {f"#NAMESPACE#{name}", f"#NSID#{OTHER}"}


def test_a_namespace_may_be_a_number(table: OldTable) -> None:
    table.put(*old_tables.registered("4711"))
    assert answer(table.name, "upgrade", "--yes")["records"]["namespace"] == 2
    assert answer(table.name, "namespace", "show", "4711")["id"] == OTHER


def test_buckets_whose_limits_are_stored_nowhere_are_said(table: OldTable) -> None:
    buckets = [old_tables.sharded_bucket("a", resource, [FULL]) for resource in ("known", "unknown")]
    table.put(*old_tables.registered(), *buckets, resource_config("known", l_rpm_cp=1, l_rpm_ra=1, l_rpm_rp=1))
    changes = [change for change in upgrade(table, dry_run=True).changes if change.what.startswith("buckets of")]
    assert [(change.what.split("'")[1], change.records) for change in changes] == [("unknown", 1)]
    system = old_tables.composite_config(f"{PREFIX}SYSTEM#", "#CONFIG", {"rpm": (60, 60, 60, 60)})
    table.put(system)
    assert upgrade(table, dry_run=True).changes == ()


def test_a_limit_of_a_name_that_is_reserved_now_is_refused(table: OldTable) -> None:
    """Before namespaces the name was free, and its tokens are a user's."""
    table.put(old_tables.version(), old_tables.composite_bucket("a", "r", [FULL._replace(limit="wcu")]))
    assert ["reserved" in reason for reason in upgrade(table, dry_run=True).refused.values()] == [True]


def test_the_command_line_says_it_before_it_asks(table: OldTable) -> None:
    table.put(old_tables.version(), *(old_tables.entity(f"e{n}", parent_id="top") for n in range(5)))
    shown = shell(table.name, "upgrade", "--dry-run")
    assert shown.exit_code == 0
    assert "records without a namespace: they belong to namespace 'default' (5: ENTITY#e" in shown.stderr
    assert "changes: an entity of which each call said" in shown.stderr
    told = answer(table.name, "upgrade", "--dry-run")
    assert {change["records"] for change in told["changes"]} == {5}
    keys = {key for change in told["changes"] for key in change["keys"]}
    assert keys == {f"ENTITY#e{n} #META" for n in range(5)}
    assert answer(table.name, "upgrade", "--yes")["changes"] == told["changes"]
    assert answer(table.name, "upgrade", "--force", "--dry-run")["changes"] == []


def test_so_many_records_of_a_change_are_named() -> None:
    log = ChangeLog("default")
    olds = [Old(Key(f"ENTITY#{n}", "#META"), {}) for n in range(MOST_KEYS + 5)]
    log.add(Move("entity", (old,), (Write(old.key),)) for old in olds)
    (change,) = log.report()
    assert (change.records, len(change.keys)) == (MOST_KEYS + 5, MOST_KEYS)


def test_the_closing_line_says_what_was_left(table: OldTable) -> None:
    table.put(old_tables.version(), old_tables.entity("bad#id"), old_tables.entity("good"))
    done = shell(table.name, "upgrade", "--yes", "--leave-refused")
    assert done.exit_code == 25
    assert "not all of it is up to date" in done.stdout
    assert done.stderr.rstrip().endswith(
        "left where they were: 1 record; `zae-limiter check` tells until they are gone"
    )
