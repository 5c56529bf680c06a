"""Expiry: a record past its time is absent for everybody, whenever the store gets round to deleting it."""

from __future__ import annotations

from ...records.algebra import ABSENT, NEVER, PRESENT, TTL, Guard, Key, Query, Write
from ...stores.port import Store
from ..harness import Harness
from .check import check, same
from .room import commit, keys, put, read, refuse, store_and_keys, walk


async def _expiring(harness: Harness, store: Store, key: Key, **attributes: object) -> None:
    """Store a record that lives for ten seconds."""
    await commit(store, Write(key, (), attributes, expires_at_ms=harness.clock.now_ms() + 10_000))


@check
async def absent_for_reads(harness: Harness) -> None:
    """It is there until its time has come, and gone from the next whole second on."""
    store, other = harness.store(), harness.store()
    (key,) = keys(1)
    start = harness.clock.now_ms()
    expires_ms = start + 10_250
    seconds = -(-expires_ms // 1000)
    await commit(store, Write(key, (), {"n": 1}, expires_at_ms=expires_ms))
    for instant, there in ((expires_ms - 1, True), (seconds * 1000 - 1, True), (seconds * 1000, False)):
        if instant >= start:
            harness.clock.set_ms(max(instant, start))
            expected = {"n": 1, TTL: seconds} if there else None
            same(await store.read([key]), [expected], f"{instant - start} ms after it was written")
            same(await read(other, key), expected, "for another client too")


@check
async def absent_for_guards(harness: Harness) -> None:
    """No guard but ``absent`` holds for it, and a conflict shows no image of it."""
    store, (key,) = store_and_keys(harness, 1)
    await _expiring(harness, store, key, n=5)
    harness.clock.advance(11)
    for guard in (PRESENT, Guard("n", "=", 5), Guard("n", ">=", 0), Guard("n", "between", (0, 9))):
        conflict = await refuse(store, Write(key, (guard,), add={"n": 1}))
        same(conflict.images, {key: None}, "an expired record has no image")
    await commit(store, Write(key, (ABSENT,), {"m": 1}))


@check
async def absent_in_ranges(harness: Harness) -> None:
    """No range of the table or of an index shows it."""
    store, (kept, gone) = store_and_keys(harness, 2)
    for key in (kept, gone):
        await put(store, key, n=1, GSI2PK=key.pk, GSI2SK=key.sk)
    await commit(store, Write(gone, expires_at_ms=harness.clock.now_ms() + 10_000))
    for query in (Query(kept.pk), Query(kept.pk, gsi="GSI2"), Query(kept.pk, gsi="GSI2", limit=1, descending=True)):
        same(len(await walk(store, query)), 2, "both are there")
    harness.clock.advance(11)
    for query in (Query(kept.pk), Query(kept.pk, gsi="GSI2"), Query(kept.pk, gsi="GSI2", limit=1, descending=True)):
        same([key for key, _ in await walk(store, query)], [kept], "the expired one is not")


@check
async def a_new_life(harness: Harness) -> None:
    """What is created in its place has nothing of it: no attribute, no number, no expiry, no index entry."""
    store, (guarded, added, replaced) = store_and_keys(harness, 3)
    for key in (guarded, added, replaced):
        await _expiring(harness, store, key, n=5, old=1, GSI1PK=key.pk, GSI1SK=key.sk)
    harness.clock.advance(11)
    same(await commit(store, Write(guarded, (ABSENT,), {"m": 1})), ({"m": 1},), "created anew")
    same(await commit(store, Write(added, add={"n": 1})), ({"n": 1},), "the add counts from 0")
    same(await commit(store, Write(replaced, (), {"x": 1}, remove=("y",))), ({"x": 1},), "nothing of old comes back")
    same(await walk(store, Query(guarded.pk, gsi="GSI1")), [], "the old index entries are gone")
    harness.clock.advance(3_600)
    same(await read(store, guarded), {"m": 1}, "the old expiry does not hit the new record")


@check
async def deleted_when_expired(harness: Harness) -> None:
    """Deleting one that has expired is deleting nothing."""
    store, (key,) = store_and_keys(harness, 1)
    await _expiring(harness, store, key, n=5)
    harness.clock.advance(11)
    await refuse(store, Write(key, (PRESENT,), delete=True))
    same(await commit(store, Write(key, delete=True)), (None,), "deleting nothing is fine")
    same(await commit(store, Write(key)), (None,), "checking nothing is fine")


@check
async def kept_by_default(harness: Harness) -> None:
    """A write that says nothing about the expiry keeps it."""
    store, (key,) = store_and_keys(harness, 1)
    await _expiring(harness, store, key, n=5)
    harness.clock.advance(5)
    await commit(store, Write(key, (), {"m": 1}, {"n": 1}, ("o",)))
    harness.clock.advance(6)
    same(await read(store, key), None, "it expires as planned")


@check
async def never(harness: Harness) -> None:
    """`NEVER` takes the expiry away; without one it is no mistake."""
    store, (key,) = store_and_keys(harness, 1)
    await _expiring(harness, store, key, n=5)
    same(await commit(store, Write(key, expires_at_ms=NEVER)), ({"n": 5},), "the expiry is gone from the image")
    same(await commit(store, Write(key, expires_at_ms=NEVER)), ({"n": 5},), "there is none to take away")
    harness.clock.advance(400 * 86_400)
    same(await read(store, key), {"n": 5}, "it lives for ever")


@check
async def put_off(harness: Harness) -> None:
    """The expiry can be put off, but not brought nearer: a writer cannot know why it is so far away."""
    store, (later, sooner) = store_and_keys(harness, 2)
    await _expiring(harness, store, later, n=1)
    await _expiring(harness, store, sooner, n=1)
    now_ms = harness.clock.now_ms()
    await commit(store, Write(later, expires_at_ms=now_ms + 60_000), Write(sooner, expires_at_ms=now_ms + 3_000))
    harness.clock.advance(5)
    same(await read(store, sooner), {"n": 1, TTL: -(-(now_ms + 10_000) // 1000)}, "not brought nearer")
    harness.clock.advance(40)
    same(await read(store, later), {"n": 1, TTL: -(-(now_ms + 60_000) // 1000)}, "put off")
    same(await read(store, sooner), None, "gone when it was to go")
    harness.clock.advance(60)
    same(await read(store, later), None, "put off, but not for ever")
    await commit(store, Write(later, (ABSENT,), {"n": 2}, expires_at_ms=harness.clock.now_ms() + 3_000))
    harness.clock.advance(5)
    same(await read(store, later), None, "a new life has an expiry of its own")


@check
async def in_one_commit(harness: Harness) -> None:
    """An expired record counts as absent beside live ones in one commit too."""
    store, (live, gone) = store_and_keys(harness, 2)
    await put(store, live, n=1)
    await _expiring(harness, store, gone, n=1)
    harness.clock.advance(11)
    conflict = await refuse(store, Write(live, (PRESENT,), add={"n": 1}), Write(gone, (PRESENT,), add={"n": 1}))
    same(conflict.images.get(gone, live), None, "the conflict shows that it is gone")
    images = await commit(store, Write(live, (PRESENT,), add={"n": 1}), Write(gone, (ABSENT,), {"m": 1}))
    same(images, ({"n": 2}, {"m": 1}), "one goes on, the other begins")
