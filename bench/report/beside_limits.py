"""One level beside the fixed window of `limits`, which is the least that a limiter can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.report import bars
from bench.report.bars import Bar
from bench.report.prose import NEW_KEYS

MEMORY = {
    "one limit": 0.95,
    "two limits": 0.6,
    "1,000 keys": 1.1,
    "over the limit": 1.1,
    NEW_KEYS: 5,
}
"""The most that ours may take of its CPU, by kind of work."""
REDIS = 1.0
FIXED = "limits, fixed window"


def section(results: Mapping[str, Any]) -> str:
    """The bars in memory and on Redis."""
    ours = results["rivals"][0]["name"]
    memory = bars.section(in_memory(results["memory"]["works"], ours))
    clients = results["redis_clients"]
    redis = f"{bars.section(on_redis(clients, ours))}\n\n{hiredis(clients, ours)}"
    return f"**In memory, µs of CPU**\n\n{memory}\n\n**On Redis, µs of client CPU**\n\n{redis}"


def in_memory(works: Mapping[str, Any], ours: str) -> Iterator[Bar]:
    """By kind of work and mode."""
    for work, most in MEMORY.items():
        for mode, figures in works[work].items():
            yield Bar(f"{work}, {mode}", figures[ours]["cpu_us"], most, FIXED, figures[FIXED]["cpu_us"])


def on_redis(clients: Sequence[Mapping[str, Any]], ours: str) -> Iterator[Bar]:
    """By kind of work, mode and client."""
    for client in clients:
        named = f"redis-py {client['redis-py']}" + (f", hiredis {client['hiredis']}" if client["hiredis"] else "")
        for work, modes in client["cpu_us"].items():
            for mode, figures in modes.items():
                yield Bar(f"{named}, {work}, {mode}", figures[ours], REDIS, FIXED, figures[FIXED])


def hiredis(clients: Sequence[Mapping[str, Any]], ours: str) -> str:
    """Say what hiredis does for each: the CPU with it divided by that without, the median of all rows."""
    without = {each["redis-py"]: each["cpu_us"] for each in clients if not each["hiredis"]}
    told = []
    for name in (ours, FIXED):
        ratios = [
            figures[name] / without[client["redis-py"]][work][mode][name]
            for client in clients
            if client["hiredis"] and client["redis-py"] in without
            for work, modes in client["cpu_us"].items()
            for mode, figures in modes.items()
        ]
        told.append(f"{name} {median(ratios):.2f}" if ratios else f"{name} was not measured")
    return f"CPU with hiredis divided by that without, median: {'; '.join(told)}."
