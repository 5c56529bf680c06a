"""Dividing a shard in two, against those who are spending from it at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..records import splitting
from ..records.algebra import Committed, Image, Key
from ..records.level import SHARDS, BucketLimits

if TYPE_CHECKING:
    from ..runtime.deadline import Deadline
    from ..stores.port import Store

_TRIES = 5


async def divide(
    store: Store,
    level: BucketLimits,
    image: Image | None,
    seen_ms: int,
    show: Callable[[Key, Image | None, int], None],
    deadline: Deadline | None = None,
) -> bool:
    """Split the shard that was last seen as ``image``; call ``show`` with every image seen meanwhile and its instant.

    Return False if somebody else was faster, which is as good.
    """
    count = None if image is None else image[SHARDS]
    for _ in range(_TRIES):
        if image is None or image[SHARDS] != count:
            return False
        now_ms = max(store.clock.now_ms(), seen_ms)
        writes = splitting.split(level, image, now_ms)
        outcome = await store.commit(writes, timeout=None if deadline is None else deadline.left())
        if isinstance(outcome, Committed):
            for write, after in zip(writes, outcome.images, strict=True):
                show(write.key, after, now_ms)
            return True
        image = outcome.images.get(level.key)
        show(level.key, image, now_ms)
    return False
