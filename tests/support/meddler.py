"""A store that lets somebody else act at the worst moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zae_limiter.testing import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from zae_limiter.records.algebra import Committed, Conflict, Image, Key, Write


class Meddler(FaultyStore):
    """Acts once: right before the next commit, when all has been read, or while a read's answer is on its way."""

    before_commit: Callable[[], Awaitable[object]] | None = None
    after_read: Callable[[], Awaitable[object]] | None = None

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        answer = await super().read(keys, timeout=timeout)
        act, self.after_read = self.after_read, None
        if act is not None:
            await act()
        return answer

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        act, self.before_commit = self.before_commit, None
        if act is not None:
            await act()
        return await super().commit(writes, timeout=timeout)
