"""One store, every work, every mode, every rival, in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.redis.server import Server

from bench import contention, loss, redis_meter
from bench.demands import DEMANDS
from bench.rivals import RIVALS
from bench.sides import at_work
from bench.timing import Round, Side, in_turn, typical
from bench.workloads import WORKLOADS, Workload


class Size(NamedTuple):
    """Number of rounds and calls to measure."""

    decisions: int
    """In a round; a multiple of the callers at once."""
    rounds: int


MEMORY, REDIS = Size(384, 60), Size(96, 25)

Meter = Callable[[Side], dict[str, float]]


def in_memory() -> dict[str, Any]:
    """Everything that is measured without a server."""
    return {
        "works": {work.name: _by_mode(work, "memory://", MEMORY, lambda side: {}) for work in WORKLOADS},
        "contention": {
            name: {"blocking": {each.name: contention.of_threads(each, demand)._asdict() for each in RIVALS.values()}}
            for name, demand in DEMANDS.items()
        },
        "lost": {each.name: loss.measured(each, "memory://") for each in RIVALS.values()},
    }


def on_redis() -> dict[str, Any]:
    """The same on one server, with what is asked of it; every kind of work finds it empty."""
    with Server() as server:
        found: dict[str, Any] = {"works": {}, "contention": {}, "lost": {}}
        for work in WORKLOADS:
            found["works"][work.name] = _by_mode(
                work, server.url, REDIS, lambda side: redis_meter.asked(server, side)._asdict(), server.flush
            )
        for name in DEMANDS:
            found["contention"][name] = {mode: _contended(server, name, mode) for mode in ("blocking", "async")}
        for each in RIVALS.values():
            found["lost"][each.name] = loss.measured(each, server.url)
        return found


def _contended(server: Server, demand: str, mode: str) -> dict[str, Any]:
    found = {}
    for each in RIVALS.values():
        server.flush()
        found[each.name] = contention.of_processes(each, mode, server.url, DEMANDS[demand])._asdict()
    server.flush()
    return found


def _by_mode(
    work: Workload, url: str, size: Size, meter: Meter, clear: Callable[[], None] = lambda: None
) -> dict[str, dict[str, dict[str, float]]]:
    found = {}
    for mode in work.modes:
        with at_work(work, mode, url) as sides:
            rounds = in_turn(sides, size.decisions, size.rounds)
            found[mode] = {name: _figures(work, rounds[name], size) | meter(side) for name, side in sides.items()}
        clear()
    return found


def _figures(work: Workload, rounds: list[Round], size: Size) -> dict[str, float]:
    decisions = size.decisions * size.rounds
    return {
        "wall_us": typical([each.wall_us for each in rounds]),
        "cpu_us": typical([each.cpu_us for each in rounds]),
        "decisions": decisions,
        "admitted": sum(each.answer for each in rounds),
        "expected": decisions if work.admits else 0,
    }
