"""The reference says what the code says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from docs_hooks.cli_reference import MARK, PAGE, PROGRAM, prose, reference

from tests.support.paths import ROOT
from zae_limiter import ValidationError
from zae_limiter.cli.app import root
from zae_limiter.cli.errors import CODES
from zae_limiter.stores.opening import open_store


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command by its path, groups too."""
    yield context.command_path.removeprefix(PROGRAM).strip(), command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, click.Context(child, info_name=name, parent=context))


COMMANDS = dict(commands(root, click.Context(root, info_name=PROGRAM)))


def examples() -> Iterator[str]:
    """What the help of all commands tells people to type."""
    for command in COMMANDS.values():
        for part in prose(command.help or ""):
            if part.startswith("```"):
                yield from re.findall(rf"^\$ {PROGRAM} (.*)$", part.replace("\\\n", ""), re.MULTILINE)


def test_every_command_has_a_place_on_the_page() -> None:
    assert MARK in (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    headings = re.findall(r"^###+ (.*)$", reference(), re.MULTILINE)
    assert headings == [path for path in COMMANDS if path]


def test_there_are_examples() -> None:
    assert len(list(examples())) > len(COMMANDS) / 2


@pytest.mark.parametrize("line", sorted(set(examples())), ids=str)
def test_an_example_of_the_help_is_understood(line: str) -> None:
    """Parsed down to the last option, and not carried out."""
    words = shlex.split(re.split(r" (?:&&|\||>) ", line)[0])
    command, context = descended(root, words)
    assert not isinstance(command, click.Group), context.command_path


def descended(command: click.Command, words: list[str]) -> tuple[click.Command, click.Context]:
    """The command that a line means, with all of its arguments parsed."""
    context = command.make_context(PROGRAM, words)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)
    return command, context


def test_exit_codes_are_those_of_the_commands() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    told = {int(code): error for code, error in re.findall(r"^\| (\d+) \| .* \| `(\w+)`", page, re.MULTILINE)}
    assert told == {code: kind.__name__ for kind, code in CODES.items() if kind is not click.Abort}


def test_errors_on_the_page_are_all_there_are() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    for kind in CODES:
        assert kind is click.Abort or f"`{kind.__name__}`" in page


def test_every_scheme_is_on_the_page() -> None:
    """The error of a scheme that does not exist lists those that do."""
    page = (ROOT / "docs" / "reference" / "urls.md").read_text(encoding="utf-8")
    with pytest.raises(ValidationError) as caught:
        open_store("nothing://", blocking=True)
    known = re.findall(r"[\w+]+://", caught.value.reason)
    assert len(known) > 5
    assert [scheme for scheme in known if f"`{scheme}" not in page] == []
