"""Middleware: what each adds to a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.report.tables import number, ratio, table

BARE, OURS, HEADERS, SILENT = "bare", "zae-limiter", ", headers", ", no headers"
WAYS = {"sockets": "over sockets", "in_process": "without a server"}
KINDS = ("asgi", "wsgi")


def overheads(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, float, float]]:
    """Rival, place, measure, case, ours and theirs: the CPU that a limiter adds to a request."""
    for kind in KINDS:
        for way, title in WAYS.items():
            figures = found[kind][way]
            for name, row in figures.items():
                for our in _beside(name):
                    case = f"{kind} {title}, beside {our}"
                    yield (
                        name,
                        "over HTTP",
                        "CPU per request, µs",
                        case,
                        figures[our]["overhead_us"],
                        row["overhead_us"],
                    )


def _beside(name: str) -> tuple[str, ...]:
    """Ours as the rival is, with headers or without, and as it comes: it writes headers unless told otherwise."""
    if name == BARE or name.startswith(OURS):
        return ()
    return (OURS,) if name.endswith(HEADERS) else (OURS + SILENT, OURS)


def section(found: Mapping[str, Any]) -> str:
    """The tables."""
    return "\n\n".join(_kind(found, kind) for kind in KINDS)


def _kind(found: Mapping[str, Any], kind: str) -> str:
    sockets, alone, scarce = (found[kind][way] for way in ("sockets", "in_process", "scarce"))
    head = [kind.upper(), "CPU, µs", "overhead, µs", "x ours", "requests/s", "overhead without a server, µs", "x ours"]
    rows = [
        [
            name,
            number(sockets[name]["cpu_us"]),
            *_overhead(sockets, name),
            number(sockets[name]["requests_per_s"]),
            *_overhead(alone, name),
            _statuses(scarce.get(name, {})),
        ]
        for name in sockets
    ]
    return table([*head, "100 requests on a limit of 50"], rows)


def _overhead(figures: Mapping[str, Any], name: str) -> list[str]:
    if name == BARE:
        return ["", ""]
    like = next(iter(_beside(name)), name)
    overhead = figures[name]["overhead_us"]
    return [number(overhead), ratio(overhead, figures[like]["overhead_us"])]


def _statuses(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in counted.items())
