"""The bill for a change: DynamoDB's rules, applied to a table before and after it.

A write costs a unit per begun 1,024 bytes of the item, and the same again for every index whose copy of it changes; an
item that enters or leaves an index, or moves within it, pays for the old place and for the new one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

UNIT = 1024
Item = dict[str, Any]
"""Attributes with their types, as DynamoDB sends them."""


class Image(NamedTuple):
    """Everything that a table held at one moment."""

    keys: tuple[str, ...]
    indexes: list[dict[str, Any]]
    items: dict[tuple[str, ...], Item]


def pictured(client: Any, table: str) -> Image:
    """Read all of a small table."""
    described = client.describe_table(TableName=table)["Table"]
    keys = tuple(key["AttributeName"] for key in described["KeySchema"])
    pages = client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    items = [item for page in pages for item in page["Items"]]
    found = {tuple(str(item[name]) for name in keys): item for item in items}
    return Image(keys, described.get("GlobalSecondaryIndexes", []), found)


def write_units(before: Image, after: Image) -> int:
    """Return the cost of the changes between two snapshots, each item written once."""
    places = before.items.keys() | after.items.keys()
    pairs = [(before.items.get(place, {}), after.items.get(place, {})) for place in places]
    return sum(_billed(after, old, new) for old, new in pairs if old != new)


def _billed(image: Image, old: Item, new: Item) -> int:
    units = max(_units(old), _units(new))
    for index in image.indexes:
        keys = tuple(key["AttributeName"] for key in index["KeySchema"])
        was, now = (_projected(index, keys, image.keys, item) for item in (old, new))
        if was != now:
            moved = [was.get(key) for key in keys] != [now.get(key) for key in keys]
            units += _units(was) + _units(now) if moved else max(_units(was), _units(now))
    return units


def _projected(index: dict[str, Any], keys: tuple[str, ...], primary: tuple[str, ...], item: Item) -> Item:
    """Return the part of an item that an index keeps; nothing if it lacks one of the index's keys."""
    if not set(keys) <= item.keys():
        return {}
    if index["Projection"]["ProjectionType"] == "ALL":
        return item
    kept = {*keys, *primary, *index["Projection"].get("NonKeyAttributes", ())}
    return {name: value for name, value in item.items() if name in kept}


def _units(item: Item) -> int:
    return -(-sum(len(name.encode()) + _size(value) for name, value in item.items()) // UNIT)


def _size(value: dict[str, Any]) -> int:
    """About what DynamoDB counts: texts by their bytes, numbers by half their digits, containers by what is in them."""
    ((kind, content),) = value.items()
    if kind == "N":
        return len(content) // 2 + 1
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(each) for name, each in content.items())
    if kind == "L":
        return 3 + sum(1 + _size(each) for each in content)
    return len(str(content).encode())
