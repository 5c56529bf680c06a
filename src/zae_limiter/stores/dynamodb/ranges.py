"""Query ranges, page by page until the result is full or the range ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.errors import ValidationError
from ...records.algebra import Image, Key, Page, Query
from ..ranges import cursor_of, first_page, index_entry, within
from .values import PK, SK, encode_key, key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .access import Access
    from .values import Item

WHOLE = frozenset(("GSI1",))
"""Indexes that hold whole records; the others hold keys, and the records are fetched."""

_LAST = "\U0010ffff"


async def query(access: Access, wanted: Query) -> Page:
    """Return one page of a range. Its cursor is None exactly at the end."""
    request = _request(access.client.table, wanted)
    if request is None:
        return Page((), None)
    rows: list[tuple[str, Key, Image]] = []
    while True:
        request["Limit"] = wanted.limit + 1 - len(rows)
        answer = await access.call("Query", request, repeatable=True)
        rows += await _rows(access, wanted, answer.get("Items", ()))
        request["ExclusiveStartKey"] = answer.get("LastEvaluatedKey")
        if not request["ExclusiveStartKey"] or len(rows) > wanted.limit:
            break
    return first_page(rows, wanted.limit)


async def _rows(access: Access, wanted: Query, items: Sequence[Item]) -> list[tuple[str, Key, Image]]:
    """Return cursor, key and image of the records of an answer that are live and still in the range."""
    sorts = {key_of(item): item[_key_names(wanted)[1]]["S"] for item in items}
    if not sorts:
        return []
    if wanted.gsi is None or wanted.gsi in WHOLE:
        found = access.live_images(items)
    else:
        read = await access.read(list(sorts))
        found = {key: image for key, image in read.items() if index_entry(wanted.gsi, image) == (wanted.pk, sorts[key])}
    return [
        (cursor_of(sort, key), key, found[key]) for key, sort in sorts.items() if key in found and within(sort, wanted)
    ]


def _key_names(wanted: Query) -> tuple[str, str]:
    return (PK, SK) if wanted.gsi is None else (f"{wanted.gsi}PK", f"{wanted.gsi}SK")


def _request(table: str, wanted: Query) -> dict[str, Any] | None:
    """Return the request for the first answer, or None if no sort key lies in the range."""
    found = _sort_condition(wanted)
    if found is None:
        return None
    condition, values = found
    partition, sort = _key_names(wanted)
    request: dict[str, Any] = {
        "TableName": table,
        "KeyConditionExpression": f"#pk = :pk{condition}",
        "ExpressionAttributeNames": {"#pk": partition} | ({"#sk": sort} if condition else {}),
        "ExpressionAttributeValues": {name: {"S": value} for name, value in ((":pk", wanted.pk), *values.items())},
        "ScanIndexForward": not wanted.descending,
        **({"ConsistentRead": True} if wanted.gsi is None else {"IndexName": wanted.gsi}),
    }
    if wanted.after is not None:
        request["ExclusiveStartKey"] = _start_key(wanted, wanted.after)
    return request


def _start_key(wanted: Query, cursor: str) -> Item:
    """Return the start key for the cursor of a query. Raise `ValidationError` if it is not a cursor of this range."""
    parts = cursor.split("\x00")
    if len(parts) != 3 or not all(parts) or not within(parts[0], wanted):
        raise ValidationError("after", cursor, "is not a cursor of this range")
    sort, pk, sk = parts
    if wanted.gsi is None:
        return encode_key(Key(wanted.pk, sort))
    partition_name, sort_name = _key_names(wanted)
    return {**encode_key(Key(pk, sk)), partition_name: {"S": wanted.pk}, sort_name: {"S": sort}}


def _sort_condition(wanted: Query) -> tuple[str, dict[str, str]] | None:
    """Return the one condition that DynamoDB allows on sort keys and its values, or None if nothing can meet it.

    It may let through more than the range, which `within` drops.
    """
    if not wanted.start and wanted.end is None:
        return (" AND begins_with(#sk, :prefix)", {":prefix": wanted.prefix}) if wanted.prefix else ("", {})
    lower = max(wanted.prefix, wanted.start or "")
    upper = min([bound for bound in (_after_prefix(wanted.prefix), wanted.end) if bound is not None], default=None)
    if upper is None:
        return " AND #sk >= :lower", {":lower": lower}
    if not upper or lower > upper:
        return None
    if not lower:
        return " AND #sk <= :upper", {":upper": upper}
    return " AND #sk BETWEEN :lower AND :upper", {":lower": lower, ":upper": upper}


def _after_prefix(prefix: str) -> str | None:
    """Return the first text after all that start with ``prefix``, or None if there is none."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)
