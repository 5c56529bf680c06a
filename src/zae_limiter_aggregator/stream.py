"""Parse stream records of DynamoDB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from zae_limiter.core.errors import CorruptRecordError
from zae_limiter.records import keys
from zae_limiter.records.algebra import Image, Key
from zae_limiter.records.level import CONFIG_VERSION
from zae_limiter.stores.dynamodb.values import decode, key_of

_DIGITS = 40
"""A sequence number has at most so many: padded, their order as texts is their order as numbers."""

_EXPIRY = "dynamodb.amazonaws.com"
"""Who deletes what has expired."""


class StreamChange(NamedTuple):
    """One change of one record. ``sequence`` grows with each change of the same record."""

    key: Key
    sequence: str
    instant_ms: int
    old: Image | None
    new: Image | None
    by_expiry: bool

    @property
    def is_of_bucket(self) -> bool:
        """Whether a bucket was written. Those of an older layout are counted after an upgrade only."""
        return self.key.sk == keys.STATE and self.new is not None and CONFIG_VERSION in self.new

    @property
    def is_of_alert(self) -> bool:
        """Whether a client has left an alert that belongs into the audit log."""
        return self.key.sk.startswith(keys.ALERT_PREFIX) and self.old is None and self.new is not None

    @property
    def expired_event(self) -> ExpiredEvent | None:
        """The audit event that this change has removed because it expired, or None."""
        if self.old is None or not self.by_expiry or not self.key.sk.startswith(keys.AUDIT_PREFIX):
            return None
        return ExpiredEvent(self.key, self.sequence, self.instant_ms, self.old)


class ExpiredEvent(NamedTuple):
    """An audit event that has been removed from the table, and when."""

    key: Key
    sequence: str
    instant_ms: int
    image: Image


def sequence_of(record: Mapping[str, Any]) -> str:
    """Return the position of a record in the stream, as a text that sorts."""
    return str(record["dynamodb"]["SequenceNumber"]).zfill(_DIGITS)


def parse_change(record: Mapping[str, Any]) -> StreamChange:
    """Return the change that a record describes. Raise `CorruptRecordError` if the old image is missing."""
    body = record["dynamodb"]
    who = record.get("userIdentity") or {}
    if record.get("eventName") == "MODIFY" and "OldImage" not in body:
        raise CorruptRecordError(
            "the stream does not tell what a record was before: its view is not NEW_AND_OLD_IMAGES"
        )
    return StreamChange(
        key=key_of(body["Keys"]),
        sequence=sequence_of(record),
        instant_ms=int(float(body["ApproximateCreationDateTime"]) * 1000),
        old=_image(body.get("OldImage")),
        new=_image(body.get("NewImage")),
        by_expiry=record.get("eventName") == "REMOVE" and who.get("principalId") == _EXPIRY,
    )


def group_by_record(changes: Iterable[StreamChange]) -> dict[Key, list[StreamChange]]:
    """Return the changes by record, each in the order in which they happened."""
    found: dict[Key, list[StreamChange]] = {}
    for change in changes:
        found.setdefault(change.key, []).append(change)
    for group in found.values():
        group.sort(key=lambda change: change.sequence)
    return found


def _image(item: Mapping[str, Any] | None) -> Image | None:
    return decode(item) if item else None
