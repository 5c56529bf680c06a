"""Run ministack as a detached process, bound to localhost and cut off from the user's AWS account."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from ...core.errors import StackOperationError
from . import logs
from .processes import Process, birth
from .record import RunningEngine

if TYPE_CHECKING:
    from .home import Home

HOST = "127.0.0.1"
SERVICES = "dynamodb,dynamodbstreams,cloudformation,lambda,iam,sts,s3,sqs,cloudwatch,logs"
LOG_LINES = 5
"""How much of the log an error shows."""

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ")
_LOOK_SECONDS = 0.1
_HEALTH_SECONDS = 2.0
_LINGER_SECONDS = 1.0
"""A process that has just ended may hold its port a moment longer."""

_DETACHED = 'cd "$1" || exit; log=$2; shift 2; "$@" >"$log" 2>&1 </dev/null & echo $!'
"""The shell ends at once, so the engine is nobody's child."""


class EngineConfig(NamedTuple):
    """The port and the region of an engine."""

    port: int
    region: str


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


def start(home: Home, command: list[str], plan: EngineConfig) -> RunningEngine:
    """Start a detached engine and return it."""
    shutil.rmtree(home.scratch, ignore_errors=True)  # of one that was killed
    home.scratch.mkdir(parents=True)
    pid = int(
        subprocess.run(
            ["/bin/sh", "-c", _DETACHED, "sh", str(home.scratch), str(home.log), *command],
            env=environment(home, plan),
            start_new_session=True,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    )
    process = Process(pid, birth(pid) or "ended")
    return RunningEngine(process, plan.port, plan.region, time.time())


def environment(home: Home, plan: EngineConfig) -> dict[str, str]:
    """Return the engine's environment: independent of the shell, without AWS settings, writing to its folder only."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(plan.port),
        "IOT_MTLS_ENABLED": "0",
        "SERVICES": SERVICES,
        "MINISTACK_REGION": plan.region,
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
            raise StackOperationError(f"The local AWS exited while it was starting{_last_words(home)}")
        if answered is not None:
            return answered
        if time.monotonic() >= deadline:
            raise StackOperationError(
                f"The local AWS does not answer on port {running.port} after {seconds:g} s{_last_words(home)}"
            )
        time.sleep(_LOOK_SECONDS)


def _last_words(home: Home) -> str:
    lines = [line.strip() for line in logs.last(home, LOG_LINES) if line.strip()]
    return f": {' | '.join(lines)}" if lines else "; its log is empty."
