"""What an import loads of the standard library: as little as can be, counted and not timed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.deadlines import PATIENCE


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    command = [sys.executable, "-I", "-S", "-c", f"sys = __import__('sys'); sys.path[:0] = {sys.path!r}; {code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = loaded_by("import zae_limiter")
    assert {name for name in loaded if name.startswith("zae")} == {"zae_limiter", "zae_limiter._version"}
    assert not loaded & {"typing", "re", "enum", "dataclasses", "logging"}


@pytest.mark.parametrize("name", ["SyncRateLimiter, Limit, RateLimitExceeded", "RateLimiter"])
def test_what_a_limiter_seldom_needs_is_loaded_when_it_does(name: str) -> None:
    loaded = loaded_by(f"from zae_limiter import {name}")
    assert "zae_limiter.limiter.limiter" in loaded
    assert "zae_limiter.core.reports" not in loaded
    assert not loaded & {"logging", "fractions", "decimal", "asyncio", "sqlite3", "ssl", "http", "email", "subprocess"}
