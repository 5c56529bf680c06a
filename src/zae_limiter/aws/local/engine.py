"""Find or install ministack, run it as a detached process, and read its log.

It is bound to localhost and cut off from the user's AWS account. It pins botocore, so it never shares an environment
with the application.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TextIO

from ...core.errors import StackOperationError, ValidationError
from .home import Home, Process, RunningEngine, Say, birth, find_running

COMMAND = "ZAE_LIMITER_MINISTACK"
REQUIREMENT = "ministack>=1.5,<2"
HOST = "127.0.0.1"
SERVICES = "dynamodb,dynamodbstreams,cloudformation,lambda,iam,sts,s3,sqs,cloudwatch,logs"
_LOG_LINES = 5
"""How much of the log an error shows."""

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ")
_LOOK_SECONDS = 0.1
_FOLLOW_SECONDS = 0.2
_HEALTH_SECONDS = 2.0
_LINGER_SECONDS = 1.0
"""A process that has just ended may hold its port a moment longer."""

_DETACHED = 'cd "$1" || exit; log=$2; shift 2; "$@" >"$log" 2>&1 </dev/null & echo $!'
"""The shell ends at once, so the engine is not a child of this process."""


def find_command(home: Home, say: Say) -> list[str]:
    """Return the command that starts ministack, installing it first if necessary."""
    given = os.environ.get(COMMAND)
    if given:
        found = shutil.which(os.path.expanduser(given))
        if found is None:
            reason = "is not a program; name the ministack command, or unset it to install it"
            raise ValidationError(COMMAND, given, reason)
        return [os.path.abspath(found)]
    python = home.environment / "bin" / "python"
    marker = home.environment / ".requirement"  # written last
    if not (python.exists() and marker.exists() and marker.read_text(encoding="utf-8") == REQUIREMENT):
        say(f"Making an environment in {home.environment}")
        home.installation_log.unlink(missing_ok=True)
        _run(home, [sys.executable, "-m", "venv", "--clear", str(home.environment)])
        say(f"Installing {REQUIREMENT} (once)")
        _run(home, [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", REQUIREMENT])
        marker.write_text(REQUIREMENT, encoding="utf-8")
    return [str(python), "-m", "ministack"]


def _run(home: Home, words: list[str]) -> None:
    """Run a program. Raise `StackOperationError` with pip's last error line, or the last line of the output."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"PIP_USER": "0"}
    with home.installation_log.open("a+", encoding="utf-8", errors="replace") as log:
        done = subprocess.run(
            words, env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    if done.returncode:
        errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
        reason = (errors or lines or ["it printed nothing"])[-1].rstrip(".")
        raise StackOperationError(
            f"ministack could not be installed: {reason}. The full log is in {home.installation_log}. "
            f"To use an installed one, set {COMMAND}=/path/to/ministack."
        )


def check_port(port: int) -> None:
    """Raise `StackOperationError` if ``port`` is in use or not permitted."""
    deadline = time.monotonic() + _LINGER_SECONDS
    while _is_taken(port):
        if time.monotonic() >= deadline:
            raise StackOperationError(
                f"Port {port} of {HOST} is in use by another program: stop it, or choose another port with --port."
            )
        time.sleep(_LOOK_SECONDS)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(_HEALTH_SECONDS)
        if probe.connect_ex((HOST, port)) == 0:
            return True
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise StackOperationError(f"Port {port} needs more rights: choose one above 1023 with --port.") from None
        except OSError:
            return True
    return False


def start(home: Home, command: list[str], port: int, region: str) -> RunningEngine:
    """Start a detached engine and return it."""
    shutil.rmtree(home.scratch, ignore_errors=True)  # of one that was killed
    home.scratch.mkdir(parents=True)
    pid = int(
        subprocess.run(
            ["/bin/sh", "-c", _DETACHED, "sh", str(home.scratch), str(home.log), *command],
            env=environment(home, port, region),
            start_new_session=True,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    )
    return RunningEngine(Process(pid, birth(pid) or "ended"), port, region, time.time())


def environment(home: Home, port: int, region: str) -> dict[str, str]:
    """Return the engine's environment: independent of the shell, without AWS settings, writing to its folder only."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "IOT_MTLS_ENABLED": "0",
        "SERVICES": SERVICES,
        "MINISTACK_REGION": region,
        "PERSIST_STATE": "0",
        "S3_PERSIST": "0",
        "STATE_DIR": str(home.scratch / "state"),
        "S3_DATA_DIR": str(home.scratch / "s3"),
        "HOME": str(home.scratch),
        "TMPDIR": str(home.scratch),
    }


def version(port: int) -> str | None:
    """Return the version of the ministack that listens on ``port``, or None."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_HEALTH_SECONDS)
    try:
        connection.request("GET", "/_ministack/health")
        answer = connection.getresponse()
        return str(json.loads(answer.read())["version"]) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def wait(home: Home, running: RunningEngine, seconds: float) -> str:
    """Wait until the engine answers and return its version. Raise an error with its last log lines if it does not."""
    deadline = time.monotonic() + seconds
    while True:
        answered = version(running.port)
        if not running.process.alive:
            trouble = "The local AWS exited while it was starting"
            break
        if answered is not None:
            return answered
        if time.monotonic() >= deadline:
            trouble = f"The local AWS does not answer on port {running.port} after {seconds:g} s"
            break
        time.sleep(_LOOK_SECONDS)
    lines = [line.strip() for line in read_log(home, _LOG_LINES) if line.strip()]
    raise StackOperationError(trouble + (f": {' | '.join(lines)}" if lines else "; its log is empty."))


def read_log(home: Home, count: int) -> list[str]:
    """Return the last ``count`` lines of this run or of the last one; none if nothing has run yet."""
    try:
        with _open_log(home) as log:
            return [line.rstrip("\n") for line in deque(log, maxlen=count)]
    except FileNotFoundError:
        return []


def follow_log(home: Home, count: int) -> Iterator[str]:
    """Yield the last ``count`` lines and every further one until the engine ends."""
    with _open_log(home) as log:
        shown = deque(log, maxlen=count)
        begun = shown.pop() if shown and not shown[-1].endswith("\n") else ""
        yield from (line.rstrip("\n") for line in shown)
        running = True
        while running:
            running = find_running(home) is not None
            for part in iter(log.readline, ""):
                begun += part
                if begun.endswith("\n"):
                    yield begun.rstrip("\n")
                    begun = ""
            if running:
                time.sleep(_FOLLOW_SECONDS)
        if begun:
            yield begun


def _open_log(home: Home) -> TextIO:
    return home.log.open(encoding="utf-8", errors="replace")
