"""Bookkeeping: usage that buckets still hold, taken into the usage records for whoever wants to read it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..core.errors import CorruptRecordError, RateLimiterUnavailable
from ..records import ledger
from ..records.algebra import Committed, Query, Write
from ..records.bucket import inspect
from ..records.listing import buckets_of_entity, buckets_of_resource

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
    """Bring the usage records of an entity, or of all entities of a resource, up to this moment.

    Where a stream keeps usage, that is its business. Each bucket is a commit of its own; one with nothing new is none.
    """
    if not backend.store.capabilities.usage_retention_days:
        return
    query = _buckets(ns, entity_id, resource)._replace(limit=_PAGE)
    while True:
        page = await backend.query(query, deadline)
        opened = [row for row in page.items if ledger.is_open(inspect(*row))]
        for start in range(0, len(opened), _AT_ONCE):
            works = [book(backend, key, image, deadline) for key, image in opened[start : start + _AT_ONCE]]
            for result in await backend.runtime.together(works):
                if isinstance(result, BaseException):
                    raise result
        if page.cursor is None:
            return
        query = query._replace(after=page.cursor)


def _buckets(ns: str, entity_id: str | None, resource: str | None) -> Query:
    if entity_id is not None:
        return buckets_of_entity(ns, entity_id, resource)
    assert resource is not None  # one of the two is given
    return buckets_of_resource(ns, resource)


async def book(backend: Backend, key: Key, image: Image | None, deadline: Deadline) -> None:
    """Take what is open in one bucket, last seen as ``image``, into the usage records."""
    for _ in range(_TRIES):
        if image is None or not ledger.is_open(inspect(key, image)):
            return
        write, accruals = ledger.gather(key, image, backend.store.capabilities.usage_retention_days)
        outcome = await backend.store.commit([write, *accruals], timeout=deadline.left())
        if isinstance(outcome, Committed):
            return
        image = outcome.images[key]
    raise RateLimiterUnavailable(f"{key.pk} is being changed by others all the time; try again later.")


async def book_readable(backend: Backend, keys: Sequence[Key], deadline: Deadline) -> None:
    """The same of several; what a damaged one has used cannot be known."""
    for key in keys:
        with contextlib.suppress(CorruptRecordError):
            await book(backend, key, await _seen(backend, key, deadline), deadline)


async def forgetting(backend: Backend, key: Key, deadline: Deadline) -> list[Write]:
    """Delete a bucket as it is now and put on record what it has used; a damaged one just goes."""
    try:
        image = await _seen(backend, key, deadline)
    except CorruptRecordError:
        return [Write(key, delete=True)]
    if image is None:
        return []
    guards, _, accruals = ledger.book(key, image, backend.store.capabilities.usage_retention_days)
    return [Write(key, guards, delete=True), *accruals]


async def _seen(backend: Backend, key: Key, deadline: Deadline) -> Image | None:
    (image,) = await backend.read([key], deadline)
    return None if image is None else inspect(key, image)
