"""The DynamoDB store: guarded writes as conditional calls, over an async or blocking client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.errors import RateLimiterUnavailable
from ...core.values import BackendCapabilities
from . import ranges, table, transactions
from .access import Access

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from ...clock import Clock
    from ...core.reports import BackendStats
    from ...records.algebra import Committed, Conflict, Image, Key, Page, Query, Write
    from .client import Client

T = TypeVar("T")

CAPABILITIES = BackendCapabilities(
    name="dynamodb",
    instant=False,
    free_atomic_commit=False,
    own_clock=True,
    several_processes=True,
    several_hosts=True,
    change_stream=True,
    ttl=True,
    partition_writes=1000,
    never_cancels=True,
)


class DynamoStore:
    """Records in one DynamoDB table. Usable from any number of threads and event loops at once.

    Args:
        client: The client of the table.
        clock: Replaces DynamoDB's own clock, e.g. in tests.
        capacity_detail: The ``ReturnConsumedCapacity`` of every request.
    """

    def __init__(self, client: Client, clock: Clock | None = None, *, capacity_detail: str = "TOTAL") -> None:
        self.client = client
        self.capabilities = replace(CAPABILITIES, timeout=client.timeout)
        self.clock: Clock = clock or client.clock
        self.stack_name = client.table
        self._access = Access(client, self.clock, capacity_detail)

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images, in the order of the keys."""
        if not keys:
            return []
        found = await self._run(self._access.read(keys, self._access.deadline(timeout)))
        return [found.get(key) for key in keys]

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none."""
        return await self._run(transactions.commit(self._access, writes, self._access.deadline(timeout)))

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return one page of a range."""
        return await self._run(ranges.query(self._access, query, self._access.deadline(timeout)))

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` and add the stack's name to a `RateLimiterUnavailable`."""
        try:
            return await work
        except RateLimiterUnavailable as error:
            error.stack_name = self.stack_name
            raise

    async def create_table(
        self, *, wait: bool = True, tags: Mapping[str, str] | None = None, deletion_protection: bool = False
    ) -> None:
        """Create the table. A suitable one is left alone."""
        await table.create_table(self.client, wait=wait, tags=tags, deletion_protection=deletion_protection)

    async def check_table(self) -> None:
        """Raise an error if the table is missing or unsuitable. Changes nothing."""
        await table.check_existing(self.client)

    def stats(self) -> BackendStats:
        """Return the calls and their cost as DynamoDB reports it."""
        return self.client.stats.snapshot()

    async def close(self) -> None:
        """Close the connections. The next use opens them again."""
        await self.client.close()
