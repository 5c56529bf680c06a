"""Room for a check: keys and namespaces of its own, so that all checks can share one store."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from ...records.algebra import Committed, Conflict, Image, Key, Query, Write
from ...runtime.blocking import run
from ...stores.port import Store
from ..harness import Harness
from .check import same, true

T = TypeVar("T")


def partition() -> str:
    """Return an unused partition."""
    return f"conformance-{secrets.token_hex(8)}/P"


def keys(count: int) -> list[Key]:
    """Return keys of an unused partition."""
    pk = partition()
    return [Key(pk, f"#{number:03d}") for number in range(count)]


def store_and_keys(harness: Harness, count: int) -> tuple[Store, list[Key]]:
    """Open a client of the store, with unused keys."""
    return harness.store(), keys(count)


async def read(store: Store, key: Key) -> Image | None:
    """Return the current image of one record."""
    return (await store.read([key]))[0]


async def commit(store: Store, *writes: Write) -> tuple[Image | None, ...]:
    """Commit what must take effect; the images are what a read then gives, in the order of the writes."""
    outcome = await store.commit(writes)
    true(isinstance(outcome, Committed), f"the guards hold, so the commit takes effect: {writes}")
    images = tuple(outcome.images)
    found = await store.read([write.key for write in writes])
    same(list(images), found, "a commit answers with the new images, in the order of its writes")
    return images  # type: ignore[return-value]  # a Committed holds images or None


async def put(store: Store, key: Key, **attributes: Any) -> None:
    """Store a record, whatever was there."""
    await commit(store, Write(key, (), attributes))


async def refuse(store: Store, *writes: Write) -> Conflict:
    """Commit what must lose: nothing changes, and the answer carries the current images."""
    wanted = [write.key for write in writes]
    before = deepcopy(await store.read(wanted))
    outcome = await store.commit(writes)
    if not isinstance(outcome, Conflict):
        raise AssertionError(f"a guard does not hold, so nothing may take effect: {writes}")
    same(await store.read(wanted), before, "a commit that lost changes nothing")
    current = dict(zip(wanted, before, strict=True))
    true(outcome.images.keys() <= current.keys(), "a conflict tells of the keys that were asked for")
    for key, image in outcome.images.items():
        same(image, current[key], "a conflict carries the current image")
    if len(writes) == 1:
        true(wanted[0] in outcome.images, "the conflict of a single write carries its image")
    return outcome


async def walk(store: Store, query: Query) -> list[tuple[Key, Image]]:
    """Return all records of a range, page by page to the end."""
    found: list[tuple[Key, Image]] = []
    for _ in range(1_000):
        page = await store.query(query)
        true(len(page.items) <= query.limit, "a page holds at most as many records as were asked for")
        found += page.items
        if page.cursor is None:
            return found
        query = query._replace(after=page.cursor)
    raise AssertionError("the cursors of a range lead to its end")


async def walk_sort_keys(store: Store, query: Query) -> list[str]:
    """Return the sort keys of a range (of the table or of the index), page by page to the end."""
    attribute = None if query.gsi is None else f"{query.gsi}SK"
    return [key.sk if attribute is None else image[attribute] for key, image in await walk(store, query)]


async def at_once(harness: Harness, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Do several things at the same time, from tasks or from threads; the results in any order."""
    if not harness.blocking:
        import asyncio

        return list(await asyncio.gather(*(work() for work in works)))
    results: list[T] = []
    failures: list[Exception] = []
    together = threading.Barrier(len(works))

    def alone(work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        together.wait()
        try:
            results.append(run(work()))
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=alone, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results
