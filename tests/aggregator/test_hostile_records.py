"""Records that a tenant may write at will into its own namespace hold up nobody: no batch fails because of them."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.aggregator.streams import Record, StreamedStore, aggregator, snapshots
from tests.aggregator.test_archive import Shelf, history
from tests.aggregator.test_batch import counted, traffic
from tests.support.backends import dynamodb_client, dynamodb_table
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator.batch import Aggregator
from zae_limiter_aggregator.settings import AggregatorSettings

SOUND = {"cv": 1, "at": 5, "rf": 5, "shard_count": 1} | {
    f"b_rpm_{field}": 1000 for field in ("tk", "cp", "tc", "rp", "ra")
}
EXPIRY = {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
LONG = f"nsA/BUCKET#e#{'r' * 1900}#0"


def spell(image: dict[str, Any]) -> dict[str, Any]:
    """The attributes as a stream has them; what is typed already stays."""
    return {name: value if isinstance(value, dict) else {"N": str(value)} for name, value in image.items()}


def record(number: int, pk: str, sk: str, new: Any = None, old: Any = None) -> Record:
    """A change of a record whose images may hold anything."""
    key = {"PK": {"S": pk}, "SK": {"S": sk}}
    body: Record = {"Keys": key, "SequenceNumber": str(number), "ApproximateCreationDateTime": 1.79e9}
    body |= {name: key | spell(image) for name, image in (("NewImage", new), ("OldImage", old)) if image is not None}
    name = "REMOVE" if new is None else "INSERT" if old is None else "MODIFY"
    return {"eventName": name, "dynamodb": body} | (EXPIRY if new is None else {})


def nested(depth: int) -> dict[str, str]:
    return {"B": base64.b64encode(b"[" * depth + b"]" * depth).decode()}


TEXTS = st.text(st.sampled_from("#/_@²9xé."), max_size=12)
BINARY = st.sampled_from(
    ["", "AA==", "e30=", base64.b64encode(b'"\\ud800"').decode(), base64.b64encode(b"NaN").decode()]
)
NUMBERS = st.sampled_from(["0", "-1", "5", "1e125", "0.5", "-1e-100", "9" * 38, "x"])
VALUES = st.one_of(
    st.builds(lambda text: {"S": text}, TEXTS),
    st.builds(lambda text: {"N": text}, NUMBERS),
    st.builds(lambda text: {"B": text}, BINARY),
    st.builds(nested, st.integers(1, 2000)),
    st.sampled_from([{"NULL": True}, {"BOOL": True}, {"L": []}, {"M": {}}, {"M": {"": {"N": "1"}}}, {"SS": ["a"]}]),
)
NAMES = st.one_of(
    st.sampled_from(
        [*SOUND, "ttl", "mk", "he", "ev", "bk", "lots", "lot_1", "b_", "b_x", "b__tk", "b_rpm_ov", "b_rpm_ca"]
    ),
    st.sampled_from(["event_id", "timestamp", "action", "entity_id", "principal", "details", "namespace_id", "mf"]),
)
IMAGES = st.builds(
    lambda sound, changed, less: {name: value for name, value in ({**sound, **changed}).items() if name not in less},
    st.sampled_from([SOUND, {}, {"cv": 1}]),
    st.dictionaries(NAMES, VALUES, max_size=6),
    st.sets(NAMES, max_size=2),
)
KEYS = st.one_of(
    st.builds("nsA/BUCKET#{}".format, TEXTS),
    st.builds("nsA/BUCKET#{}#{}#{}".format, TEXTS, TEXTS, st.sampled_from(["0", "1", "²", "9" * 900, "x", ""])),
    TEXTS,
)


@settings(max_examples=300, deadline=None)
@example("nsA/BUCKET#x", {"cv": 1, "ttl": 1}, None)
@example("nsA/BUCKET#x", SOUND, None)
@example("nsA/BUCKET#e#r#²", SOUND, {"cv": 1})
@given(KEYS, IMAGES, st.none() | IMAGES)
def test_no_bucket_record_of_a_tenant_fails_a_batch(pk: str, new: dict[str, Any], old: dict[str, Any] | None) -> None:
    store = StreamedStore(ManualClock())
    of_others = traffic(store, "a")
    batch = [record(1, pk, keys.STATE, new, old), *of_others]
    assert aggregator(store).process(batch) == {"batchItemFailures": []}
    assert counted(store)["a"] == {"rpm": 1, "tpm": 500}


@settings(max_examples=200, deadline=None)
@example({"timestamp": nested(900), "details": nested(900)})
@example({"principal": {"B": base64.b64encode(b'"\\ud800"').decode()}})
@given(IMAGES)
def test_no_event_of_a_tenant_keeps_those_of_others_out_of_the_archive(image: dict[str, Any]) -> None:
    store, shelf = StreamedStore(ManualClock()), Shelf()
    of_others = [each for each in history(store, 1) if each["eventName"] == "REMOVE"]
    batch = [record(1, "nsA/AUDIT#e", f"{keys.AUDIT_PREFIX}1", None, image), *of_others]
    assert aggregator(store, shelf).process(batch) == {"batchItemFailures": []}
    assert any('"principal": "admin-0"' in gzip.decompress(content).decode() for content in shelf.held.values())


@settings(max_examples=200, deadline=None)
@example("nsA/BUCKET#e#r#0", {})
@example("nsA/ALERT#e", {"timestamp": {"S": "x"}, "ttl": {"N": "5"}, "details": {"M": {"a": nested(500)}}})
@example("nsA/ALERT#e", {"timestamp": {"S": "x"}, "ttl": {"N": "9" * 38}})
@given(st.builds("nsA/ALERT#{}".format, TEXTS) | KEYS, IMAGES)
def test_no_alert_of_a_tenant_fails_a_batch(pk: str, image: dict[str, Any]) -> None:
    """Whoever may write buckets may write any record under their keys, too."""
    store = StreamedStore(ManualClock())
    batch = [record(1, pk, f"{keys.ALERT_PREFIX}1", image), *traffic(store, "a")]
    assert aggregator(store).process(batch) == {"batchItemFailures": []}
    assert counted(store)["a"] == {"rpm": 1, "tpm": 500}
    assert not [key for key in store.kept if "/AUDIT#" in key.pk and not key.pk.startswith("nsA/AUDIT#")]


def test_an_event_that_cannot_be_written_leaves_its_key_in_the_archive(capsys: pytest.CaptureFixture[str]) -> None:
    shelf = Shelf()
    event = {name: {"S": "x"} for name in ("event_id", "action", "entity_id")} | {"timestamp": {"S": "2026-01-01"}}
    forged = record(1, "nsA/AUDIT#e", f"{keys.AUDIT_PREFIX}1", None, event | {"details": {"M": {"a": nested(500)}}})
    aggregator(StreamedStore(ManualClock()), shelf).process([forged])
    (line,) = shelf.lines()
    assert (line["damaged"], line["sort_key"]) == ("RecursionError", f"{keys.AUDIT_PREFIX}1")
    assert json.loads(capsys.readouterr().out.splitlines()[0])["message"] == "damaged"


@pytest.mark.parametrize("complete", [True, False])
def test_an_event_cannot_say_that_it_is_of_another_namespace(complete: bool) -> None:
    shelf = Shelf()
    event = {name: {"S": "x"} for name in ("event_id", "action", "entity_id")} | {"namespace_id": {"S": "nsB"}}
    event |= {"timestamp": {"S": "2026-01-01T00:00:00Z"}} if complete else {}
    forged = record(1, "nsA/AUDIT#e", f"{keys.AUDIT_PREFIX}1", None, event)
    aggregator(StreamedStore(ManualClock()), shelf).process([forged])
    assert [line["namespace_id"] for line in shelf.lines()] == ["nsA"]


def test_a_record_under_a_key_that_is_no_bucket_s_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    aggregator(StreamedStore(ManualClock())).process([record(1, "nsA/BUCKET#x", keys.STATE, {"cv": 1, "ttl": 1})])
    complaint, *_, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert (complaint["message"], complaint["bucket"]) == ("damaged", "nsA/BUCKET#x")
    assert (report["damaged"], report["failures"]) == (1, 0)


def test_a_usage_record_that_a_tenant_has_damaged_holds_up_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    store = StreamedStore(ManualClock())
    aggregator(store).process(traffic(store, "a"))
    damaged = list(snapshots(store))
    for key in damaged:
        run(store.commit([Write(key, delete=True)]))
        run(store.commit([Write(key, put={"entity_id": "a"})]))
    capsys.readouterr()
    batch = traffic(store, "a", "b")[1:]
    assert aggregator(store).process(batch) == {"batchItemFailures": []}
    *_, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert (report["damaged"], report["failures"], report["counted"]) == (1, 0, 3)


def test_what_the_table_refuses_for_ever_is_not_delivered_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The usage of a name that fits into a bucket's key has a sort key above DynamoDB's 1,024 bytes."""
    with dynamodb_table() as table:
        store = DynamoStore(dynamodb_client(table, blocking=True), ManualClock())
        batch = [record(1, LONG, keys.STATE, SOUND), record(2, "nsB/BUCKET#e#r#0", keys.STATE, SOUND)]
        assert Aggregator(store, AggregatorSettings(table, ("hourly",)), None).process(batch) == {
            "batchItemFailures": []
        }
        run(store.close())
    *_, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert (report["damaged"], report["counted"], report["failures"]) == (1, 1, 0)
