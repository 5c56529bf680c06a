"""Import time in fresh interpreters with compiled bytecode."""

from __future__ import annotations

import os
import subprocess
import sys

OURS = "from zae_limiter import SyncRateLimiter"
RIVALS = ("import limits", "import throttled", "import pyrate_limiter")
STATEMENTS = (OURS, "import zae_limiter", *RIVALS)


def milliseconds(statement: str, rounds: int = 7) -> float:
    """The best of several fresh interpreters; the first one writes the bytecode."""
    code = f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1000)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(rounds + 1)
    ]
    return min(float(run.stdout) for run in runs[1:])


def measure() -> dict[str, float]:
    """Milliseconds per statement."""
    return {statement: round(milliseconds(statement), 1) for statement in STATEMENTS}
