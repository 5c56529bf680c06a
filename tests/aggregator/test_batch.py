"""A batch: what fails is delivered again, what is damaged does not pass for zero, and every batch is reported.

``row`` is the row of the reference's observed defects.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.aggregator.streams import StreamedStore, aggregator, place, snapshots
from zae_limiter import Limit
from zae_limiter.records import keys, usage
from zae_limiter.records.level import MIGRATED_FROM
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.testing import Fault, ManualClock
from zae_limiter_aggregator.settings import Settings, settings

if TYPE_CHECKING:
    from tests.aggregator.streams import Record

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


def test_row_3_the_first_acquire_of_a_bucket_counts() -> None:
    store = StreamedStore(ManualClock())
    (inserted,) = traffic(store, "a")
    assert inserted["eventName"] == "INSERT"
    aggregator(store).process([inserted])
    assert counted(store) == {"a": {"rpm": 1, "tpm": 500}}


def test_row_3_the_hour_and_the_day_that_start_together_have_each_their_own_record() -> None:
    store = StreamedStore(ManualClock(1_790_000_000_000 // 86_400_000 * 86_400_000))
    aggregator(store).process(traffic(store, "a", "a"))
    assert len(snapshots(store)) == 3
    for window in usage.WINDOWS:
        assert counted(store, window) == {"a": {"rpm": 2, "tpm": 1000}}


def test_row_3_the_window_is_that_of_the_consumption_not_of_the_anchor() -> None:
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


def test_one_bucket_that_cannot_be_counted_does_not_hold_up_the_others() -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, "a", "b", "c")
    damaged = json.loads(json.dumps(records[1]).replace('"b_tpm_tc": {"N": "500000"}', '"b_tpm_tc": {"S": "many"}'))
    assert damaged != records[1]
    batch = [records[0], damaged, records[2]]
    assert place(batch, aggregator(store).process(batch)) == 1
    assert counted(store) == {"a": {"rpm": 1, "tpm": 500}, "c": {"rpm": 1, "tpm": 500}}
    assert place(batch[1:], aggregator(store).process(batch[1:])) == 0
    assert counted(store)["c"] == {"rpm": 1, "tpm": 500}


def test_the_answer_names_the_first_failure_of_several() -> None:
    store = StreamedStore(ManualClock())
    records = traffic(store, "a", "b", "c")
    store.inject(Fault.FAIL_BEFORE, verb="commit", times=1_000)
    assert place(records, aggregator(store).process(records)) == 0
    store.heal()
    assert place(records, aggregator(store).process(records)) == 3


def test_row_3_a_table_that_is_down_fails_the_batch_and_loses_nothing() -> None:
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
    aggregator(store).process([*records, {"dynamodb": {"SequenceNumber": "9" * 23}}])
    first, complaint, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["records"], first["counted"], first["repeated"], first["failures"]) == (2, 6, 0, 0)
    assert (second["records"], second["counted"], second["repeated"], second["failures"]) == (3, 0, 6, 1)
    assert (complaint["level"], complaint["message"], complaint["error"]) == ("ERROR", "not understood", "KeyError")
    (directive,) = first["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["table"]]
    assert {metric["Name"] for metric in directive["Metrics"]} <= first.keys()


def test_an_empty_batch_is_fine() -> None:
    assert aggregator(StreamedStore(ManualClock())).process([]) == {"batchItemFailures": []}


def test_settings_come_from_the_environment() -> None:
    assert settings({"ZAE_LIMITER_TABLE": "t"}) == Settings("t")
    given = {
        "ZAE_LIMITER_TABLE": "t",
        "ZAE_LIMITER_SNAPSHOT_WINDOWS": "monthly, daily",
        "ZAE_LIMITER_USAGE_RETENTION_DAYS": "7",
        "ZAE_LIMITER_ARCHIVE_BUCKET": "b",
    }
    assert settings(given) == Settings("t", ("monthly", "daily"), 7, "b")
    with pytest.raises(ValueError, match="weekly"):
        settings({"ZAE_LIMITER_TABLE": "t", "ZAE_LIMITER_SNAPSHOT_WINDOWS": "weekly"})
