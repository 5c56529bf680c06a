"""gunicorn as a process of its own, with WSGI workers or ASGI ones.

Its ASGI worker cancels the task of the app when the client leaves, which uvicorn and hypercorn do not.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.deadlines import PATIENCE
from tests.support.paths import ROOT
from tests.support.redis import reaper


@contextlib.contextmanager
def gunicorn(app: str, log: Path, *options: str) -> Iterator[int]:
    """A port on which gunicorn serves ``app`` (``module:factory('argument')``); what it says goes to ``log``."""
    process, port = _started(app, log, options)
    reaper.tell("process", process.pid)
    try:
        yield port
    finally:
        died = process.poll() is not None
        _end(process)
        reaper.tell("gone", process.pid)
        assert not died, log.read_text()


def _started(app: str, log: Path, options: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
    """It inherits a socket that takes connections already, and is alone to hold it: if it dies, they are refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener, log.open("wb") as output:
        fixed = ("--bind", f"fd://{listener.fileno()}", "--graceful-timeout", "5", "--no-control-socket")
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *fixed, *options, app],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt at the terminal is for the tests
        )
        return process, listener.getsockname()[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it finish what it is doing, but not for ever."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
