"""A batch: what fails is delivered again, what is damaged does not pass for zero, and every batch is reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.aggregator.streams import StreamedStore, aggregator, place, snapshots
from zae_limiter import Limit
from zae_limiter.limiter.dividing import divide
from zae_limiter.records import keys, usage
from zae_limiter.records.algebra import Write
from zae_limiter.records.level import MIGRATED_FROM
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.testing import Fault, ManualClock
from zae_limiter_aggregator.settings import AggregatorSettings, read_settings
from zae_limiter_aggregator.upkeep import level_of

if TYPE_CHECKING:
    from tests.aggregator.streams import Record
    from zae_limiter.records.algebra import Key

LIMITS = (Limit.per_minute("rpm", 600), Limit.per_minute("tpm", 90_000))


def traffic(store: StreamedStore, *entities: str) -> list[Record]:
    """One request each; the changes of their buckets."""

    async def take(entity: str) -> None:
        async with limiter.acquire(entity, "gpt-4", {"rpm": 1, "tpm": 500}, limits=LIMITS):
            pass

    limiter = BlockingRateLimiter(BlockingRepository(store))
    for entity in entities:
        run(take(entity))
    return [record for record in store.records if record["dynamodb"]["Keys"]["SK"]["S"] == keys.STATE]


def counted(store: StreamedStore, window: str = "hourly") -> dict[str, dict[str, int]]:
    found = (usage.decode(image) for image in snapshots(store).values())
    return {each.entity_id: dict(each.counters) for each in found if each.window_type == window}


def test_the_first_acquire_of_a_bucket_counts() -> None:
    store = StreamedStore(ManualClock())
    (inserted,) = traffic(store, "a")
    assert inserted["eventName"] == "INSERT"
    aggregator(store).process([inserted])
    assert counted(store) == {"a": {"rpm": 1, "tpm": 500}}


def test_the_hour_and_the_day_that_start_together_have_each_their_own_record() -> None:
    store = StreamedStore(ManualClock(1_790_000_000_000 // 86_400_000 * 86_400_000))
    aggregator(store).process(traffic(store, "a", "a"))
    assert len(snapshots(store)) == 3
    for window in usage.WINDOWS:
        assert counted(store, window) == {"a": {"rpm": 2, "tpm": 1000}}


def test_the_window_is_that_of_the_consumption_not_of_the_anchor() -> None:
    store = StreamedStore(ManualClock(1_790_000_000_000 // 3_600_000 * 3_600_000))
    traffic(store, "a")
    store.now.advance(120)
    store.now.advance(3_600 - 121)
    records = traffic(store, "b", "a")
    store.now.advance(1)
    records = traffic(store, "b")
    aggregator(store, windows=("hourly",)).process(records)
    found = sorted((image["window_start"], image["entity_id"], image["rpm"]) for image in snapshots(store).values())
    assert [row[1:] for row in found] == [("a", 2000), ("b", 1000), ("b", 1000)]
    assert found[1][0] < found[2][0]


def test_no_usage_is_kept_of_addresses() -> None:
    store = StreamedStore(ManualClock())
    aggregator(store).process(traffic(store, "a", "ip:203.0.113.9"))
    assert counted(store) == {"a": {"rpm": 1, "tpm": 500}}


def test_a_damaged_change_is_told_of_and_holds_up_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, "a", "b", "b", "b", "c")
    for change, image in ((2, "NewImage"), (3, "OldImage")):
        records[change]["dynamodb"][image]["b_tpm_tc"] = {"S": "many"}
    capsys.readouterr()
    assert place(records, aggregator(store).process(records)) == 5
    assert counted(store) == {key: {"rpm": 1, "tpm": 500} for key in "abc"}
    *complaints, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["sequence"].lstrip("0") for each in complaints] == [
        records[place]["dynamodb"]["SequenceNumber"] for place in (2, 3)
    ]
    assert {each["message"] for each in complaints} == {"damaged"}
    assert (report["damaged"], report["failures"]) == (2, 0)


def test_a_failure_of_our_own_making_is_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, "a", "b")
    with monkeypatch.context() as patched:
        patched.setattr("zae_limiter_aggregator.batch.build_tallies", lambda *_: 1 / 0)
        assert place(records, aggregator(store).process(records)) == 0
    assert place(records, aggregator(store).process(records)) == 2
    assert counted(store) == {key: {"rpm": 1, "tpm": 500} for key in "ab"}


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
def test_one_call_that_fails_is_made_again(fault: Fault) -> None:
    """As with a connection that ended while the function was asleep."""
    store = StreamedStore(ManualClock())
    records = traffic(store, "a")
    store.inject(fault, verb="commit")
    assert place(records, aggregator(store).process(records)) == 1
    assert counted(store) == {"a": {"rpm": 1, "tpm": 500}}


def test_buckets_of_older_clients_are_not_ours_to_count_and_hold_up_nothing() -> None:
    store = StreamedStore(ManualClock())
    (record,) = traffic(store, "a")
    of_older = {"rf", "shard_count", "b_rpm_tk", "b_rpm_tc", "b_rpm_cp", "b_rpm_ra", "b_rpm_rp", "PK", "SK"}
    image = record["dynamodb"]["NewImage"]
    record["dynamodb"]["NewImage"] = {name: image[name] for name in image if name in of_older}
    assert aggregator(store).process([record]) == {"batchItemFailures": []}
    assert snapshots(store) == {}


def test_a_shard_that_is_made_over_one_left_over_counts_from_zero() -> None:
    store = StreamedStore(ManualClock())
    traffic(store, "a")
    (root,) = (key for key in store.kept if key.sk == keys.STATE)
    split(store, root)
    (other,) = (key for key in store.kept if key.sk == keys.STATE and key != root)
    run(store.commit([Write(other, (), add={"b_tpm_tk": -500_000, "b_tpm_tc": 500_000})]))
    run(store.commit([Write(root, delete=True)]))
    store.now.advance(1)
    traffic(store, "a")
    split(store, root)
    records = [each for each in store.records if each["dynamodb"]["Keys"]["SK"]["S"] == keys.STATE]
    aggregator(store).process([each for each in records if each["eventName"] != "REMOVE"])
    assert counted(store) == {"a": {"rpm": 2, "tpm": 1500}}


def split(store: StreamedStore, key: Key) -> None:
    (image,) = run(store.read([key]))
    assert image is not None
    assert run(divide(store, level_of(store, key, image), image, 0, lambda *_: None))


def test_the_answer_names_the_first_failure_of_several() -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, "a", "b", "c")
    store.inject(Fault.FAIL_BEFORE, verb="commit", times=1_000)
    assert place(records, aggregator(store).process(records)) == 0
    store.heal()
    assert place(records, aggregator(store).process(records)) == 3


def test_a_table_that_is_down_fails_the_batch_and_loses_nothing() -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, "a", "a", "b")
    for fault in (Fault.FAIL_BEFORE, Fault.FAIL_AFTER):
        store.inject(fault, verb="commit", times=2)
        aggregator(store).process(records)
        store.heal()
    aggregator(store).process(records)
    assert counted(store) == {"a": {"rpm": 2, "tpm": 1000}, "b": {"rpm": 1, "tpm": 500}}


@pytest.mark.parametrize("in_place", [False, True], ids=["moved", "in place"])
def test_what_an_upgrade_has_brought_is_not_consumed_again(in_place: bool) -> None:
    store = StreamedStore(ManualClock())
    made, later = traffic(store, "a", "a")
    for image in (made["dynamodb"]["NewImage"], later["dynamodb"]["OldImage"], later["dynamodb"]["NewImage"]):
        image[MIGRATED_FROM] = {"S": "sharded"}
    if in_place:
        made["dynamodb"]["OldImage"] = {"b_tpm_tc": {"N": "1"}, "rf": {"N": "7"}}
    aggregator(store).process([made, later])
    assert counted(store) == {"a": {"rpm": 1, "tpm": 500}}


def test_snapshots_expire_after_their_retention() -> None:
    store = StreamedStore(ManualClock(0))
    aggregator(store, windows=("hourly",)).process(traffic(store, "a"))
    (image,) = snapshots(store).values()
    assert image["ttl"] == 3_600 + 90 * 86_400


def test_a_steady_bucket_costs_one_write_per_window_and_batch() -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, *["a"] * 30)
    function = aggregator(store)
    function.process(records[:10])
    before = store.calls["commit"]
    function.process(records[10:])
    assert store.calls["commit"] - before == 3


def test_every_batch_is_reported_as_figures_that_cloudwatch_reads(capsys: pytest.CaptureFixture[str]) -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, "a", "b")
    capsys.readouterr()
    aggregator(store).process(records)
    aggregator(store).process([*records, {"eventName": "MODIFY", "dynamodb": {"SequenceNumber": "9" * 23}}])
    first, complaint, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["records"], first["counted"], first["repeated"], first["failures"]) == (2, 6, 0, 0)
    assert (second["records"], second["counted"], second["repeated"], second["damaged"]) == (3, 0, 6, 1)
    assert (complaint["level"], complaint["message"]) == ("ERROR", "damaged")
    assert complaint["error"] == "CorruptRecordError"
    (directive,) = first["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["table"]]
    assert {metric["Name"] for metric in directive["Metrics"]} <= first.keys()


def test_an_empty_batch_is_fine() -> None:
    assert aggregator(StreamedStore(ManualClock())).process([]) == {"batchItemFailures": []}


def test_settings_come_from_the_environment() -> None:
    assert read_settings({"ZAE_LIMITER_TABLE": "t"}) == AggregatorSettings("t")
    given = {
        "ZAE_LIMITER_TABLE": "t",
        "ZAE_LIMITER_SNAPSHOT_WINDOWS": "monthly, daily",
        "ZAE_LIMITER_USAGE_RETENTION_DAYS": "7",
        "ZAE_LIMITER_ARCHIVE_BUCKET": "b",
    }
    assert read_settings(given) == AggregatorSettings("t", ("monthly", "daily"), 7, "b")
    with pytest.raises(ValueError, match="weekly"):
        read_settings({"ZAE_LIMITER_TABLE": "t", "ZAE_LIMITER_SNAPSHOT_WINDOWS": "weekly"})
