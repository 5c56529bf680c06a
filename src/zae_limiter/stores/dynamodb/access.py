"""Access to the table for one store operation: its share of time, common request fields, and reading by key."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import CorruptRecordError, RateLimiterUnavailable
from ...records.algebra import Image, Key, is_live
from .values import decode, encode_keys, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...clock import Clock
    from .client import Client
    from .values import Item

CAPACITY_DETAIL = "TOTAL"  # of every request; "INDEXES" tells the cost of each index too
_BATCH = 100
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


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

    async def call_batch(self, operation: str, pending: Any, rest: str) -> list[dict[str, Any]]:
        """Call ``operation`` until no answer has anything left in its field ``rest``; return all answers."""
        answers = []
        for attempt in itertools.count():
            answers.append(await self.call(operation, {"RequestItems": pending}, repeatable=True))
            pending = answers[-1].get(rest)
            if not pending:
                break
            await self.pause(attempt)
        return answers

    async def pause(self, attempt: int) -> None:
        """Wait before the next attempt: longer each time, and randomised."""
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
        await self.client.pause(max(0.0, min(most * random.uniform(0.5, 1.0), self.ends - time.monotonic())))

    async def read(self, keys: Sequence[Key]) -> dict[Key, Image]:
        """Return the live images of those keys that have one."""
        wanted = encode_keys(dict.fromkeys(keys))
        table = self.client.table
        if len(wanted) == 1:
            request = {"TableName": table, "Key": wanted[0], "ConsistentRead": True}
            answer = await self.call("GetItem", request, repeatable=True)
            return self.live_images([answer["Item"]] if "Item" in answer else [])
        found: dict[Key, Image] = {}
        for start in range(0, len(wanted), _BATCH):
            pending = {table: {"Keys": wanted[start : start + _BATCH], "ConsistentRead": True}}
            for answer in await self.call_batch("BatchGetItem", pending, "UnprocessedKeys"):
                found |= self.live_images(answer.get("Responses", {}).get(table, ()))
        return found

    def live_images(self, items: Iterable[Item]) -> dict[Key, Image]:
        """Return the images of the items that have not expired."""
        now_ms = self.clock.now_ms()
        images = {key_of(item): live_image(item, now_ms) for item in items}
        return {key: image for key, image in images.items() if image is not None}


def live_image(item: Item | None, now_ms: int) -> Image | None:
    """Return the image of an item, or None if there is none or it has expired: DynamoDB deletes late."""
    if item is None:
        return None
    image = decode(item)
    try:
        return image if is_live(image, now_ms) else None
    except TypeError:
        raise CorruptRecordError(f"The record {key_of(item)} has an expiry that is not a number.") from None
