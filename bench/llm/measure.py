"""The cost of LLM calls: in memory, on Redis, and in writes of DynamoDB."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

from tests.support.aws import engine
from tests.support.aws.wire import Wire
from tests.support.redis.server import Server

from bench import redis_meter
from bench.llm.cases import CASES, PLAIN, Case
from bench.llm.hits import hits, hits_in_loop, takes, takes_in_loop
from bench.llm.ours import blocking, in_loop, place
from bench.partner import Partner
from bench.prefetch import make_table
from bench.rivals import RIVALS
from bench.rivals.limits_library import FIXED
from bench.rivals.ours import OURS
from bench.timing import Side, in_turn, typical

MODES = ("blocking", "async")
SIX_HITS = "six hits of limits"
HITS = (Case("two hits of limits", 1), Case(SIX_HITS), Case("six hits of limits, a new key", keys=None))
COUNTED = 100

Figures = dict[str, dict[str, dict[str, float]]]
"""By mode and case."""


class Size(NamedTuple):
    """Number of rounds and calls to measure."""

    calls: int
    """Calls in a round: enough that starting an event loop and filling the processor's caches do not count."""
    rounds: int


MEMORY, REDIS, CROWDED = Size(1_000, 20), Size(64, 25), Size(64, 15)


def measure() -> dict[str, Any]:
    """Everything, by store."""
    return {"memory": in_memory(), "redis": on_redis(), "dynamodb": on_dynamodb()}


class Bench:
    """Sides of both modes, opened until the end of a block."""

    def __init__(self, size: Size, stack: ExitStack) -> None:
        self._size = size
        self._stack = stack
        self._runner = stack.enter_context(asyncio.Runner())
        self.sides: dict[tuple[str, str], Side] = {}

    def add(self, case: Case, url: str) -> None:
        """Ours."""
        calls = self._size.calls * self._size.rounds
        enter, runner = self._stack.enter_context, self._runner
        self.sides["blocking", case.name] = enter(blocking(case, url, calls))
        self.sides["async", case.name] = enter(in_loop(case, url, calls, runner))

    def add_hits(self, cases: Iterable[Case], url: str) -> None:
        """Hits of `limits`."""
        for case in cases:
            self.sides["blocking", case.name] = hits(case, url)
            self.sides["async", case.name] = hits_in_loop(case, url, self._runner)

    def add_rivals(self, url: str) -> None:
        """The other rivals, which take from three levels."""
        for name, rival in RIVALS.items():
            if rival not in (OURS, FIXED):
                self.sides["blocking", name] = self._stack.enter_context(takes(rival, url))
                self.sides["async", name] = self._stack.enter_context(takes_in_loop(rival, url, self._runner))

    def run(self) -> Figures:
        """Measure all of them in turn."""
        sides = {"/".join(name): side for name, side in self.sides.items()}
        rounds = in_turn(sides, *self._size)
        found: Figures = defaultdict(dict)
        for mode, name in self.sides:
            each = rounds[f"{mode}/{name}"]
            found[mode][name] = {
                "wall_us": typical([one.wall_us for one in each]),
                "cpu_us": typical([one.cpu_us for one in each]),
            }
        return dict(found)


def in_memory() -> Figures:
    """Every case, and the rivals."""
    with ExitStack() as stack:
        bench = Bench(MEMORY, stack)
        for case in CASES:
            bench.add(case, "memory://")
        bench.add_hits(HITS, "memory://")
        bench.add_rivals("memory://")
        return bench.run()


def on_redis() -> dict[str, Any]:
    """The plain cases and the rivals, with what is asked of the server; ours also beside a second writer."""
    with Server() as server, ExitStack() as stack:
        bench = Bench(REDIS, stack)
        for case in PLAIN:
            bench.add(case, place(server.url))
        bench.add_hits([each for each in HITS if each.name == SIX_HITS], server.url)
        bench.add_rivals(server.url)
        found = bench.run()
        for (mode, name), side in bench.sides.items():
            found[mode][name] |= redis_meter.asked(server, side)._asdict()
        return {"alone": found, "second writer": _beside_a_writer(server)}


def _beside_a_writer(server: Server) -> Figures:
    """Figures while another process makes calls of the same key."""
    found: Figures = {mode: {} for mode in MODES}
    for depth in (1, 3):
        with ExitStack() as stack:
            url, bench = place(server.url), Bench(CROWDED, stack)
            for case in PLAIN:
                if case.depth == depth:
                    bench.add(case, url)
            writer = stack.enter_context(Partner(sys.executable, "-m", "bench.llm.writer", url, "key-0"))
            writer.hear()
            for mode, cases in bench.run().items():
                found[mode] |= cases
    return found


def on_dynamodb() -> dict[str, dict[str, float]]:
    """Writes per call and level on the wire, by mode and case."""
    found: dict[str, dict[str, float]] = {mode: {} for mode in MODES}
    with mock.patch.dict(os.environ, engine.CREDENTIALS), Wire(engine.endpoint()) as wire, ExitStack() as stack:
        bench = Bench(Size(COUNTED, 1), stack)
        for case in PLAIN:
            bench.add(case, make_table(wire.url))
        for (mode, name), side in bench.sides.items():
            mark = wire.mark()
            side(COUNTED)
            writes = sum(not call.reads for call in wire.calls(since=mark))
            found[mode][name] = writes / COUNTED / next(each.depth for each in PLAIN if each.name == name)
    return found
