"""What holds for all commands: help, the options of the store, text and JSON."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click
import pytest

from tests.cli.terminal import Terminal, fresh, populated
from zae_limiter import SyncRepository
from zae_limiter.cli.app import SECTIONS, root
from zae_limiter.cli.commands import StoreOption

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A fresh file."""
    return fresh(tmp_path)


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below one."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        below = command.get_command(ctx, name)
        assert below is not None
        yield from leaves(below, (*path, name))


LEAVES = dict(leaves(root))


def test_the_commands_are_there() -> None:
    assert {" ".join(path) for path in LEAVES} == {
        *("create-table", "demo", "acquire", "available", "explain", "audit list", "status", "version", "check", "top"),
        "completion",
        *("usage list", "usage summary"),
        *(f"entity {verb}" for verb in ["create", "update", "show", "delete", "children", "list", "buckets"]),
        *(f"entity {verb}" for verb in ["set-limits", "get-limits", "delete-limits", "list-resources", "reset-bucket"]),
        *("entity top-up", "entity reset"),
        *(f"{group} {verb}" for group in ("entity", "resource") for verb in ("disable", "enable", "bypass")),
        *(f"{group} {verb}" for group in ("entity", "resource") for verb in ("clear-disabled", "set-cascade")),
        *("entity clear-cascade", "resource clear-cascade"),
        *(f"resource {verb}" for verb in ["set-defaults", "get-defaults", "delete-defaults", "list", "capacity"]),
        *(f"limits {verb}" for verb in ["plan", "diff", "apply", "export", "schema"]),
        *(f"system {verb}" for verb in ["set-defaults", "get-defaults", "delete-defaults"]),
        *("deploy", "list", "upgrade", "delete", "cfn-template", "lambda-export"),
        *("dead-letters list", "dead-letters replay"),
        *(f"local {verb}" for verb in ["up", "down", "status", "logs", "env"]),
        *(f"namespace {verb}" for verb in ["register", "list", "show", "delete", "recover", "purge", "orphans"]),
    }


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_an_example_and_the_options_of_the_store(terminal: Terminal, path: tuple[str, ...]) -> None:
    shown = terminal.raw(*path, "--help").stdout
    assert f"\n    zae-limiter {' '.join(path)}" in shown
    assert "Store options:" in shown
    assert sum(isinstance(param, StoreOption) for param in LEAVES[path].params) == 6


@pytest.mark.parametrize(
    "group", ["entity", "resource", "system", "limits", "namespace", "usage", "audit", "local", "dead-letters"]
)
def test_groups_show_their_commands_and_examples(terminal: Terminal, group: str) -> None:
    shown = terminal.raw(group, "--help").stdout
    assert f"    zae-limiter {group} " in shown
    assert "..." not in shown.split("Commands:")[1].split("Options:")[0]


def test_root_help_shows_all_commands_and_exit_codes(terminal: Terminal) -> None:
    shown = terminal.raw("--help").stdout
    for name in {path[0] for path in LEAVES}:
        assert f"\n  {name} " in shown
    assert "Exit codes:" in shown


def test_the_store_is_accepted_anywhere_and_the_nearest_wins(terminal: Terminal, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert terminal.raw("entity", "create", "a", "--url", terminal.url).exit_code == 0
    assert terminal.raw("entity", "--url", terminal.url, "create", "b").exit_code == 0
    assert terminal.raw("--url", other, "entity", "create", "c", "--url", terminal.url).exit_code == 0
    assert terminal.raw("entity", "create", "d", env={"ZAE_LIMITER_URL": terminal.url}).exit_code == 0
    for key in "abcd":
        assert terminal.raw("--json", "entity", "show", key, "--url", terminal.url).exit_code == 0
        assert terminal.raw("entity", "show", key, "--url", terminal.url, "--json").exit_code == 0
    assert not (tmp_path / "other.db").exists()


def test_a_new_file_and_memory_are_remarked_on(terminal: Terminal, tmp_path: Path) -> None:
    new = terminal.raw("entity", "list", "--url", f"sqlite:///{tmp_path / 'new.db'}")
    assert "new.db is created." in new.stderr
    assert "keeps nothing" in terminal.raw("entity", "create", "k", "--url", "memory://").stderr
    assert terminal.raw("entity", "create", "k", "--url", "memory://", "--json").stderr == ""


def test_a_command_opens_its_store_once(terminal: Terminal) -> None:
    assert terminal.raw("check", "--url", "memory://").stderr.count("keeps nothing") == 1


@pytest.mark.parametrize(
    ("line", "code"), [("entity show acme", 0), ("entity show nobody", 6), ("available acme x", 2)]
)
def test_a_command_closes_its_store_and_listens_to_the_log_no_longer(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, line: str, code: int
) -> None:
    terminal.text("entity", "create", "acme")
    closed: list[SyncRepository] = []
    close = SyncRepository.close

    def closing(repository: SyncRepository) -> None:
        closed.append(repository)
        close(repository)

    monkeypatch.setattr(SyncRepository, "close", closing)
    handlers = list(logging.getLogger("zae_limiter").handlers)
    assert terminal.run(*line.split()).exit_code == code
    assert len(closed) == 1
    assert logging.getLogger("zae_limiter").handlers == handlers


def test_stored_text_does_not_drive_the_terminal(terminal: Terminal) -> None:
    terminal.text("entity", "create", "key", "--display-name", "red [bold]x[/bold] :smile:")
    assert "red [bold]x[/bold] :smile:" in terminal.text("entity", "show", "key")
    refused = terminal.raw("entity", "create", "other", "--display-name", "\x1b[31mred")
    assert refused.exit_code == 2
    assert "\x1b" not in refused.stderr


EACH = [
    "entity create new --parent acme",
    "entity update key --no-cascade",
    "entity show key",
    "entity delete key --yes",
    "entity children acme",
    "entity set-limits key -l rpm:5",
    "entity get-limits key -r gpt-4",
    "entity delete-limits key -r gpt-4 --yes",
    "entity list",
    "entity list-resources",
    "entity disable key",
    "entity enable key -r gpt-4",
    "entity bypass key",
    "resource disable gpt-4",
    "resource enable gpt-4",
    "resource bypass gpt-4",
    "entity buckets key",
    "entity reset-bucket key gpt-4 --yes",
    "entity top-up key -r gpt-4 --add rpm:5 --expires 30d --idempotency-key k",
    "entity reset key -r gpt-4 --limit rpm --idempotency-key k",
    "resource set-defaults gpt-4 -l rpm:5",
    "resource get-defaults gpt-4",
    "resource delete-defaults gpt-4 --yes",
    "resource list",
    "resource capacity gpt-4 rpm",
    "resource capacity gpt-4 --limit rpm",
    "resource clear-disabled gpt-4",
    "resource set-cascade gpt-4 false",
    "resource clear-cascade gpt-4",
    "entity clear-disabled key",
    "entity set-cascade key true -r gpt-4",
    "entity clear-cascade key",
    "limits plan -f FILE",
    "limits diff -f FILE",
    "limits apply -f FILE --yes",
    "limits export",
    "system set-defaults -l rpm:5",
    "system get-defaults",
    "system delete-defaults --yes",
    "create-table",
    "namespace register green",
    "namespace list",
    "namespace show blue",
    "namespace delete blue --yes",
    "namespace recover -- OLD",
    "namespace purge --yes -- OLD",
    "namespace orphans",
    "acquire key gpt-4 -c rpm:1",
    "available key gpt-4",
    "explain key gpt-4",
    "usage list --entity key",
    "usage summary --resource gpt-4",
    "top --once",
    "audit list key",
    "status",
    "version",
    "check",
]


@pytest.mark.parametrize("line", EACH)
def test_every_command_answers_as_text_and_as_json(terminal: Terminal, line: str, tmp_path: Path) -> None:
    family = populated(terminal)
    file = tmp_path / "limits.toml"
    file.write_text("system.limits.rpm = 5", encoding="utf-8")
    family.text("acquire", "key", "gpt-4", "-c", "rpm:1")
    (_, old) = family.json("namespace", "register", "blue", "old")
    family.text("namespace", "delete", "old", "--yes")
    asked = line.replace("OLD", old["id"]).replace("FILE", str(file)).split()
    copy = Terminal(family.copied())
    text = family.run(*asked)
    assert text.exit_code == 0, text.output
    assert text.stdout.strip()
    assert not text.stdout.lstrip().startswith(("{", "["))
    assert copy.json(*asked) is not None


def test_that_covers_every_command_that_works_on_a_store_but_those_for_aws() -> None:
    """``tests/aws`` has a file for each of those. A schema is JSON in any case."""
    stored = LEAVES.keys() - {("limits", "schema")}
    left = {path[0] for path in stored if not any(tuple(line.split())[: len(path)] == path for line in EACH)}
    assert left - SECTIONS["Run it on AWS"].keys() - SECTIONS["A local AWS"].keys() == {"demo", "completion"}
