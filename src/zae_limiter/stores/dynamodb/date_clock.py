"""DynamoDB's clock, from the ``Date`` headers of its answers. They have whole seconds."""

from __future__ import annotations

from calendar import timegm
from email.utils import parsedate
from functools import lru_cache

from ...clock import Clock
from ..server_clock import ServerClock


class DateClock(ServerClock):
    """DynamoDB's clock, by which all clients decide, however wrong their hosts' clocks are."""

    def __init__(self, host_clock: Clock | None = None) -> None:
        super().__init__("DynamoDB", host_clock)

    def observe(self, date: str | None, sent_ms: int, received_ms: int) -> None:
        """Learn from the ``Date`` of an answer. Both instants are of the host's clock."""
        date_ms = None if date is None else _date_ms(date)
        if date_ms is not None:
            self.learn(date_ms, date_ms + 1000, sent_ms, received_ms)


@lru_cache(maxsize=8)
def _date_ms(date: str) -> int | None:
    """Return an HTTP date in milliseconds, or None. The same text comes for a whole second, so it is cached."""
    try:
        parsed = parsedate(date)
        return None if parsed is None else timegm(parsed) * 1000
    except (ValueError, IndexError, OverflowError):
        return None
