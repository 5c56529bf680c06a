"""Query ranges, page by page until the result is full or the range ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import ValidationError
from ...records.algebra import Image, Key, Page, Query
from ..ranges import cursor_of, index_entry, within
from .access import Access, TimeBudget
from .values import PK, SK, encode_key, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .values import Item

WHOLE = frozenset(("GSI1",))
"""Indexes that hold whole records; the others hold keys, and the records are fetched."""

_LAST = "\U0010ffff"


class Row(NamedTuple):
    """A record of a range, with its sort key there."""

    sort: str
    key: Key
    image: Image


async def query(access: Access, wanted: Query, deadline: TimeBudget) -> Page:
    """Return one page of a range. Its cursor is None exactly at the end."""
    bounds = Bounds.of(wanted)
    if bounds.is_empty:
        return Page((), None)
    start = _start_key(wanted)
    rows: list[Row] = []
    while True:
        request = _request(access, wanted, bounds, start, wanted.limit + 1 - len(rows))
        answer = await access.call("Query", request, deadline, repeatable=True)
        rows += await _rows(access, wanted, answer.get("Items", ()), deadline)
        start = answer.get("LastEvaluatedKey")
        if not start or len(rows) > wanted.limit:
            break
    page = rows[: wanted.limit]
    more = len(rows) > len(page)
    return Page(
        tuple((row.key, row.image) for row in page), cursor_of(page[-1].sort, page[-1].key) if more and page else None
    )


async def _rows(access: Access, wanted: Query, items: Sequence[Item], deadline: TimeBudget) -> Iterable[Row]:
    """Return the records behind the items of an answer that are live and still in the range."""
    sort_name = _names(wanted)[1]
    sorts = {key_of(item): item[sort_name]["S"] for item in items}
    if not sorts:
        return ()
    if wanted.gsi is None or wanted.gsi in WHOLE:
        found = access.live_images(items)
    else:
        read = await access.read(list(sorts), deadline)
        places = {key: (wanted.pk, sort) for key, sort in sorts.items()}
        found = {key: image for key, image in read.items() if index_entry(wanted.gsi, image) == places[key]}
    return [Row(sort, key, found[key]) for key, sort in sorts.items() if key in found and within(sort, wanted)]


def _names(wanted: Query) -> tuple[str, str]:
    return (PK, SK) if wanted.gsi is None else (f"{wanted.gsi}PK", f"{wanted.gsi}SK")


def _request(access: Access, wanted: Query, bounds: Bounds, start: Item | None, most: int) -> dict[str, Any]:
    names = dict(zip(("#pk", "#sk"), _names(wanted), strict=True))
    values = {":pk": {"S": wanted.pk}}
    condition = bounds.condition(values)
    if not condition:
        del names["#sk"]
    request: dict[str, Any] = {
        "TableName": access.table,
        "KeyConditionExpression": f"#pk = :pk{condition}",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
        "ScanIndexForward": not wanted.descending,
        "Limit": most,
    }
    if wanted.gsi is None:
        request["ConsistentRead"] = True
    else:
        request["IndexName"] = wanted.gsi
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def _start_key(wanted: Query) -> Item | None:
    """Return the start key for the cursor of a query. Raise `ValidationError` if it is not a cursor of this range."""
    if wanted.after is None:
        return None
    parts = wanted.after.split("\x00")
    if len(parts) != 3 or not all(parts) or not within(parts[0], wanted):
        raise ValidationError("after", wanted.after, "is not a cursor of this range")
    sort, pk, sk = parts
    if wanted.gsi is None:
        return encode_key(Key(wanted.pk, sort))
    partition, sort_name = _names(wanted)
    return {**encode_key(Key(pk, sk)), partition: {"S": wanted.pk}, sort_name: {"S": sort}}


class Bounds(NamedTuple):
    """A range of sort keys as the single condition that DynamoDB allows on them."""

    lower: str = ""
    upper: str | None = None
    prefix: str = ""

    @classmethod
    def of(cls, wanted: Query) -> Bounds:
        """Return the bounds of a query. They may let through more, which `within` drops."""
        if not wanted.start and wanted.end is None:
            return cls(prefix=wanted.prefix)
        upper = _after_prefix(wanted.prefix)
        if wanted.end is not None and (upper is None or wanted.end < upper):
            upper = wanted.end
        return cls(max(wanted.prefix, wanted.start or ""), upper)

    @property
    def is_empty(self) -> bool:
        """Return whether no sort key lies inside."""
        return self.upper is not None and (not self.upper or self.lower > self.upper)

    def condition(self, values: dict[str, Any]) -> str:
        """Return the text of the condition and add its values to ``values``."""
        if self.prefix:
            values[":prefix"] = {"S": self.prefix}
            return " AND begins_with(#sk, :prefix)"
        if self.lower:
            values[":lower"] = {"S": self.lower}
        if self.upper is not None:
            values[":upper"] = {"S": self.upper}
        if self.lower and self.upper is not None:
            return " AND #sk BETWEEN :lower AND :upper"
        if self.lower:
            return " AND #sk >= :lower"
        return "" if self.upper is None else " AND #sk <= :upper"


def _after_prefix(prefix: str) -> str | None:
    """Return the first text after all that start with ``prefix``, or None if there is none."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)
