"""Commits of several writes: all or none, also when many come at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...records.algebra import ABSENT, PRESENT, Committed, Conflict, Guard, Key, Write
from ...stores.port import Store
from ..harness import Harness
from .check import check, same, true
from .room import at_once, commit, keys, put, read, refuse, store_and_keys


@check
async def all_writes(harness: Harness) -> None:
    """Where all guards hold, every write takes effect; the images come in the order of the writes."""
    store, (made, changed, gone, checked) = store_and_keys(harness, 4)
    await put(store, changed, n=1)
    await put(store, gone, n=2)
    await put(store, checked, n=3)
    images = await commit(
        store,
        Write(checked, (Guard("n", "=", 3),)),
        Write(gone, (PRESENT,), delete=True),
        Write(made, (ABSENT,), {"n": 0}),
        Write(changed, (Guard("n", "<=", 1),), add={"n": 10}),
    )
    same(images, ({"n": 3}, None, {"n": 0}, {"n": 11}), "in the order of the writes")


@check
async def none_of_them(harness: Harness) -> None:
    """Where one guard does not hold, wherever it stands, nothing takes effect."""
    store, (made, changed, gone, failing) = store_and_keys(harness, 4)
    for key in (changed, gone, failing):
        await put(store, key, n=1)
    good = [
        Write(made, (ABSENT,), {"n": 1}),
        Write(changed, (), {"m": 1}, {"n": 1}),
        Write(gone, (PRESENT,), delete=True),
    ]
    for bad in (Write(failing, (Guard("n", "=", 2),), add={"n": 1}), Write(failing, (ABSENT,), {"n": 5})):
        for place in range(len(good) + 1):
            conflict = await refuse(store, *good[:place], bad, *good[place:])
            true(failing in conflict.images, "the conflict tells which record stood in the way")


@check
async def a_check_can_refuse(harness: Harness) -> None:
    """A write that only checks holds back the writes beside it."""
    store, (changed, checked) = store_and_keys(harness, 2)
    await put(store, checked, version=2)
    change = Write(changed, (), {"n": 1})
    conflict = await refuse(store, change, Write(checked, (Guard("version", "=", 1),)))
    same(conflict.images.get(checked), {"version": 2}, "the conflict shows what the check has found")
    await commit(store, change, Write(checked, (Guard("version", "=", 2),)))


@check
async def conflict_shows_the_present(harness: Harness) -> None:
    """The images of a conflict are the newest, so that the next try needs no read."""
    one, other = harness.store(), harness.store()
    a, b = keys(2)
    for count in range(3):
        await commit(one, Write(a, add={"n": 1}), Write(b, add={"n": 2}))
        conflict = await refuse(other, Write(a, (Guard("n", "=", count),), add={"n": 1}))
        seen = conflict.images[a] or {}
        same(seen["n"], count + 1, "as another client has left it")
        await commit(other, Write(a, (Guard("n", "=", count + 1),), {"by": count}))


@check
async def clients_share(harness: Harness) -> None:
    """What one client has committed, another client sees, at once."""
    one, other = harness.store(), harness.store()
    (key,) = keys(1)
    await put(one, key, n=1)
    same(await read(other, key), {"n": 1}, "seen by the other")
    await commit(other, Write(key, (Guard("n", "=", 1),), add={"n": 1}))
    await refuse(one, Write(key, (Guard("n", "=", 1),), add={"n": 1}))
    await commit(one, Write(key, delete=True))
    same(await read(other, key), None, "deleted for the other too")


@check
async def a_hundred_writes(harness: Harness) -> None:
    """A commit may hold a hundred writes."""
    store, many = store_and_keys(harness, 100)
    await commit(store, *(Write(key, (ABSENT,), {"n": number}) for number, key in enumerate(many)))
    await refuse(store, *(Write(key, (Guard("n", "<", 99),), {"won": True}) for key in many))
    await commit(store, *(Write(key, delete=True) for key in many))


@check
async def race(harness: Harness) -> None:
    """Of many who come at once exactly as many win as the guard allows, and each sees its own turn."""
    store, (counter, first, second) = store_and_keys(harness, 3)
    turns = await _at_once(harness, store, [[Write(counter, (), {}, {"n": 1})]] * 8)
    same(sorted(_numbers(turns)), list(range(1, 9)), "every add has its turn")
    won = await _race_of_pairs(harness, store, counter, first)
    same(len(won), 8, "eight are there to be taken")
    same(await read(store, counter), {"n": 0}, "each by one")
    same(await read(store, first), {"taken": 8}, "the write beside the guarded one is made as often")
    made = await _at_once(harness, store, [[Write(second, (ABSENT,), {"by": n})] for n in range(8)])
    same(sum(isinstance(outcome, Committed) for outcome in made), 1, "a record is created by one of them")


_RACES = 20
"""Enough races to notice a store that wins them only by chance."""


@check
async def race_of_several_writes(harness: Harness) -> None:
    """Of many commits of several records each sees the images of its own turn."""
    store, (counter, beside) = store_and_keys(harness, 2)
    for _ in range(_RACES):
        await put(store, counter, n=8)
        won = await _race_of_pairs(harness, store, counter, beside)
        same(sorted(_numbers(won)), list(range(8)), "each is taken by one")


async def _race_of_pairs(harness: Harness, store: Store, counter: Key, beside: Key) -> list[Committed | Conflict]:
    taking = [Write(counter, (Guard("n", "between", (1, 8)),), add={"n": -1}), Write(beside, add={"taken": 1})]
    outcomes = await _at_once(harness, store, [taking] * 16)
    return [outcome for outcome in outcomes if isinstance(outcome, Committed)]


def _numbers(outcomes: Sequence[Committed | Conflict]) -> list[int]:
    return [outcome.images[0]["n"] for outcome in outcomes if isinstance(outcome, Committed) and outcome.images[0]]


async def _at_once(harness: Harness, store: Store, commits: Sequence[Sequence[Write]]) -> list[Committed | Conflict]:
    return await at_once(harness, [partial(store.commit, writes) for writes in commits])
