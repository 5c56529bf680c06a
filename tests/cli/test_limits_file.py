"""``zae-limiter limits``: a file is planned, applied, exported, and its mistakes are told."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.cli.terminal import Terminal, fresh
from zae_limiter.cli.app import root

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
    system:
      on_unavailable: block
      limits: {rpm: 600/min}
    resources:
      gpt-4:
        switch: bypassed
        limits:
          tpm: {rate: 10000, burst: 15000, floors: {batch: 0.3}}
          usd: {quota: 30, every: month, on: 15, tz: Europe/Berlin, soft: true}
    entities:
      key-1: {parent: acme, cascade: true, limits: {rpm: 60}}
      acme: {name: Acme Inc.}
"""
CHANGED = FILE.replace("600/min", "700/min").replace("bypassed", "disabled").replace("usd:", "eur:")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A fresh file."""
    return fresh(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A limits file."""
    return write(tmp_path / "limits.yaml", FILE)


def write(path: Path, text: str) -> Path:
    path.write_text(dedent(text), encoding="utf-8")
    return path


def test_a_plan_shows_what_is_added_changed_and_removed(terminal: Terminal, file: Path) -> None:
    assert terminal.text("limits", "plan", "-f", str(file)).endswith("Plan: 6 to add, 0 to change, 0 to remove.\n")
    terminal.text("limits", "apply", "-f", str(file), "--yes")
    terminal.text("resource", "set-defaults", "old", "-l", "rpm:1")
    shown = terminal.text("limits", "plan", "-f", str(write(file, CHANGED)), "--prune")
    assert shown == dedent("""\
        ~ system
            ~ rpm 600/min -> 700/min
        ~ resource gpt-4
            + eur 30/month@Europe/Berlin,on=15 (soft)
            - usd 30/month@Europe/Berlin,on=15 (soft)
            ~ switch bypassed -> disabled
        - resource old
            - rpm 1/min

        Plan: 0 to add, 3 to change, 1 to remove.
    """)


def test_a_plan_is_coloured_on_a_terminal_unless_that_is_not_wanted(terminal: Terminal, file: Path) -> None:
    line = ["--url", terminal.url, "limits", "plan", "-f", str(file)]
    coloured = CliRunner().invoke(root, line, color=True).stdout
    assert "\x1b[32m    + rpm 600/min\x1b[0m" in coloured
    assert "\x1b" not in CliRunner(env={"NO_COLOR": "1"}).invoke(root, line, color=True).stdout


def test_a_diff_is_unified_and_plain(terminal: Terminal, file: Path) -> None:
    terminal.text("limits", "apply", "-f", str(file), "--yes")
    write(file, CHANGED)
    shown = CliRunner().invoke(root, ["--url", terminal.url, "limits", "diff", "-f", str(file)], color=True).stdout
    assert shown.splitlines() == [
        "--- stored",
        f"+++ {file}",
        "@@ system @@",
        "-rpm 600/min",
        "+rpm 700/min",
        "@@ resource gpt-4 @@",
        "+eur 30/month@Europe/Berlin,on=15 (soft)",
        "-usd 30/month@Europe/Berlin,on=15 (soft)",
        "-switch bypassed",
        "+switch disabled",
    ]


@pytest.mark.parametrize("command", ["plan", "diff"])
def test_exit_codes_for_pipelines(terminal: Terminal, file: Path, command: str) -> None:
    line = ("limits", command, "-f", str(file))
    assert terminal.run(*line).exit_code == 0
    assert terminal.run(*line, "--detailed-exitcode").exit_code == 2
    assert terminal.run("--json", *line, "--detailed-exitcode").exit_code == 2
    terminal.text("limits", "apply", "-f", str(file), "--yes")
    assert terminal.run(*line, "--detailed-exitcode").exit_code == 0
    write(file, "system: 5")
    assert terminal.run(*line, "--detailed-exitcode").exit_code == 24


def test_a_dry_run_of_apply_changes_nothing_and_tells_by_its_exit_code(terminal: Terminal, file: Path) -> None:
    line = ("limits", "apply", "-f", str(file), "--dry-run")
    before = terminal.run(*line)
    assert (before.exit_code, "+ rpm 600/min" in before.stdout, "Applied" in before.stdout) == (2, True, False)
    told = terminal.run("--json", *line, "--yes")
    assert (told.exit_code, json.loads(told.stdout)["applied"]) == (2, 0)
    assert terminal.json("system", "get-defaults")["limits"] == []
    terminal.text("limits", "apply", "-f", str(file), "--yes")
    assert terminal.run(*line).exit_code == 0
    write(file, "system: 5")
    assert terminal.run(*line).exit_code == 24


def test_after_an_apply_there_is_nothing_to_do(terminal: Terminal, file: Path) -> None:
    assert "Applied 6 changes." in terminal.text("limits", "apply", "-f", str(file), "--yes")
    assert "No changes" in terminal.text("limits", "plan", "-f", str(file))
    assert terminal.json("limits", "plan", "-f", str(file))["changes"] == []
    assert terminal.text("limits", "apply", "-f", str(file)).startswith("No changes")
    assert {event["principal"] for event in terminal.json("audit", "list", "key-1")} == {"tester"}


def test_an_apply_asks_first(terminal: Terminal, file: Path) -> None:
    refused = terminal.run("limits", "apply", "-f", str(file), input="n\n")
    assert refused.exit_code == 1
    assert "+ rpm 600/min" in refused.stdout
    assert terminal.json("system", "get-defaults")["limits"] == []
    assert terminal.run("--json", "limits", "apply", "-f", str(file)).exit_code == 1
    assert terminal.run("limits", "apply", "-f", str(file), input="y\n").exit_code == 0
    assert len(terminal.json("system", "get-defaults")["limits"]) == 1


def test_a_plan_that_was_kept_is_applied_later_and_once_more(terminal: Terminal, file: Path, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    terminal.text("limits", "plan", "-f", str(file), "--out", str(kept))
    done = terminal.json("limits", "apply", "--plan", str(kept), "--yes")
    assert (done["applied"], done["summary"]) == (6, {"add": 6, "change": 0, "remove": 0})
    assert "Applied 0 changes, 6 were made already." in terminal.text("limits", "apply", "--plan", str(kept), "--yes")


def test_an_outdated_plan_is_refused_and_says_what_changed(terminal: Terminal, file: Path, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    terminal.text("limits", "plan", "-f", str(file), "--out", str(kept))
    terminal.text("system", "set-defaults", "-l", "rpm:5")
    refused = terminal.run("limits", "apply", "--plan", str(kept), "--yes")
    assert refused.exit_code == 23
    assert "system, limits: now rpm 5/min" in refused.stderr
    assert "Nothing was changed" in refused.stderr
    assert terminal.run("entity", "show", "acme").exit_code == 6
    told = json.loads(terminal.run("--json", "limits", "apply", "--plan", str(kept), "--yes").stderr)
    assert (told["error"], told["applied"], len(told["conflicts"])) == ("plan_outdated", 0, 1)


def test_every_mistake_is_told_with_its_place_and_nothing_is_applied(terminal: Terminal, tmp_path: Path) -> None:
    file = write(tmp_path / "bad.yaml", "system: {limits: {rpm: 5, tpm: lots}}\nentities: {a: {cascade: 1}}\nx: 1\n")
    refused = terminal.run("limits", "apply", "-f", str(file), "--yes")
    assert refused.exit_code == 24
    lines = refused.stderr.splitlines()
    assert lines[0] == f"Error: 3 mistakes in {file}, nothing was changed."
    assert [line.removeprefix(f"{file}:").split(" ")[0] for line in lines[1:]] == ["1:32:", "2:25:", "3:1:"]
    assert terminal.json("system", "get-defaults")["limits"] == []
    told = json.loads(terminal.run("--json", "limits", "plan", "-f", str(file)).stderr)
    assert [(each["line"], each["column"]) for each in told["problems"]] == [(1, 32), (2, 25), (3, 1)]


def test_a_text_in_a_file_does_not_drive_the_terminal(terminal: Terminal, tmp_path: Path) -> None:
    file = write(tmp_path / "bad.yaml", '"\\e[31mred": 1')
    assert "\x1b" not in terminal.run("limits", "plan", "-f", str(file)).stderr


@pytest.mark.parametrize(
    ("ending", "text"), [("yaml", "system: {limits: {rpm: 5}}"), ("toml", "system.limits.rpm = 5")]
)
def test_files_of_windows_are_read(terminal: Terminal, tmp_path: Path, ending: str, text: str) -> None:
    file = tmp_path / f"limits.{ending}"
    file.write_bytes(f"\ufeff# first\r\n{text}\r\n".encode())
    assert "+ rpm 5/min" in terminal.text("limits", "plan", "-f", str(file))


@pytest.mark.parametrize("ending", ["yaml", "yml", "toml"])
def test_an_export_is_planned_as_nothing(terminal: Terminal, file: Path, tmp_path: Path, ending: str) -> None:
    terminal.text("limits", "apply", "-f", str(file), "--yes")
    out = tmp_path / f"export.{ending}"
    assert terminal.text("limits", "export", "-f", str(out)) == f"Wrote {out}.\n"
    assert "No changes" in terminal.text("limits", "plan", "-f", str(out), "--prune")
    other = Terminal(tmp_path / "other.db")
    other.text("limits", "apply", "-f", str(out), "--yes")
    assert other.json("limits", "export") == terminal.json("limits", "export")


@pytest.mark.parametrize("ending", ["yaml", "toml"])
def test_an_export_of_an_empty_store_is_planned_as_nothing(terminal: Terminal, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"export.{ending}"
    terminal.text("limits", "export", "-f", str(out))
    shown = terminal.text("limits", "plan", "-f", str(out), "--prune")
    assert shown == f"No changes: the store says what {out} states.\n"
    assert terminal.json("limits", "export") == {"system": {}}


def test_an_export_is_printed_or_overwrites_a_file_if_told_so(terminal: Terminal, file: Path) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:5")
    assert terminal.text("limits", "export") == "system:\n  limits: {rpm: 5/min}\n"
    assert terminal.text("limits", "export", "--format", "toml") == '[system.limits]\nrpm = "5/min"\n'
    assert terminal.run("limits", "export", "-f", str(file), input="n\n").exit_code == 1
    assert file.read_text(encoding="utf-8") == dedent(FILE)
    terminal.text("limits", "export", "-f", str(file), "--yes")
    assert file.read_text(encoding="utf-8") == "system:\n  limits: {rpm: 5/min}\n"


def test_the_schema_is_printed_without_a_store(terminal: Terminal) -> None:
    result = terminal.raw("limits", "schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["$defs"].keys() == {"system", "settings", "entity", "limit"}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("plan", "-f", "FOLDER/limits.json"), 2, "does not end in .yaml, .yml, .toml"),
        (("plan", "-f", "FOLDER/missing.yaml"), 1, "cannot be read"),
        (("apply",), 2, "Pass a file with -f"),
        (("apply", "-f", "FOLDER/limits.yaml", "--plan", "FOLDER/limits.yaml"), 2, "Pass a file with -f"),
        (("apply", "--plan", "FOLDER/limits.yaml"), 2, "is not a plan"),
        (("export", "-f", "FOLDER/none/limits.yaml"), 1, "cannot be written"),
    ],
)
def test_wrong_words_are_told(terminal: Terminal, file: Path, words: tuple[str, ...], code: int, told: str) -> None:
    (file.parent / "limits.json").write_text("{}", encoding="utf-8")
    result = terminal.run("limits", *(word.replace("FOLDER", str(file.parent)) for word in words))
    assert result.exit_code == code, result.output
    assert told in " ".join(result.stderr.split())


def test_a_plan_warns_of_what_has_no_effect(terminal: Terminal, file: Path) -> None:
    text = """\
        system: {limits: {tpm: {rate: 10, soft: true, floors: {batch: 0.3}}}}
        entities:
          alone: {cascade: true}
          free: {cascade: false}
    """
    told = terminal.run("limits", "plan", "-f", str(write(file, text))).stderr
    assert "note: the floors of tpm have no effect while it is soft.\n" in told
    assert told.endswith("note: cascade has no effect on alone until it has a parent.\n")
    assert told.count("note:") == 2


def test_a_plan_warns_of_a_parent_that_shares_no_limit_name(terminal: Terminal, file: Path) -> None:
    text = """\
        entities:
          key-1: {parent: acme, cascade: true, limits: {tokens: 60}}
          acme: {limits: {tpm: 600}}
    """
    warning = "note: key-1 and its parent acme have no limit of the same name: the parent limits nothing there.\n"
    for _ in range(2):
        assert terminal.run("limits", "plan", "-f", str(write(file, text))).stderr.endswith(warning)
        terminal.text("limits", "apply", "-f", str(file), "--yes")
    stored = "entities:\n  acme: {limits: {%s: 5}}\n"
    assert terminal.run("limits", "plan", "-f", str(write(file, stored % "rpm"))).stderr == ""
    alone = "entities:\n  key-1: {limits: {%s: 5}}\n"
    assert terminal.run("limits", "plan", "-f", str(write(file, alone % "rpm"))).stderr.endswith(warning)
    assert terminal.run("limits", "plan", "-f", str(write(file, alone % "tpm"))).stderr == ""
