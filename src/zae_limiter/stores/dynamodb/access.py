"""Access to the table for one store operation: its share of time, common request fields, reads by key and by range."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import RateLimiterUnavailable, ValidationError
from ...records.algebra import Image, Key, Page, Query, is_live
from ..ranges import cursor_of, first_page, index_entry, within
from .values import PK, SK, Item, decode, encode_key, key_of

if TYPE_CHECKING:
    from ...clock import Clock
    from .client import Client

CAPACITY_DETAIL = "TOTAL"  # of every request; "INDEXES" tells the cost of each index too
_BATCH = 100
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_LAST_CHARACTER = "\U0010ffff"

WHOLE = frozenset(("GSI1",))
"""Indexes that hold whole records; the others hold keys, and the records are fetched."""


class Access(NamedTuple):
    """The table behind a client, for one store operation. All its calls end within ``timeout`` seconds, at ``ends``.

    Records expire by ``clock`` as of their arrival: the first answer may correct it.
    """

    client: Client
    clock: Clock
    timeout: float
    ends: float

    async def call(self, operation: str, request: Mapping[str, Any], *, repeatable: bool = False) -> dict[str, Any]:
        """Call ``operation``, asking for the capacity it consumes. Raise `RateLimiterUnavailable` if the time is up."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise RateLimiterUnavailable(f"DynamoDB: no answer within {self.timeout:.3g} s")
        request = {**request, "ReturnConsumedCapacity": CAPACITY_DETAIL}
        return await self.client.call(operation, request, timeout=left, repeatable=repeatable)

    async def read_batch(self, keys: Sequence[Item]) -> list[Item]:
        """Return the records of up to 100 keys that have one."""
        table, found = self.client.table, []
        for attempt in itertools.count():
            asked = {"RequestItems": {table: {"Keys": keys, "ConsistentRead": True}}}
            answer = await self.call("BatchGetItem", asked, repeatable=True)
            found += answer["Responses"].get(table, ())
            rest = answer.get("UnprocessedKeys")
            if not rest:
                break
            asked_again = rest.get(table)
            keys = _choose_again(keys, asked_again.get("Keys") if type(asked_again) is dict else None)
            await self.pause(attempt)
        return found

    async def write_batch(self, requests: Sequence[dict[str, Any]]) -> None:
        """Carry out up to 25 requests, each of which may be carried out twice."""
        for attempt in itertools.count():
            asked = {"RequestItems": {self.client.table: requests}}
            answer = await self.call("BatchWriteItem", asked, repeatable=True)
            rest = answer.get("UnprocessedItems")
            if not rest:
                break
            requests = _choose_again(requests, rest.get(self.client.table))
            await self.pause(attempt)

    async def pause(self, attempt: int) -> None:
        """Wait before the next attempt: longer each time, and randomised."""
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
        await self.client.pause(max(0.0, min(most * random.uniform(0.5, 1.0), self.ends - time.monotonic())))

    async def read(self, keys: Sequence[Key]) -> dict[Key, Image]:
        """Return the live images of those keys that have one."""
        wanted = [{PK: {"S": pk}, SK: {"S": sk}} for pk, sk in dict.fromkeys(keys)]
        if len(wanted) == 1:
            request = {"TableName": self.client.table, "Key": wanted[0], "ConsistentRead": True}
            answer = await self.call("GetItem", request, repeatable=True)
            return self.live_images([answer["Item"]] if "Item" in answer else [])
        found: dict[Key, Image] = {}
        for start in range(0, len(wanted), _BATCH):
            found |= self.live_images(await self.read_batch(wanted[start : start + _BATCH]))
        return found

    async def query(self, wanted: Query) -> Page:
        """Return one page of a range. Its cursor is None exactly at the end."""
        request = _query_request(self.client.table, wanted)
        if request is None:
            return Page((), None)
        rows: list[tuple[str, Key, Image]] = []
        while True:
            request["Limit"] = wanted.limit + 1 - len(rows)
            answer = await self.call("Query", request, repeatable=True)
            rows += await self._rows(wanted, answer["Items"])
            request["ExclusiveStartKey"] = answer.get("LastEvaluatedKey")
            if not request["ExclusiveStartKey"] or len(rows) > wanted.limit:
                return first_page(rows, wanted.limit)

    async def _rows(self, wanted: Query, items: Sequence[Item]) -> list[tuple[str, Key, Image]]:
        """Return cursor, key and image of the records of an answer that are live and still in the range."""
        entries = {key_of(item): item[_key_names(wanted)[1]]["S"] for item in items}
        sorts = {key: sort for key, sort in entries.items() if key.pk.startswith(wanted.namespace)}
        if not sorts:
            return []
        if wanted.gsi is None or wanted.gsi in WHOLE:
            found = self.live_images(items)
        else:
            read = await self.read(list(sorts))
            places = {key: (wanted.pk, sort) for key, sort in sorts.items()}
            found = {key: image for key, image in read.items() if index_entry(wanted.gsi, image) == places[key]}
        ranged = [(sort, key) for key, sort in sorts.items() if key in found and within(sort, wanted)]
        return [(cursor_of(sort, key), key, found[key]) for sort, key in ranged]

    def live_images(self, items: Iterable[Item]) -> dict[Key, Image]:
        """Return the images of the items that have not expired."""
        now_ms = self.clock.now_ms()
        images = {key_of(item): live_image(item, now_ms) for item in items}
        return {key: image for key, image in images.items() if image is not None}


def _choose_again(sent: Sequence[Any], unprocessed: Any) -> list[Any]:
    """Return those of ``sent`` that an answer calls unprocessed. Nothing else is sent, whatever it says."""
    named = unprocessed if type(unprocessed) is list and len(unprocessed) <= len(sent) else ()
    again = [each for each in sent if each in named]
    if not again:
        raise RateLimiterUnavailable("DynamoDB: it says that something is unprocessed, and nothing of that was sent")
    return again


def live_image(item: Item | None, now_ms: int) -> Image | None:
    """Return the image of an item, or None if there is none or it has expired: DynamoDB deletes late."""
    if item is None:
        return None
    image = decode(item)
    return image if is_live(image, now_ms) else None


def _key_names(wanted: Query) -> tuple[str, str]:
    return (PK, SK) if wanted.gsi is None else (f"{wanted.gsi}PK", f"{wanted.gsi}SK")


def _query_request(table: str, wanted: Query) -> dict[str, Any] | None:
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
        parts = wanted.after.split("\x00")
        if len(parts) != 3 or not all(parts) or not within(parts[0], wanted):
            raise ValidationError("after", wanted.after, "is not a cursor of this range")
        start, pk, sk = parts
        own = encode_key(Key(wanted.pk, start) if wanted.gsi is None else Key(pk, sk))
        request["ExclusiveStartKey"] = {**own, partition: {"S": wanted.pk}, sort: {"S": start}}
    return request


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
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)
