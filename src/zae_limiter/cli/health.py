"""The health of a limiter on AWS, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fleet import stack_style
from .output import Cell, Grid, facts

if TYPE_CHECKING:
    from ..aws.health import Health


def health_grid(found: Health) -> Grid:
    """A line per part; a part that could not be looked at says why."""
    lines: dict[str, object] = {
        "name": f"{found.name} in {found.region}",
        "answers": answers(found.available),
        "latency": None if found.latency_ms is None else f"{found.latency_ms:g} ms",
        "schema": found.versions.schema,
        "client": found.versions.client,
        **({} if found.table is None and found.stack is None else _parts(found)),
    }
    for part, trouble in found.troubles.items():
        lines[part] = Cell(trouble, "yellow")
    return facts(lines)


def _parts(found: Health) -> dict[str, object]:
    return {**_stack(found), **_table(found), **_aggregator(found), "namespaces": found.namespaces}


def answers(available: bool) -> Cell:
    """Whether the store answers."""
    return Cell("yes", "green") if available else Cell("no", "bold red")


def _stack(found: Health) -> dict[str, object]:
    if found.stack is None:
        return {"stack": "none: the table was made without one"}
    reason = f": {found.stack.reason}" if found.stack.reason else ""
    return {"stack": Cell(f"{found.stack.status}{reason}", stack_style(found.stack.status))}


def _table(found: Health) -> dict[str, object]:
    table = found.table
    if table is None:
        return {"table": Cell("missing", "bold red")}
    protection = ", protected against deletion" if table.deletion_protection else ""
    return {
        "table": Cell(f"{table.status}{protection}", "green" if table.status == "ACTIVE" else "yellow"),
        "items": f"about {table.items:,}, {table.size_bytes:,} bytes",
        "stream": table.stream,
        "ttl": found.ttl,
        "pitr": found.pitr,
    }


def _aggregator(found: Health) -> dict[str, object]:
    function = found.aggregator
    if function is None:
        return {"aggregator": "none"}
    code = "code of this version" if function.code_current else "code of another version: deploy or upgrade"
    version = f", {found.versions.aggregator}" if found.versions.aggregator else ""
    fine = function.state == "Active" and function.code_current
    letters = found.dead_letters
    return {
        "aggregator": Cell(f"{function.state}, {code}{version}", "green" if fine else "yellow"),
        "stream mapping": found.stream_mapping,
        "dead letters": Cell(f"{letters:,}", "red") if letters else letters,
    }
