"""Values: what goes in comes out, of the same type and to the last digit."""

from __future__ import annotations

from typing import Any

from ...records.algebra import Key, Query, Write
from ..harness import Harness
from .check import check, same
from .room import commit, partition, put, read, store_and_keys

TOP = 2**53

TEXTS = (
    *("", " ", "plain", "'; DROP TABLE items; --", '"quoted" \\ back\\slash', "tab\tand\nnewline", "100%_[a]*?"),
    *("é e\u0301 ß İ", "日本語 עברית", "null", "0123", "x" * 10_000),
    "👩‍👩‍👧 😀",
    "\u2028\ufffe\U0010ffff",
)


@check
async def big_numbers(harness: Harness) -> None:
    """Whole numbers are exact from -2^53 to 2^53, stored and added to."""
    store, (key,) = store_and_keys(harness, 1)
    numbers = [0, 1, -1, 10**15, TOP - 1, TOP, 1 - TOP, -TOP]
    await put(store, key, **{f"n{place}": number for place, number in enumerate(numbers)})
    image = await read(store, key)
    same(image, {f"n{place}": number for place, number in enumerate(numbers)}, "to the last digit")
    steps = [(TOP - 2, TOP - 2), (1, TOP - 1), (1, TOP), (-TOP, 0), (-TOP, -TOP), (1, 1 - TOP), (TOP, 1)]
    for amount, sum_ in steps:
        (image,) = await commit(store, Write(key, add={"sum": amount}))
        same((image or {}).get("sum"), sum_, f"the sum is exact after adding {amount}")


@check
async def texts(harness: Harness) -> None:
    """Text is kept to the letter: any language, emoji, quotes, line breaks, nothing at all."""
    store, (key,) = store_and_keys(harness, 1)
    await put(store, key, **{f"t{place}": text for place, text in enumerate(TEXTS)})
    same(await read(store, key), {f"t{place}": text for place, text in enumerate(TEXTS)}, "to the letter")


@check
async def attribute_names(harness: Harness) -> None:
    """Attributes may be named like limits: with dots, dashes and underscores, upper and lower case, reserved words."""
    store, (key,) = store_and_keys(harness, 1)
    names = ("b_gpt-4.rpm_tk", "b_gpt-4_rpm_tk", "B_GPT-4.RPM_TK", "_ttl", "name", "size", "value", "r_a/b.c", "order")
    await put(store, key, **{name: number for number, name in enumerate(names)})
    (image,) = await commit(store, Write(key, (("size", "=", 5),), {}, dict.fromkeys(names, 100), ("order",)))
    expected = {name: number + 100 for number, name in enumerate(names) if name != "order"}
    same(image, expected, "each name is its own attribute")


@check
async def keys_in_any_language(harness: Harness) -> None:
    """Keys may hold whatever an entity id may: e-mail addresses, paths, braces, emoji."""
    store = harness.store()
    pk = partition()
    plain = ("a@b.c", "/v1/../x?y=z", "{tag}", "{}", "a b", "%41", "😀", "e\u0301", "é", "\\", "'", '"', ":", "*")
    ids = (*plain, "x" * 256)
    wanted = [Key(f"{pk}/{name}", f"#META/{name}") for name in ids]
    for key in wanted:
        await put(store, key, entity_id=key.sk, GSI1PK=pk, GSI1SK=key.sk)
    found = await store.read(wanted)
    same([image and image["entity_id"] for image in found], [key.sk for key in wanted], "each under its own key")
    page = await store.query(Query(pk, gsi="GSI1"))
    same(sorted(key for key, _ in page.items), sorted(wanted), "and in the index")


@check
async def nested(harness: Harness) -> None:
    """Metadata may be nested: maps, lists, numbers, fractions, truth values, None and empty ones."""
    store, (key,) = store_and_keys(harness, 1)
    metadata: dict[str, Any] = {
        "map": {"a": {"b": {"c": [1, [2, [3, {"d": None}]]]}}},
        "list": [1, -2, "three", 4.5, True, False, None, {}, []],
        "fractions": [0.1, -2.5e-7, 1e300, 1.0],
        "empty": {"map": {}, "list": [], "text": ""},
        "none": None,
        "unicode": {"😀": "é"},
        "whole": TOP,
    }
    await put(store, key, metadata=metadata, flag=True, other=False, n=1)
    same(await read(store, key), {"metadata": metadata, "flag": True, "other": False, "n": 1}, "as it went in")
    await commit(store, Write(key, add={"n": 1}))
    same(
        await read(store, key), {"metadata": metadata, "flag": True, "other": False, "n": 2}, "after another write too"
    )
