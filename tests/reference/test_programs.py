"""Programs written for 0.17 run here unchanged, and print what they print there."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.aws import engine
from zae_limiter import SyncRepository

REFERENCE = Path(os.environ.get("ZAE_TEST_REFERENCE", Path(__file__).parents[2] / ".venv-bench-reference/bin/python"))
PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.py"))
PROVISION = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
    "from writes_everything import provision; provision(*sys.argv[1:])"
)
HERE_ONLY = {"stacks"}
"""The stack of 0.17 cannot be deployed on the local engine; what they print is what its documentation says."""
_COUNT = itertools.count()

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)


def run(*words: str, table: str) -> str:
    """Run a program whose stack is ``table``, and return what it prints."""
    settings = {**engine.CREDENTIALS, "AWS_ENDPOINT_URL": engine.endpoint(), "ZAEL_STACK": table, "PYTHONPATH": ""}
    done = subprocess.run(words, env={**os.environ, **settings}, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


def name_table() -> str:
    """Return a name that nobody has."""
    return f"program-{os.getpid()}-{next(_COUNT)}"


def read_expected(program: Path) -> str:
    """Return what a program prints."""
    return program.with_suffix(".txt").read_text(encoding="utf-8")


@each_program
def test_a_program_of_017_runs_unchanged(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in engine.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    table = name_table()
    with SyncRepository(name=table, endpoint_url=engine.endpoint()) as repository:
        repository.create_table()
    assert run(sys.executable, "-W", "error", str(program), table=table) == read_expected(program)


@pytest.mark.reference
@pytest.mark.skipif(not REFERENCE.exists(), reason="version 0.17 is not installed; `make bench` sets it up")
@pytest.mark.parametrize(
    "program", [each for each in PROGRAMS if each.stem not in HERE_ONLY], ids=lambda each: each.stem
)
def test_it_prints_the_same_on_017(program: Path) -> None:
    table = name_table()
    run(str(REFERENCE), "-c", PROVISION, table, engine.endpoint(), table=table)
    assert run(str(REFERENCE), "-W", "ignore", str(program), table=table) == read_expected(program)


def test_the_programs_are_found() -> None:
    assert len(PROGRAMS) >= 11
