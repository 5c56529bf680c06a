"""A server that answers at a URL, whoever runs it."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from tests.support.redis.line import Line


class Endpoint:
    """What can be asked of any server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._line = Line(url)
        self._aside: Counter[str] = Counter()

    @property
    def host(self) -> str:
        """Where it listens."""
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return urlsplit(self.url).port or 6379

    def command(self, *args: str | bytes | int | float) -> Any:
        """One command and its answer as RESP2 has it, decoded to ``str``. Nothing is tried twice."""
        return self._line.ask(*args)

    def aside(self, *args: str | bytes | int | float) -> Any:
        """The same, but left out of ``command_stats``."""
        answer = self._line.ask(*args)
        self._aside[str(args[0]).lower()] += 1
        return answer

    def flush(self) -> None:
        """Delete every key of the database in the URL."""
        self.aside("FLUSHDB")

    def command_stats(self) -> dict[str, int]:
        """Calls per command since the start or ``reset_stats``, without those that the rig itself needed.

        Commands that a script called count as well; subcommands count for their command, whatever the version.
        """
        calls: Counter[str] = Counter()
        before = self._aside.copy()
        for line in self.aside("INFO", "commandstats").splitlines():
            if line.startswith("cmdstat_"):
                name, _, numbers = line.removeprefix("cmdstat_").partition(":calls=")
                calls[name.lower().partition("|")[0]] += int(numbers.partition(",")[0])
        return dict(calls - before)

    def reset_stats(self) -> None:
        """Begin to count anew."""
        self._aside.clear()
        self.aside("CONFIG", "RESETSTAT")

    def close(self) -> None:
        """Hang up."""
        self._line.close()
