"""``zae-limiter limits``: all limits as one file, planned, applied and exported.

A plan is shown as lines for people: coloured as `plan` shows it, and unified as `diff` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ..core.limit import Limit
from ..manifest.document import FORMATS
from ..manifest.export import export_data, write_document
from ..manifest.fields import json_schema
from ..manifest.parsing import parse_manifest
from ..manifest.states import LABELS, Change, Plan, decode_plan, encode_plan
from .arguments import Decorator, combine
from .commands import Group, Shell, confirmed, yes_option
from .grid import printable
from .output import note, print_json, spell_count, style
from .spelling import spell_terms

if TYPE_CHECKING:
    from ..sync import SyncRepository

_CHANGES = 2
"""The exit code of ``--detailed-exitcode`` and of a dry run where there is something to do."""
_COLOURS = {"+": "green", "~": "yellow", "-": "red"}
_MARKS = {"add": "+", "change": "~", "remove": "-"}
Row: TypeAlias = tuple[str, str | None, str | None]
"""Something that changes: its label, and how it is before and after, None if it is not there."""


@click.group(cls=Group)
def limits() -> None:
    """All limits as one file: what would change, and the change itself.

    The file is YAML or TOML, by its ending. What it does not name is left alone.

    Examples:
      zae-limiter limits plan -f limits.yaml
      zae-limiter limits apply -f limits.yaml
      zae-limiter limits export > limits.yaml
    """


_PATH = click.Path(dir_okay=False, path_type=Path)


def _file_option(*, required: bool) -> Decorator:
    return click.option("--file", "-f", "file", type=_PATH, required=required, help="The limits file, .yaml or .toml.")


_prune_option = click.option(
    "--prune", is_flag=True, help="Also remove limits of resources and entities that the file does not state."
)
_quiet_option = click.option("--quiet", "-q", is_flag=True, help="Only say how much would change.")
_planning_options = combine(
    _file_option(required=True),
    _prune_option,
    click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if there is something to do."),
    _quiet_option,
)


@limits.command("plan")
@_planning_options
@click.option("--out", type=_PATH, help="Write the plan here, for apply --plan.")
def plan_limits(shell: Shell, file: Path, prune: bool, detailed_exitcode: bool, quiet: bool, out: Path | None) -> int:
    """Show what apply would change.

    Exit codes: 0, or with --detailed-exitcode 2 if there is something to do; 24 for a file with mistakes, all of which
    are named with line and column.

    Examples:
      zae-limiter limits plan -f limits.yaml
      zae-limiter limits plan -f limits.yaml --prune --out plan.json
      zae-limiter limits plan -f limits.yaml --detailed-exitcode --json
    """
    plan = _make_plan(shell, shell.repository(), file, prune)
    data = encode_plan(plan, shell.namespace)
    if out is not None:
        _write(out, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    if shell.as_json:
        print_json(data)
    else:
        show_plan(plan, str(file), quiet=quiet)
    for warning in plan.warnings:
        note(f"{warning}.")
    return _CHANGES if detailed_exitcode and plan.changes else 0


@limits.command("diff")
@_planning_options
def diff_limits(shell: Shell, file: Path, prune: bool, detailed_exitcode: bool, quiet: bool) -> int:
    """Show what apply would change as a unified diff.

    It has no colours, and nothing if there is nothing to do.

    Examples:
      zae-limiter limits diff -f limits.yaml
      zae-limiter limits diff -f limits.yaml --detailed-exitcode
    """
    plan = _make_plan(shell, shell.repository(), file, prune)
    if shell.as_json:
        print_json(encode_plan(plan, shell.namespace))
    elif quiet:
        show_plan(plan, str(file), quiet=True)
    elif plan.changes:
        show_unified(plan, str(file))
    else:
        note(f"the store says what {file} states.")
    return _CHANGES if detailed_exitcode and plan.changes else 0


@limits.command("apply")
@_file_option(required=False)
@_prune_option
@click.option("--plan", "planned", type=_PATH, help="Apply this plan, made by plan --out, instead of a file.")
@click.option("--dry-run", is_flag=True, help="Change nothing; exit with 2 if there is something to do.")
@_quiet_option
@confirmed
def apply_limits(
    shell: Shell, file: Path | None, prune: bool, planned: Path | None, dry_run: bool, quiet: bool, **given: Any
) -> int:
    """Make the store say what a file states.

    It shows the plan and asks first. Every change is in the audit log. What others have changed since the plan is
    refused with exit code 23; after an interruption run it again.

    Examples:
      zae-limiter limits apply -f limits.yaml
      zae-limiter limits apply -f limits.yaml --dry-run
      zae-limiter limits apply -f limits.yaml --prune --yes
      zae-limiter limits apply --plan plan.json --yes
    """
    if (file is None) == (planned is None) or (planned is not None and prune):
        raise click.UsageError("Pass a file with -f, or a plan with --plan, which has its --prune in it.")
    repository = shell.repository()
    plan = _read_plan(shell, planned) if planned is not None else _make_plan(shell, repository, Path(file or ""), prune)
    if not shell.as_json:
        show_plan(plan, str(file or planned), quiet=quiet)
    applied = 0
    if plan.changes and not dry_run:
        shell.confirm("Apply these changes?", given["yes"])
        applied = repository.apply_plan(plan, given["principal"])
    if shell.as_json:
        print_json({**encode_plan(plan, shell.namespace), "applied": applied})
    elif plan.changes and not dry_run:
        done = len(plan.changes) - applied
        click.echo(f"Applied {spell_count(applied, 'change')}{f', {done} were made already' if done else ''}.")
    return _CHANGES if dry_run and plan.changes else 0


@limits.command("export")
@_file_option(required=False)
@click.option("--format", "format", type=click.Choice(["yaml", "toml"]), help="The format.  [default: by the file]")
@yes_option
def export_limits(shell: Shell, file: Path | None, format: str | None, yes: bool) -> None:
    """Write all that is stored as a limits file.

    plan finds nothing to do for it. Without -f it is printed. Metadata of entities are not part of it.

    Examples:
      zae-limiter limits export > limits.yaml
      zae-limiter limits export -f limits.toml
    """
    chosen = format or ("yaml" if file is None else _find_format(file))
    data = export_data(shell.repository().export_limits())
    if file is None:
        if shell.as_json:
            print_json(data)
        else:
            click.echo(write_document(data, chosen), nl=False)
        return
    if file.exists():
        shell.confirm(f"Overwrite {file}?", yes)
    _write(file, write_document(data, chosen))
    shell.show({"file": str(file), **data}, f"Wrote {file}.")


@limits.command("schema")
def print_schema(shell: Shell) -> None:
    """Print the JSON schema of a limits file, for editors.

    Example:
      zae-limiter limits schema > limits.schema.json
    """
    print_json(json_schema())


def _make_plan(shell: Shell, repository: SyncRepository, file: Path, prune: bool) -> Plan:
    manifest = parse_manifest(_read(file), _find_format(file), str(file), shell.namespace)
    return repository.plan_limits(manifest, prune=prune, file=str(file))


def _find_format(file: Path) -> str:
    if file.suffix.lower() not in FORMATS:
        raise click.UsageError(f"The file {str(file)!r} does not end in {', '.join(FORMATS)}.")
    return FORMATS[file.suffix.lower()]


def _read_plan(shell: Shell, file: Path) -> Plan:
    try:
        data = json.loads(_read(file))
    except ValueError as error:
        raise click.UsageError(f"{file} is not a plan: {error}") from None
    return decode_plan(data, shell.namespace)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from None


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error}") from None


def show_plan(plan: Plan, title: str, *, quiet: bool = False) -> None:
    """Print a plan in colours and its summary, which is all if ``quiet`` is True."""
    for subject, changes in [] if quiet else _group(plan):
        kinds = {change.kind for change in changes}
        mark = _MARKS[kinds.pop()] if len(kinds) == 1 else "~"
        click.echo(style(f"{mark} {subject}", fg=_COLOURS[mark], bold=True))
        for label, before, after in _list_rows(changes):
            mark = "+" if before is None else "-" if after is None else "~"
            sides = " -> ".join(side for side in (before, after) if side is not None)
            click.echo(style(f"    {mark} {printable(f'{label} {sides}'.strip())}", fg=_COLOURS[mark]))
    summary = f"Plan: {', '.join(f'{plan.count(kind)} to {kind}' for kind in _MARKS)}."
    if not plan.changes:
        summary = f"No changes: the store says what {title} states."
    click.echo(("\n" if plan.changes and not quiet else "") + summary)


def _group(plan: Plan) -> Iterator[tuple[str, list[Change]]]:
    for subject, changes in groupby(plan.changes, key=lambda change: change.subject):
        yield printable(str(subject)), list(changes)


def show_unified(plan: Plan, title: str) -> None:
    """Print a plan as a unified diff, without colours."""
    if plan.changes:
        click.echo(f"--- stored\n+++ {title}")
    for subject, changes in _group(plan):
        click.echo(f"@@ {subject} @@")
        for label, before, after in _list_rows(changes):
            for mark, text in (("-", before), ("+", after)):
                if text is not None:
                    click.echo(f"{mark}{printable(f'{label} {text}'.strip())}")


def _list_rows(changes: list[Change]) -> Iterator[Row]:
    for change in changes:
        before: Mapping[str, Any] = change.before or {}
        for field, after in change.after.items():
            if field == "limits":
                yield from _compare_limits(before.get(field, ()), after)
            elif before.get(field) != after:
                yield LABELS.get(field, field), _spell(before.get(field)), _spell(after)


def _compare_limits(before: tuple[Limit, ...], after: tuple[Limit, ...]) -> Iterator[Row]:
    old, new = ({limit.name: spell_terms(limit) for limit in each} for each in (before, after))
    changed = {limit.name for limit in {*before} ^ {*after}}
    yield from ((name, old.get(name), new.get(name)) for name in sorted(changed))


def _spell(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)
