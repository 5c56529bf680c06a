"""Errors of the command line: one message, no traceback, an exit code of its own; and real processes."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.terminal import run
from zae_limiter import SyncRepository, exceptions
from zae_limiter.cli.errors import CODES, OVER_ADMITTED, exit_code
from zae_limiter.cli.output import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file that is there."""
    made = f"sqlite:///{tmp_path / 'limits.db'}"
    with SyncRepository(made) as repository:
        repository.ensure_infrastructure()
    return made


def test_every_kind_of_error_has_a_code_of_its_own() -> None:
    families = {"ZAELimiterError", "RateLimitError", "InfrastructureError", "EntityError", "VersionError"}
    families.add("FanoutIncomplete")  # nothing raises it
    bad_input = {"ValidationError", "InvalidIdentifierError", "InvalidNameError"}
    kinds = {kind.__name__: kind for kind in vars(exceptions).values() if isinstance(kind, type)}
    codes = {name: next(CODES[base] for base in kind.__mro__ if base in CODES) for name, kind in kinds.items()}
    assert {codes[name] for name in families} == {1}
    assert {codes[name] for name in bad_input} == {2}
    rest = [code for name, code in codes.items() if name not in families | bad_input]
    assert len(set(rest)) == len(rest)
    assert not {0, 1, 2, OVER_ADMITTED, OutputError.exit_code} & set(rest)
    assert exit_code(exceptions.NamespaceStateError()) == 10


@pytest.mark.parametrize("command", ["entity list", "status", "acquire k r -c rpm:1", "namespace list"])
@pytest.mark.parametrize("env", [None, ""])
def test_no_store_given_names_the_fix(command: str, env: str | None) -> None:
    result = run(*command.split(), env={"ZAE_LIMITER_URL": env})
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--url sqlite:///limits.db" in result.stderr
    assert "export ZAE_LIMITER_URL=" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["entity", "show", "nobody"], 6, "create it first. `zae-limiter entity create` creates it."),
        (["entity", "delete", "nobody", "--yes"], 6, "'nobody' does not exist"),
        (["entity", "create", "k", "--parent", "nobody"], 6, "'nobody' does not exist"),
        (["entity", "create", "a#b"], 2, "must not contain '#'"),
        (["resource", "get-defaults", "1x"], 2, "must start with a letter"),
        (["entity", "list", "-N", "nowhere"], 9, "`zae-limiter namespace register`"),
        (["namespace", "show", "nowhere"], 9, "not registered"),
        (["acquire", "k", "r", "-c", "rpm:-1", "-l", "rpm:5"], 2, "consume['rpm'] = -1"),
        (["acquire", "k", "r", "-c", "rpm:1", "-l", "rpm:5", "-l", "rpm:6"], 2, "twice"),
    ],
)
def test_errors_of_the_library_are_one_line(url: str, words: list[str], code: int, text: str) -> None:
    result = run("--url", url, *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    assert text in result.stderr
    as_json = run("--url", url, "--json", *words)
    assert (as_json.exit_code, as_json.stdout) == (code, "")
    answer = json.loads(as_json.stderr)
    assert answer["exit_code"] == code
    assert text in answer["message"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["acquire", "k", "r", "-c", "rpm:1", "-l", "rpm:5/fortnight"], "'fortnight'"),
        (["acquire", "k", "r", "-c", "rpm"], "NAME:NUMBER"),
        (["acquire", "k", "r", "-c", "rpm:1", "-c", "rpm:2"], "'rpm' is passed twice"),
        (["acquire", "k", "r"], "Missing option"),
        (["acquire", "k", "r", "-c", "rpm:1", "--max-wait", "-1"], "--max-wait"),
        (["entity", "create", "k", "-m", "novalue"], "KEY=VALUE"),
        (["entity", "set-limits", "k"], "-l"),
        (["entity", "frobnicate"], "No such command"),
        (["entity", "list", "--frobnicate"], "No such option"),
    ],
)
def test_errors_of_usage_are_bad_input(url: str, words: list[str], text: str) -> None:
    result = run("--url", url, *words)
    assert result.exit_code == 2
    assert text in result.stderr
    answer = json.loads(run("--url", url, *words, "--json").stderr)
    assert (answer["error"], answer["exit_code"]) == ("usage", 2)
    assert text in answer["message"]


def test_an_existing_entity(url: str) -> None:
    run("--url", url, "entity", "create", "k")
    result = run("--url", url, "entity", "create", "k")
    assert result.exit_code == 7
    assert "`zae-limiter entity update`" in result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--name", "my-app"], "no region is known"),
        (["--name", "my app"], "my app"),
        (["--url", "postgres://x"], "unknown scheme"),
        (["--url", "sqlite:///x.db", "--region", "us-east-1"], "DynamoDB only"),
        (["--url", "sqlite:///x.db", "--name", "my-app"], "pass one of them"),
        (["--url", "sqlite://"], "needs a path"),
    ],
)
def test_stores_that_cannot_be_opened(words: list[str], text: str) -> None:
    result = run(*words, "entity", "list")
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_name_goes_before_the_environment() -> None:
    result = run("--name", "my-app", "entity", "list", env={"ZAE_LIMITER_URL": "sqlite:///unused.db"})
    assert "no region is known" in result.stderr


def test_a_missing_directory_is_not_an_outage(tmp_path: Path) -> None:
    where = ("--url", f"sqlite:///{tmp_path}/missing/limits.db")
    asking = ("acquire", "k", "r", "-c", "rpm:1", "-l", "rpm:5", "--on-unavailable", "allow")
    refused = run(*where, *asking)
    assert (refused.exit_code, refused.stdout) == (27, "")
    assert f"there is no directory '{tmp_path}/missing'; create it" in refused.stderr
    assert run(*where, "status").exit_code == 27


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A SQLite file that another program never lets go of."""
    path = tmp_path / "limits.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield path


def test_a_store_that_is_down(locked: Path) -> None:
    gone = ("--url", f"sqlite:///{locked}?timeout=0.05")
    asking = ("acquire", "k", "r", "-c", "rpm:1", "-l", "rpm:5")
    blocked = run(*gone, *asking)
    assert (blocked.exit_code, blocked.stdout) == (5, "")
    assert len(blocked.stderr.splitlines()) == 1
    assert json.loads(run(*gone, *asking, "--json").stderr)["error"] == "rate_limiter_unavailable"

    allowed = run(*gone, *asking, "--on-unavailable", "allow")
    assert allowed.exit_code == 0
    assert "without checking limits" in allowed.stderr
    assert "it is locked" in allowed.stderr
    answer = run(*gone, *asking, "--on-unavailable", "allow", "--json")
    assert answer.stderr == ""
    data = json.loads(answer.stdout)
    assert (data["granted"], data["degraded"], data["available"]) == (True, True, {})
    assert "it is locked" in data["warnings"][0]

    status = run(*gone, "status")
    assert status.exit_code == 5
    assert "no" in status.stdout.split()
    assert json.loads(run(*gone, "status", "--json").stdout)["available"] is False


@pytest.mark.parametrize("format", ["text", "json"])
def test_warnings_of_the_library_are_shown(url: str, format: str) -> None:
    """A setting that has no effect is stored, and the command says so: in notes on stderr, or in the JSON."""

    def warnings(*words: str) -> list[str]:
        if format == "json":
            result = run("--url", url, "entity", *words, "--json")
            assert (result.exit_code, result.stderr) == (0, "")
            return [f"note: {each}." for each in json.loads(result.stdout).get("warnings", [])]
        result = run("--url", url, "entity", *words)
        assert (result.exit_code, "note:" in result.stdout) == (0, False)
        return result.stderr.splitlines()

    assert warnings("create", "org") == []
    assert warnings("create", "alone", "--cascade") == ["note: cascade has no effect on alone until it has a parent."]
    assert warnings("set-limits", "org", "-l", "tpm:10") == []
    assert warnings("create", "key", "--parent", "org", "--cascade") == []
    unshared = "note: key and its parent org have no limit of the same name."
    assert warnings("set-limits", "key", "-l", "tokens:10") == [unshared]
    run("--url", url, "system", "set-defaults", "-l", "tokens:10")
    assert warnings("create", "other", "--parent", "org", "--cascade") == [unshared.replace("key", "other")]


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    assert run("--url", f"sqlite:///{path}", "entity", "list").exit_code == 11


# Real processes.


def process(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "ZAE_LIMITER_URL"} | env
    command = [sys.executable, "-m", "zae_limiter", *words]
    return subprocess.run(command, env=settings, capture_output=True, text=True, encoding="utf-8", check=False)


def test_a_session_in_processes_of_their_own(tmp_path: Path) -> None:
    env = {"ZAE_LIMITER_URL": f"sqlite:///{tmp_path / 'limits.db'}"}
    first = process("system", "set-defaults", "-l", "rpm:2/day", **env)
    assert first.returncode == 0
    assert "is created" in first.stderr
    assert process("acquire", "k", "gpt-4", "-c", "rpm:2", **env).returncode == 0
    refused = process("acquire", "k", "gpt-4", "-c", "rpm:1", **env)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "Traceback" not in refused.stderr
    assert process("acquire", "k", "gpt-4", "-c", "rpm:3", **env).returncode == 4


def test_a_reader_that_leaves_early_ends_it_with_one_line_and_a_code(url: str) -> None:
    with SyncRepository(url) as repository:
        repository.create_entity("parent")
        for number in range(1000):
            repository.create_entity(f"key-{number}", "x" * 100, "parent")
    for words in (["entity", "children", "parent"], ["entity", "children", "parent", "--json"], ["demo", "--fast"]):
        command = [sys.executable, "-m", "zae_limiter", *words]
        if words[0] != "demo":
            command += ["--url", url]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        told = child.stderr.read()
        child.stderr.close()
        assert b"The output could not be written: Broken pipe." in told
        assert b"Traceback" not in told
        assert child.wait() == OutputError.exit_code


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_output_suits_the_encoding_of_the_reader(url: str, encoding: str) -> None:
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    with SyncRepository(url) as repository:
        repository.create_entity("clé-√")
    command = [sys.executable, "-m", "zae_limiter", "entity", "show", "clé-√", "--url", url]
    shown = subprocess.run(command, env=os.environ | env, capture_output=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert b"cl" in shown.stdout


def test_the_command_line_is_loaded_only_when_used() -> None:
    code = (
        "import sys, zae_limiter; assert 'zae_limiter.cli' not in sys.modules; import zae_limiter.cli; "
        "assert not {'click', 'rich', 'asyncio'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for words in (["version", "--json"], ["--help"]):  # the help imports every command
        lean = (
            f"import sys; from zae_limiter.cli.app import root; root.main({words}, standalone_mode=False); "
            "assert 'rich' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", lean], check=True, stdout=subprocess.DEVNULL)
