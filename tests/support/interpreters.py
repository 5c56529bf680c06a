"""Run the core tests on each newer Python that is found: ``make test-pythons``.

Interpreters are looked for on the PATH and among the versions of pyenv. Each has an environment of its own beside the
main one, ``.venv-py312`` and so on, with no more in it than these tests need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.paths import ROOT

MINORS = (12, 13, 14)
"""Of Python 3. What is older than the first is what everything else runs on."""

TESTS = (
    "test_architecture.py",
    "test_doctests.py",
    "core/test_*.py",
    "kv/test_*.py",
    "laws/test_broken_*.py",
    "laws/test_conformance.py",
    "laws/test_laws.py",
    "laws/test_model.py",
    "laws/test_stories.py",
    "limiter/test_concurrency.py",
    "limiter/test_lease.py",
    "limiter/test_unavailable.py",
    "limiter/test_waiting.py",
    "records/test_*.py",
    "repository/test_config.py",
    "repository/test_entities.py",
    "runtime/test_cancellation.py",
    "runtime/test_needs_asyncio.py",
    "stores/memory/test_store.py",
    "stores/sqlite/test_store.py",
    "sync/test_facade.py",
)
CHOSEN = "not redis and not dynamodb and not web and not telemetry"
"""No servers, and no packages but those of ``core-tests``."""


def candidates(minor: int, path: str, pyenv: Path) -> Iterator[Path]:
    """Where a Python 3 of this minor version may be, the likeliest first."""
    for folder in path.split(os.pathsep):
        yield Path(folder) / f"python3.{minor}"
    versions = pyenv.glob(f"versions/3.{minor}.*/bin/python")
    yield from sorted(versions, key=lambda python: _patch(python.parts[-3]), reverse=True)


def _patch(version: str) -> tuple[int, str]:
    """``3.12.10`` is newer than ``3.12.9``; ``3.14.0b1`` is older than ``3.14.0``."""
    last = version.split(".", 2)[2]
    digits = last[: len(last) - len(last.lstrip("0123456789"))]
    return int(digits or 0), last[len(digits) :] or "~"


def find(minor: int, path: str, pyenv: Path) -> Path | None:
    """Return the first interpreter that runs and is what its name says; a shim of pyenv may be neither."""
    for python in candidates(minor, path, pyenv):
        if shutil.which(python) is not None:
            code = "import sys, venv; print(sys.version_info[:2] == (3, int(sys.argv[1])))"
            asked = subprocess.run([python, "-c", code, str(minor)], capture_output=True, text=True, check=False)
            if asked.stdout.strip() == "True":
                return python
    return None


def prepare(python: Path, folder: Path) -> Path:
    """Return the Python of an environment that has what the tests need; an older one is brought up to date."""
    ready = folder / ".ready"
    inner = folder / "bin" / "python"
    if not ready.exists() or ready.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = [str(inner), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", ".[core-tests]"]
        subprocess.run(install, cwd=ROOT, check=True)
        ready.touch()
    return inner


def run_tests(python: Path, options: Sequence[str]) -> bool:
    """Whether the core tests pass on this interpreter."""
    files = sorted(str(file.relative_to(ROOT)) for pattern in TESTS for file in (ROOT / "tests").glob(pattern))
    chosen = ["-m", "not alone", "-k", CHOSEN, "--numprocesses=2", "--dist=loadfile", "-p", "no:cacheprovider"]
    return subprocess.run([python, "-m", "pytest", *chosen, *options, *files], cwd=ROOT, check=False).returncode == 0


def main(options: Sequence[str]) -> int:
    """Test on all that are found, say what came of each, and fail if a test did or if there was none to test on.

    With ``--here`` on the interpreter that runs this, in the environment that it has.
    """
    if options[:1] == ["--here"]:
        return 0 if run_tests(Path(sys.executable), options[1:]) else 1
    told, passed = [], []
    for minor in MINORS:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        python = find(minor, os.environ.get("PATH", ""), pyenv)
        if python is None:
            told.append(f"Python 3.{minor}: not found")
            continue
        print(f"Python 3.{minor}: {python}", flush=True)
        passed.append(run_tests(prepare(python, ROOT / f".venv-py3{minor}"), options))
        told.append(f"Python 3.{minor}: {'passed' if passed[-1] else 'FAILED'} ({python})")
    print("\n".join(told))
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
