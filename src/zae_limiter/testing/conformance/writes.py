"""Writes: what becomes of one record."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ...records.algebra import PRESENT, Conflict, Guard, Key, Query, Write
from ..harness import Harness
from .check import check, same, true
from .room import commit, keys, put, read, refuse, store_and_keys


@check
async def create_by_put(harness: Harness) -> None:
    """A record that does not exist is created, holding what was put and nothing else."""
    store, (key,) = store_and_keys(harness, 1)
    same(await store.read([key]), [None], "a record that was never written does not exist")
    same(await commit(store, Write(key, (), {"a": 1, "b": "x"})), ({"a": 1, "b": "x"},), "as it was put")


@check
async def create_by_add(harness: Harness) -> None:
    """Adding to a record or an attribute that does not exist counts from 0."""
    store, (key,) = store_and_keys(harness, 1)
    same(await commit(store, Write(key, add={"n": -3})), ({"n": -3},), "an add creates the record")
    same(await commit(store, Write(key, add={"m": 4})), ({"n": -3, "m": 4},), "an add creates the attribute")


@check
async def put_keeps_the_rest(harness: Harness) -> None:
    """``put`` replaces the attributes it names and leaves the others alone."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, a=1, b=2)
    same(await commit(store, Write(key, (), {"b": "x", "c": 3})), ({"a": 1, "b": "x", "c": 3},), "b and c are put")


@check
async def add_sums_up(harness: Harness) -> None:
    """``add`` adds positive, negative and no amounts, below 0 too."""
    store, (key,) = store_and_keys(harness, 1)
    for amount, sum_ in ((5, 5), (-7, -2), (0, -2), (2, 0), (10**15, 10**15), (-(10**15), 0)):
        same(await commit(store, Write(key, add={"n": amount})), ({"n": sum_},), f"after adding {amount}")


@check
async def remove_drops(harness: Harness) -> None:
    """``remove`` drops attributes; one that is not there is no mistake."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, a=1, b=2, c=3)
    same(await commit(store, Write(key, remove=("b", "c", "never"))), ({"a": 1},), "b and c are removed")
    await refuse(store, Write(key, (Guard("b", "=", 2),), {"won": True}))


@check
async def put_then_add_then_remove(harness: Harness) -> None:
    """In one write ``put`` comes first, then ``add``, then ``remove``."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, n=100, gone=1)
    write = Write(key, (), {"n": 5, "gone": 2}, {"n": 3, "fresh": 4}, ("gone",))
    same(await commit(store, write), ({"n": 8, "fresh": 4},), "5 was put, 3 added to it, the put one removed")
    same(await commit(store, Write(key, (), {}, {"n": 1}, ("n",))), ({"fresh": 4},), "added to, then removed")


@check
async def delete(harness: Harness) -> None:
    """``delete`` removes the whole record; one that is not there is no mistake."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, a=1)
    same(await commit(store, Write(key, delete=True)), (None,), "a deleted record has no image")
    same(await commit(store, Write(key, delete=True)), (None,), "deleting nothing is fine")
    same(await commit(store, Write(key, add={"n": 1})), ({"n": 1},), "what comes after starts from nothing")


@check
async def guarded_delete(harness: Harness) -> None:
    """A delete whose guard does not hold deletes nothing."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, version=2)
    await refuse(store, Write(key, (Guard("version", "=", 1),), delete=True))
    await commit(store, Write(key, (Guard("version", "=", 2),), delete=True))


@check
async def check_only(harness: Harness) -> None:
    """A write without any change only checks: it changes and creates nothing."""
    store, (one, other) = store_and_keys(harness, 2)
    await put(store, one, n=1)
    same(await commit(store, Write(one, (Guard("n", "=", 1),))), ({"n": 1},), "it answers with the image")
    await refuse(store, Write(one, (Guard("n", "=", 2),)))
    same(await commit(store, Write(other)), (None,), "there is nothing to check")
    await refuse(store, Write(other, (PRESENT,)))


@check
async def keys_are_apart(harness: Harness) -> None:
    """Records are told apart by both parts of their keys, to the letter."""
    store = harness.store()
    pk, sk = keys(1)[0]
    near = [(pk, sk), (pk, sk + "#"), (pk, sk.upper() + "a"), (pk, sk + "A"), (pk + "#", sk), (pk + " ", sk), (sk, pk)]
    for number, (one, other) in enumerate(near):
        await put(store, Key(one, other), n=number)
    found = await store.read([Key(*each) for each in near])
    same(found, [{"n": number} for number in range(len(near))], "each key has a record of its own")


@check
async def read_in_order(harness: Harness) -> None:
    """A read answers in the order of its keys, None where there is no record; of nothing, with nothing."""
    store, some = store_and_keys(harness, 30)
    await commit(store, *(Write(key, (), {"n": number}) for number, key in enumerate(some) if number % 3))
    expected: list[Any] = [{"n": number} if number % 3 else None for number in range(30)]
    same(await store.read(some), expected, "in the order of the keys")
    same(await store.read(some[::-1]), expected[::-1], "in the order of the keys, whatever it is")
    same(await store.read([]), [], "nothing was asked for")


@check
async def images_stay(harness: Harness) -> None:
    """An image never changes in the hands of who was given it, whatever happens to the record."""
    store, (key,) = store_and_keys(harness, 1)
    (first,) = await commit(store, Write(key, (), {"n": 1, "GSI1PK": key.pk, "GSI1SK": "x"}))
    conflict = await store.commit([Write(key, (Guard("n", "=", 2),), {"n": 3})])
    page = await store.query(Query(key.pk, gsi="GSI1"))
    true(isinstance(conflict, Conflict), "the guard does not hold")
    held = (first, conflict, await store.read([key]), page)
    before = deepcopy(held)
    for write in (
        Write(key, add={"n": 1}),
        Write(key, (), {"n": 9, "m": 1, "GSI1PK": key.pk + "2"}),
        Write(key, remove=("m",), expires_at_ms=store.clock.now_ms() + 9_000),
        Write(key, delete=True),
        Write(key, (), {"other": 1}),
    ):
        await commit(store, write)
        same(held, before, f"what was handed out stays as it was after {write}")


@check
async def what_was_written_stays(harness: Harness) -> None:
    """A store keeps what was written, not the objects of the writer, who may go on using them."""
    store, (key,) = store_and_keys(harness, 1)
    details: dict[str, Any] = {"tags": ["a"], "deep": {"list": [1]}}
    attributes: dict[str, Any] = {"details": details, "n": 1}
    await commit(store, Write(key, (), attributes))
    attributes["n"] = 2
    details["tags"].append("b")
    details["deep"]["list"].clear()
    same(await read(store, key), {"details": {"tags": ["a"], "deep": {"list": [1]}}, "n": 1}, "as it was written")
