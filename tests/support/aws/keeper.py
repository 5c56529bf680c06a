"""Keeps a local AWS alive exactly as long as the process that started it.

It prints the endpoint once it answers and then waits for the end of its standard input, which comes whether its parent
finishes, crashes or is killed: the engine never outlives the tests, and everything it wrote goes with it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES = "dynamodb,dynamodbstreams,cloudformation,lambda,iam,sts,s3,sqs,cloudwatch,logs"
ATTEMPTS = 3
"""Another process may take the free port between choosing and binding it."""

PATIENCE = 600
"""Looks, a tenth of a second apart, before an engine that does not answer is given up."""

Process = subprocess.Popen[bytes]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(folder: str, port: int) -> dict[str, str]:
    """Nothing of the caller's AWS settings, and no place to write but the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {
        "BIND_HOST": "127.0.0.1",
        **dict.fromkeys(("GATEWAY_PORT", "UVICORN_PORT"), str(port)),
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "ERROR",
        "SERVICES": SERVICES,
        "PERSIST_STATE": "0",
        "S3_PERSIST": "0",
        "STATE_DIR": f"{folder}/state",
        "S3_DATA_DIR": f"{folder}/s3",
        "HOME": folder,
        "TMPDIR": folder,
    }


def answers(port: int) -> bool:
    """Whether the engine serves requests."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def ready(process: Process, port: int) -> bool:
    """Whether it came up; false when it ended or never answered."""
    for _ in range(PATIENCE):
        if answers(port):
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            return False
    return False


def end(process: Process) -> None:
    """Stops it, gently first."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running(words: list[str], folder: str) -> Iterator[tuple[Process, int]]:
    """An engine that answers."""
    log = f"{folder}/log"
    for _ in range(ATTEMPTS):
        port = free_port()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment(folder, port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            if ready(process, port):
                yield process, port
                return
        finally:
            end(process)
    with open(log, encoding="utf-8", errors="replace") as output:
        sys.exit(f"{words[0]} does not start:\n{output.read()[-2000:]}")


def watch(process: Process) -> None:
    """Returns when the parent is gone or the engine has ended."""
    while process.poll() is None:
        if select.select([sys.stdin], [], [], 1.0)[0]:
            return


def main(words: list[str]) -> None:
    """Runs the engine until nobody needs it."""
    with (
        tempfile.TemporaryDirectory(prefix="zae-aws-", ignore_cleanup_errors=True) as folder,
        running(words, folder) as (process, port),
    ):
        print(f"http://127.0.0.1:{port}", flush=True)
        watch(process)


if __name__ == "__main__":
    main(sys.argv[1:])
