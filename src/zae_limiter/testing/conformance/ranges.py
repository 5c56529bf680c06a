"""Ranges: the table by its keys and four indexes by their attributes, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from ...records.algebra import Key, Page, Query, Write
from ...stores.port import Store
from ..harness import Harness
from .check import check, same, true
from .room import commit, keys, partition, put, store_and_keys, walk, walk_sort_keys

INDEXES = ("GSI1", "GSI2", "GSI3", "GSI4")

SORTS = ("A#1", "A#1#x", "A#10", "A#2", "B#1", "B#2", "a#1", "é#1", "\uffee#1", "😀#1")
"""In the order of code points, which is that of UTF-8 bytes."""


def _index(name: str, pk: str, sk: str) -> dict[str, str]:
    return {f"{name}PK": pk, f"{name}SK": sk}


async def _fill(store: Store, pk: str, sorts: Sequence[str], index: str | None = None) -> None:
    """Records with these sort keys, in the table or in an index, written in another order."""
    for number, sort in sorted(enumerate(sorts), key=lambda each: each[0] * 7 % 11):
        if index is None:
            await put(store, Key(pk, sort), n=number)
        else:
            await put(store, Key(f"{pk}/{number}", "#META"), n=number, **_index(index, pk, sort))


async def _each(harness: Harness) -> list[tuple[Store, Query]]:
    """Store the same records for the table and for every index; return a query for all of them on each."""
    store = harness.store()
    found = []
    for index in (None, *INDEXES):
        pk = partition()
        await _fill(store, pk, SORTS, index)
        found.append((store, Query(pk, gsi=index)))
    return found


@check
async def in_order(harness: Harness) -> None:
    """A range comes in the order of its sort keys, or in the opposite one, with whole records and their keys."""
    for store, query in await _each(harness):
        same(await walk_sort_keys(store, query), list(SORTS), f"in the order of code points ({query.gsi})")
        same(
            await walk_sort_keys(store, query._replace(descending=True)), list(SORTS[::-1]), f"descending ({query.gsi})"
        )
        for key, image in await walk(store, query):
            same(await store.read([key]), [image], f"a range shows the record of its key ({query.gsi})")


@check
async def by_prefix(harness: Harness) -> None:
    """A prefix is matched to the letter and at the start only."""
    for store, query in await _each(harness):
        for prefix, wanted in (("A#1", SORTS[:3]), ("A#", SORTS[:4]), ("a", SORTS[6:7]), ("😀", SORTS[9:]), ("#", ())):
            same(
                await walk_sort_keys(store, query._replace(prefix=prefix)),
                list(wanted),
                f"prefix {prefix!r} ({query.gsi})",
            )
            backwards = await walk_sort_keys(store, query._replace(prefix=prefix, descending=True, limit=2))
            same(backwards, list(wanted[::-1]), f"prefix {prefix!r} descending ({query.gsi})")


@check
async def prefix_is_no_pattern(harness: Harness) -> None:
    """A prefix with wildcards of any language means just these letters."""
    store = harness.store()
    for index in (None, "GSI1"):
        pk = partition()
        sorts = ("%#1", "*#1", "?#1", "[a]#1", "\\%#1", "_#1", "a#1")
        await _fill(store, pk, sorts, index)
        for sort in sorts:
            same(await walk_sort_keys(store, Query(pk, sort[:-2], index)), [sort], f"prefix {sort[:-2]!r} ({index})")


@check
async def by_bounds(harness: Harness) -> None:
    """``start`` and ``end`` are included, and narrow a prefix."""
    for store, query in await _each(harness):
        for start, end, wanted in (
            ("A#10", None, SORTS[2:]),
            (None, "A#10", SORTS[:3]),
            ("A#10", "B#1", SORTS[2:5]),
            ("A#11", "B", SORTS[3:4]),
            ("B#1", "A#1", ()),
            ("😀", None, SORTS[9:]),
        ):
            bounded = query._replace(start=start, end=end)
            same(await walk_sort_keys(store, bounded), list(wanted), f"from {start!r} to {end!r} ({query.gsi})")
            backwards = await walk_sort_keys(store, bounded._replace(descending=True, limit=2))
            same(backwards, list(wanted[::-1]), f"from {end!r} down to {start!r} ({query.gsi})")
        narrowed = await walk_sort_keys(store, query._replace(prefix="A#", start="A#10", end="B#1"))
        same(narrowed, ["A#10", "A#2"], f"prefix and bounds together ({query.gsi})")


@check
async def page_by_page(harness: Harness) -> None:
    """Cursors lead through a range without gaps or repeats, in pages of any size and in both directions."""
    for store, query in await _each(harness):
        for size in (1, 2, 3, 5, 10, 11):
            paged = query._replace(limit=size)
            same(await walk_sort_keys(store, paged), list(SORTS), f"in pages of {size} ({query.gsi})")
            backwards = await walk_sort_keys(store, paged._replace(descending=True))
            same(backwards, list(SORTS[::-1]), f"descending in pages of {size} ({query.gsi})")


@check
async def equal_sort_keys(harness: Harness) -> None:
    """Records that share their index keys are paged through like all others: each once."""
    store = harness.store()
    for index in INDEXES:
        pk = partition()
        wanted = [Key(f"{pk}/{place}", sk) for place in range(3) for sk in ("#A", "#B")]
        for key in wanted:
            await put(store, key, **_index(index, pk, "same"))
        await put(store, Key(f"{pk}/9", "#A"), **_index(index, pk, "zlast"))
        for size in (1, 2, 4):
            for descending in (False, True):
                found = await walk(store, Query(pk, "same", index, size, descending=descending))
                same(sorted(key for key, _ in found), wanted, f"each once, in pages of {size} ({index})")
        same(
            (await walk_sort_keys(store, Query(pk, gsi=index, limit=2)))[-1],
            "zlast",
            f"and the rest after them ({index})",
        )


@check
async def cursor_for_anybody(harness: Harness) -> None:
    """A cursor is plain text that another client can go on with."""
    other = harness.store()
    for one, query in await _each(harness):
        page = await one.query(query._replace(limit=4))
        true(isinstance(page.cursor, str), "there are more, so there is a cursor")
        rest = await walk_sort_keys(other, query._replace(limit=4, after=page.cursor))
        same(rest, list(SORTS[len(page.items) :]), f"another client goes on ({query.gsi})")


@check
async def cursor_of_the_deleted(harness: Harness) -> None:
    """A cursor goes on from its place when the record it stood at is gone, or others came before it."""
    for store, query in await _each(harness):
        page = await store.query(query._replace(limit=3))
        seen = [key for key, _ in page.items]
        await commit(store, *(Write(key, delete=True) for key in seen))
        newcomer = Key(query.pk, "A#0") if query.gsi is None else Key(f"{query.pk}/new", "#META")
        await put(store, newcomer, **({} if query.gsi is None else _index(query.gsi, query.pk, "A#0")))
        rest = await walk_sort_keys(store, query._replace(limit=3, after=page.cursor))
        same(rest, list(SORTS[len(seen) :]), f"what comes after the cursor ({query.gsi})")


@check
async def partitions_are_apart(harness: Harness) -> None:
    """A range holds the records of its partition only; one that holds none is empty."""
    store = harness.store()
    pk = partition()
    for near in (pk, pk + "#", pk + "2", pk.upper(), pk[:-1]):
        await put(store, Key(near, "x"), **_index("GSI1", near, "y"))
    for query in (Query(pk), Query(pk, gsi="GSI1")):
        same([key.pk for key, _ in await walk(store, query)], [pk], "its own record only")
    for query in (Query(pk, gsi="GSI2"), Query(pk + "?"), Query(pk + "?", gsi="GSI1", descending=True)):
        same(await store.query(query), Page((), None), "nothing there, and no cursor")


@check
async def indexes_are_apart(harness: Harness) -> None:
    """A record is in the indexes whose attributes it has, in each by its own keys."""
    store, (key,) = store_and_keys(harness, 1)
    pks = {index: partition() for index in INDEXES}
    every = {name: value for index in INDEXES for name, value in _index(index, pks[index], f"in {index}").items()}
    await put(store, key, **every)
    for index in INDEXES:
        same(await walk_sort_keys(store, Query(pks[index], gsi=index)), [f"in {index}"], f"it is in {index}")
        for other in INDEXES:
            if other != index:
                same(await walk(store, Query(pks[index], gsi=other)), [], f"{other} does not know keys of {index}")


@check
async def moving(harness: Harness) -> None:
    """A record whose index attributes change moves: it leaves the old place and is found at the new one."""
    store = harness.store()
    for index in INDEXES:
        (key,) = keys(1)
        one, other = partition(), partition()
        await put(store, key, n=1, **_index(index, one, "a"))
        await commit(store, Write(key, (), _index(index, one, "b"), {"n": 1}))
        same(await walk_sort_keys(store, Query(one, gsi=index)), ["b"], f"another sort key ({index})")
        await commit(store, Write(key, (), _index(index, other, "b")))
        same(await walk(store, Query(one, gsi=index)), [], f"it has left the old partition ({index})")
        image = {"n": 2, **_index(index, other, "b")}
        same(await walk(store, Query(other, gsi=index)), [(key, image)], f"it is in the new one ({index})")


@check
async def leaving(harness: Harness) -> None:
    """A record leaves an index when its attributes are removed, or it is deleted; it can come back."""
    store = harness.store()
    for index in INDEXES:
        (key,) = keys(1)
        query = Query(partition(), gsi=index)
        entry = _index(index, query.pk, "a")
        for leave in (Write(key, remove=tuple(entry)), Write(key, delete=True)):
            await put(store, key, n=1, **entry)
            same([found for found, _ in await walk(store, query)], [key], f"it is in the index ({index})")
            await commit(store, leave)
            same(await walk(store, query), [], f"it has left the index ({index})")


@check
async def up_to_date(harness: Harness) -> None:
    """A range shows the newest images, also of attributes that are in no index."""
    store, (key,) = store_and_keys(harness, 1)
    entry = _index("GSI3", key.pk, "a")
    await put(store, key, n=0, **entry)
    for number in range(1, 4):
        await commit(store, Write(key, add={"n": 1}, expires_at_ms=store.clock.now_ms() + 60_000))
        for query in (Query(key.pk), Query(key.pk, gsi="GSI3")):
            same([image["n"] for _, image in await walk(store, query)], [number], f"after {number} adds ({query.gsi})")
