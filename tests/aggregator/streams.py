"""A table with a change stream, in memory: every commit leaves the record that DynamoDB would."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from zae_limiter import RateLimiterUnavailable
from zae_limiter.records.algebra import Committed
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.values import encode_item, encode_key
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, ManualClock
from zae_limiter_aggregator.batch import Aggregator
from zae_limiter_aggregator.settings import AggregatorSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter import BackendCapabilities
    from zae_limiter.records.algebra import Conflict, Image, Key, Write
    from zae_limiter_aggregator.archive import Archive

Record = dict[str, Any]
WINDOWS = ("hourly", "daily", "monthly")


class StreamedStore(FaultyStore):
    """Keeps what has expired until it is deleted, as DynamoDB does, and records each change."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryStore(clock))
        self.now = clock
        self.records: list[Record] = []
        self.kept: dict[Key, Image] = {}
        self._numbers = itertools.count(1)

    @property
    def capabilities(self) -> BackendCapabilities:
        own = super().capabilities
        kind = dataclasses.replace(own, name="streamed", change_stream=True, usage_retention_days=0)
        return dataclasses.replace(kind, free_atomic_commit=False, partition_writes=1000)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        try:
            outcome = await super().commit(writes, timeout=timeout)
        except RateLimiterUnavailable:  # it may have taken effect
            wanted = [write.key for write in writes]
            for key, image in zip(wanted, await self.inner.read(wanted), strict=True):
                self._follow(key, image)
            raise
        if isinstance(outcome, Committed):
            for write, image in zip(writes, outcome.images, strict=True):
                self._follow(write.key, image)
        return outcome

    def _follow(self, key: Key, new: Image | None) -> None:
        old = self.kept.pop(key, None)
        if new is not None:
            self.kept[key] = new
        if old != new:
            self.records.append(stream_record(next(self._numbers), key, old, new, self.now.now_ms()))

    def expire(self, key: Key) -> None:
        """Delete a record as DynamoDB's own expiry does."""
        old = self.kept.pop(key)
        record = stream_record(next(self._numbers), key, old, None, self.now.now_ms())
        self.records.append(record | {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}})


def stream_record(number: int, key: Key, old: Image | None, new: Image | None, now_ms: int) -> Record:
    """A change as a Lambda function is handed it; sequence numbers differ in length, as they may."""
    body: Record = {
        "ApproximateCreationDateTime": now_ms // 1000,
        "Keys": encode_key(key),
        "SequenceNumber": str(number * 10**21),
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    if old is not None:
        body["OldImage"] = encode_item(key, old)
    if new is not None:
        body["NewImage"] = encode_item(key, new)
    name = "INSERT" if old is None else "MODIFY" if new is not None else "REMOVE"
    return {"eventID": str(number), "eventName": name, "eventSource": "aws:dynamodb", "dynamodb": body}


def aggregator(store: StreamedStore, archive: Archive | None = None, windows: tuple[str, ...] = WINDOWS) -> Aggregator:
    """An aggregator over the table, as the deployed function has it."""
    return Aggregator(store, AggregatorSettings("table", windows), archive)


def snapshots(store: StreamedStore) -> dict[Key, Image]:
    """Every usage record of the table."""
    wanted = [key for key in store.kept if key.sk.startswith("#USAGE#")]
    images = run(store.inner.read(wanted))
    return {key: image for key, image in zip(wanted, images, strict=True) if image is not None}


def place(records: Sequence[Record], answer: dict[str, list[dict[str, str]]]) -> int:
    """From where on a batch has to be delivered again; its length where nothing has."""
    failed = {each["itemIdentifier"] for each in answer["batchItemFailures"]}
    places = [n for n, record in enumerate(records) if record["dynamodb"]["SequenceNumber"] in failed]
    assert len(places) == len(failed), "an answer names records of the batch"
    return min(places, default=len(records))
