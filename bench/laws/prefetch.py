"""Calls that prefetch saves: one process asks for one key of a Redis server, now and then or very often."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from tests.support.redis.server import Server

from bench.figures import COLOURS, figure
from zae_limiter import Limit, RateLimiter

RATES = (1, 3, 10, 30, 100, 300, 1_000, 3_000)
"""Requests for the key, per second."""
SECONDS = 3.0
WARM_UP = 1.0
MODES = {"exact": 0.0, "prefetch=0.5": 0.5}


def run() -> dict[str, list[list[float]]]:
    """By mode and rate: calls of the store per decision, the median and the 99th percentile of an acquire, in us."""
    with Server() as server:
        return {mode: [asyncio.run(_ask(server, seconds, rate)) for rate in RATES] for mode, seconds in MODES.items()}


async def _ask(server: Server, prefetch: float, per_second: int) -> list[float]:
    server.flush()
    async with RateLimiter(server.url, prefetch=prefetch) as limiter:
        await limiter.set_system_defaults([Limit.per_second("rps", 1_000_000)])
        await _load(limiter, per_second, WARM_UP)
        before = limiter.repository.get_backend_stats().total_calls
        taken = await _load(limiter, per_second, max(SECONDS, 6 / per_second))
        calls = limiter.repository.get_backend_stats().total_calls - before
    taken.sort()
    return [calls / len(taken), median(taken), taken[len(taken) * 99 // 100]]


async def _load(limiter: RateLimiter, per_second: int, seconds: float) -> list[float]:
    """Acquire at a steady rate; return how long each took."""
    taken, start = [], time.perf_counter()
    for number in range(max(1, round(per_second * seconds))):
        await asyncio.sleep(max(0.0, start + number / per_second - time.perf_counter()))
        begun = time.perf_counter()
        async with limiter.acquire("key", "gpt-4", {"rps": 1}):
            taken.append((time.perf_counter() - begun) * 1e6)
    return taken


def draw(curves: dict[str, list[list[float]]]) -> Any:
    """Two panels over the same demand: calls, and time."""
    drawn, axes = figure(1, 2, (9.5, 3.8))
    for colour, (mode, points) in zip((COLOURS[1], COLOURS[0]), curves.items(), strict=True):
        calls, middle, late = zip(*points, strict=True)
        axes[0][0].plot(RATES, calls, color=colour, marker="o")
        axes[0][1].plot(RATES, middle, color=colour, marker="o", label=f"{mode}, median")
        axes[0][1].plot(RATES, late, color=colour, linestyle=":", label=f"{mode}, 99 %")
    axes[0][0].set_title("calls of the store per decision", fontsize=11)
    axes[0][1].set_title("microseconds of an acquire", fontsize=11)
    for axis in axes[0]:
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("acquires of the key per second and process")
    handles, labels = axes[0][1].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4)
    return drawn
