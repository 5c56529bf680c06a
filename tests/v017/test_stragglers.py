"""Clients from before namespaces beside an upgraded table: kept out if they look at versions, found if they do not."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support.aws import engine
from tests.v017 import old_tables
from tests.v017.old_tables import OldTable, old_table
from tests.v017.test_upgrade_cli import answer, shell
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.records import keys, version
from zae_limiter.records.algebra import Key, Write
from zae_limiter.runtime.blocking import run
from zae_limiter.v017.upgrade.stragglers import MOST_RESOURCES, join_resources

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


def open_limiter(table: OldTable) -> SyncRateLimiter:
    return SyncRateLimiter(f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}")


def left_of(table: OldTable, entity_id: str) -> int:
    with open_limiter(table) as limiter:
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
        with open_limiter(table) as limiter:
            limiter.set_limits("key", [Limit.per_second("rpm", 1000), Limit.per_second("tpm", 1000)], "gpt-4")
            with limiter.acquire("key", "gpt-4", {"rpm": 400, "tpm": 400}):
                pass
            yield table, limiter, limiter.repository.get_namespace("default").id


def available(table: OldTable) -> dict[str, int]:
    with open_limiter(table) as limiter:
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
    with open_limiter(table) as other:
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


SPOILT: dict[str, dict[str, Any]] = {
    "the bucket that it is merged with": {"BUCKET#e#r#0 #STATE": {"ttl": {"NULL": True}}},
    "the numbers of that bucket": {
        "BUCKET#e#r#0 #STATE": {"cv": {"N": "1"}, "rf": {"N": "1"}}
        | {f"b_rpm_{field}": {"S": "many"} for field in ("tk", "cp", "ra", "rp", "tc")}
    },
    "the count of resources": {"SYSTEM# #ENTITY_CONFIG_RESOURCES": {"ttl": {"NULL": True}}},
    "a number of resources": {"SYSTEM# #ENTITY_CONFIG_RESOURCES": {"r_r": {"S": "many"}}},
    "the number of children": {"ENTITY#parent #META": {"entity_id": {"S": "parent"}, "children": {"S": "many"}}},
    "fewer children than there can be": {
        "ENTITY#parent #META": {"entity_id": {"S": "parent"}, "children": {"N": str(-(2**63))}}
    },
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
def test_a_damaged_record_that_a_move_writes_to_locks_nobody_out(shared: Any, spoilt: dict[str, Any]) -> None:
    table, limiter, _ = shared
    ns = limiter.repository.register_namespace("tenant").id
    pool = {"tk": -(10**15), "cp": 1000, "ra": 1000, "rp": 1000, "tc": 0}
    composite = {f"b_rpm_{field}": {"N": str(number)} for field, number in pool.items()}
    put(table, Key(f"{ns}/ENTITY#e", "#BUCKET#r"), rf={"N": "1"}, **composite)
    limit = {"limit_name": {"S": "rpm"}, "capacity": {"N": "5"}, "refill_amount": {"N": "5"}}
    put(table, Key(f"{ns}/ENTITY#e", "#LIMIT#r#rpm"), **limit, refill_period_seconds={"N": "60"})
    put(table, Key(f"{ns}/ENTITY#e", "#META"), entity_id={"S": "e"}, parent_id={"S": "parent"}, name={"NULL": True})
    for key, attributes in spoilt.items():
        put(table, Key(*f"{ns}/{key}".split(" ")), **attributes)
    planned = json.loads(shell(table.name, "upgrade", "--dry-run", "--force", "--json").stdout)["refused"]
    result = shell(table.name, "upgrade", "--yes", "--force", "--leave-refused", "--json")
    assert result.exit_code in (0, 25), result.output
    assert {each["sk"] for each in planned} == {each["sk"] for each in json.loads(result.stdout)["refused"]}
    assert available(table)["tpm"] > 0, "others go on"
    again = shell(table.name, "upgrade", "--yes", "--force", "--leave-refused", "--json")
    assert again.exit_code == result.exit_code
    assert json.loads(again.stdout)["records"] == {}


@pytest.mark.parametrize("given", [{"cron": "0 0 1 1 *"}, {"reset_after": timedelta(days=300)}], ids=str)
def test_quotas_of_ours_keep_their_tokens_where_an_older_client_has_only_been(shared: Any, given: Any) -> None:
    table, limiter, ns = shared
    limiter.set_limits(
        "key", [Limit.quota("tpy", 100, **given), Limit("soft", 5, 1, YEARS // 1000, soft=True)], "other"
    )
    with limiter.acquire("key", "other", {"tpy": 100, "soft": 20}) as lease:
        lease.adjust(tpy=30)
    run(table.store().commit([Write(keys.bucket(ns, "key", "other"), put={"vu": 0})]))
    before = limiter.available("key", "other")
    assert answer(table.name, "upgrade", "--yes", "--force")["records"] == {"bucket": 1}
    with open_limiter(table) as other:
        assert other.available("key", "other") == before == {"tpy": -30, "soft": -15}
    assert answer(table.name, "upgrade", "--yes", "--force")["changed"] is False


def test_a_bucket_that_was_split_after_an_older_client_had_been_there_is_converted_whole(shared: Any) -> None:
    table, limiter, ns = shared
    limiter.set_limits("key", [Limit("rpm", 100, 1, YEARS // 1000)], "split")
    with limiter.acquire("key", "split", {"rpm": 40}):
        pass
    first, second = keys.bucket(ns, "key", "split"), keys.bucket(ns, "key", "split", 1)
    (image,) = run(table.store().read([first]))
    half = {"shard_count": 2, "b_rpm_tk": 30_000}
    index = keys.bucket_indexes(keys.BucketKey(ns, "key", "split", 1))
    writes = [Write(first, put={**half, "vu": 0}), Write(second, put={**image, **half, **index})]
    run(table.store().commit(writes))
    assert answer(table.name, "upgrade", "--yes", "--force")["refused"] == []
    with open_limiter(table) as other:
        assert other.available("key", "split") == {"rpm": 60}


def test_shards_are_refused_for_the_reason_that_each_has(shared: Any) -> None:
    table, _, ns = shared
    old = {"rf": {"N": "1"}, "shard_count": {"N": "3"}}
    old |= {f"b_rpm_{field}": {"N": "1000"} for field in ("tk", "ra", "rp", "tc")}
    for shard in (0, 1):
        put(table, keys.bucket(ns, "a", "b", shard), **old, b_rpm_cp={"N": "0"})
    for shard in (1, 2):
        put(table, keys.bucket(ns, "key", "gpt-4", shard), **old, b_rpm_cp={"N": "1000"})
    refused = answer(table.name, "upgrade", "--yes", "--force", code=25)["refused"]
    reasons = {each["pk"].partition("/")[2]: each["reason"] for each in refused}
    small, beside = "b_rpm_cp is 0, less than 1", "a bucket of the present layout stands beside it"
    assert reasons == {
        **dict.fromkeys(("BUCKET#a#b#0", "BUCKET#a#b#1"), small),
        **dict.fromkeys(("BUCKET#key#gpt-4#1", "BUCKET#key#gpt-4#2"), beside),
    }


def test_a_reset_leaves_no_shard_behind_whichever_is_damaged(shared: Any) -> None:
    table, limiter, ns = shared
    (image,) = run(table.store().read([keys.bucket(ns, "key", "gpt-4")]))
    index = keys.bucket_indexes(keys.BucketKey(ns, "key", "gpt-4", 1))
    run(table.store().commit([Write(keys.bucket(ns, "key", "gpt-4", 1), put={**image, **index})]))
    whose = {name: {"S": text} for name, text in keys.bucket_indexes(keys.BucketKey(ns, "key", "gpt-4", 2)).items()}
    put(table, keys.bucket(ns, "key", "gpt-4", 2), **whose, ttl={"NULL": True})
    limiter.reset_bucket("key", "gpt-4")
    assert limiter.repository.get_buckets("key") == []
    assert not [key for key in table.present() if key.pk.startswith(f"{ns}/BUCKET#")]


def test_what_stands_in_the_index_of_others_is_not_theirs(shared: Any) -> None:
    table, limiter, ns = shared
    tenant = limiter.repository.register_namespace("tenant").id
    index = {"GSI4PK": {"S": ns}, "GSI4SK": {"S": "BUCKET#x"}, "GSI3PK": {"S": f"{ns}/ENTITY_CONFIG#gpt-4"}}
    put(table, Key(f"{tenant}/ENTITY#x", "#CONFIG#x"), **index, GSI3SK={"S": "x"}, l_rpm_rsched={"S": "1"})
    assert answer(table.name, "check")["stragglers"]["records"] == 0


def test_limits_that_an_older_client_writes_over_ours_are_found_with_their_buckets(shared: Any) -> None:
    """It also states them in the bucket, which goes on with what is left of its tokens, and keeps its credits."""
    table, limiter, ns = shared
    limiter.set_limits("own", [Limit("rpm", 60, 1, YEARS // 1000), Limit("tpm", 100, 1, YEARS // 1000)], "gpt-4")
    with limiter.acquire("own", "gpt-4", {"rpm": 20, "tpm": 40}):
        pass
    limiter.top_up("own", "gpt-4", {"rpm": 5})
    assert answer(table.name, "check")["stragglers"] == {"records": 0, "examples": []}
    config, bucket = keys.entity_config(ns, "own", "gpt-4"), keys.bucket(ns, "own", "gpt-4")
    run(table.store().commit([Write(config, put=stated(30)), Write(bucket, put=charged(30))]))
    found = answer(table.name, "check", code=25)["stragglers"]
    assert found == {"records": 1, "examples": [" ".join(config)]}
    assert answer(table.name, "upgrade", "--yes")["records"] == {"bucket": 1, "config": 1}
    assert answer(table.name, "check")["compatible"] is True
    assert answer(table.name, "upgrade", "--yes", "--force")["changed"] is False
    with open_limiter(table) as other:
        assert other.available("own", "gpt-4") == {"rpm": 30 + 5, "tpm": 60}, "40 were left, 30 are allowed"


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
