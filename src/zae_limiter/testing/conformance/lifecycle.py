"""A store as such: what it declares, its clock, its end."""

from __future__ import annotations

from ...core.values import BackendCapabilities
from ...records.algebra import Query, Write
from ..harness import Harness
from .check import check, same, true
from .room import commit, keys, put, read, store_and_keys


@check
async def capabilities(harness: Harness) -> None:
    """It declares what it can do, the same each time."""
    declared = harness.store().capabilities
    true(isinstance(declared, BackendCapabilities), "capabilities are BackendCapabilities")
    true(declared.name, "it has a name")
    same(declared, harness.store().capabilities, "every client of it declares the same")


@check
async def clock(harness: Harness) -> None:
    """Its clients decide by the clock it was opened with, so that tests need not sleep."""
    store = harness.store()
    for _ in range(2):
        same(store.clock.now_ms(), harness.clock.now_ms(), "it tells the time it was given")
        harness.clock.advance_ms(1)


@check
async def timeouts(harness: Harness) -> None:
    """Every verb takes a timeout, and answers as without one when there is time enough."""
    store, (key,) = store_and_keys(harness, 1)
    outcome = await store.commit([Write(key, (), {"n": 1})], timeout=10.0)
    same(tuple(outcome.images), ({"n": 1},), "committed in time")
    same(await store.read([key], timeout=10.0), [{"n": 1}], "read in time")
    same((await store.query(Query(key.pk), timeout=10.0)).items, ((key, {"n": 1}),), "queried in time")
    await commit(store, Write(key, delete=True))


@check
async def close_twice(harness: Harness) -> None:
    """Closing twice is fine, and so is closing what was never used; the data stay."""
    store, other, unused = harness.store(), harness.store(), harness.store()
    (key,) = keys(1)
    await put(store, key, n=1)
    for _ in range(2):
        await store.close()
        await unused.close()
    same(await read(other, key), {"n": 1}, "what was written is there for others")
