"""Upgrades, case by case: shards, races with the present clients, what cannot be moved, the shape of the table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.aws.strict import complaints
from tests.v017 import old_tables
from tests.v017.old_layouts import LIMITS, check_balances, pool, upgrade
from tests.v017.old_tables import NOW, OTHER, Item, OldTable, Pool, old_table
from zae_limiter import IncompatibleSchemaError, InfrastructureError, Limit
from zae_limiter.records import version
from zae_limiter.records.algebra import Key
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.answers import ServiceError
from zae_limiter.stores.dynamodb.table import check_existing, missing_steps, plan_changes, reshape, table_definition
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.v017.upgrade.runner import Runner


def test_a_bucket_in_shards_becomes_one_with_what_they_have_together() -> None:
    with old_table() as table:
        limit = pool("tpm", 0, 0, 1_000_000, (1_000_000, 60_000), used=5_000)
        table.put(
            *old_tables.registered(),
            old_tables.sharded_bucket("key", "gpt-4", [limit._replace(tokens=200_000)], 0, 4),
            old_tables.sharded_bucket("key", "gpt-4", [limit._replace(tokens=-50_000, refilled=NOW - 6_000)], 1, 2),
            old_tables.sharded_bucket("key", "gpt-4", [limit._replace(tokens=900_000)], 3, 4),
        )
        assert upgrade(table, dry_run=True).moved == {"bucket": 1, "namespace": 2}
        upgrade(table)
        (state,) = run(BlockingRepository(table.store()).get_buckets("key", "gpt-4"))
        refilled = -50_000 + 6_000 * 250_000 // 60_000
        assert state.tokens_milli == 200_000 + refilled + 250_000 + 250_000  # the third is full, the last cut off
        assert (state.total_consumed_milli, state.last_refill_ms) == (15_000, NOW)
        assert {key for key in table.present() if "BUCKET#" in key.pk} == {Key(f"{OTHER}/BUCKET#key#gpt-4#0", "#STATE")}


def test_clients_that_use_the_new_bucket_owe_what_the_old_one_lacked() -> None:
    with old_table() as table:
        table.put(*old_tables.registered())
        upgrade(table)
        limits = [Limit("rpm", 60, 60, 60), Limit("tpm", 1_000, 1_000, 60)]

        async def spend() -> dict[str, int]:
            limiter = BlockingRateLimiter(BlockingRepository(table.store()))
            await limiter.repository.set_system_defaults(limits)
            async with limiter.acquire("key", "gpt-4", {"rpm": 10, "tpm": 100}):
                pass
            return await limiter.available("key", "gpt-4")

        assert run(spend()) == {"rpm": 50, "tpm": 900}
        lacking = [pool("rpm", 15_000, 0, 60_000, (60_000, 60_000)), pool("old", 7_000, 0, 9_000, (1_000, 1_000))]
        table.put(old_tables.composite_bucket("key", "gpt-4", lacking, prefix=f"{OTHER}/"))
        report = upgrade(table)
        assert (report.moved, report.merged) == ({}, 1)
        limiter = BlockingRateLimiter(BlockingRepository(table.store()))
        assert run(limiter.available("key", "gpt-4")) == {"rpm": 5, "tpm": 900}
        states = {each.limit_name: each for each in run(limiter.repository.get_buckets("key"))}
        assert states["rpm"].total_consumed_milli == 10_000
        assert states["old"].tokens_milli == 7_000
        assert upgrade(table).is_empty


def test_what_clients_wrote_meanwhile_is_newer() -> None:
    with old_table() as table:
        table.put(*old_tables.registered())
        upgrade(table)
        repo = BlockingRepository(table.store())
        run(repo.create_entity("key", name="new"))
        run(repo.set_limits("key", [Limit("rpm", 5, 5, 60)], "gpt-4"))
        for pk in (f"{OTHER}/ENTITY#key", "ENTITY#key"):
            table.put(*(old_tables.per_limit_config(pk, name, LIMITS[name], "gpt-4") for name in LIMITS))
        table.put(old_tables.entity("key", name="old"))
        report = upgrade(table)
        assert (report.moved, report.superseded) == ({"config": 1}, 2)
        assert run(repo.get_limits("key", "gpt-4")) == [Limit("rpm", 5, 5, 60)]
        assert run(repo.list_resources_with_entity_configs()) == ["gpt-4"]
        found = run(repo.get_entity("key"))
        assert found is not None
        assert found.name == "new"
        assert upgrade(table).is_empty


def test_what_cannot_be_stored_today_stays_and_is_told() -> None:
    with old_table() as table:
        ok = pool("rpm", 1, 0, 1000, (1000, 1000))
        table.put(
            old_tables.version(),
            old_tables.entity("a#b"),
            old_tables.per_limit_bucket("key", "gpt 4", ok, nested=True),
            old_tables.per_limit_bucket("key", "gpt-4", ok._replace(amount=0), nested=True),
            old_tables.per_limit_bucket("key", "ok", ok, nested=False),
            Item(Key("ENTITY#key", "#RESOURCE#x"), {"a": 1}),
            Item(Key("ENTITY#key", "#USAGE#gpt-4#2024-01-01T00:00:00Z"), {"window": "weekly"}),
        )
        left = {key for key in table.present() if key.sk != "#VERSION" and key.sk != "#BUCKET#ok#rpm"}
        report = upgrade(table)
        assert report.refused.keys() == left
        assert report.moved == {"bucket": 1, "version": 1}
        assert left <= table.present()
        assert "must not contain '#'" in report.refused[Key("ENTITY#a#b", "#META")]
        again = upgrade(table)
        assert again.is_empty
        assert again.refused == report.refused


def test_more_limits_than_a_commit_can_move_stay_and_stop_nothing() -> None:
    with old_table() as table:
        limits = [old_tables.per_limit_config("RESOURCE#gpt-4", f"l{n}", LIMITS["rpm"]) for n in range(101)]
        table.put(old_tables.version(), old_tables.entity("key"), *limits)
        report = upgrade(table)
        assert report.refused.keys() == {limit.key for limit in limits}
        assert report.moved == {"entity": 1, "version": 1}


def test_a_snapshot_that_stays_does_not_keep_others_from_being_read() -> None:
    with old_table() as table:
        table.put(*old_tables.registered(), old_tables.entity("key", prefix=f"{OTHER}/"))
        for hour, window in enumerate(("weekly", "hourly")):
            start = f"2024-03-01T0{hour}:00:00Z"
            table.put(old_tables.usage("key", "gpt-4", window, start, f"{OTHER}/", rpm=3, total_events=3))
        assert len(upgrade(table).refused) == 1
        found, _ = run(BlockingRepository(table.store()).get_usage_snapshots(entity_id="key"))
        assert [each.window_type for each in found] == ["hourly"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_partition_whose_first_page_is_done_is_gone_on_with(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a killed run leaves a partition of more than a page: new at its beginning, old at its end."""
    pages = Runner._pages
    small = {"Scan": {"Limit": size}, "Query": {}}
    monkeypatch.setattr(Runner, "_pages", lambda self, what, asked: pages(self, what, asked | small[what]))
    with old_table() as table:
        table.put(*old_tables.registered(), old_tables.entity("key", prefix=f"{OTHER}/"))
        upgrade(table)
        start = "2024-03-01T12:00:00Z"
        table.put(*(old_tables.usage("key", f"gpt-{n}", "hourly", start, f"{OTHER}/", rpm=n) for n in range(1, 4)))
        assert upgrade(table, dry_run=True).moved == {"usage snapshot": 3}
        assert upgrade(table).moved == {"usage snapshot": 3}
        assert upgrade(table).is_empty


@pytest.mark.parametrize("readable", [True, False])
def test_a_bucket_under_its_entity_beside_one_of_its_own_partition(
    readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store decides which of them a scan finds first."""
    pages = Runner._pages

    async def entities_first(self: Runner, operation: str, asked: dict[str, Any]) -> Any:
        async for found in pages(self, operation, asked):
            yield sorted(found, key=lambda old: "/ENTITY#" not in old.key.pk)

    monkeypatch.setattr(Runner, "_pages", entities_first)
    with old_table() as table:
        lacking = pool("rpm", 45_000, 0, 60_000, (60_000, 60_000), used=15_000)
        shard = old_tables.sharded_bucket("key", "gpt-4", [lacking._replace(tokens=40_000, amount=60_000 * readable)])
        table.put(*old_tables.registered(), shard)
        table.put(old_tables.composite_bucket("key", "gpt-4", [lacking], prefix=f"{OTHER}/"))
        report = upgrade(table)
        if readable:
            (state,) = run(BlockingRepository(table.store()).get_buckets("key"))
            assert (state.tokens_milli, state.total_consumed_milli) == (25_000, 15_000)
            assert report.merged == 1
        else:
            assert {key.sk for key in report.refused} == {"#STATE", "#BUCKET#gpt-4"}
        assert upgrade(table).is_empty


def test_expiry_stays_and_what_has_expired_is_not_brought_back() -> None:
    with old_table() as table:
        ok = pool("rpm", 0, 0, 1000, (1, 1000))
        table.put(
            old_tables.version(),
            old_tables.per_limit_bucket("live", "gpt-4", ok, nested=True, ttl=NOW // 1000 + 60),
            old_tables.per_limit_bucket("dead", "gpt-4", ok, nested=True, ttl=NOW // 1000 - 60),
        )
        upgrade(table)
        repo = BlockingRepository(table.store())
        assert run(repo.get_buckets("dead")) == []
        assert len(run(repo.get_buckets("live"))) == 1
        buckets = [item for item in table.items() if "BUCKET#" in item["PK"]["S"]]
        assert {item["ttl"]["N"] for item in buckets} == {str(NOW // 1000 + 60), str(NOW // 1000 - 60)}
        assert {item["migrated_from"]["S"] for item in buckets} == {"per-limit"}


def test_data_without_a_namespace_go_where_they_are_told() -> None:
    with old_table() as table:
        table.put(old_tables.version(), old_tables.entity("key"))
        upgrade(table, namespace_name="blue")
        assert run(BlockingRepository(table.store(), namespace="blue").get_entity("key")) is not None
        assert run(BlockingRepository(table.store()).get_entity("key")) is None


def test_parents_in_a_circle_come_to_an_end() -> None:
    with old_table() as table:
        table.put(old_tables.version(), old_tables.entity("a", parent_id="b"), old_tables.entity("b", parent_id="a"))
        assert upgrade(table).moved["entity"] == 2
        assert upgrade(table).is_empty


def test_a_damaged_version_is_written_anew() -> None:
    with old_table() as table:
        table.put(Item(version.KEY, {"schema_version": "new"}))
        upgrade(table)
        assert version.decode(run(table.store().read([version.KEY]))[0]) == version.Deployed(records_left=0)


def test_an_old_table_gets_its_shape_one_index_at_a_time() -> None:
    with old_table(shaped=False) as table:
        table.put(old_tables.version(), old_tables.entity("key", parent_id="team"), old_tables.entity("team"))
        client = table.store().client
        planned = run(missing_steps(client))
        told: list[str] = []
        assert run(reshape(client, told.append)) == planned
        assert planned == [
            "delete index GSI2", "create index GSI2", "create index GSI3", "create index GSI4", "turn the stream on",
            "turn expiry on",
        ]  # fmt: skip
        assert told == planned[:-1]
        run(check_existing(client))
        assert run(missing_steps(client)) == []
        assert run(reshape(client)) == []
        upgrade(table)
        assert [each.id for each in run(BlockingRepository(table.store()).get_children("team"))] == ["key"]


def test_several_may_shape_a_table_at_once() -> None:
    with old_table(shaped=False) as table, ThreadPoolExecutor(4) as workers:
        clients = [table.store().client for _ in range(4)]
        for client in clients:
            client.pause = at_once  # type: ignore[method-assign]  # the engine needs no time
        list(workers.map(lambda client: run(reshape(client)), clients))
        run(check_existing(clients[0]))


async def at_once(seconds: float) -> None:
    """No pause: the engine needs none."""


def test_the_progress_ends_with_all_records() -> None:
    with old_table() as table:
        table.put(old_tables.version(), *(old_tables.entity(f"key-{number}") for number in range(30)))
        told: list[tuple[int, int]] = []
        upgrade(table, progress=lambda done, total: told.append((done, total)))
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert all(done <= total for done, total in told)
        assert told[-1][0] >= 31


@pytest.mark.parametrize("billing", ["PAY_PER_REQUEST", "PROVISIONED"])
def test_the_steps_are_ones_that_the_service_takes(billing: str) -> None:
    described = {
        **table_definition("my-app"),
        "GlobalSecondaryIndexes": [],
        "StreamSpecification": None,
        "BillingModeSummary": {"BillingMode": billing},
        "ProvisionedThroughput": {"ReadCapacityUnits": 7, "WriteCapacityUnits": 9},
    }
    found = list(plan_changes(described).values())
    assert len(found) == 5
    for change in found:
        assert list(complaints("UpdateTable", {"TableName": "my-app", **change})) == []
    paid = found[0]["GlobalSecondaryIndexUpdates"][0]["Create"].get("ProvisionedThroughput")
    assert paid == (None if billing == "PAY_PER_REQUEST" else {"ReadCapacityUnits": 7, "WriteCapacityUnits": 9})


def test_a_table_of_somebody_else_is_left_alone() -> None:
    described = {**table_definition("my-app"), "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}]}
    with pytest.raises(IncompatibleSchemaError, match="is not a zae-limiter table"):
        plan_changes(described)


class Slow:
    """A client of a table whose changes take a while, and that somebody else changes too."""

    table = "my-app"
    region = "us-east-1"

    def __init__(self) -> None:
        indexes = [
            {**index, "IndexStatus": "ACTIVE"} for index in table_definition("my-app")["GlobalSecondaryIndexes"][:3]
        ]
        self.description = {**table_definition("my-app"), "TableStatus": "ACTIVE", "GlobalSecondaryIndexes": indexes}
        self.pauses = 0
        self.refusals = 2

    async def call(self, operation: str, request: dict[str, Any], **_: Any) -> dict[str, Any]:
        if operation == "DescribeTimeToLive":
            return {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED"}}
        if operation == "UpdateTable":
            self.refusals -= 1
            if self.refusals >= 0:
                raise InfrastructureError("busy") from ServiceError(
                    "LimitExceededException", "one at a time", 400, None
                )
            made = request["GlobalSecondaryIndexUpdates"][0]["Create"]
            self.description["GlobalSecondaryIndexes"].append({**made, "IndexStatus": "CREATING"})
        return {"Table": self.description}

    async def pause(self, seconds: float) -> None:
        self.pauses += 1
        if self.pauses == 5:
            self.description["GlobalSecondaryIndexes"][-1]["IndexStatus"] = "ACTIVE"


def test_it_waits_for_the_table_and_for_others() -> None:
    slow = Slow()
    assert run(reshape(slow)) == ["create index GSI4"]  # type: ignore[arg-type]  # as much of a client as is needed
    assert slow.pauses == 5


NAMES = st.sampled_from(["rpm", "tpm", "x.y-z", "cp"])
NUMBERS = st.integers(1, 10**9)


@st.composite
def old_limits(draw: st.DrawFn) -> Pool:
    capacity, amount, period = draw(NUMBERS), draw(NUMBERS), draw(st.integers(1, 10**8))
    tokens = draw(st.integers(-(10**10), capacity))
    burst = draw(st.sampled_from([0, capacity, 2 * capacity]))
    ago = draw(st.integers(0, 10**9))
    return Pool("", tokens, NOW - ago, capacity, amount, period, burst, draw(NUMBERS))


BUCKETS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b@c.d", "e/f"]), st.sampled_from(["gpt-4", "gpt-4.1", "gpt-4/x"])),
    st.dictionaries(NAMES, old_limits(), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def shared() -> Any:
    with old_table() as table:
        yield table


@settings(max_examples=12)
@given(buckets=BUCKETS, nested=st.booleans())
def test_any_old_bucket_keeps_its_balance(shared: OldTable, buckets: Any, nested: bool) -> None:
    shared.empty()
    expected = {whose: [each._replace(limit=name) for name, each in pools.items()] for whose, pools in buckets.items()}
    shared.put(old_tables.version())
    for whose, pools in expected.items():
        for each in pools:
            shared.put(old_tables.per_limit_bucket(whose[0], whose[1], each, nested=nested))
    upgrade(shared)
    run(check_balances(BlockingRepository(shared.store()), expected))
