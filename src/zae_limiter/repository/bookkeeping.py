"""Book the usage that buckets still hold into the usage records."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..core.errors import CorruptRecordError
from ..records import ledger
from ..records.algebra import Committed, Query, Write
from ..records.bucket import inspect
from ..records.keys import buckets_of_entity, buckets_of_resource
from ..runtime.retries import tries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.algebra import Image, Key
    from ..runtime.deadline import Deadline
    from .backend import Backend

_PAGE = 500
_AT_ONCE = 20
_TRIES = 100


async def book_usage(
    backend: Backend, ns: str, entity_id: str | None, resource: str | None, deadline: Deadline
) -> None:
    """Book all open usage of an entity, or of all entities of a resource, into the usage records.

    Does nothing if a stream counts usage. Each bucket with open usage is one commit.
    """
    if not backend.store.capabilities.usage_retention_days:
        return
    query = _bucket_query(ns, entity_id, resource)._replace(limit=_PAGE)
    while True:
        page = await backend.query(query, deadline)
        opened = [row for row in page.items if ledger.is_open(inspect(*row))]
        for start in range(0, len(opened), _AT_ONCE):
            works = [book(backend, key, image, deadline) for key, image in opened[start : start + _AT_ONCE]]
            for result in await backend.runtime.run_together(works):
                if isinstance(result, BaseException):
                    raise result
        if page.cursor is None:
            return
        query = query._replace(after=page.cursor)


def _bucket_query(ns: str, entity_id: str | None, resource: str | None) -> Query:
    if entity_id is not None:
        return buckets_of_entity(ns, entity_id, resource)
    assert resource is not None  # one of the two is given
    return buckets_of_resource(ns, resource)


async def book(backend: Backend, key: Key, image: Image | None, deadline: Deadline) -> None:
    """Book the open usage of one bucket, last seen as ``image``.

    Raise `RateLimiterUnavailable` after too many lost races.
    """
    for _ in tries(key.pk, _TRIES):
        if image is None or not ledger.is_open(inspect(key, image)):
            return
        write, accruals = ledger.book_seen(key, image, backend.store.capabilities.usage_retention_days)
        outcome = await backend.store.commit([write, *accruals], timeout=deadline.left())
        if isinstance(outcome, Committed):
            return
        image = outcome.images[key]


async def book_readable(backend: Backend, keys: Sequence[Key], deadline: Deadline) -> None:
    """Book the open usage of several buckets, skipping damaged ones."""
    for key in keys:
        with contextlib.suppress(CorruptRecordError):
            await book(backend, key, await _read_bucket(backend, key, deadline), deadline)


async def plan_forgetting(backend: Backend, key: Key, deadline: Deadline) -> list[Write]:
    """Return the writes that delete a bucket as it is now and book its usage; a damaged one is only deleted."""
    try:
        image = await _read_bucket(backend, key, deadline)
    except CorruptRecordError:
        return [Write(key, delete=True)]
    if image is None:
        return []
    booked, accruals = ledger.book(key, image, backend.store.capabilities.usage_retention_days)
    return [Write(key, booked.guards, delete=True), *accruals]


async def _read_bucket(backend: Backend, key: Key, deadline: Deadline) -> Image | None:
    (image,) = await backend.read([key], deadline)
    return None if image is None else inspect(key, image)
