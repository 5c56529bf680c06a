"""A plan as lines for people: coloured as `plan` shows it, and unified as `diff` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import click

from ..core.limit import Limit
from ..manifest.states import LABELS, Change, Plan
from .arguments import spell_limit
from .grid import printable
from .output import style

_COLOURS = {"+": "green", "~": "yellow", "-": "red"}
_MARKS = {"add": "+", "change": "~", "remove": "-"}


class Row(NamedTuple):
    """One thing that changes: what it is called, and how it is before and after, None where it is not there."""

    label: str
    before: str | None
    after: str | None

    @property
    def mark(self) -> str:
        """``+``, ``~`` or ``-``."""
        return "+" if self.before is None else "-" if self.after is None else "~"


def show_plan(plan: Plan, title: str, *, quiet: bool = False) -> None:
    """Print a plan in colours and its summary, which is all if ``quiet`` is True."""
    for subject, changes in [] if quiet else _group(plan):
        kinds = {change.kind for change in changes}
        mark = _MARKS[kinds.pop()] if len(kinds) == 1 else "~"
        click.echo(style(f"{mark} {subject}", fg=_COLOURS[mark], bold=True))
        for row in _list_rows(changes):
            click.echo(style(f"    {row.mark} {printable(_spell_row(row))}", fg=_COLOURS[row.mark]))
    click.echo(("\n" if plan.changes and not quiet else "") + summarize(plan, title))


def _group(plan: Plan) -> Iterator[tuple[str, list[Change]]]:
    for subject, changes in groupby(plan.changes, key=lambda change: change.subject):
        yield printable(str(subject)), list(changes)


def summarize(plan: Plan, title: str) -> str:
    """Return how much a plan changes, in one line."""
    if not plan.changes:
        return f"No changes: the store says what {title} states."
    parts = [f"{plan.count(kind)} to {kind}" for kind in _MARKS]
    return f"Plan: {', '.join(parts)}."


def show_unified(plan: Plan, title: str) -> None:
    """Print a plan as a unified diff, without colours."""
    if plan.changes:
        click.echo(f"--- stored\n+++ {title}")
    for subject, changes in _group(plan):
        click.echo(f"@@ {subject} @@")
        for row in _list_rows(changes):
            for mark, text in (("-", row.before), ("+", row.after)):
                if text is not None:
                    click.echo(f"{mark}{printable(f'{row.label} {text}'.strip())}")


def _spell_row(row: Row) -> str:
    if row.before is None or row.after is None:
        return f"{row.label} {row.after if row.before is None else row.before}".strip()
    return f"{row.label} {row.before} -> {row.after}"


def _list_rows(changes: list[Change]) -> Iterator[Row]:
    for change in changes:
        before: Mapping[str, Any] = change.before or {}
        for field, after in change.after.items():
            if field == "limits":
                yield from _compare_limits(before.get(field, ()), after)
            elif before.get(field) != after:
                yield Row(LABELS.get(field, field), _spell(before.get(field)), _spell(after))


def _compare_limits(before: tuple[Limit, ...], after: tuple[Limit, ...]) -> Iterator[Row]:
    old, new = ({limit.name: limit for limit in each} for each in (before, after))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield Row(name, *(_spell_limit(each.get(name)) for each in (old, new)))


def _spell_limit(limit: Limit | None) -> str | None:
    return None if limit is None else spell_limit(limit).removeprefix(f"{limit.name} ")


def _spell(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)
