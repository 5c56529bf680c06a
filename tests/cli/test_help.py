"""How the command line helps whoever types: suggestions, completion, sentences, lengths of time in words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, fresh
from zae_limiter.cli.app import COMPLETION_VARIABLE, SHELLS
from zae_limiter.cli.output import drop_double_stop
from zae_limiter.core.errors import quote


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return fresh(tmp_path)


# Suggestions.


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("acquir", "Did you mean 'acquire'?"),
        ("Aquire", "Did you mean 'acquire'?"),
        ("entity creat", "Did you mean 'create'?"),
        ("entity set-limit", "Did you mean 'set-limits'?"),
        ("set-limits", "Did you mean 'entity set-limits'?"),
        ("set-defaults", "Did you mean 'resource set-defaults' or 'system set-defaults'?"),
        ("dploy", "Did you mean 'deploy'?"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_one_that_is_meant(terminal: Terminal, typed: str, advice: str) -> None:
    result = terminal.run(*typed.split())
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: No such command {typed.split()[-1]!r}. {advice}"


def test_a_command_like_no_other_gets_no_advice(terminal: Terminal) -> None:
    assert terminal.run("xyzzy").stderr.endswith("Error: No such command 'xyzzy'.\n")


def test_a_misspelt_option_is_answered_too(terminal: Terminal) -> None:
    assert "--namespace" in terminal.run("status", "--namspace", "x").stderr


# Completion.


@pytest.mark.parametrize("name", SHELLS)
def test_the_script_of_a_shell(terminal: Terminal, name: str) -> None:
    script = terminal.raw("completion", name).stdout
    assert f"{COMPLETION_VARIABLE}={name}_complete" in script
    if shutil.which(name) is not None:
        subprocess.run([name, "-n"], input=script, text=True, check=True, timeout=30)


def test_another_shell_is_refused(terminal: Terminal) -> None:
    result = terminal.raw("completion", "tcsh")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


COMPLETE = """
eval "$(zae-limiter completion bash)"
COMP_WORDS=({words})
COMP_CWORD={place}
_zae_limiter_completion zae-limiter
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "place", "wanted"),
    [
        ("zae-limiter acq", 1, {"acquire"}),
        ("zae-limiter a", 1, {"acquire", "available", "audit"}),
        ("zae-limiter entity set", 2, {"set-limits", "set-cascade"}),
        ("zae-limiter usage list --window ''", 4, {"hourly", "daily", "monthly"}),
        ("zae-limiter completion ''", 2, set(SHELLS)),
        ("zae-limiter status --end", 2, {"--endpoint-url"}),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path: Path, words: str, place: int, wanted: set[str]) -> None:
    command = tmp_path / "zae-limiter"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m zae_limiter "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = COMPLETE.format(words=words, place=place)
    ran = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert set(ran.stdout.split()) == wanted


# Sentences.


def test_a_refusal_says_in_words_when_to_come_back(terminal: Terminal) -> None:
    limit = ("-l", "rpm:5/day")
    terminal.text("acquire", "key", "gpt-4", "-c", "rpm:5", *limit)
    refused = terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1", *limit)
    assert refused.exit_code == 3
    assert refused.stderr.endswith("; retry in 4 h 48 min.\n")
    assert "fits in 4 h 48 min" in terminal.text("explain", "key", "gpt-4", "-c", "rpm:1", *limit)


def test_an_error_that_ends_with_a_full_stop_gets_no_second_one(terminal: Terminal) -> None:
    for words in (["acquire", "key", "gpt-4", "-c", "rpm:1"], ["status"], ["entity", "create", "a"]):
        result = terminal.run("--url", "redis://127.0.0.1:1", *words)
        assert result.exit_code == 5
        assert "Connection refused" in result.output
        assert not re.search(r"(?<!\.)\.\.(?!\.)", result.output), result.output


def test_a_name_that_ends_with_a_full_stop_gets_no_second_one(terminal: Terminal) -> None:
    terminal.text("entity", "create", "Acme Inc.")
    assert terminal.text("entity", "delete", "Acme Inc.", "--yes") == "Deleted Acme Inc.\n"
    assert terminal.run("entity", "children", "nobody.").stderr.count("..") == 0


@pytest.mark.parametrize(
    ("text", "ended"), [("a..", "a."), ("a.", "a."), ("a", "a"), ("wait ...", "wait ..."), ("../x.", "../x."), ("", "")]
)
def test_one_full_stop_at_the_end(text: str, ended: str) -> None:
    assert drop_double_stop(text) == ended


def test_an_error_in_a_sentence_loses_its_full_stop() -> None:
    assert quote(OSError("refused.")) == "refused"
    assert quote("no stop") == "no stop"
