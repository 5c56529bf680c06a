"""The command line as a page: what ``--help`` says of every command, written once, by the commands themselves.

A hook of MkDocs: ``docs/reference/cli.md`` holds the line `MARK`, which is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from textwrap import dedent
from typing import Any

import click

from zae_limiter.cli.app import SECTIONS, root
from zae_limiter.cli.commands import StoreOption

PAGE = "reference/cli.md"
MARK = "<!-- commands -->"
PROGRAM = "zae-limiter"


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Called by MkDocs for every page."""
    return markdown.replace(MARK, reference()) if page.file.src_uri == PAGE else markdown


def reference() -> str:
    """All commands, by the sections of the help."""
    context = click.Context(root, info_name=PROGRAM)
    parts = ["## Options of every command", *_described(root, context, shared=True)]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}")
        for name in names:
            parts += _command(name, context, 3)
    return "\n\n".join(parts)


def _command(name: str, parent: click.Context, level: int) -> Iterator[str]:
    """A command, and those below it."""
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} {context.command_path.removeprefix(PROGRAM).strip()}"
    yield from _described(command, context, shared=False)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            yield from _command(child, context, level + 1)


def _described(command: click.Command, context: click.Context, *, shared: bool) -> Iterator[str]:
    yield _fenced("text", command.get_usage(context).removeprefix("Usage: "))
    yield from prose(command.help or "")
    yield from _options(command, context, shared=shared)
    yield from prose(command.epilog or "")


def prose(text: str) -> Iterator[str]:
    """Help as Markdown: paragraphs stay, what click must not wrap (``\\b``) is set as it is."""
    for paragraph in filter(None, re.split(r"\n\s*\n", cleandoc(text))):
        lines = paragraph.splitlines()
        if lines[0].strip() == "\b":
            yield from _verbatim([line.rstrip() for line in lines[1:]])
        else:
            yield _escaped(" ".join(line.strip() for line in lines))


def _verbatim(lines: list[str]) -> Iterator[str]:
    """A title, if there is one, and what stands below it."""
    if lines and lines[0].endswith(":"):
        yield lines.pop(0).strip()
    plain = dedent("\n".join(lines))
    typed = re.sub(rf"^(?={PROGRAM} |export |eval )", "$ ", plain, flags=re.MULTILINE)
    yield _fenced("text" if typed == plain else "console", typed)


def _options(command: click.Command, context: click.Context, *, shared: bool) -> Iterator[str]:
    """The options that are the command's own, or those that all have."""
    rows = []
    for param in command.get_params(context):
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None and isinstance(param, StoreOption) == shared and "--help" not in param.opts:
            rows.append(f"| `{record[0]}` | {_escaped(record[1])} |")
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])


def _escaped(text: str) -> str:
    """A text that means itself in Markdown, in a table too."""
    return re.sub(r"([*_\[\]])", r"\\\1", text).replace("<", "&lt;").replace("|", "&#124;")


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
