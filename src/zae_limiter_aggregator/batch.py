"""One batch of stream records: count, look after, archive, and say from where on it has to be delivered again.

Whatever is counted carries its mark and an archived event has its place, so every record may come any number of times.
A record that is damaged is told of and passed over: it would be damaged at every delivery, and hold up all behind it.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from zae_limiter.core.errors import CorruptRecordError
from zae_limiter.runtime.blocking import run

from .consumption import Used, consumed, tallies
from .counting import count
from .report import Report, complain, tell
from .stream import Change, by_record, change_of, sequence_of
from .upkeep import Kept, look_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.stores.port import Store

    from .archive import Archive
    from .settings import Settings

_SIDE_BY_SIDE = 8
_LAST = "~"
"""Behind every sequence number."""


class Counted(NamedTuple):
    """What became of some changes; ``failed`` is the place from which on they have to come again."""

    new: int = 0
    known: int = 0
    damaged: int = 0
    failed: str | None = None


class Aggregator:
    """What turns batches into snapshots; it is made once and serves many."""

    def __init__(self, store: Store, settings: Settings, archive: Archive | None) -> None:
        self._store = store
        self._settings = settings
        self._archive = archive

    def process(self, records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
        """Take in a batch; the answer names the first record that has to be delivered again, with all after it."""
        started = time.perf_counter()
        changes = _understood(records)
        buckets = list(by_record(change for change in changes if change.is_of_bucket).values())
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            counted = list(pool.map(self._counted, buckets))
            kept = list(pool.map(self._kept, buckets))
        failed = [each.failed for each in counted if each.failed]
        archived = self._archived([each for each in changes if each.sequence < min(failed, default=_LAST)])
        if archived.failed:
            failed.append(archived.failed)
        report = Report(
            records=len(records),
            counted=sum(each.new for each in counted),
            repeated=sum(each.known for each in counted),
            damaged=len(records) - len(changes) + sum(each.damaged for each in counted),
            archived=archived.new,
            splits=sum(each.splits for each in kept),
            refills=sum(each.refills for each in kept),
            failures=len(failed),
        )
        tell(report, self._settings.table, started)
        return {"batchItemFailures": _named(records, min(failed)) if failed else []}

    def _counted(self, changes: list[Change]) -> Counted:
        new = known = 0
        used = _readable(changes)
        damaged = len(changes) - len(used)
        try:
            for tally in tallies(used, self._settings.windows):
                added = run(count(self._store, tally, self._settings.retention_days))
                new += added
                known += len(tally.parts) - added
        except Exception as error:
            complain("not counted", error, bucket=changes[0].key.pk, sequence=changes[0].sequence)
            return Counted(new, known, damaged, changes[0].sequence)
        return Counted(new, known, damaged)

    def _kept(self, changes: list[Change]) -> Kept:
        try:
            return run(look_after(self._store, changes))
        except Exception as error:
            complain("not looked after", error, bucket=changes[0].key.pk)
            return Kept()

    def _archived(self, changes: Sequence[Change]) -> Counted:
        """Archive the events among changes that expired; those behind a failure come again with it."""
        expired = [event for change in changes if (event := change.expired_event)]
        if not expired or self._archive is None:
            return Counted()
        try:
            self._archive.keep(expired)
        except Exception as error:
            complain("not archived", error, sequence=expired[0].sequence)
            return Counted(failed=expired[0].sequence)
        return Counted(len(expired))


def _understood(records: Sequence[dict[str, Any]]) -> list[Change]:
    """The changes, without the damaged ones."""
    changes: list[Change] = []
    for record in records:
        try:
            changes.append(change_of(record))
        except CorruptRecordError as error:
            complain("damaged", error, sequence=sequence_of(record))
    return changes


def _readable(changes: Sequence[Change]) -> list[Used]:
    """What the changes of one bucket have consumed, without the damaged ones."""
    used: list[Used] = []
    for change in changes:
        try:
            used.append(Used(change, consumed(change)))
        except CorruptRecordError as error:
            complain("damaged", error, bucket=change.key.pk, sequence=change.sequence)
    return used


def _named(records: Sequence[dict[str, Any]], sequence: str) -> list[dict[str, str]]:
    """A place in the stream as Lambda wants it named."""
    names = (str(record["dynamodb"]["SequenceNumber"]) for record in records if sequence_of(record) == sequence)
    return [{"itemIdentifier": next(names)}]
