"""Audit events go to the archive when their time is over: all of them, once, whatever is delivered again."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

from hypothesis import given, settings, strategies as st

from tests.aggregator.streams import Record, StreamedStore, aggregator, place
from tests.aggregator.test_batch import traffic
from zae_limiter import Limit
from zae_limiter.records import keys
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRepository
from zae_limiter.testing import Fault, ManualClock
from zae_limiter_aggregator.archive import Archive, archive_objects
from zae_limiter_aggregator.stream import parse_change

DAY = 86_400


class Shelf(Archive):
    """An archive in memory, which can fail."""

    def __init__(self) -> None:
        super().__init__("shelf")
        self.held: dict[str, bytes] = {}
        self.failures = 0

    def keep(self, changes: Any) -> None:
        for name, content in archive_objects(changes):
            if self.failures:
                self.failures -= 1
                raise OSError("no route to the shelf")
            self.held[name] = content

    def lines(self) -> list[dict[str, Any]]:
        texts = [gzip.decompress(content).decode() for _, content in sorted(self.held.items())]
        return [json.loads(line) for text in texts for line in text.splitlines()]


def history(store: StreamedStore, events: int) -> list[Record]:
    """Changes of limits over some days, whose audit events then expire."""
    repository = BlockingRepository(store)
    for n in range(events):
        run(repository.set_limits("key-ä", [Limit.per_minute("rpm", n + 1)], principal=f"admin-{n}"))
        store.now.advance(DAY / 3)
    for key in [key for key in store.kept if key.sk.startswith(keys.AUDIT_PREFIX)]:
        store.expire(key)
    return list(store.records)


def test_expired_events_are_kept_as_lines_by_the_day_on_which_they_happened() -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    start = store.now.now_ms()
    records = history(store, 6)
    assert aggregator(store, shelf).process(records) == {"batchItemFailures": []}
    lines = shelf.lines()
    assert [line["principal"] for line in lines] == [f"admin-{n}" for n in range(6)]
    assert {line["entity_id"] for line in lines} == {"key-ä"}
    assert {line["namespace_id"] for line in lines} == {
        key.pk.partition("/")[0] for key in store.kept if "ENTITY" in key.pk
    }
    first = lines[0]
    assert first["action"] == "limits_set"
    assert first["timestamp"] == _iso(start)
    assert {"event_id", "details", "resource"} <= first.keys()
    days = {line["timestamp"][:10] for line in lines}
    assert {_day(name) for name in shelf.held} == days
    assert len(days) in (2, 3)
    assert len(shelf.held) == len(days), "one object per day and batch"


def _iso(now_ms: int) -> str:
    from zae_limiter.records.fields import iso

    return iso(now_ms)


def _day(name: str) -> str:
    return "-".join(part.split("=")[1] for part in name.split("/")[1:4])


def test_what_somebody_deleted_is_not_archived() -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    records = [{**record, "userIdentity": None} for record in history(store, 3)]
    aggregator(store, shelf).process(records)
    assert shelf.held == {}


def test_without_an_archive_expired_events_are_let_go() -> None:
    store = StreamedStore(ManualClock())
    assert aggregator(store).process(history(store, 3)) == {"batchItemFailures": []}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_event_is_archived_once_however_it_is_delivered(seed: int) -> None:
    chance = random.Random(seed)
    store, shelf = StreamedStore(ManualClock()), Shelf()
    records = [record for record in history(store, 9) if record["eventName"] == "REMOVE"]
    function, read = aggregator(store, shelf), 0
    while read < len(records):
        batch = records[read : read + chance.randrange(1, 8)]
        for _ in range(chance.randrange(3)):  # the function ends before it has answered; Lambda halves the batch or not
            function.process(batch)
            batch = batch[: chance.choice([len(batch), (len(batch) + 1) // 2])]
        shelf.failures = chance.choice([0, 0, 1])
        read += place(batch, function.process(batch))
        shelf.failures = 0
    assert [line["principal"] for line in sorted(shelf.lines(), key=lambda line: str(line["event_id"]))] == [
        f"admin-{n}" for n in range(9)
    ]


def test_events_behind_a_record_that_can_never_be_read_are_not_lost_with_it() -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    expired = [record for record in history(store, 4) if record["eventName"] == "REMOVE"]
    broken = {"eventName": "MODIFY", "dynamodb": {"SequenceNumber": expired[2]["dynamodb"]["SequenceNumber"]}}
    batch = [expired[0], expired[1], broken, expired[3]]
    for _ in range(2):
        assert place(batch, aggregator(store, shelf).process(batch)) == 4
        assert [line["principal"] for line in shelf.lines()] == ["admin-0", "admin-1", "admin-3"]


def test_events_behind_a_failure_that_passes_wait_for_it() -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    expired = [record for record in history(store, 2) if record["eventName"] == "REMOVE"]
    (bucket,) = traffic(store, "a")
    later = {**expired[1], "dynamodb": {**expired[1]["dynamodb"], "SequenceNumber": "9" * 24}}
    batch = [expired[0], bucket, later]
    store.inject(Fault.FAIL_BEFORE, verb="commit", times=100)
    assert place(batch, aggregator(store, shelf).process(batch)) == 1
    assert [line["principal"] for line in shelf.lines()] == ["admin-0"]
    store.heal()
    assert place(batch[1:], aggregator(store, shelf).process(batch[1:])) == 2
    assert [line["principal"] for line in shelf.lines()] == ["admin-0", "admin-1"]


def test_an_event_without_a_time_or_a_name_does_not_keep_others_out() -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    records = [record for record in history(store, 3) if record["eventName"] == "REMOVE"]
    records[0]["dynamodb"]["OldImage"]["timestamp"] = {"S": "01HQ000000000000000000000A"}
    del records[1]["dynamodb"]["OldImage"]["action"]
    assert aggregator(store, shelf).process(records) == {"batchItemFailures": []}
    assert {line["principal"] for line in shelf.lines()} == {"admin-0", "admin-1", "admin-2"}
    assert _day(min(shelf.held)) < _iso(store.now.now_ms())[:10] == _day(max(shelf.held))


def test_a_failing_archive_is_delivered_again_from_its_first_event() -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    records = history(store, 3)
    shelf.failures = 1
    begin = place(records, aggregator(store, shelf).process(records))
    assert records[begin]["eventName"] == "REMOVE"
    assert records[begin - 1]["eventName"] != "REMOVE"


def test_the_same_events_make_the_same_bytes() -> None:
    store = StreamedStore(ManualClock())
    events = [event for record in history(store, 5) if (event := parse_change(record).expired_event)]
    assert dict(archive_objects(events)) == dict(archive_objects(events))
    assert len(events) == 5


def test_faults_of_the_table_do_not_touch_the_archive() -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    records = history(store, 3)
    store.inject(Fault.FAIL_BEFORE, verb="commit", times=100)
    assert aggregator(store, shelf).process(records) == {"batchItemFailures": []}
    assert len(shelf.lines()) == 3
