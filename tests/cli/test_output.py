"""What becomes of the output: a full disk, a reader that leaves, a stdout that is closed. One line, one code."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, fresh
from zae_limiter.cli.output import OutputError, show_events
from zae_limiter.v017.upgrade.command import show_upgrade

FULL = Path("/dev/full")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    made = fresh(tmp_path)
    made.text("system", "set-defaults", "-l", "rpm:10/day")
    return made


def shell(terminal: Terminal, line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which ``$Z`` is the command on this file."""
    here = {**os.environ, "Z": f"{sys.executable} -m zae_limiter", "ZAE_LIMITER_URL": terminal.url, **env}
    return subprocess.run(["bash", "-c", line], env=here, capture_output=True, text=True, check=False, timeout=60)


LINES = ["system get-defaults", "acquire key gpt-4 -c rpm:1", "--help", "entity --help", "--version", "top --once"]


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", LINES)
def test_a_full_disk(terminal: Terminal, line: str, unbuffered: str) -> None:
    ended = shell(terminal, f"$Z {line} > {FULL}", PYTHONUNBUFFERED=unbuffered)
    assert ended.returncode == OutputError.exit_code
    assert ended.stderr.splitlines() == [
        "Error: The output could not be written: No space left on device. "
        "Whatever the command has changed stays changed."
    ]


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_in_json_and_in_ascii(terminal: Terminal) -> None:
    ended = shell(terminal, f"$Z --json status > {FULL}")
    assert (ended.returncode, json.loads(ended.stderr)["error"]) == (OutputError.exit_code, "output")
    assert (
        shell(terminal, f"$Z system get-defaults > {FULL}", PYTHONIOENCODING="ascii").returncode
        == OutputError.exit_code
    )
    assert shell(terminal, f"$Z entity show nobody 2> {FULL}").returncode == 6, "the code of an error nobody can read"


def test_a_reader_that_has_seen_enough(terminal: Terminal) -> None:
    terminal.text("acquire", "key", "gpt-4", "-c", "rpm:1")
    ended = shell(terminal, "$Z top --interval 0.01 | head -1; echo ${PIPESTATUS[0]}")
    assert ended.stdout.splitlines()[1:] == [str(OutputError.exit_code)]
    (line,) = ended.stderr.splitlines()
    assert line.startswith("Error: The output could not be written: Broken pipe.")


def test_a_closed_stdout_is_refused_before_anything_is_done(terminal: Terminal) -> None:
    ended = shell(terminal, "$Z acquire key gpt-4 -c rpm:1 >&-")
    assert ended.returncode == OutputError.exit_code
    assert ended.stderr.splitlines() == [
        "Error: The output could not be written: stdout is closed. "
        "Nothing was done; > /dev/null throws the output away."
    ]
    assert terminal.json("available", "key", "gpt-4")["available"] == {"rpm": 10}
    assert shell(terminal, "$Z acquire key gpt-4 -c rpm:1 >&- 2>&-").returncode == OutputError.exit_code
    assert shell(terminal, "$Z status 2>&-").returncode == 0


def test_an_error_that_is_none_of_the_output_is_not_taken_for_one(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "not of stdout")

    monkeypatch.setattr("zae_limiter.cli.defaults.limits_grid", fails)
    with pytest.raises(BlockingIOError):
        terminal.run("system", "get-defaults")


def test_work_goes_on_when_nobody_reads_its_progress_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    broken = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stderr", broken)
    with show_events("Deploying", quiet=False) as show:
        show("Table: create complete")
    with show_upgrade(quiet=False) as progress:
        progress.step("Moving records")
    with contextlib.suppress(BrokenPipeError):
        broken.close()
