"""Access to one table: common request fields, one time budget per operation, and reading by key."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Any

from ...core.errors import CorruptRecordError, RateLimiterUnavailable
from ...records.algebra import Image, Key, is_live
from .values import decode, encode_key, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...clock import Clock
    from .client import Client
    from .values import Typed

_BATCH = 100
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


class TimeBudget:
    """The time that all calls of one store operation share."""

    __slots__ = ("_ends", "_timeout")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._ends = time.monotonic() + timeout

    def left(self) -> float:
        """Return the seconds that are left. Raise `RateLimiterUnavailable` if there are none."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise RateLimiterUnavailable(f"DynamoDB: no answer within {self._timeout:.3g} s")
        return left


class Access:
    """One table behind a client, and the clock by which its records expire.

    Records are judged by the clock as of their arrival: the first answer may correct it.
    """

    def __init__(self, client: Client, clock: Clock, capacity_detail: str = "TOTAL") -> None:
        self.client = client
        self.clock = clock
        self.table = client.table
        self._common = {"ReturnConsumedCapacity": capacity_detail}

    def deadline(self, timeout: float | None) -> TimeBudget:
        """Return a time budget that starts now; without a timeout, the client's own."""
        return TimeBudget(self.client.timeout if timeout is None else timeout)

    async def call(
        self, operation: str, request: Mapping[str, Any], deadline: TimeBudget, *, repeatable: bool = False
    ) -> dict[str, Any]:
        """Call ``operation`` and ask for the capacity that it consumes."""
        return await self.client.call(
            operation, {**request, **self._common}, timeout=deadline.left(), repeatable=repeatable
        )

    async def pause(self, attempt: int, deadline: TimeBudget) -> None:
        """Wait before the next attempt: longer each time, and randomised."""
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
        seconds = most * random.uniform(0.5, 1.0)
        await self.client.pause(min(seconds, deadline.left()))

    async def read(self, keys: Sequence[Key], deadline: TimeBudget) -> dict[Key, Image]:
        """Return the live images of those keys that have one."""
        wanted = list(dict.fromkeys(keys))
        if len(wanted) == 1:
            request = {"TableName": self.table, "Key": encode_key(wanted[0]), "ConsistentRead": True}
            answer = await self.call("GetItem", request, deadline, repeatable=True)
            items: Iterable[Mapping[str, Typed]] = [answer["Item"]] if "Item" in answer else []
            return self.live_images(items)
        found: dict[Key, Image] = {}
        for start in range(0, len(wanted), _BATCH):
            found |= await self._read_batch(wanted[start : start + _BATCH], deadline)
        return found

    def live_images(self, items: Iterable[Mapping[str, Typed]]) -> dict[Key, Image]:
        """Return the images of the items that have not expired."""
        now_ms = self.clock.now_ms()
        found: dict[Key, Image] = {}
        for item in items:
            image = live_image(item, now_ms)
            if image is not None:
                found[key_of(item)] = image
        return found

    async def _read_batch(self, keys: Sequence[Key], deadline: TimeBudget) -> dict[Key, Image]:
        found: dict[Key, Image] = {}
        pending: dict[str, Any] = {self.table: {"Keys": [encode_key(key) for key in keys], "ConsistentRead": True}}
        for attempt in itertools.count():
            answer = await self.call("BatchGetItem", {"RequestItems": pending}, deadline, repeatable=True)
            found |= self.live_images(answer.get("Responses", {}).get(self.table, ()))
            pending = answer.get("UnprocessedKeys") or {}
            if not pending:
                break
            await self.pause(attempt, deadline)
        return found


def live_image(item: Mapping[str, Typed] | None, now_ms: int) -> Image | None:
    """Return the image of an item, or None if there is none or it has expired: DynamoDB deletes late."""
    if item is None:
        return None
    image = decode(item)
    try:
        return image if is_live(image, now_ms) else None
    except TypeError:
        raise CorruptRecordError(f"The record {key_of(item)} has an expiry that is not a number.") from None
