"""Alerts that clients have left: the aggregator copies each to the audit log, once, as an alert of its own entity."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.aggregator.streams import StreamedStore, aggregator, stream_record
from zae_limiter import Limit, SyncRateLimiter, SyncRepository
from zae_limiter.records import keys
from zae_limiter.testing import Fault, ManualClock

if TYPE_CHECKING:
    from zae_limiter import AuditEvent
    from zae_limiter.records.algebra import Key

QUOTA = Limit.quota("tpd", 100, every="day", alerts=(0.5, 0.8))
CAPACITY = 100


class Watched:
    """A limiter on a table with a stream, and the aggregator that follows it."""

    def __init__(self) -> None:
        self.store = StreamedStore(ManualClock())
        self.limiter = SyncRateLimiter(SyncRepository(self.store))

    def cross(self, tokens: int = 90) -> None:
        """Cross thresholds by an acquire."""
        with self.limiter.acquire("key", "gpt-4", {"tpd": tokens}, [QUOTA]):
            pass

    def left(self) -> list[Key]:
        """Return the keys of the alerts that wait."""
        return [key for key in self.store.kept if key.sk.startswith(keys.ALERT_PREFIX)]

    def log(self, entity: str = "key") -> list[AuditEvent]:
        """Return the audit log, oldest first."""
        return self.limiter.get_audit_events(entity)[::-1]

    def deliver(self, records: list[dict[str, Any]] | None = None) -> list[dict[str, str]]:
        """Deliver all changes so far, and return what has to come again."""
        records = self.store.records if records is None else records
        return aggregator(self.store).process(list(records))["batchItemFailures"]


def test_a_client_leaves_alerts_and_the_aggregator_copies_them_to_the_log() -> None:
    watched = Watched()
    watched.cross()
    assert (watched.log(), len(watched.left())) == ([], 2)
    assert watched.deliver() == []
    first, second = watched.log()
    assert (first.action, first.principal, first.resource) == ("limit_alert", None, "gpt-4")
    assert [event.details["threshold"] for event in (first, second)] == [0.5, 0.8]
    assert second.details["used"] == 90


def test_a_settlement_leaves_its_alert_too() -> None:
    watched = Watched()
    with watched.limiter.acquire("key", "gpt-4", {"tpd": 1}, [QUOTA]) as lease:
        lease.adjust(tpd=55)
    watched.deliver()
    assert [event.details["used"] for event in watched.log()] == [56]


def test_an_event_lives_as_long_as_the_audit_log_keeps_events() -> None:
    watched = Watched()
    watched.cross()
    watched.deliver()
    days = {
        key.sk.split("#")[1]: (image["ttl"] - watched.store.now.now_ms() // 1000) / 86_400
        for key, image in watched.store.kept.items()
        if key.sk.startswith(("#ALERT#", "#AUDIT#"))
    }
    assert days == {"ALERT": 90, "AUDIT": 90}


def test_an_alert_that_is_delivered_again_is_recorded_once() -> None:
    watched = Watched()
    watched.cross()
    records = list(watched.store.records)
    for _ in range(3):
        assert watched.deliver(records) == []
    assert len(watched.log()) == 2


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
def test_an_alert_that_cannot_be_recorded_comes_again(fault: Fault) -> None:
    watched = Watched()
    watched.cross(60)
    (record,) = [each for each in watched.store.records if each["dynamodb"]["Keys"]["SK"]["S"].startswith("#ALERT#")]
    watched.store.inject(fault)
    assert watched.deliver([record]) == [{"itemIdentifier": record["dynamodb"]["SequenceNumber"]}]
    assert watched.deliver([record]) == []
    assert len(watched.log()) == 1


def test_the_key_says_whose_alert_it_is() -> None:
    """Whoever may acquire may leave any attributes here: they make no other event than an alert of this key."""
    watched = Watched()
    watched.cross(60)
    (key,) = watched.left()
    forged = watched.store.kept[key] | {
        "action": "limits_set",
        "entity_id": "other",
        "event_id": "0",
        "principal": "me",
    }
    assert watched.deliver([stream_record(9, key, None, forged, 0)]) == []
    (event,) = watched.log()
    assert (event.action, event.principal, event.entity_id) == ("limit_alert", None, "key")
    assert event.event_id == keys.parse_alert(key).event_id
    assert watched.log("other") == []


@pytest.mark.parametrize("change", [{"ttl": "never"}, {"timestamp": 5}, {"details": "many"}, {"resource": 1}])
def test_a_damaged_alert_is_skipped(change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched()
    watched.cross(60)
    (key,) = watched.left()
    assert watched.deliver([stream_record(9, key, None, watched.store.kept[key] | change, 0)]) == []
    assert watched.log() == []
    assert '"damaged": 1' in capsys.readouterr().out


def test_the_alert_of_a_rate_is_left_each_time_that_it_is_crossed() -> None:
    watched = Watched()
    rate = replace(Limit.per_minute("tpm", CAPACITY), alerts=(0.5,))
    for _ in range(2):
        with watched.limiter.acquire("key", "gpt-4", {"tpm": 60}, [rate]):
            pass
        watched.store.now.advance(60)
    watched.deliver()
    assert [event.details["limit"] for event in watched.log()] == ["tpm", "tpm"]
