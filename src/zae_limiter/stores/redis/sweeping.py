"""Sweeping: index entries of records that have expired are taken out in passing, by whoever writes.

Redis drops an expired record by itself, but not what the index says of it. Every so often a commit is followed by a
look at the expiries that are due: after as many new records as it then takes away half, so that the index cannot grow
under a flood of new keys, and at least every few seconds.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from ...core.errors import InfrastructureError
from ...records.algebra import Key, Write
from . import scripts
from .values import can_change_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...clock import Clock
    from .client import Client
    from .layout import Layout

BATCH = 200
_EVERY_NEW = BATCH // 2
_EVERY_SECONDS = 10.0


class Sweeper:
    """Keeps the index of one client's cells short."""

    def __init__(self, client: Client, layout: Layout, clock: Clock, now: Callable[[], str]) -> None:
        self._client = client
        self._layout = layout
        self._clock = clock
        self._now = now
        self._new = [0] * layout.cells
        self._next = 0
        self.due = time.monotonic() + _EVERY_SECONDS
        """When a cell is swept at the latest, by the monotonic clock."""

    def next_cell(self, cell: int, writes: Sequence[Write]) -> int | None:
        """Return the cell to sweep after a commit of ``writes`` to ``cell``, or None."""
        for write in writes:
            if write.expires_at_ms is not None and can_change_index(write):
                self._new[cell] += 1
        if self._new[cell] >= _EVERY_NEW:
            self._new[cell] = 0
            return cell
        if time.monotonic() < self.due:
            return None
        self.due = time.monotonic() + _EVERY_SECONDS
        self._next = (self._next + 1) % self._layout.cells
        return self._next

    async def sweep(self, cell: int, deadline: float) -> int:
        """Take the next batch of expired records out of a cell's index and return how many there were.

        A failure is ignored: the commit before it has been made.
        """
        try:
            return await self._sweep(cell, deadline)
        except InfrastructureError:
            return 0

    async def _sweep(self, cell: int, deadline: float) -> int:
        layout, expiries = self._layout, self._layout.expiries(cell)
        until = self._clock.now_ms() // 1000
        due = ("ZRANGEBYSCORE", expiries, "-inf", until, "LIMIT", 0, BATCH)
        members = await self._client.run(expiries, due, deadline)
        if not members:
            return 0
        listed = {member: key for member in members if (key := _parse_member(member)) is not None}
        if len(listed) < len(members):
            await self._client.run(expiries, ("ZREM", expiries, *(m for m in members if m not in listed)), deadline)
        if not listed:
            return 0
        keys = (layout.index(cell), expiries, *(layout.record(key, cell) for key in listed.values()))
        command = scripts.SWEEP.command(keys, (self._now(), *map(bytes.decode, listed)))
        gone: int = await self._client.run(expiries, command, deadline, scripts.SWEEP)
        return gone


def _parse_member(member: bytes) -> Key | None:
    """Return the key of the record that a member of the expiry set is for, or None if it is not one of ours."""
    try:
        pk, sk, entries = json.loads(member)
    except (ValueError, TypeError):
        return None
    ours = isinstance(pk, str) and isinstance(sk, str) and isinstance(entries, list) and len(entries) > 0
    return Key(pk, sk) if ours else None
