"""The archive: audit events at the end of their time, as compressed lines of JSON in S3, a folder per day.

An object is named after the first event in it, so a batch that is delivered again writes the same objects again.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zae_limiter.records import audit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .stream import Change


def objects(changes: Iterable[Change]) -> Iterator[tuple[str, bytes]]:
    """The objects that hold the expired events, by name."""
    days: dict[str, list[Change]] = {}
    for change in changes:
        assert change.old is not None  # it is what has expired
        days.setdefault(str(change.old["timestamp"])[:10], []).append(change)
    for day, expired in days.items():
        year, month, date = day.split("-")
        name = f"audit/year={year}/month={month}/day={date}/{expired[0].sequence}.jsonl.gz"
        yield name, gzip.compress("".join(map(_line, expired)).encode(), mtime=0)


def _line(change: Change) -> str:
    assert change.old is not None  # it is what has expired
    namespace_id = change.key.pk.partition("/")[0]
    event = asdict(audit.decode(change.old))
    return json.dumps({"namespace_id": namespace_id, **event}, ensure_ascii=False, sort_keys=True) + "\n"


class Archive:
    """A bucket of S3."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._client: Any = None

    def keep(self, changes: Sequence[Change]) -> None:
        """Store the expired events; doing it again changes nothing."""
        if self._client is None:
            from botocore.session import Session

            self._client = Session().create_client("s3")
        for name, content in objects(changes):
            self._client.put_object(
                Bucket=self._bucket, Key=name, Body=content, ContentType="application/x-ndjson", ContentEncoding="gzip"
            )
