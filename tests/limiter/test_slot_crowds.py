"""Never more than there are at once, for real: threads, tasks, event loops, and processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.aws import engine
from tests.support.deadlines import PATIENCE
from tests.support.paths import ROOT
from tests.support.redis import shared
from tests.support.slot_clients import SLOTS, WHOSE, limits
from zae_limiter import Limit, RateLimiter, SyncRateLimiter, SyncRepository
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

KINDS = ("memory", "sqlite", "redis", "dynamodb")
PARALLEL = [Limit.concurrent("parallel", SLOTS, ttl=60)]
LEASES = 40


@contextlib.contextmanager
def place(kind: str, folder: Path) -> Iterator[str]:
    """The URL of fresh data in a store that processes share."""
    fresh = f"crowd-{uuid.uuid4().hex[:8]}"
    if kind == "dynamodb":
        url = f"dynamodb://{fresh}?region=us-east-1&endpoint_url={engine.endpoint()}"
        with SyncRepository(url) as repository:
            repository.create_table()
        yield url
    else:
        yield f"sqlite:///{folder}/{fresh}.db" if kind == "sqlite" else f"{shared.server().url}?prefix={fresh}"


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[Callable[[], Any]]:
    """What gives a URL or a store to any number of clients of the same data."""
    if kind == "memory":
        store = MemoryStore()
        yield lambda: store
    else:
        with place(kind, folder) as url:
            yield lambda: url


class Gauge:
    """How many hold a slot, and the most that ever did. The first ones hold theirs until all are held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end = time.monotonic() + PATIENCE / 4
        self.now = self.peak = self.grants = 0

    @property
    def is_waiting(self) -> bool:
        """Whether there were not as many at once yet as there may be; nobody waits for that for ever."""
        return self.peak < SLOTS and time.monotonic() < self._end

    def enter(self) -> None:
        with self._lock:
            self.now += 1
            self.grants += 1
            self.peak = max(self.peak, self.now)

    def leave(self) -> None:
        with self._lock:
            self.now -= 1


async def hold(limiter: RateLimiter, gauge: Gauge) -> None:
    async with limiter.acquire(*WHOSE, {}, limits=PARALLEL, max_wait=PATIENCE):
        gauge.enter()
        await asyncio.sleep(0)
        while gauge.is_waiting:  # noqa: ASYNC110  # threads and several loops share it
            await asyncio.sleep(0.001)
        gauge.leave()


@pytest.mark.parametrize("kind", KINDS)
def test_threads_with_clients_of_their_own(kind: str, tmp_path: Path) -> None:
    gauge = Gauge()
    with opened(kind, tmp_path) as where:

        def work(_: int) -> None:
            with SyncRateLimiter(where()) as limiter:
                for _ in range(LEASES // 8):
                    with limiter.acquire(*WHOSE, {}, limits=PARALLEL, max_wait=PATIENCE):
                        gauge.enter()
                        while gauge.is_waiting:
                            time.sleep(0.001)
                        gauge.leave()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        with SyncRateLimiter(where()) as limiter:
            assert limiter.available(*WHOSE, limits=PARALLEL) == {"parallel": SLOTS}
    assert (gauge.peak, gauge.grants) == (SLOTS, LEASES)


@pytest.mark.parametrize("kind", KINDS)
async def test_tasks(kind: str, tmp_path: Path) -> None:
    gauge = Gauge()
    with opened(kind, tmp_path) as where:
        store = where()
        limiter = RateLimiter(FaultyStore(store, suspend=True) if kind == "memory" else store)
        await asyncio.gather(*(hold(limiter, gauge) for _ in range(LEASES)))
        assert await limiter.available(*WHOSE, limits=PARALLEL) == {"parallel": SLOTS}
        await limiter.close()
    assert (gauge.peak, gauge.grants) == (SLOTS, LEASES)


@pytest.mark.parametrize("kind", KINDS)
def test_event_loops_that_share_a_limiter(kind: str, tmp_path: Path) -> None:
    gauge = Gauge()
    with opened(kind, tmp_path) as where:
        limiter = RateLimiter(where())

        async def work() -> None:
            await asyncio.gather(*(hold(limiter, gauge) for _ in range(LEASES // 4)))

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(asyncio.run, work()) for _ in range(4)]:
                done.result()
        assert asyncio.run(limiter.available(*WHOSE, limits=PARALLEL)) == {"parallel": SLOTS}
        asyncio.run(limiter.close())
    assert (gauge.peak, gauge.grants) == (SLOTS, LEASES)


# Processes.


class Clients:
    """The processes of `tests.support.slot_clients`, and what they have said: lines by process id."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.said: dict[int, list[str]] = {}
        self.killed_ns: dict[int, int] = {}

    def listen(self, enough: Callable[[], bool]) -> None:
        """Take note of what they say until that is enough, or all of them are over."""
        assert self._process.stdout is not None
        while not enough() and (line := self._process.stdout.readline()):
            pid, _, what = line.strip().partition(" ")
            self.said.setdefault(int(pid), []).append(what)

    def holders(self) -> list[int]:
        """Return those that have said more than that they are ready."""
        return [pid for pid, lines in self.said.items() if len(lines) > 1]

    def go(self) -> None:
        """Let those begin who wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self, pids: Sequence[int]) -> None:
        """End some at once, in the middle of whatever they do."""
        for pid in pids:
            self.killed_ns[pid] = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)

    def finish(self) -> list[tuple[int, int]]:
        """Wait for all of them. Return from when to when each slot was held: until its holder was killed, if it was."""
        self.listen(bool)
        held: list[tuple[int, int]] = []
        for pid, lines in self.said.items():
            assert "lost" not in lines
            assert pid in self.killed_ns or lines[-1] == "done"
            begun = [int(line[1:]) for line in lines if line.startswith("+")]
            ended = [int(line[1:]) for line in lines if line.startswith("-")]
            held += zip(begun, [*ended, self.killed_ns.get(pid, 0)], strict=False)
        return held


@contextlib.contextmanager
def clients(url: str, seconds: float, ttl: int, holds: Sequence[str]) -> Iterator[Clients]:
    """The processes when all are ready; none is left over."""
    command = [sys.executable, "-m", "tests.support.slot_clients", url, str(seconds), str(ttl), *holds]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        try:
            started = Clients(process)
            started.listen(lambda: len(started.said) == len(holds))
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def most_at_once(held: list[tuple[int, int]], since_ns: int = 0) -> int:
    """Return the most spans that overlap, among those that end after an instant."""
    spans = [(begun, ended) for begun, ended in held if ended > since_ns]
    changes = sorted([(begun, 1) for begun, _ in spans] + [(ended, -1) for _, ended in spans])
    return max(accumulate(change for _, change in changes))


HOLDS = {
    "sqlite": ["0.005:0"] * 6 + ["60:0"] * 2,
    "redis": ["0.005:5000", "0.005:-5000", "0.005:0"] * 2 + ["60:5000", "60:-5000"],
    "dynamodb": ["0.1:5000", "0.1:-5000", "0.1:0"] * 2 + ["60:5000", "60:-5000"],
}
"""Who holds a slot for how long; where the store has a clock, on hosts whose clocks are five seconds off."""


@pytest.mark.alone
@pytest.mark.unix
@pytest.mark.parametrize("kind", HOLDS)
def test_processes_that_are_killed_in_the_middle(kind: str, tmp_path: Path) -> None:
    """Of eight processes, two are killed while they hold a slot, and the others go on.

    Never are there more than five at once. As soon as the time to live of the dead is over, there are five again.
    """
    ttl = 2
    with place(kind, tmp_path) as url, clients(url, ttl + 1, ttl, HOLDS[kind]) as started:
        started.listen(lambda: len(started.holders()) == 2)
        started.go()
        time.sleep(0.4)
        started.kill(started.holders())
        back_ns = time.monotonic_ns() + ttl * 10**9
        held = started.finish()
        assert most_at_once(held) == SLOTS
        assert most_at_once(held, back_ns) == SLOTS, "all five are used again"
        with SyncRateLimiter(url) as limiter:
            time.sleep(max(0.0, back_ns / 10**9 - time.monotonic()))
            assert limiter.available(*WHOSE, limits=limits(ttl)) == {"parallel": SLOTS}
