"""How the suite runs a test: coroutines to their end, in the mode of their harness, and nothing for ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from tests.conftest import LONGEST
from tests.support.deadlines import PATIENCE, Hangs, ends_within
from tests.support.paths import ROOT

TESTS = """
import asyncio, threading, pytest
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness

RAN = []

@pytest.fixture(params=[False, True])
def harness(request):
    return Harness(lambda clock, blocking: MemoryStore(clock), blocking=request.param)

async def test_ends():
    await asyncio.sleep(0)
    RAN.append("to its end")

def test_the_one_before_was_run():
    assert RAN == ["to its end"]

async def test_asserts():
    await asyncio.sleep(0)
    assert RAN == []

async def test_suspends(harness):
    await asyncio.sleep(0)

async def test_forgets_to_await():
    asyncio.sleep(0)

async def test_waits_for_ever():
    await asyncio.Event().wait()

def test_blocks_for_ever():
    threading.Event().wait()

async def test_spins_for_ever():
    while True:
        await asyncio.sleep(0)

async def test_swallows_errors_for_ever():
    while True:
        try:
            await asyncio.Event().wait()
        except Exception:
            pass

@pytest.fixture
def stuck():
    threading.Event().wait()

def test_is_never_set_up(stuck):
    pass

def test_comes_after_all_those():
    pass
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What becomes of each test, with the line that says why."""
    path = tmp_path_factory.mktemp("suite") / "test_samples.py"
    path.write_text(TESTS)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    options = ["-c", "pyproject.toml", "-o", "hang_seconds=0.5", "-rA"]
    command = [sys.executable, "-m", "pytest", *plugins, *options, str(path)]
    whole_lines = os.environ | {"CI": "true"}
    done = subprocess.run(command, cwd=ROOT, env=whole_lines, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^([A-Z]+) \S*::(\S+)(?: - (.*))?$", done.stdout, re.MULTILINE)
    return {name: f"{outcome} {why}".strip() for outcome, name, why in found}


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_ends", "PASSED"),
        ("test_the_one_before_was_run", "PASSED"),
        ("test_asserts", "FAILED AssertionError"),
        ("test_suspends[False]", "PASSED"),
        ("test_suspends[True]", "FAILED RuntimeError: a blocking store or runtime suspended"),
        ("test_forgets_to_await", "FAILED pytest.PytestUnraisableExceptionWarning"),
        ("test_waits_for_ever", "FAILED tests.support.deadlines.Hangs: not over after 0.5 s"),
        ("test_blocks_for_ever", "FAILED tests.support.deadlines.Hangs: not over after 0.5 s"),
        ("test_spins_for_ever", "FAILED tests.support.deadlines.Hangs: not over after 0.5 s"),
        ("test_swallows_errors_for_ever", "FAILED tests.support.deadlines.Hangs: not over after 0.5 s"),
        ("test_is_never_set_up", "ERROR tests.support.deadlines.Hangs: not over after 0.5 s"),
        ("test_comes_after_all_those", "PASSED"),
    ],
)
def test_what_becomes_of_a_test(test: str, outcome: str, outcomes: dict[str, str]) -> None:
    assert outcomes[test].startswith(outcome)


@pytest.mark.skipif(sys.platform == "win32", reason="the process ends there")
def test_a_bound_inside_another_leaves_the_other_in_force() -> None:
    with pytest.raises(Hangs, match=r"0\.2 s"), ends_within(0.2):
        with pytest.raises(Hangs, match=r"0\.01 s"), ends_within(0.01):
            time.sleep(PATIENCE)
        time.sleep(PATIENCE)


@pytest.mark.skipif(sys.platform == "win32", reason="the process ends there")
def test_who_ends_in_time_is_left_alone() -> None:
    with ends_within(0.01):
        pass
    time.sleep(0.02)


def test_the_files_that_come_first_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []
