"""The archive: audit events at the end of their time, as compressed lines of JSON in S3, a folder per day.

An object is named after the first event in it, so a batch that is delivered again writes the same objects again.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from zae_limiter.records import audit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .stream import Expired


def objects(events: Iterable[Expired]) -> Iterator[tuple[str, bytes]]:
    """The objects that hold the expired events, by name."""
    days: dict[str, list[Expired]] = {}
    for event in events:
        days.setdefault(_day(event), []).append(event)
    for day, expired in days.items():
        year, month, number = day.split("-")
        name = f"audit/year={year}/month={month}/day={number}/{expired[0].sequence}.jsonl.gz"
        yield name, gzip.compress("".join(map(_line, expired)).encode(), mtime=0)


def _day(event: Expired) -> str:
    """The day of an event; of its expiry, where an upgrade has brought it here without a time."""
    try:
        return date.fromisoformat(str(event.image.get("timestamp"))[:10]).isoformat()
    except ValueError:
        return datetime.fromtimestamp(event.instant_ms // 1000, UTC).date().isoformat()


def _line(event: Expired) -> str:
    """An event as a line; one that lacks something with what it has: its neighbours must not be lost for it."""
    namespace_id = event.key.pk.partition("/")[0]
    try:
        fields = asdict(audit.decode(event.image))
    except KeyError:
        fields = event.image
    return json.dumps({"namespace_id": namespace_id, **fields}, ensure_ascii=False, sort_keys=True) + "\n"


class Archive:
    """A bucket of S3."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._client: Any = None

    def keep(self, events: Sequence[Expired]) -> None:
        """Store the expired events; doing it again changes nothing."""
        if self._client is None:
            from botocore.session import Session

            self._client = Session().create_client("s3")
        for name, content in objects(events):
            self._client.put_object(
                Bucket=self._bucket, Key=name, Body=content, ContentType="application/x-ndjson", ContentEncoding="gzip"
            )
