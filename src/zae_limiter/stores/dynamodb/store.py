"""The DynamoDB store: guarded writes as conditional calls, over an async or blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...clock import Clock
from ...core.errors import InfrastructureError
from ...core.values import BackendCapabilities
from ...records import version
from ...records.algebra import Committed, Conflict, Image, Key, Page, Query, Write
from . import commits, table
from .access import Access

if TYPE_CHECKING:
    from .client import Client

A = TypeVar("A")
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
    """

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self.client = client
        self.capabilities = replace(CAPABILITIES, timeout=client.timeout)
        self.clock: Clock = clock or client.clock
        self.stack_name = client.table
        self.prepare, self.close, self.stats = client.prepare, client.close, client.stats.snapshot

    def for_threads(self) -> DynamoStore:
        """Return another store of the table for any thread."""
        return DynamoStore(self.client.for_threads(), self.clock)

    @property
    def region(self) -> str | None:
        """Return the region; None while it has not been looked up."""
        return self.client.region if self.client.is_resolved else self.client.options.region

    @property
    def endpoint_url(self) -> str | None:
        """Return the endpoint that was given; None for that of AWS."""
        return self.client.options.endpoint_url

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images, in the order of the keys."""
        if not keys:
            return []
        found = await self._run(Access.read, keys, timeout)
        return [found.get(key) for key in keys]

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none."""
        return await self._run(commits.commit, writes, timeout)

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return one page of a range."""
        return await self._run(Access.query, query, timeout)

    async def find_caller(self, timeout: float) -> str | None:
        """Return the ARN of whose credentials are used; None if it is not known within ``timeout`` seconds."""
        return await self.client.identity.find(timeout)

    async def _run(self, work: Callable[[Access, A], Coroutine[Any, Any, T]], argument: A, timeout: float | None) -> T:
        """Do ``work`` within a time budget that starts now; add the stack's name to an `InfrastructureError`."""
        seconds = self.client.timeout if timeout is None else timeout
        access = Access(self.client, self.clock, seconds, time.monotonic() + seconds)
        try:
            return await work(access, argument)
        except InfrastructureError as error:
            error.stack_name = self.stack_name
            raise

    async def create_table(self, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False) -> None:
        """Create the table, with version records that keep older clients out. A suitable one is left alone."""
        await table.create_table(self.client, tags=tags, deletion_protection=deletion_protection)
        if not any(await self.read([version.KEY, *version.UNPREFIXED])):
            await self.commit(version.stamp_new(version.Deployed()))

    async def check_table(self) -> None:
        """Raise an error if the table is missing or unsuitable. Changes nothing."""
        await table.check_existing(self.client)

    async def delete_table(self) -> None:
        """Delete the table with all data and wait until it is gone. One that is missing is no error."""
        await table.delete_table(self.client)
