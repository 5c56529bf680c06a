"""Ours beside `limits` on Redis, by version of redis-py, with hiredis and without.

Each is a folder of packages that come before those of the benchmark's environment. As a program,
``python -m bench.redis_clients URL``, it measures the one that it is started with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from tests.support.redis.server import Server

from bench.partner import ROOT
from bench.rivals.limits_library import FIXED
from bench.rivals.ours import OURS
from bench.sides import at_work
from bench.timing import in_turn, typical
from bench.workloads import WORKLOADS

FOLDER = ROOT / ".venv-bench-redis"
SHOWN = ("one limit", "1,000 keys")
CALLS, ROUNDS = 96, 25


def measure() -> list[dict[str, Any]]:
    """Microseconds of client CPU by work, mode and limiter, with each of the clients that are there."""
    found = []
    for folder in sorted(FOLDER.glob("*/")):
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with Server() as server:
            command = [sys.executable, "-m", "bench.redis_clients", server.url]
            run = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(run.stdout))
    return found


def main(url: str) -> None:
    """Measure with the redis-py that is imported here."""
    rivals = {each.name: each for each in (OURS, FIXED)}
    works: dict[str, Any] = {}
    for work in WORKLOADS:
        for mode in work.modes if work.name in SHOWN else ():
            with at_work(work, mode, url, rivals) as sides:
                rounds = in_turn(sides, CALLS, ROUNDS)
            cpu_us = {name: typical([each.cpu_us for each in found]) for name, found in rounds.items()}
            works.setdefault(work.name, {})[mode] = cpu_us
    hiredis = version("hiredis") if find_spec("hiredis") else None
    print(json.dumps({"redis-py": version("redis"), "hiredis": hiredis, "cpu_us": works}))


if __name__ == "__main__":
    main(*sys.argv[1:])
