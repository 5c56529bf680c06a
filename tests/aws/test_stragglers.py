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
        yearly = {"ra": 0, "rp": 1, "cp": 30}
        config, bucket = keys.entity_config(ns, "key", "gpt-4"), keys.bucket(ns, "key", "gpt-4")
        stated = {f"l_rpm_{field}": value for field, value in yearly.items()} | {"l_rpm_rsched": "1m0h0D1M1"}
        charged = {f"b_rpm_{field}": value * 1000 for field, value in yearly.items()}
        quota = {"rsched": "1m0h0D1M1", "sched_tz": "UTC", "b_tpm_rsched": "-"}
        writes = [Write(config, put=stated), Write(bucket, put={**charged, **quota})]
        run(table.store().commit(writes))
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
