"""Sessions at a terminal, as documents show them: commands behind ``$``, below each what it prints, or parts of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.deadlines import PATIENCE
from tests.support.paths import ROOT
from tests.support.redis import reaper

GAP = "..."


def steps(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a session, each with the lines that are shown of its output; `GAP` stands for any others."""
    found: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line:
            found[-1][1].append(line)
    return found


def replay(session: Sequence[tuple[str, list[str]]], documented: int, port: int) -> None:
    """Run commands on another port than the documented one; all that is shown must come, in that order."""
    for command, shown in session:
        assert command.startswith("curl ")
        script = command.replace(f"localhost:{documented}", f"127.0.0.1:{port}")
        run = subprocess.run(["bash", "-c", script], env=environment(), capture_output=True, text=True, check=True)
        lines = iter([phrased(line) for line in run.stdout.splitlines()])
        for line in filter(GAP.__ne__, shown):
            assert phrased(line) in lines, f"{command}\ndoes not show, in this place: {line}\n{run.stdout}"


def phrased(line: str) -> str:
    """A status line without its phrase, which differs between versions of Python."""
    return " ".join(line.split()[:2]) if line.startswith("HTTP/") else line


def environment() -> dict[str, str]:
    """That of somebody who has activated the environment of the tests."""
    inherited = {name: value for name, value in os.environ.items() if name != "ZAE_LIMITER_URL"}
    return {**inherited, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextlib.contextmanager
def running(command: str, port: int, log: Path) -> Iterator[None]:
    """A server, from when it takes connections."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            shlex.split(command), cwd=ROOT, env=environment(), stdout=output, stderr=output, start_new_session=True
        )
    reaper.tell("process", process.pid)
    try:
        end = time.monotonic() + PATIENCE
        while not listening(port):
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(log.read_text())
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)
        reaper.tell("gone", process.pid)


def listening(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
