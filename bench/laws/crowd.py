"""Admitted beside the bound: eight processes on one key of one Redis server, each asking again at once."""

from __future__ import annotations

from typing import Any

from tests.support.redis.server import Server

from bench import contention
from bench.demands import DEMANDS, QUOTA
from bench.figures import COLOURS, LINE, figure
from bench.rivals import RIVALS

PROCESSES = 8
SHOWN = ("zae-limiter", "limits, fixed window", "throttled-py", "PyrateLimiter")


def run() -> dict[str, dict[str, list[int]]]:
    """By demand and limiter: when each grant was answered, in milliseconds since everybody began to ask."""
    with Server() as server:
        return {demand: {name: _granted(server, name, demand) for name in SHOWN} for demand in DEMANDS}


def _granted(server: Server, name: str, demand: str) -> list[int]:
    server.flush()
    log, start_ns, _ = contention.run(RIVALS[name], "blocking", server.url, DEMANDS[demand], PROCESSES)
    return sorted((grant.answered_ns - start_ns) // 1_000_000 for grant in log.grants)


def draw(curves: dict[str, dict[str, list[int]]]) -> Any:
    """A step up for every grant; the bound is a straight line."""
    drawn, axes = figure(1, len(curves), (9.5, 4.4))
    for axis, (demand, limiters) in zip(axes[0], curves.items(), strict=True):
        end = DEMANDS[demand].seconds
        bound = [QUOTA.amount, QUOTA.amount + QUOTA.per_second * end]
        axis.plot([0, end], bound, color=LINE, linestyle="--", label="capacity + rate x time")
        for place, (name, granted) in enumerate(limiters.items()):
            steps = {0: 0} | {instant: count for count, instant in enumerate(granted, 1)}
            seconds = [*(instant / 1000 for instant in steps), max(end, granted[-1] / 1000)]
            wide = 2.6 if place == 0 else 1.4
            counts = [*steps.values(), len(granted)]
            axis.step(seconds, counts, where="post", color=COLOURS[place], linewidth=wide, label=name)
        axis.set_title(demand, fontsize=11)
        axis.set_xlabel("seconds since eight processes began to ask")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("granted to all together")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=5)
    return drawn
