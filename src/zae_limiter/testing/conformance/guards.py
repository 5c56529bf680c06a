"""Guards: every condition a write can make, at its edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...records.algebra import ABSENT, MISSING_OR_AT_MOST, PRESENT, Guard, Write
from ..harness import Harness
from .check import check, same
from .room import commit, keys, put, read, refuse, store_and_keys

_COMPARISONS = (("=", 5), ("<", 9), ("<=", 9), (">", 1), (">=", 1), ("between", (1, 9)))


async def _edges(harness: Harness, op: str, cases: Iterable[tuple[Any, Any, bool]]) -> None:
    """``(stored, value, whether it holds)``."""
    store = harness.store()
    for stored, value, holds in cases:
        (key,) = keys(1)
        await put(store, key, n=stored)
        write = Write(key, (Guard("n", op, value),), {"won": True})
        await (commit if holds else refuse)(store, write)


@check
async def equal(harness: Harness) -> None:
    """``=`` holds for the same number only; 0 is a number, not a missing one."""
    await _edges(
        harness, "=", [(5, 5, True), (5, 6, False), (5, 4, False), (0, 0, True), (0, 1, False), (-5, 5, False)]
    )


@check
async def equal_text(harness: Harness) -> None:
    """``=`` holds for the same text only, to the letter; the empty text is a text."""
    cases = [("deleted", "deleted", True), ("deleted", "Deleted", False), ("a", "a ", False), ("", "", True)]
    await _edges(harness, "=", [*cases, ("é", "é", True), ("é", "e\u0301", False), ("5", "5.0", False)])


@check
async def below(harness: Harness) -> None:
    """``<`` excludes its value."""
    await _edges(harness, "<", [(5, 6, True), (5, 5, False), (5, 4, False), (-5, -4, True), (-4, -5, False)])


@check
async def at_most(harness: Harness) -> None:
    """``<=`` includes its value."""
    await _edges(harness, "<=", [(5, 6, True), (5, 5, True), (5, 4, False), (-5, -5, True), (0, -1, False)])


@check
async def above(harness: Harness) -> None:
    """``>`` excludes its value."""
    await _edges(harness, ">", [(5, 4, True), (5, 5, False), (5, 6, False), (-4, -5, True), (-5, -4, False)])


@check
async def at_least(harness: Harness) -> None:
    """``>=`` includes its value."""
    await _edges(harness, ">=", [(5, 4, True), (5, 5, True), (5, 6, False), (-5, -5, True), (-1, 0, False)])


@check
async def between(harness: Harness) -> None:
    """``between`` includes both ends."""
    cases = [((5, 9), True), ((1, 5), True), ((5, 5), True), ((6, 9), False), ((1, 4), False), ((-9, -1), False)]
    await _edges(harness, "between", [(5, bounds, holds) for bounds, holds in cases])
    await _edges(harness, "between", [(-5, (-9, -1), True), (-5, (-4, 9), False), (0, (-1, 1), True)])


@check
async def missing_or_at_most(harness: Harness) -> None:
    """``missing or <=`` includes its value, and holds for a record without the attribute, but not without a record."""
    at_most = [(5, 6, True), (5, 5, True), (5, 4, False), (-5, -5, True), (0, -1, False), (2**53, 2**53 - 1, False)]
    await _edges(harness, MISSING_OR_AT_MOST, at_most)
    store, (key, gone) = store_and_keys(harness, 2)
    await refuse(store, Write(gone, (Guard("n", MISSING_OR_AT_MOST, 9),), {"n": 10}))
    await put(store, key, other=1)
    await refuse(store, Write(key, (Guard("n", MISSING_OR_AT_MOST, 9), Guard("other", "=", 2)), {"n": 10}))
    await commit(store, Write(key, (Guard("other", "=", 1), Guard("n", MISSING_OR_AT_MOST, 9)), {"n": 10}))
    await refuse(store, Write(key, (Guard("n", MISSING_OR_AT_MOST, 9),), {"n": 20}))
    await commit(store, Write(key, (Guard("n", MISSING_OR_AT_MOST, 10), Guard("m", MISSING_OR_AT_MOST, 0)), {"n": 20}))
    await commit(store, Write(key, (Guard("n", MISSING_OR_AT_MOST, 20),), remove=("n",)))
    await commit(store, Write(key, (Guard("n", MISSING_OR_AT_MOST, 0),), {"n": 30}))


@check
async def far_apart(harness: Harness) -> None:
    """Numbers compare as numbers, not as text, and one apart is apart up to 2^53."""
    top = 2**53
    await _edges(harness, "<", [(9, 10, True), (10, 9, False), (-10, -9, True), (top - 1, top, True)])
    await _edges(harness, "<=", [(top, top - 1, False), (-top, 1 - top, True), (1 - top, -top, False)])
    await _edges(harness, "=", [(top, top, True), (top, top - 1, False), (-top, 1 - top, False)])
    await _edges(harness, "between", [(100, (20, 300), True), (top - 1, (top, top), False)])


@check
async def missing_attribute(harness: Harness) -> None:
    """No comparison holds for an attribute that is missing: it is not 0."""
    store = harness.store()
    for op, value in (*_COMPARISONS, ("=", 0), ("<", 1), (">=", 0), ("between", (-1, 1))):
        (key,) = keys(1)
        await put(store, key, other=1)
        await refuse(store, Write(key, (Guard("n", op, value),), {"won": True}))


@check
async def missing_record(harness: Harness) -> None:
    """No comparison holds for a record that does not exist, and a refused write does not create it."""
    store = harness.store()
    for op, value in (*_COMPARISONS, ("=", 0), ("<", 1)):
        (key,) = keys(1)
        conflict = await refuse(store, Write(key, (Guard("n", op, value),), {"won": True}, {"n": 1}))
        same(conflict.images, {key: None}, "there is no image of a record that does not exist")
        same(await read(store, key), None, "a refused write does not create the record")


@check
async def absent(harness: Harness) -> None:
    """``absent`` holds until the record exists, and again when it is deleted."""
    store, (key,) = store_and_keys(harness, 1)
    await commit(store, Write(key, (ABSENT,), {"n": 1}))
    conflict = await refuse(store, Write(key, (ABSENT,), {"n": 2}))
    same(conflict.images, {key: {"n": 1}}, "who comes second is shown what the first has made")
    await commit(store, Write(key, delete=True))
    await commit(store, Write(key, (ABSENT,), {"n": 3}))


@check
async def present(harness: Harness) -> None:
    """``present`` holds while the record exists."""
    store, (key,) = store_and_keys(harness, 1)
    await refuse(store, Write(key, (PRESENT,), {"n": 1}))
    await put(store, key, n=1)
    await commit(store, Write(key, (PRESENT,), add={"n": 1}))
    await commit(store, Write(key, (PRESENT,), delete=True))
    await refuse(store, Write(key, (PRESENT,), delete=True))


@check
async def all_together(harness: Harness) -> None:
    """Of several guards every one must hold, in whatever order they stand."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, n=5, m=7)
    holding = (Guard("n", "=", 5), PRESENT, Guard("m", "between", (7, 9)), Guard("n", "<", 6))
    broken = Guard("m", ">", 7)
    await commit(store, Write(key, holding, add={"seen": 1}))
    for place in range(len(holding) + 1):
        await refuse(store, Write(key, (*holding[:place], broken, *holding[place:]), add={"seen": 1}))


@check
async def plain_tuples(harness: Harness) -> None:
    """A plain ``(attr, op, value)`` is as good as a `Guard`."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, n=5)
    await commit(store, Write(key, (("n", "between", (1, 5)), ("n", "=", 5)), add={"n": 1}))
    await refuse(store, Write(key, (("n", "=", 5),), add={"n": 1}))


@check
async def see_the_state_before(harness: Harness) -> None:
    """Guards are about the record as it was, not as the same write leaves it."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, n=5)
    await commit(store, Write(key, (Guard("n", "=", 5),), {"n": 6}))
    await refuse(store, Write(key, (Guard("n", "=", 8),), {"n": 8}))
    await commit(store, Write(key, (Guard("n", "=", 6),), add={"n": -6}))
    await commit(store, Write(key, (Guard("n", "=", 0),), remove=("n",)))
