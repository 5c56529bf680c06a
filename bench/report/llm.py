"""The LLM call, on every store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.report import bars
from bench.report.bars import Bar
from bench.report.tables import number, table

MODES = ("blocking", "async")
SETTLED = "three levels, settled"
SIX_HITS, FIXED = "six hits of limits", "limits, fixed window"
PLAIN = ("one level", "one level, settled", "three levels", SETTLED)
SHARES = (
    ("one level", "two hits of limits", 0.6),
    ("one level, settled", "two hits of limits", 1.4),
    ("three levels", SIX_HITS, 0.45),
    (SETTLED, SIX_HITS, 0.75),
    ("refused at the top", SIX_HITS, 0.8),
    ("a new key", "six hits of limits, a new key", 8),
    ("a new key, settled", "six hits of limits, a new key", 8),
    ("100 keys, settled", SETTLED, 1.15),
    ("settled, with an observer", SETTLED, 2),
    ("settled, soft limits", SETTLED, 2),
    ("settled, soft limits overdrawn", SETTLED, 2),
    ("settled, quotas", SETTLED, 2),
    ("settled, alerts", SETTLED, 2),
    ("settled above the estimate", SETTLED, 2),
    ("settled, in debt", SETTLED, 2),
)
"""In memory: a case, what it is divided by, and the most that may come of it."""
ASYNC, SETTLING, WALL, ROUND_TRIPS, WRITES = 1.15, 2.2, 0.7, 2, 2


def section(found: Mapping[str, Any]) -> str:
    """The bars of each store, then the figures of all limiters."""
    parts = [
        "**In memory, µs of CPU per call**",
        bars.section(in_memory(found["memory"])),
        "**On Redis**",
        bars.section(on_redis(found["redis"])),
        "**On DynamoDB, writes per level**",
        bars.section(on_dynamodb(found["dynamodb"])),
        "**Three levels: ours settled, the others with two hits or takes for each level, never settled**",
        _all_limiters(found),
    ]
    return "\n\n".join(parts)


def in_memory(found: Mapping[str, Any]) -> Iterator[Bar]:
    """CPU beside the hits of `limits`, beside the plain call, and async beside blocking."""
    for mode in MODES:
        for case, beside, most in SHARES:
            ours, base = (found[mode][name]["cpu_us"] for name in (case, beside))
            yield Bar(f"{case}, {mode}", ours, most, beside, base)
    for case in PLAIN:
        ours, base = (found[mode][case]["cpu_us"] for mode in ("async", "blocking"))
        yield Bar(f"{case}, async beside blocking", ours, ASYNC, "blocking", base)


def on_redis(found: Mapping[str, Any]) -> Iterator[Bar]:
    """CPU of settling, time beside the hits of `limits`, and round trips."""
    for place in ("alone", "second writer"):
        for mode in MODES:
            figures = found[place][mode]
            for depth in ("one level", "three levels"):
                ours, base = (figures[name]["cpu_us"] for name in (f"{depth}, settled", depth))
                case = f"client CPU, {depth}, settled, {mode}" + (", with a second writer" * (place != "alone"))
                yield Bar(case, ours, SETTLING, "never settled", base)
    for mode in MODES:
        figures = found["alone"][mode]
        yield Bar(f"time, {SETTLED}, {mode}", figures[SETTLED]["wall_us"], WALL, SIX_HITS, figures[SIX_HITS]["wall_us"])
        yield Bar(f"commands, {SETTLED}, {mode}", figures[SETTLED]["commands"], ROUND_TRIPS)


def on_dynamodb(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Writes."""
    for mode in MODES:
        for case in ("one level, settled", SETTLED):
            yield Bar(f"{case}, {mode}", found[mode][case], WRITES)


def figures_of(found: Mapping[str, Any], store: str, mode: str, name: str, ours: str) -> Mapping[str, float]:
    """Return the figures of a limiter for a call of three levels."""
    modes = found["memory"] if store == "memory" else found["redis"]["alone"]
    figures: Mapping[str, float] = modes[mode][{ours: SETTLED, FIXED: SIX_HITS}.get(name, name)]
    return figures


def _all_limiters(found: Mapping[str, Any]) -> str:
    rows = [
        [mode, name, number(found["memory"][mode][name]["cpu_us"]), *(number(figures[each]) for each in _SHOWN)]
        for mode in MODES
        for name, figures in found["redis"]["alone"][mode].items()
        if name not in PLAIN or name == SETTLED
    ]
    head = (
        "mode",
        "limiter",
        "in memory: CPU, µs",
        "on Redis: time, µs",
        "client CPU, µs",
        "commands",
        "server CPU, µs",
    )
    return table(head, rows)


_SHOWN = ("wall_us", "cpu_us", "commands", "server_us")
