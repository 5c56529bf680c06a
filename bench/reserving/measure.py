"""``python -m bench.reserving.measure``, by a Python of 3.12 or newer: everything about those that reserve, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import count
from typing import Any, cast

from tests.support.redis.binary import VARIABLE, redis_server
from tests.support.redis.server import Server

from bench import contention, loss
from bench.demands import DEMANDS
from bench.partner import ROOT
from bench.reserving.environment import prepare
from bench.rivals import RESERVING
from bench.rivals.port import AsyncCaller, Caller, Cost, Path, Rival
from bench.timing import Side, in_turn, typical
from bench.workloads import BOTH, RPM, TPM

DEPTHS: dict[str, Path] = {"one level": ("key",), "three levels": ("key-1", "project", "organisation")}
USED: Cost = {"rpm": 1, "tpm": 130}
SIZES = {"memory": (64, 20), "sqlite": (24, 15), "redis": (24, 15)}
"""Calls in a round, and rounds."""
CROWDS = {"memory": (), "sqlite": ("blocking",), "redis": ("blocking", "async")}
"""The modes of processes in a crowd; in memory they are threads."""


def measure() -> dict[str, Any] | None:
    """Have it measured in its own environment; None if there is no Python for that."""
    python = prepare()
    if python is None:
        print("no Python 3.12 or newer is found: limiters that reserve are not measured", flush=True)
        return None
    environment = os.environ | {VARIABLE: redis_server()}
    command = [str(python), "-m", "bench.reserving.measure"]
    told = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(told)
    return found


class Places:
    """Where limiters share tokens, a new place every time."""

    def __init__(self, server: Server, folder: str) -> None:
        self._server = server
        self._folder = folder
        self._count = count()

    def new(self, store: str) -> str:
        """The URL of a store without data."""
        if store == "redis":
            self._server.flush()
            return self._server.url
        return f"sqlite:///{self._folder}/{next(self._count)}.db" if store == "sqlite" else "memory://"


@contextmanager
def blocking(rival: Rival, path: Path, url: str) -> Iterator[Side]:
    """Calls in a thread."""
    caller = cast(Caller, rival.open(url, (RPM, TPM)))
    caller.enter(path)

    def work() -> Cost:
        return USED

    yield lambda calls: sum([caller.call(path, BOTH, work) for _ in range(calls)])
    caller.close()


@contextmanager
def in_loop(rival: Rival, path: Path, url: str, runner: asyncio.Runner) -> Iterator[Side]:
    """Calls in an event loop."""

    async def opened() -> AsyncCaller:
        found = cast(AsyncCaller, await rival.open_async(url, (RPM, TPM)))
        await found.enter(path)
        return found

    async def work() -> Cost:
        return USED

    caller = runner.run(opened())

    async def side(calls: int) -> int:
        return sum([await caller.call(path, BOTH, work) for _ in range(calls)])

    yield lambda calls: runner.run(side(calls))
    runner.run(caller.close())


def works(places: Places, store: str, mode: str) -> dict[str, Any]:
    """Time and CPU of a call that is settled, by depth and limiter."""
    calls, rounds = SIZES[store]
    names = [name for name, rival in RESERVING.items() if store in rival.stores and mode in rival.modes]
    with ExitStack() as stack:
        runner, url = stack.enter_context(asyncio.Runner()), places.new(store)
        sides: dict[str, Side] = {}
        for depth, path in DEPTHS.items():
            for name in names:
                rival = RESERVING[name]
                apart = f"{url}.{rival.package}" if store == "sqlite" else url
                opened = in_loop(rival, path, apart, runner) if mode == "async" else blocking(rival, path, apart)
                sides[f"{depth}/{name}"] = stack.enter_context(opened)
                sides[f"{depth}/{name}"](calls)
        found = in_turn(sides, calls, rounds)
    return {
        depth: {
            name: {
                "wall_us": typical([each.wall_us for each in found[f"{depth}/{name}"]]),
                "cpu_us": typical([each.cpu_us for each in found[f"{depth}/{name}"]]),
            }
            for name in names
        }
        for depth in DEPTHS
    }


def crowds(places: Places, store: str) -> dict[str, Any]:
    """Verdicts by demand, mode and limiter."""
    rivals = {name: rival for name, rival in RESERVING.items() if store in rival.stores}
    if store == "memory":
        return {
            each: {"blocking": {name: contention.of_threads(rival, demand)._asdict() for name, rival in rivals.items()}}
            for each, demand in DEMANDS.items()
        }
    return {
        each: {
            mode: {
                name: contention.of_processes(rival, mode, places.new(store), demand)._asdict()
                for name, rival in rivals.items()
                if mode in rival.modes
            }
            for mode in CROWDS[store]
        }
        for each, demand in DEMANDS.items()
    }


def exactness(places: Places, store: str) -> dict[str, Any]:
    """Tokens that are kept, by limiter, and how long a crash keeps others waiting."""
    from bench.reserving.exactness import cancelled, crashed, delayed

    found: dict[str, Any] = {"lost": {}, "cancelled": {}, "crashed": {}, "delayed_s": {}}
    for name, rival in RESERVING.items():
        if store in rival.stores:
            if not rival.waits:
                found["lost"][name] = loss.measured(rival, places.new(store))
            found["cancelled"][name] = asyncio.run(cancelled(rival, places.new(store)))
            if store != "memory":
                found["crashed"][name] = asyncio.run(crashed(rival, places.new(store)))
                found["delayed_s"][name] = asyncio.run(delayed(rival, places.new(store)))
    return found


def main() -> None:
    """Measure it all here and print it."""
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        places = Places(server, folder)
        found = {
            "python": platform.python_version(),
            "redis-py": version("redis"),
            "rivals": {name: version(rival.package) for name, rival in RESERVING.items()},
            "works": {store: {mode: works(places, store, mode) for mode in ("blocking", "async")} for store in SIZES},
            "contention": {store: crowds(places, store) for store in CROWDS},
            "exactness": {store: exactness(places, store) for store in CROWDS},
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
