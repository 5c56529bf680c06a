"""Archive expired audit events as compressed JSON lines in S3, one folder per day.

An object is named after its first event, so a batch that is delivered again writes the same objects again.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from zae_limiter.core.errors import CorruptRecordError
from zae_limiter.records import audit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .stream import ExpiredEvent


def archive_objects(events: Iterable[ExpiredEvent]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each object for these events."""
    days: dict[str, list[ExpiredEvent]] = {}
    for event in events:
        days.setdefault(_day(event), []).append(event)
    for day, expired in days.items():
        year, month, number = day.split("-")
        name = f"audit/year={year}/month={month}/day={number}/{expired[0].sequence}.jsonl.gz"
        yield name, gzip.compress("".join(map(_line, expired)).encode(), mtime=0)


def _day(event: ExpiredEvent) -> str:
    """Return the day of an event, or of its expiry if an upgrade has moved it here without a time."""
    try:
        return date.fromisoformat(str(event.image.get("timestamp"))[:10]).isoformat()
    except ValueError:
        return datetime.fromtimestamp(event.instant_ms // 1000, UTC).date().isoformat()


def _line(event: ExpiredEvent) -> str:
    """Return an event as a JSON line; an incomplete one with the fields that it has, so that no other event is lost."""
    namespace_id = event.key.pk.partition("/")[0]
    try:
        fields = asdict(audit.decode(event.image))
    except CorruptRecordError:
        fields = event.image
    return json.dumps({"namespace_id": namespace_id, **fields}, ensure_ascii=False, sort_keys=True) + "\n"


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
