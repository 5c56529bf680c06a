"""Timing that survives a busy machine: many short rounds, all sides in turn, so that noise hits all alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

Side: TypeAlias = Callable[[int], int]
"""Makes so many decisions; how many were granted."""


class Round(NamedTuple):
    """Duration of a short round in microseconds per call, and the answer of its side."""

    wall_us: float
    cpu_us: float
    """User and system time of this process."""
    answer: int


def in_turn(sides: Mapping[str, Side], calls: int, rounds: int) -> dict[str, list[Round]]:
    """Rounds by side, in an order that changes: nobody always follows the same one."""
    found: dict[str, list[Round]] = {name: [] for name in sides}
    chance = random.Random(0)
    for _ in range(rounds):
        for name in chance.sample(list(sides), len(sides)):
            found[name].append(_round(sides[name], calls))
    return found


def _round(side: Side, calls: int) -> Round:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    answer = side(calls)
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return Round(wall / calls / 1000, cpu / calls / 1000, answer)


def typical(figures: list[float]) -> float:
    """The median, to the hundredth."""
    return round(statistics.median(figures), 2)


def quietest(rounds: list[Round]) -> float:
    """The CPU of the best round."""
    return min(each.cpu_us for each in rounds)
