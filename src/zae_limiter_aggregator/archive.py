"""Archive expired audit events as compressed JSON lines in S3, one folder per day.

An object is named after its first event, so a batch that is delivered again writes the same objects again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from zae_limiter.core.errors import CorruptRecordError
from zae_limiter.records import audit

from .report import print_failure

if TYPE_CHECKING:
    from .stream import ExpiredEvent


def archive_objects(events: Iterable[ExpiredEvent]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each object for these events."""
    days: dict[str, list[ExpiredEvent]] = {}
    for event in events:
        days.setdefault(_day(event), []).append(event)
    for day, expired in days.items():
        year, month, number = day.split("-")
        name = f"audit/year={year}/month={month}/day={number}/{expired[0].sequence}.jsonl.gz"
        text = "".join(map(_line, expired))
        yield name, gzip.compress(text.encode(errors="backslashreplace"), mtime=0)  # half a surrogate pair, as JSON


def _day(event: ExpiredEvent) -> str:
    """Return the day of an event, or of its expiry if an upgrade has moved it here without a time."""
    said = event.image.get("timestamp")
    try:
        return date.fromisoformat(said[:10] if isinstance(said, str) else "").isoformat()
    except ValueError:
        return datetime.fromtimestamp(event.instant_ms // 1000, UTC).date().isoformat()


def _line(event: ExpiredEvent) -> str:
    """Return an event as a JSON line; an incomplete one with the fields that it has, so that no other event is lost.

    The namespace is that of the key, whatever the event says: policies let its tenant write no other.
    """
    try:
        return _write_line(event, _fields(event))
    except (RecursionError, TypeError, ValueError) as error:
        print_failure("damaged", error, event=event.key, sequence=event.sequence)
        return _write_line(event, {"damaged": type(error).__name__, "sort_key": event.key.sk})


def _fields(event: ExpiredEvent) -> dict[str, Any]:
    try:
        return asdict(audit.decode(event.image))
    except CorruptRecordError:
        return event.image


def _write_line(event: ExpiredEvent, fields: dict[str, Any]) -> str:
    namespace_id = event.key.pk.partition("/")[0]
    return json.dumps({**fields, "namespace_id": namespace_id}, ensure_ascii=False, sort_keys=True) + "\n"


class Archive:
    """A bucket of S3."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._client: Any = None

    def keep(self, events: Sequence[ExpiredEvent]) -> None:
        """Store the events. Repeating it changes nothing."""
        if self._client is None:
            from botocore.session import Session

            self._client = Session().create_client("s3")
        for name, content in archive_objects(events):
            self._client.put_object(
                Bucket=self._bucket, Key=name, Body=content, ContentType="application/x-ndjson", ContentEncoding="gzip"
            )
