"""Where it is measured, and who takes part."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.support.redis.binary import redis_server

from bench.rivals import RIVALS

CPU_INFO = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """In the order in which it is told."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Redis": _redis(),
        "redis-py": version("redis"),
    }


def rivals() -> list[dict[str, str]]:
    """Ours first."""
    return [
        {
            "name": each.name,
            "version": version(each.package),
            "algorithm": each.algorithm,
            "several": each.several,
        }
        for each in RIVALS.values()
    ]


def _processor() -> str:
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"


def _redis() -> str:
    told = subprocess.run([redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    return next(word.removeprefix("v=") for word in told.split() if word.startswith("v="))
