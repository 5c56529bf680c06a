"""Prefetch when a process ends: killed, by itself without `close`, as a child, or without its store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.aws import engine
from tests.support.backends import REGION, dynamodb_table
from tests.support.redis import shared
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUOTA = 10_000

KILLED = """
import os, signal, sys, time
from zae_limiter import SyncRateLimiter

for _ in range(8):
    child = os.fork()
    if child == 0:
        limiter = SyncRateLimiter(sys.argv[1], prefetch=float(sys.argv[2]))
        for _ in range(60):
            with limiter.acquire("key", "gpt-4", {"tokens": 10}):
                time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
"""

HOLDING = """
import asyncio, os, sys, time
from zae_limiter import RateLimiter, SyncRateLimiter

URL, mode, ending = sys.argv[1:]
granted = 0

def work(limiter):
    global granted
    end = time.monotonic() + 20
    while limiter.repository.get_backend_stats().prefetch.held == 0 and time.monotonic() < end:
        with limiter.acquire("key", "gpt-4", {"tokens": 10}) as lease:
            time.sleep(0.002)
            lease.settle(tokens=9)
        granted += 1

async def work_async(limiter):
    global granted
    end = time.monotonic() + 20
    while limiter.repository.get_backend_stats().prefetch.held == 0 and time.monotonic() < end:
        async with limiter.acquire("key", "gpt-4", {"tokens": 10}) as lease:
            await asyncio.sleep(0.002)
            await lease.settle(tokens=9)
        granted += 1

if mode == "blocking":
    limiter = SyncRateLimiter(URL, prefetch=5)
    work(limiter)
else:
    limiter = RateLimiter(URL, prefetch=5)
    asyncio.run(work_async(limiter))
print("holds" if limiter.repository.get_backend_stats().prefetch.held else "holds nothing", granted, flush=True)
if ending == "child":
    if os.fork() == 0:
        print("child", limiter.repository.get_backend_stats().prefetch.held, flush=True)
        sys.exit(0)
    os.wait()
elif ending == "raises":
    raise ZeroDivisionError
elif ending == "exit":
    sys.exit(0)
elif ending == "repository closed":
    closing = limiter.repository.close()
    if closing is not None:
        asyncio.run(closing)
elif ending == "unreachable":
    os.replace(URL.removeprefix("sqlite:///"), URL.removeprefix("sqlite:///") + ".gone")
    os.mkdir(URL.removeprefix("sqlite:///"))
"""

ENDINGS = [("sqlite", ending) for ending in ("returns", "raises", "exit", "child", "repository closed")]
ENDINGS += [(kind, "returns") for kind in ("redis", "dynamodb")]
"""Stores, and how a program ends."""


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a store with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/l.db"
    elif request.param == "redis":
        yield f"{shared.server().url}?prefix=ends-{os.getpid()}-{time.monotonic_ns()}"
    else:
        with dynamodb_table() as name:
            yield f"dynamodb://{name}?region={REGION}&endpoint_url={engine.endpoint()}"


@pytest.mark.parametrize(("url", "prefetch"), [("sqlite", 0.5), ("redis", 5), ("dynamodb", 0.5)], indirect=["url"])
def test_processes_that_are_killed_lose_nothing_of_a_monthly_quota(url: str, prefetch: float) -> None:
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults([Limit.quota("tokens", QUOTA, every="month")])
        ended = run_program(KILLED, url, str(prefetch))
        assert (ended.stderr, ended.returncode) == ("", 0)
        assert limiter.available("key", "gpt-4") == {"tokens": QUOTA - 8 * 60 * 10}


@pytest.mark.parametrize("prefetch", [0.5, 5])
async def test_limiters_that_vanish_lose_nothing_of_a_quota(harness: Harness, prefetch: float) -> None:
    """On every store, as of a clock that is moved by hand; at the level of an organisation too."""
    limiter = harness.limiter(prefetch=0)
    rates = [Limit.per_second("rps", 100_000), Limit.per_second("tokens", 1_000_000)]
    await limiter.set_system_defaults(rates)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_limits("org", [Limit.quota("tokens", QUOTA, every="month")])
    vanished = []
    for _ in range(8):
        other = harness.limiter(prefetch=prefetch)
        for _ in range(20):
            async with other.acquire("key", "gpt-4", {"rps": 1, "tokens": 10}) as lease:
                await lease.settle(tokens=8)
            harness.clock.advance_ms(10)
        vanished.append(other)
    assert (await limiter.available("org", "gpt-4"))["tokens"] == QUOTA - 8 * 20 * 8
    for other in vanished:
        await other.close()


@pytest.mark.parametrize("mode", ["blocking", "async"])
@pytest.mark.parametrize(("url", "ending"), ENDINGS, indirect=["url"])
def test_a_program_that_ends_without_closing_returns_what_it_holds(url: str, mode: str, ending: str) -> None:
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults([Limit.per_day("tokens", QUOTA)])
        ended = run_program(HOLDING, url, mode, ending)
        assert ended.returncode == (1 if ending == "raises" else 0), ended.stderr
        assert ("ZeroDivisionError" in ended.stderr) if ending == "raises" else not ended.stderr
        found, *more = ended.stdout.splitlines()
        state, granted = found.split()
        assert state == "holds"
        assert more == (["child 0"] if ending == "child" else [])
        (bucket,) = limiter.get_buckets("key")
        assert bucket.total_consumed_milli == int(granted) * 9_000
        assert limiter.available("key", "gpt-4")["tokens"] >= QUOTA - int(granted) * 9


def test_a_program_whose_store_is_gone_ends_all_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults([Limit.per_day("tokens", QUOTA)])
    ended = run_program(HOLDING, url, "async", "unreachable")
    assert ended.stdout.startswith("holds ")
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    assert "could not be" in ended.stderr, "what is lost is logged"
