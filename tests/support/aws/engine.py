"""The DynamoDB that the tests talk to: the one named by ``ZAE_TEST_DYNAMODB_URL``, else a local one of this run.

The local one is ministack in an environment of its own (``make test`` sets it up). It starts at the first use, once per
process that runs tests, and ends with it. A test that needs it and cannot have it fails: it is never skipped.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

URL = "ZAE_TEST_DYNAMODB_URL"
COMMAND = "ZAE_TEST_MINISTACK"
INSTALLED = ROOT / ".venv-aws" / "bin" / "ministack"
QUICK = (
    str(INSTALLED.with_name("uvicorn")),
    *("ministack.app:app", "--lifespan=on", "--log-level=error", "--no-access-log"),
    *("--no-server-header", "--no-date-header", "--timeout-keep-alive=75", "--timeout-graceful-shutdown=1"),
)
"""The same application under another server, which takes a third less time for a request than its own."""

KEEPER = Path(__file__).with_name("keeper.py")

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""What a local engine accepts, as environment variables."""


RUN = os.urandom(3).hex()
"""Part of the names of tables: an engine named from outside may be used by several runs, and keep what one has left."""


class EngineMissing(Exception):
    """There is no local AWS to test against."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running local AWS and the process that keeps it."""

    url: str
    keeper: subprocess.Popen[str]
    owner: int

    def stop(self) -> None:
        """Ends it and waits until it is gone; a fork of its owner leaves it alone."""
        if os.getpid() == self.owner:
            self.keeper.communicate()


def command() -> str:
    """Where ministack is: named by the environment, set up by ``make test``, or on the path."""
    found = os.environ.get(COMMAND) or (str(INSTALLED) if INSTALLED.exists() else shutil.which("ministack"))
    if found is None:
        raise EngineMissing(
            "the DynamoDB tests need ministack: run `make test` once (it sets up .venv-aws), "
            f"or name it with {COMMAND}, or name a running engine with {URL}"
        )
    return found


def quick() -> tuple[str, ...]:
    """The words that start the engine of the tests: the quick ones unless another ministack is meant."""
    program = command()
    return QUICK if program == str(INSTALLED) and Path(QUICK[0]).exists() else (program,)


def start(*words: str, **settings: str) -> Engine:
    """A new local AWS of this process; settings of its own are environment variables."""
    keeper = subprocess.Popen(
        [sys.executable, str(KEEPER), *words],
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt at the terminal is for the tests: the engine ends when they have ended
    )
    assert keeper.stdout is not None
    url = keeper.stdout.readline().strip()
    if not url:
        raise EngineMissing(keeper.communicate()[1] or f"{words[0]} ended without a word")
    return Engine(url, keeper, os.getpid())


_RUNNING: list[Engine] = []


def region() -> str:
    """The region of the engine under test: as the environment says if it is named from outside."""
    said = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return said if said and URL in os.environ else CREDENTIALS["AWS_DEFAULT_REGION"]


def endpoint() -> str:
    """The URL of the engine under test; the first call of a run may start it."""
    given = os.environ.get(URL)
    if given:
        return given
    if not _RUNNING:
        engine = start(*quick())
        atexit.register(engine.stop)
        _RUNNING.append(engine)
    return _RUNNING[0].url
