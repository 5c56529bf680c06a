"""Clients from before namespaces beside an upgraded table: kept out if they look at versions, found if they do not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.aws import old_tables
from tests.aws.old_tables import OldTable, old_table
from tests.aws.test_upgrade_cli import answer, shell
from tests.support.aws import engine
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.aws.upgrade.stragglers import MOST_RESOURCES, join_resources
from zae_limiter.records import keys, version
from zae_limiter.records.algebra import Key, Write
from zae_limiter.runtime.blocking import run

YEARS = 10**11
"""A refill period in ms during which nothing comes back."""


def bucket(entity_id: str, tokens: int) -> old_tables.Item:
    """A bucket of 60 tokens with ``tokens`` left, as version 0.5 writes it."""
    pool = old_tables.Pool("rpm", tokens * 1000, int(time.time() * 1000), 60_000, 1000, YEARS)
    return old_tables.per_limit_bucket(entity_id, "gpt-4", pool, nested=True)


@pytest.fixture
def upgraded() -> Any:
    """A table that was upgraded: 40 of the 60 tokens of ``key`` are left."""
    with old_table(shaped=False) as table:
        table.put(old_tables.version("0.5.0"), bucket("key", 40))
        assert answer(table.name, "upgrade", "--yes")["records"] == {"bucket": 1, "version": 1}
        yield table


def left_of(table: OldTable, entity_id: str) -> int:
    url = f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}"
    with SyncRateLimiter(url) as limiter:
        return limiter.available(entity_id, "gpt-4", limits=[Limit("rpm", 60, 1, YEARS // 1000)])["rpm"]


def test_what_older_clients_write_is_found_and_subtracted(upgraded: OldTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in engine.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    name = upgraded.name
    assert answer(name, "check")["stragglers"] == {"records": 0, "examples": []}
    upgraded.put(bucket("key", 55), bucket("other", 50))
    limits = old_tables.per_limit_config("SYSTEM#", "rpm", (60, 60, 1, YEARS // 1000))
    upgraded.put(limits)
    found = answer(name, "check", code=25)
    assert found["compatible"] is False
    assert found["stragglers"] == {"records": 3, "examples": ["SYSTEM# #LIMIT#rpm", "key", "other"]}
    assert "have written 3 records since the upgrade, of SYSTEM# #LIMIT#rpm, key, other" in found["problem"]
    planned = shell(name, "upgrade", "--dry-run")
    assert (planned.exit_code, "3 records since the upgrade" in planned.stderr) == (0, True)
    before = upgraded.items()
    asked = shell(name, "upgrade")
    assert (asked.exit_code, "--yes" in asked.stderr) == (1, True)
    assert upgraded.items() == before
    done = answer(name, "upgrade", "--yes")
    assert (done["records"], done["merged"]) == ({"bucket": 1, "config": 1}, 1)
    assert (left_of(upgraded, "key"), left_of(upgraded, "other")) == (35, 50)
    assert answer(name, "check")["compatible"] is True
    assert answer(name, "upgrade", "--yes")["changed"] is False


FULL = old_tables.Pool("rpm", 60_000, old_tables.NOW, 60_000, 60_000, 60_000)
RESOURCES = old_tables.Item(Key(f"{old_tables.OTHER}/SYSTEM#", "#RESOURCES"), {"resources": ["gpt-4"]})
TRACES = {
    "bucket": old_tables.sharded_bucket("new", "gpt-4", [FULL], GSI4PK=old_tables.OTHER, GSI4SK="BUCKET#new#gpt-4#0"),
    "resources": RESOURCES,
    "configs": RESOURCES._replace(key=Key(RESOURCES.key.pk, "#ENTITY_CONFIG_RESOURCES")),
    "namespace": old_tables.registered("late")[0],
}


@pytest.mark.parametrize("trace", TRACES)
def test_clients_that_know_namespaces_are_found_by_what_they_leave(trace: str) -> None:
    with old_table() as table:
        table.put(*old_tables.registered(), old_tables.entity("key", prefix=f"{old_tables.OTHER}/"))
        assert answer(table.name, "upgrade", "--yes")["changed"] is True
        assert answer(table.name, "check")["stragglers"] == {"records": 0, "examples": []}
        table.put(TRACES[trace])
        found = answer(table.name, "check", code=25)
        assert found["stragglers"] == {"records": 1, "examples": [" ".join(TRACES[trace].key)]}
        assert answer(table.name, "upgrade", "--yes")["changed"] is True
        assert answer(table.name, "check")["stragglers"] == {"records": 0, "examples": []}
        assert shell(table.name, "namespace", "list").exit_code == 0
        assert answer(table.name, "upgrade")["up_to_date"] is True


def stated(amount: int, cron: str = "1m0h0D1M1") -> dict[str, Any]:
    """What a client of 0.17 puts into a config record for a quota of ``amount`` a year."""
    return {"l_rpm_cp": amount, "l_rpm_ra": 0, "l_rpm_rp": 1, "l_rpm_rsched": cron}


def charged(amount: int) -> dict[str, Any]:
    """What it puts into the bucket, which has the limit tpm besides."""
    rule = {"b_rpm_cp": amount * 1000, "b_rpm_ra": 0, "b_rpm_rp": 1000}
    return {**rule, "rsched": "1m0h0D1M1", "sched_tz": "UTC", "b_tpm_rsched": "-", "vu": 0}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new table in which the entity ``key`` has limits of its own, and its limiter."""
    for name, value in engine.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with old_table() as table:
        run(table.store().create_table())
        with SyncRateLimiter(f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}") as limiter:
            limiter.set_limits("key", [Limit.per_second("rpm", 1000), Limit.per_second("tpm", 1000)], "gpt-4")
            with limiter.acquire("key", "gpt-4", {"rpm": 400, "tpm": 400}):
                pass
            yield table, limiter, limiter.repository.get_namespace("default").id


def available(table: OldTable) -> dict[str, int]:
    with SyncRateLimiter(f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}") as limiter:
        return limiter.available("key", "gpt-4")


def test_a_busy_bucket_with_another_rule_beside_its_old_anchor_is_not_taken_for_debt(shared: Any) -> None:
    """Its tokens are far below zero, as its anchor is old: by the rate that is gone there were some."""
    table, _, ns = shared
    config, bucket = keys.entity_config(ns, "key", "gpt-4"), keys.bucket(ns, "key", "gpt-4")
    busy = {"rf": int(time.time() * 1000) - 60_000, "b_rpm_tk": -59_500_000, "b_tpm_tk": -59_500_000}
    run(table.store().commit([Write(config, put=stated(50)), Write(bucket, put={**charged(50), **busy})]))
    assert answer(table.name, "upgrade", "--yes")["records"] == {"bucket": 1, "config": 1}
    left = available(table)
    assert (left["rpm"], left["tpm"] >= 500) == (0, True)


def test_shards_with_another_rule_hold_no_more_than_it_together(shared: Any) -> None:
    table, _, ns = shared
    first, second = keys.bucket(ns, "key", "gpt-4"), keys.bucket(ns, "key", "gpt-4", 1)
    (image,) = run(table.store().read([first]))
    end = 2_000_000_000_000
    lot = {"lots": 1, f"lot_rpm_{end}": 7_000}
    half = {**charged(60), "shard_count": 2, "b_rpm_tk": 50_000, **lot}
    writes = [
        Write(first, put=half),
        Write(second, put={**image, **half, **keys.bucket_indexes(keys.BucketKey(ns, "key", "gpt-4", 1))}),
    ]
    run(table.store().commit([Write(keys.entity_config(ns, "key", "gpt-4"), put=stated(60)), *writes]))
    assert answer(table.name, "upgrade", "--yes")["records"] == {"bucket": 1, "config": 1}
    assert available(table)["rpm"] == 60 + 14


@pytest.mark.parametrize("whose", ["entity", "system"])
def test_limits_that_cannot_be_taken_over_are_found_too(shared: Any, whose: str) -> None:
    table, _, ns = shared
    key = keys.entity_config(ns, "key", "gpt-4") if whose == "entity" else keys.system_config(ns)
    run(
        table.store().commit(
            [Write(key, put={**stated(50, "2?"), "config_version": 1, "GSI4PK": ns, "GSI4SK": key.pk})]
        )
    )
    assert answer(table.name, "check", code=25)["stragglers"] == {"records": 1, "examples": [" ".join(key)]}
    refused = answer(table.name, "upgrade", "--yes", code=25)["refused"]
    assert [(each["pk"], each["sk"]) for each in refused] == [key]


def put(table: OldTable, key: Key, **attributes: Any) -> None:
    """Write a record as no client of ours does."""
    store = table.store()
    item = {"PK": {"S": key.pk}, "SK": {"S": key.sk}, **attributes}
    run(store.client.call("PutItem", {"TableName": table.name, "Item": item}))


UNREADABLE = {"no expiry": {"ttl": {"NULL": True}}, "no value": {"x": {"B": "AAAA"}}}


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
def test_what_one_tenant_damages_is_named_and_stops_nobody_else(shared: Any, damage: dict[str, Any]) -> None:
    table, limiter, _ = shared
    limiter.set_system_defaults([Limit.per_minute("rpm", 5)])
    tenant = limiter.repository.register_namespace("tenant").id
    bucket = {"rf": {"N": "1"}} | {f"b_rpm_{field}": {"N": "1"} for field in ("tk", "cp", "ra", "rp")}
    put(table, keys.meta(tenant, "child"), entity_id={"S": "child"}, parent_id={"S": "parent"})
    put(table, keys.meta(tenant, "parent"), entity_id={"S": "parent"}, **damage)
    put(table, keys.bucket(tenant, "a", "b"), shard_count={"N": "2"}, **bucket)
    put(table, keys.bucket(tenant, "a", "b", 1), shard_count={"N": "2"}, **bucket, **damage)
    done = answer(table.name, "upgrade", "--yes", "--force", "--leave-refused", code=25)
    named = {(each["pk"], each["sk"]) for each in done["refused"]}
    assert {keys.meta(tenant, "parent"), keys.bucket(tenant, "a", "b"), keys.bucket(tenant, "a", "b", 1)} <= named
    assert available(table)["tpm"] > 0
    with SyncRateLimiter(f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}") as other:
        with other.acquire("anybody", "gpt-4", {"rpm": 1}):
            pass
        mine = other.repository.namespace("tenant")
        mine.reset_bucket("a", "b")
        assert mine.get_buckets("a") == []


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
def test_damaged_limits_are_found_and_stop_no_look(shared: Any, damage: dict[str, Any]) -> None:
    table, limiter, _ = shared
    tenant = limiter.repository.register_namespace("tenant")
    limiter.repository.namespace("tenant").set_limits("key", [Limit.per_minute("rpm", 5)], "gpt-4")
    key = keys.entity_config(tenant.id, "key", "gpt-4")
    index = {"GSI3PK": {"S": f"{tenant.id}/ENTITY_CONFIG#gpt-4"}, "GSI3SK": {"S": "key"}}
    put(table, key, **index, **damage)
    found = answer(table.name, "check", code=25)["stragglers"]
    assert found["records"] == 1
    answer(table.name, "upgrade", "--yes", "--leave-refused", code=25)


def test_what_stands_in_the_index_of_others_is_not_theirs(shared: Any) -> None:
    table, limiter, ns = shared
    tenant = limiter.repository.register_namespace("tenant").id
    index = {"GSI4PK": {"S": ns}, "GSI4SK": {"S": "BUCKET#x"}, "GSI3PK": {"S": f"{ns}/ENTITY_CONFIG#gpt-4"}}
    put(table, Key(f"{tenant}/ENTITY#x", "#CONFIG#x"), **index, GSI3SK={"S": "x"}, l_rpm_rsched={"S": "1"})
    assert answer(table.name, "check")["stragglers"]["records"] == 0


def test_limits_that_an_older_client_writes_over_ours_are_found_with_their_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It also states them in the bucket, which goes on with what is left of its tokens, and keeps its credits."""
    for name, value in engine.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with old_table() as table:
        run(table.store().create_table())
        with SyncRateLimiter(f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}") as limiter:
            limiter.set_limits(
                "key", [Limit("rpm", 60, 1, YEARS // 1000), Limit("tpm", 100, 1, YEARS // 1000)], "gpt-4"
            )
            with limiter.acquire("key", "gpt-4", {"rpm": 20, "tpm": 40}):
                pass
            limiter.top_up("key", "gpt-4", {"rpm": 5})
            ns = limiter.repository.get_namespace("default").id
        assert answer(table.name, "check")["stragglers"] == {"records": 0, "examples": []}
        config, bucket = keys.entity_config(ns, "key", "gpt-4"), keys.bucket(ns, "key", "gpt-4")
        run(table.store().commit([Write(config, put=stated(30)), Write(bucket, put=charged(30))]))
        found = answer(table.name, "check", code=25)["stragglers"]
        assert found == {"records": 1, "examples": [" ".join(config)]}
        assert answer(table.name, "upgrade", "--yes")["records"] == {"bucket": 1, "config": 1}
        assert answer(table.name, "check")["compatible"] is True
        assert answer(table.name, "upgrade", "--yes", "--force")["changed"] is False
        with SyncRateLimiter(f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}") as limiter:
            assert limiter.available("key", "gpt-4") == {"rpm": 30 + 5, "tpm": 60}, "40 were left, 30 are allowed"


def test_a_version_record_of_an_older_client_is_replaced(upgraded: OldTable) -> None:
    """It can have stood there before the upgrade only: afterwards there is one already."""
    (record,) = run(upgraded.store().read([version.UNPREFIXED[0]]))
    assert version.refuses_older(record)
    upgraded.put(old_tables.version("0.8.0"))
    assert answer(upgraded.name, "upgrade", "--yes")["records"] == {"version": 1}
    assert run(upgraded.store().read([version.UNPREFIXED[0]])) == [record]


def test_a_new_table_keeps_older_clients_out() -> None:
    with old_table() as table:
        run(table.store().create_table())
        assert table.present() == {version.KEY, version.UNPREFIXED[0]}
        before = table.items()
        run(table.store().create_table())
        assert table.items() == before
        assert answer(table.name, "upgrade", "--yes")["changed"] is False


@pytest.mark.parametrize("held", [old_tables.version("0.8.0"), old_tables.version("0.10.0", "_/")])
def test_an_old_table_is_not_taken_for_a_new_one(held: old_tables.Item) -> None:
    with old_table() as table:
        table.put(held)
        run(table.store().create_table())
        assert table.present() == {held.key}


@pytest.mark.parametrize(
    ("image", "refuses"),
    [
        (None, False),
        ({"schema_version": "1.0.0"}, True),
        ({"schema_version": "2.1.0", "client_min_version": "0.1.0"}, True),
        ({"schema_version": "0.8.0"}, False),
        ({"data": {"schema_version": "1.0.0"}}, False),
        ({"schema_version": 7}, False),
    ],
)
def test_which_version_records_keep_older_clients_out(image: dict[str, Any] | None, refuses: bool) -> None:
    assert version.refuses_older(image) is refuses


def test_so_many_resources_are_remembered() -> None:
    assert join_resources([], None) is None
    assert join_resources(["b", "a"], "c a") == "a b c"
    assert len((join_resources(map(str, range(500)), None) or "").split()) == MOST_RESOURCES


def test_the_system_partition_is_ours_alone(upgraded: OldTable) -> None:
    assert {key for key in upgraded.present() if key.pk == "SYSTEM#"} == {Key("SYSTEM#", "#VERSION")}
