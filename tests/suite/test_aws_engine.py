"""The engine of the tests: there when it is needed, gone with the tests, and never missing without a word."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.aws import engine
from tests.support.aws.keeper import answers, environment
from tests.support.paths import ROOT


def up(started: engine.Engine) -> bool:
    """Whether it serves requests."""
    return answers(urlsplit(started.url).port or 0)


@pytest.fixture
def outsider(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No engine named from outside, none running."""
    monkeypatch.delenv(engine.URL, raising=False)
    monkeypatch.delenv(engine.COMMAND, raising=False)
    monkeypatch.setattr(engine, "_RUNNING", [])
    return monkeypatch


def test_an_engine_named_from_outside_is_used_as_it_is(outsider: pytest.MonkeyPatch) -> None:
    outsider.setenv(engine.URL, "http://127.0.0.1:1")
    assert engine.endpoint() == "http://127.0.0.1:1"


def test_a_missing_engine_is_a_failure_that_says_what_to_do(outsider: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outsider.setattr(engine, "INSTALLED", tmp_path / "nothing")
    outsider.setenv("PATH", str(tmp_path))
    with pytest.raises(engine.EngineMissing, match="make test"):
        engine.endpoint()


def test_an_engine_that_does_not_start_shows_why(outsider: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "ministack"
    broken.write_text("#!/bin/sh\necho no such thing as a port\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    outsider.setenv(engine.COMMAND, str(broken))
    with pytest.raises(engine.EngineMissing, match="no such thing as a port"):
        engine.endpoint()


def test_it_answers_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started = engine.start(*engine.quick())
    assert up(started)
    assert any(tmp_path.iterdir())
    started.stop()
    assert started.keeper.returncode == 0
    assert not any(tmp_path.iterdir())
    assert not up(started)


def test_a_fork_does_not_stop_the_engine_of_its_parent() -> None:
    started = engine.start(*engine.quick())
    try:
        engine.Engine(started.url, started.keeper, os.getpid() + 1).stop()
        assert up(started)
    finally:
        started.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="it watches processes that are not its children")
def test_it_ends_with_tests_that_are_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "from tests.support.aws import engine\n"
        "e = engine.start(*engine.quick()); print(e.keeper.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        keeper = int(tests.stdout.readline())
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text(encoding="utf-8").split()
        assert children
        watched = [os.pidfd_open(int(pid)) for pid in (str(keeper), *children)]
        tests.send_signal(signal.SIGKILL)
    for process in watched:
        assert select.select([process], [], [], 20)[0], "the engine outlived its tests"
        os.close(process)
    assert not any(tmp_path.iterdir())


def test_the_caller_s_account_never_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    made = environment("/somewhere", 1)
    assert not [name for name in made if name.startswith("AWS_")]
    assert {made["HOME"], made["TMPDIR"]} == {"/somewhere"}
    assert all(made[name].startswith("/somewhere/") for name in ("STATE_DIR", "S3_DATA_DIR"))
