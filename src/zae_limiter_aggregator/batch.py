"""One batch of stream records: count, keep up, archive, and say from where on it has to be delivered again.

Whatever is counted carries its mark and an archived event has its place, so every record may come any number of times.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from zae_limiter.runtime.blocking import run

from . import upkeep
from .consumption import tallies
from .counting import count
from .report import Report, complain, tell
from .stream import Change, by_record, change_of, sequence_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.stores.port import Store

    from .archive import Archive
    from .settings import Settings

_SIDE_BY_SIDE = 8
_LAST = "~"
"""Behind every sequence number."""


class Aggregator:
    """What turns batches into snapshots; it is made once and serves many."""

    def __init__(self, store: Store, settings: Settings, archive: Archive | None) -> None:
        self._store = store
        self._settings = settings
        self._archive = archive

    def process(self, records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
        """Take in a batch; the answer names the first record that has to be delivered again, with all after it."""
        started = time.perf_counter()
        report = Report(records=len(records))
        changes, failed = _understood(records)
        buckets = list(by_record(change for change in changes if change.is_of_bucket).values())
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            for counted, repeated, failure in pool.map(self._counted, buckets):
                report.counted += counted
                report.repeated += repeated
                failed += failure
            for splits, refills in pool.map(self._kept_up, buckets):
                report.splits += splits
                report.refills += refills
        expired = [each for each in changes if each.is_expired_audit and each.sequence < min(failed, default=_LAST)]
        if expired and self._archive is not None:
            failed += self._archived(self._archive, expired, report)
        report.failures = len(failed)
        tell(report, self._settings.table, started)
        return {"batchItemFailures": _failures(records, failed)}

    def _counted(self, changes: list[Change]) -> tuple[int, int, list[str]]:
        """Count the changes of one bucket: how many were new, how many not, and from which on it failed."""
        new = known = 0
        try:
            for tally in tallies(changes, self._settings.windows):
                added = run(count(self._store, tally, self._settings.retention_days))
                new += added
                known += len(tally.parts) - added
        except Exception as error:
            complain("not counted", error, bucket=changes[0].key.pk, sequence=changes[0].sequence)
            return new, known, [changes[0].sequence]
        return new, known, []

    def _kept_up(self, changes: list[Change]) -> tuple[int, int]:
        """Look after one bucket: how many shards were made, how many refills."""
        splits = refills = 0
        try:
            splits = run(upkeep.relieve(self._store, changes)) + run(upkeep.spread(self._store, changes))
            refills = int(run(upkeep.refill(self._store, changes)))
        except Exception as error:
            complain("not looked after", error, bucket=changes[0].key.pk)
        return splits, refills

    def _archived(self, archive: Archive, expired: list[Change], report: Report) -> list[str]:
        try:
            archive.keep(expired)
        except Exception as error:
            complain("not archived", error, sequence=expired[0].sequence)
            return [expired[0].sequence]
        report.archived += len(expired)
        return []


def _understood(records: Sequence[dict[str, Any]]) -> tuple[list[Change], list[str]]:
    """The changes, and the sequences of records that are none."""
    changes: list[Change] = []
    failed: list[str] = []
    for record in records:
        try:
            changes.append(change_of(record))
        except Exception as error:
            complain("not understood", error, sequence=sequence_of(record))
            failed.append(sequence_of(record))
    return changes, failed


def _failures(records: Sequence[dict[str, Any]], failed: list[str]) -> list[dict[str, str]]:
    if not failed:
        return []
    first = min(failed)
    names = (str(record["dynamodb"]["SequenceNumber"]) for record in records if sequence_of(record) == first)
    return [{"itemIdentifier": next(names)}]
