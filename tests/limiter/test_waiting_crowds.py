"""Processes that wait for the same slots get about equal shares of them, and the slots stay in use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.limiter.test_slot_crowds import place
from tests.support.paths import ROOT
from tests.support.waiting_clients import WHOSE
from zae_limiter import Limit, SyncRateLimiter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SLOTS = 4
HOLD = {"redis": 0.25, "sqlite": 0.25, "dynamodb": 0.5}
"""How long a caller holds a slot in each store, in seconds."""
SECONDS = float(os.environ.get("WAITING_SECONDS", "20"))
"""For how long callers with equal demand come again; their shares vary too much in a shorter time."""
NANO = 10**9


def run_processes(url: str, kind: str, callers: Sequence[int], seconds: float) -> list[list[tuple[int, int]]]:
    """Return from when to when the callers of each process held slots, in nanoseconds since the beginning."""
    command = [sys.executable, "-m", "tests.support.waiting_clients", url, str(seconds), str(HOLD[kind])]
    command += map(str, callers)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in callers:
            assert process.stdout.readline() == "ready\n"
        begun_ns = time.monotonic_ns()
        process.stdin.close()
        held: list[list[tuple[int, int]]] = [[] for _ in callers]
        for line in process.stdout:
            number, *instants = map(int, line.split())
            held[number].append((instants[0] - begun_ns, instants[1] - begun_ns))
    assert process.returncode == 0
    return held


def measure_use(held: Sequence[Sequence[tuple[int, int]]], seconds: float) -> list[float]:
    """Return how many slots each process has used on average, from the first grant to the end."""
    end = int(seconds * NANO)
    begun = min(span[0] for spans in held for span in spans)
    return [sum(min(ended, end) - since for since, ended in spans if since < end) / (end - begun) for spans in held]


def share_slots(kind: str, folder: Path, callers: Sequence[int], seconds: float) -> list[float]:
    """Return how many slots each process has used on average, in a store of its own."""
    folder.mkdir()
    with place(kind, folder) as url:
        with SyncRateLimiter(url) as limiter:
            limiter.set_limits(WHOSE[0], [Limit.concurrent("parallel", SLOTS)])
        return measure_use(run_processes(url, kind, callers, seconds), seconds)


def share_everywhere(folder: Path, callers: Sequence[int], seconds: float) -> dict[str, list[float]]:
    """Return the shares in every store. They are used at the same time, as all that takes time is holding slots."""
    with ThreadPoolExecutor(len(HOLD)) as pool:
        work = {kind: pool.submit(share_slots, kind, folder / kind, callers, seconds) for kind in HOLD}
    return {kind: each.result() for kind, each in work.items()}


@pytest.mark.alone
@pytest.mark.unix
def test_with_equal_demand_no_process_gets_less_than_half_of_its_share(tmp_path: Path) -> None:
    for kind, shares in share_everywhere(tmp_path, [5] * 4, SECONDS).items():
        assert min(shares) >= sum(shares) / 4 / 2, (kind, shares)
        assert sum(shares) >= 0.9 * SLOTS, (kind, shares)


@pytest.mark.alone
@pytest.mark.unix
def test_a_single_waiter_is_served_beside_a_busy_process(tmp_path: Path) -> None:
    """Eleven callers share four slots: the one that is alone gets at least half of what is its own."""
    for kind, shares in share_everywhere(tmp_path, [10, 1], 12).items():
        assert shares[1] >= sum(shares) / 11 / 2, (kind, shares)
        assert sum(shares) >= 0.9 * SLOTS, (kind, shares)
