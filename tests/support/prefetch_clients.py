"""Eight processes that prefetch.

``python -m tests.support.prefetch_clients URL MODE PREFETCH SECONDS FOLDER RESOURCE ...``

They share two keys of one organisation. Each prints its process id when it is ready, and begins when the input has
ended. For ``SECONDS`` it asks for tokens of the resources in turn, `PACE` times a second. Of the leases that it gets,
some use more than they took, some use less, and some fail. It logs what it does into a file of its own in ``FOLDER``,
which is complete also if the process is killed: see `ProcessLog`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.support import deadlines
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zae_limiter.records.algebra import Committed, Conflict, Image, Key, Page, Query, Write

PROCESSES = 8
PACE = 150
"""How often a process asks, per second, at most: it does not make up for lost time."""
TASKS = 3
"""How many tasks of an event loop do so together."""
ORGANISATION, KEYS = "org", ("key-0", "key-1")
ROOMY, TIGHT = "roomy", "tight"
"""A resource of which there is more than anybody asks for, and one of which there is a third of that."""
FEWEST, MOST = 10, 100
"""How many tokens a lease takes."""
ROOMY_LIMITS = (Limit.per_second("rps", 10_000), Limit.per_second("tps", 1_000_000))
TIGHT_LIMITS = (Limit.per_second("rps", 10_000), Limit.per_second("tps", 12_000))

Amounts: TypeAlias = dict[str, int]


def prepare(limiter: SyncRateLimiter) -> None:
    """Store the organisation, its keys and their limits."""
    limiter.set_system_defaults(ROOMY_LIMITS)
    limiter.create_entity(ORGANISATION)
    limiter.set_limits(ORGANISATION, TIGHT_LIMITS, TIGHT)
    for key in KEYS:
        limiter.create_entity(key, parent_id=ORGANISATION, cascade=True)


class Failed(Exception):
    """What a lease was for has failed."""


@dataclass(frozen=True)
class Request:
    """What is asked for, and what becomes of it if it is granted."""

    key: str
    resource: str
    cost: Amounts
    more: int
    """How many tokens the lease uses more than it took."""
    fails: bool

    @property
    def change(self) -> Amounts:
        """What the end of the lease adds to what it has consumed."""
        return {name: -amount for name, amount in self.cost.items()} if self.fails else {"rps": 0, "tps": self.more}


def requests(number: int, resources: Sequence[str]) -> Iterator[Request]:
    """Iterate over what a process asks for, without end."""
    chance = random.Random(number)
    for resource in cycle(resources):
        tokens = chance.randint(FEWEST, MOST)
        more = chance.choice([0, 0, 0, tokens // 10, -tokens // 2, -tokens])
        yield Request(KEYS[number % 2], resource, {"rps": 1, "tps": tokens}, more, chance.random() < 0.15)


@dataclass
class Grant:
    """A lease that was granted between two instants, in nanoseconds of the clock that all processes share."""

    key: str
    resource: str
    asked_ns: int
    granted_ns: int
    cost: Amounts
    change: Amounts = field(default_factory=dict)
    """What its end has added to what it has consumed; empty while it is open."""


@dataclass
class ProcessLog:
    """What one process has done."""

    grants: list[Grant] = field(default_factory=list)
    refusals: int = 0
    calls: int = 0
    """Calls of a store that nobody else can count: a SQLite file."""
    closed: bool = False
    """Whether the process has closed its limiter; if not, it was killed."""

    @property
    def decisions(self) -> int:
        """How many requests were granted or refused."""
        return len(self.grants) + self.refusals

    @classmethod
    def read(cls, path: Path) -> ProcessLog:
        """Read the file that a process writes, up to its last whole line: another may be half written."""
        log, grants = cls(), dict[str, Grant]()
        whole_lines, _, _ = path.read_text().rpartition("\n")
        for line in whole_lines.splitlines():
            match line.split():
                case ["granted", number, key, resource, asked_ns, granted_ns, tokens]:
                    cost = {"rps": 1, "tps": int(tokens)}
                    grants[number] = Grant(key, resource, int(asked_ns), int(granted_ns), cost)
                case ["changed", number, calls, tokens]:
                    grants[number].change = {"rps": int(calls), "tps": int(tokens)}
                case ["refused"]:
                    log.refusals += 1
                case ["called"]:
                    log.calls += 1
                case ["closed"]:
                    log.closed = True
                case _:
                    raise AssertionError(f"{path}: {line}")
        log.grants.extend(grants.values())
        return log


class LogWriter:
    """Writes the file that `ProcessLog` reads, a line at a time, each of which outlives the process."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder) / str(os.getpid()), os.O_WRONLY | os.O_CREAT)
        self._count = 0

    def write(self, *words: object) -> None:
        """Write a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def grant(self, request: Request, asked_ns: int) -> int:
        """Log that a request was granted a moment ago. Return the number of the grant."""
        self._count += 1
        words = (self._count, request.key, request.resource, asked_ns, time.monotonic_ns(), request.cost["tps"])
        self.write("granted", *words)
        return self._count

    def end(self, number: int, request: Request) -> None:
        """Log what the end of a lease has changed."""
        if any(request.change.values()):
            self.write("changed", number, *request.change.values())


class LoggedSqliteStore(SqliteStore):
    """A SQLite store whose calls are logged."""

    def __init__(self, path: str, log: LogWriter) -> None:
        super().__init__(path)
        self._log = log

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Log the call, and do it."""
        self._log.write("called")
        return await super().read(keys, timeout=timeout)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Log the call, and do it."""
        self._log.write("called")
        return await super().commit(writes, timeout=timeout)

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Log the call, and do it."""
        self._log.write("called")
        return await super().query(query, timeout=timeout)


@dataclass
class Process:
    """One of the processes."""

    url: str
    prefetch: float
    seconds: float
    log: LogWriter
    requests: Iterator[Request]

    def wait_for_start(self) -> float:
        """Say that the process is ready, and wait until it may begin. Return when it has to end."""
        os.write(1, f"{os.getpid()}\n".encode())
        sys.stdin.read()
        return time.monotonic() + self.seconds

    def run_blocking(self) -> None:
        """Ask in one thread."""
        path = self.url.removeprefix("sqlite:///")
        repository = SyncRepository(self.url if path == self.url else LoggedSqliteStore(path, self.log))
        with SyncRateLimiter(repository, prefetch=self.prefetch, timeout=deadlines.PATIENCE) as limiter:
            limiter.available(KEYS[0], ROOMY)
            end = self.wait_for_start()
            while time.monotonic() < end:
                self.ask_blocking(limiter, next(self.requests))
                time.sleep(1 / PACE)
        self.log.write("closed")

    def ask_blocking(self, limiter: SyncRateLimiter, request: Request) -> None:
        """Make one request, and use what is granted."""
        number, asked_ns = 0, time.monotonic_ns()
        try:
            with limiter.acquire(request.key, request.resource, request.cost) as lease:
                number = self.log.grant(request, asked_ns)
                if request.fails:
                    raise Failed
                lease.adjust(tps=request.more)
        except RateLimitExceeded:
            self.log.write("refused")
            return
        except Failed:
            pass
        self.log.end(number, request)

    async def run_async(self) -> None:
        """Ask in several tasks of an event loop."""
        async with RateLimiter(self.url, prefetch=self.prefetch, timeout=deadlines.PATIENCE) as limiter:
            await limiter.available(KEYS[0], ROOMY)
            end = self.wait_for_start()

            async def ask_again_and_again() -> None:
                while time.monotonic() < end:
                    await self.ask_async(limiter, next(self.requests))
                    await asyncio.sleep(TASKS / PACE)

            await asyncio.gather(*[ask_again_and_again() for _ in range(TASKS)])
        self.log.write("closed")

    async def ask_async(self, limiter: RateLimiter, request: Request) -> None:
        """Make one request, and use what is granted."""
        number, asked_ns = 0, time.monotonic_ns()
        try:
            async with limiter.acquire(request.key, request.resource, request.cost) as lease:
                number = self.log.grant(request, asked_ns)
                await asyncio.sleep(0)
                if request.fails:
                    raise Failed
                await lease.adjust(tps=request.more)
        except RateLimitExceeded:
            self.log.write("refused")
            return
        except Failed:
            pass
        self.log.end(number, request)


def main(url: str, mode: str, prefetch: str, seconds: str, folder: str, *resources: str) -> None:
    """Fork the processes, and wait for them. Fail if one of them has, unless it was killed."""
    deadlines.lengthen()
    with SyncRateLimiter(url) as limiter:
        limiter.available(KEYS[0], ROOMY)  # it loads what all of them need
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            process = Process(url, float(prefetch), float(seconds), LogWriter(folder), requests(number, resources))
            if mode == "async":
                asyncio.run(process.run_async())
            else:
                process.run_blocking()
            os._exit(0)
        children.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(any(code not in (0, -signal.SIGKILL) for code in ends))


if __name__ == "__main__":
    main(*sys.argv[1:])
