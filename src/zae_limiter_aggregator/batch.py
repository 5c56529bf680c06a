"""Process one batch of stream records: count, maintain, record alerts, archive, and report where to deliver again from.

Counts are marked and events have fixed names, so every record may be delivered any number of times. Only what
may succeed later is delivered again. A damaged record, and one that makes a request that DynamoDB calls invalid, is
reported and skipped: it would fail at every delivery and hold up all records behind it, those of other tenants too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from zae_limiter.core.errors import CorruptRecordError, RateLimiterUnavailable
from zae_limiter.records.algebra import Committed
from zae_limiter.records.audit import record_alert
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.answers import is_invalid_request

from .consumption import Tally, Used, build_tallies, count_in_flight, measure_change
from .counting import count
from .report import BatchReport, print_failure, print_report
from .stream import StreamChange, group_by_record, parse_change, sequence_of
from .upkeep import UpkeepResult, maintain

if TYPE_CHECKING:
    from zae_limiter.stores.port import Store

    from .archive import Archive
    from .settings import AggregatorSettings

_SIDE_BY_SIDE = 8
_LAST = "~"
"""Behind every sequence number."""


class CountResult(NamedTuple):
    """The result of counting some changes. ``failed`` is the position from which they must be delivered again."""

    new: int = 0
    known: int = 0
    damaged: int = 0
    failed: str | None = None


class Aggregator:
    """Turns batches into snapshots. One instance serves many batches."""

    def __init__(self, store: Store, settings: AggregatorSettings, archive: Archive | None) -> None:
        self._store = store
        self._settings = settings
        self._archive = archive

    def process(self, records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
        """Process a batch. The answer names the first record that must be delivered again, with all after it."""
        started = time.perf_counter()
        changes = _parse_changes(records)
        buckets = list(group_by_record(change for change in changes if change.is_of_bucket).values())
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            counted = list(pool.map(self._count, buckets))
            kept = list(pool.map(self._maintain, buckets))
            alerts = list(pool.map(self._record_alert, [each for each in changes if each.is_of_alert]))
        failed = [each.failed for each in (*counted, *alerts) if each.failed]
        archived = self._archive_expired([each for each in changes if each.sequence < min(failed, default=_LAST)])
        if archived.failed:
            failed.append(archived.failed)
        report = BatchReport(
            records=len(records),
            counted=sum(each.new for each in counted),
            repeated=sum(each.known for each in counted),
            damaged=len(records) - len(changes) + sum(each.damaged for each in (*counted, *alerts)),
            alerts=sum(each.new for each in alerts),
            archived=archived.new,
            splits=sum(each.splits for each in kept),
            refills=sum(each.refills for each in kept),
            failures=len(failed),
        )
        print_report(report, self._settings.table, started)
        return {"batchItemFailures": _name_failure(records, min(failed)) if failed else []}

    def _count(self, changes: list[StreamChange]) -> CountResult:
        new = known = 0
        used = _measure_changes(changes)
        damaged = {each.sequence for each in changes} - {each.change.sequence for each in used}
        try:
            for tally in build_tallies(used, self._settings.windows):
                added = self._count_tally(tally)
                if added is None:
                    damaged.update(part.sequence for part in tally.parts)
                else:
                    new, known = new + added, known + len(tally.parts) - added
        except Exception as error:
            print_failure("not counted", error, bucket=changes[0].key.pk, sequence=changes[0].sequence)
            return CountResult(new, known, len(damaged), changes[0].sequence)
        return CountResult(new, known, len(damaged))

    def _count_tally(self, tally: Tally) -> int | None:
        """Return how many changes of a tally were added, or None if it can never be counted."""
        try:
            return run(count(self._store, tally, self._settings.retention_days))
        except Exception as error:
            if not (isinstance(error, CorruptRecordError) or is_invalid_request(error)):
                raise
            whose = dict(zip(("namespace_id", "entity_id", "resource"), tally.whose, strict=True))
            print_failure("damaged", error, **whose, sequence=tally.parts[0].sequence)
            return None

    def _maintain(self, changes: list[StreamChange]) -> UpkeepResult:
        try:
            return run(maintain(self._store, changes))
        except Exception as error:
            print_failure("not looked after", error, bucket=changes[0].key.pk)
            return UpkeepResult()

    def _record_alert(self, change: StreamChange) -> CountResult:
        """Copy an alert to the audit log. A conflict says that an earlier delivery has done so.

        Only a store that cannot be reached is asked again: any other error is one of the record.
        """
        try:
            outcome = run(self._store.commit([record_alert(change.key, change.new or {})]))
        except Exception as error:
            where = {"alert": change.key.pk, "sequence": change.sequence}
            if isinstance(error, RateLimiterUnavailable) and not is_invalid_request(error):
                print_failure("not recorded", error, **where)
                return CountResult(failed=change.sequence)
            print_failure("damaged", error, **where)
            return CountResult(damaged=1)
        return CountResult(new=int(isinstance(outcome, Committed)))

    def _archive_expired(self, changes: Sequence[StreamChange]) -> CountResult:
        """Archive the expired events among the changes."""
        expired = [event for change in changes if (event := change.expired_event)]
        if not expired or self._archive is None:
            return CountResult()
        try:
            self._archive.keep(expired)
        except Exception as error:
            print_failure("not archived", error, sequence=expired[0].sequence)
            return CountResult(failed=expired[0].sequence)
        return CountResult(len(expired))


def _parse_changes(records: Sequence[dict[str, Any]]) -> list[StreamChange]:
    """Return the changes, without damaged records. Any error is one of the record: parsing depends on nothing else."""
    changes: list[StreamChange] = []
    for record in records:
        try:
            changes.append(parse_change(record))
        except Exception as error:
            print_failure("damaged", error, sequence=sequence_of(record))
    return changes


def _measure_changes(changes: Sequence[StreamChange]) -> list[Used]:
    """Return what the changes of one bucket have consumed, without damaged records, as `_parse_changes` does."""
    used: list[Used] = []
    for change in changes:
        try:
            used.append(Used(change, measure_change(change), count_in_flight(change)))
        except Exception as error:
            print_failure("damaged", error, bucket=change.key.pk, sequence=change.sequence)
    return used


def _name_failure(records: Sequence[dict[str, Any]], sequence: str) -> list[dict[str, str]]:
    """Return a position in the stream in Lambda's format."""
    names = (str(record["dynamodb"]["SequenceNumber"]) for record in records if sequence_of(record) == sequence)
    return [{"itemIdentifier": next(names)}]
