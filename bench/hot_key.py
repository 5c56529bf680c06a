"""One side on a hot key, in a process of its own: ``python -m bench.hot_key SIDE MODE URL``.

It says that it is ready, then does what it is told line by line, and answers each with one: ``["warm", 0.6]`` asks for
so many seconds, ``["measure", 0.5]`` also times every acquire, ``["rest"]`` gives back what was drawn in advance.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from bench.rivals import RIVALS, ours
from bench.rivals.port import AsyncTaker, Cost, Quota, Rival, Taker

PREFETCH_S = 0.5
QUOTA = Quota("rpm", 1_000_000_000, 60)
"""A capacity that is never reached."""
COST: Cost = {"rpm": 1}
MODES = ("blocking", "async", "async, tight loop")
"""The last one never lets others of its event loop have a turn, unless an acquire itself has to wait."""
TURN = 4
"""After so many acquires the others have a turn."""

_PREFETCHING = ours.OURS._replace(
    name="zae-limiter, prefetch",
    open=partial(ours.Blocking, prefetch=PREFETCH_S),
    open_async=partial(ours.Async.opened, prefetch=PREFETCH_S),
)


class Side(NamedTuple):
    """A limiter on a store."""

    store: str
    rival: Rival

    @property
    def name(self) -> str:
        """The name of its figures."""
        return f"{self.rival.name}, {self.store}"


MEMORY = Side("in memory", ours.OURS)
REDIS, DYNAMODB = "on Redis", "on DynamoDB"
SIDES = {
    side.name: side
    for side in (
        MEMORY,
        Side(REDIS, ours.OURS),
        Side(REDIS, _PREFETCHING),
        Side(DYNAMODB, ours.OURS),
        Side(DYNAMODB, _PREFETCHING),
        *(Side(REDIS, rival) for rival in RIVALS.values() if rival is not ours.OURS),
    )
}


class Sample(NamedTuple):
    """Durations of some acquires in microseconds, and their store calls.

    Calls and write units are those that the client itself has counted; a client that counts nothing tells 0.
    """

    decisions: int
    median_us: float
    p99_us: float
    calls: int
    write_units: float
    interruptions: int
    """Involuntary context switches of this process."""


class Blocking:
    """In a thread."""

    def __init__(self, side: Side, key: str, url: str) -> None:
        self.taker: Taker = side.rival.open(url, [QUOTA])
        self._key = key

    def ask(self, seconds: float) -> list[int]:
        """Ask again and again for so many seconds. Return the nanoseconds of every acquire."""
        take, key, clock = self.taker.take, self._key, time.perf_counter_ns
        took: list[int] = []
        until = clock() + int(seconds * 1e9)
        while (began := clock()) < until:
            is_granted = take(key, COST)
            took.append(clock() - began)
            assert is_granted
        return took

    def rest(self) -> None:
        """Give back what was drawn in advance."""
        if isinstance(self.taker, ours.Blocking):
            self.taker.rest()

    def close(self) -> None:
        """Free what is held."""
        self.taker.close()


class Async:
    """In an event loop, which others have a turn of after every ``turn`` acquires; 0 for never."""

    def __init__(self, side: Side, key: str, url: str, turn: int, runner: asyncio.Runner) -> None:
        async def opened() -> AsyncTaker:
            return await side.rival.open_async(url, [QUOTA])

        self._runner = runner
        self.taker = runner.run(opened())
        self._key = key
        self._turn = turn

    def ask(self, seconds: float) -> list[int]:
        """Ask again and again for so many seconds. Return the nanoseconds of every acquire."""
        return self._runner.run(self._ask(seconds))

    async def _ask(self, seconds: float) -> list[int]:
        take, key, turn, clock = self.taker.take, self._key, self._turn, time.perf_counter_ns
        took: list[int] = []
        until = clock() + int(seconds * 1e9)
        while (began := clock()) < until:
            is_granted = await take(key, COST)
            took.append(clock() - began)
            assert is_granted
            if turn and not len(took) % turn:
                await asyncio.sleep(0)
        return took

    def rest(self) -> None:
        """Give back what was drawn in advance."""
        if isinstance(self.taker, ours.Async):
            self._runner.run(self.taker.rest())

    def close(self) -> None:
        """Free what is held."""
        self._runner.run(self.taker.close())


@contextmanager
def opened(side: Side, mode: str, url: str) -> Iterator[Blocking | Async]:
    """A side with a key of its own."""
    key = f"hot, {side.name}, {mode}".replace(", ", "-").replace(" ", "-")
    with asyncio.Runner() as runner:
        client = (
            Blocking(side, key, url) if mode == "blocking" else Async(side, key, url, TURN * (mode == "async"), runner)
        )
        yield client
        client.close()


def measured(client: Blocking | Async, seconds: float) -> Sample:
    """Time every acquire for so many seconds."""
    before = _counted(client)
    took = client.ask(seconds)
    calls, units, interruptions = (now - then for now, then in zip(_counted(client), before, strict=True))
    shares = [each / 1000 for each in statistics.quantiles(took, n=100)]
    return Sample(len(took), shares[49], shares[98], int(calls), units, int(interruptions))


def _counted(client: Blocking | Async) -> tuple[float, float, int]:
    """Calls, write units and interruptions so far."""
    interruptions = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    if not isinstance(client.taker, (ours.Blocking, ours.Async)):
        return 0, 0, interruptions
    stats = client.taker.stats()
    return stats.total_calls, stats.write_units, interruptions


def main(name: str, mode: str, url: str) -> None:
    """Do what the lines say, until there are no more."""
    with opened(SIDES[name], mode, url) as client:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            answer: Sample | None = None
            match json.loads(line):
                case ["measure", seconds]:
                    answer = measured(client, seconds)
                case ["warm", seconds]:
                    client.ask(seconds)
                case ["rest"]:
                    client.rest()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
