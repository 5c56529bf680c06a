"""Locks are whole in a child process, and what is registered for it is called there."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.limiter.test_concurrency import in_a_fork
from tests.limiter.test_slot_crowds import place
from tests.support.deadlines import PATIENCE
from zae_limiter import Limit, RateLimiter, SyncRateLimiter, forks

FORK = """
import os, threading
from zae_limiter.forks import after_fork, before_fork, protect

class Owner:
    def __init__(self):
        self.lock = threading.Lock()
        self.calls = []
        protect(self.lock)
        before_fork(self.prepare)
        after_fork(self.forget)

    def prepare(self):
        self.calls.append(("prepare", self.lock.locked()))

    def forget(self):
        self.calls.append(("forget", self.lock.locked()))

owner, gone = Owner(), Owner()
del gone
pid = os.fork()
if pid == 0:
    os._exit(0 if owner.calls == [("prepare", True), ("forget", False)] and not owner.lock.locked() else 1)
assert os.waitpid(pid, 0)[1] == 0, "not as it should be in the child"
assert owner.calls == [("prepare", True)], owner.calls
assert not owner.lock.locked()
"""


class Owner:
    """Something with a lock and a cache."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        forks.protect(self.lock)
        forks.before_fork(self.forget)
        forks.after_fork(self.forget)

    def forget(self) -> None:
        """Forget everything."""


@pytest.mark.unix
def test_locks_are_held_during_a_fork_and_the_child_is_told() -> None:
    command = [sys.executable, "-W", "error", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_registering_keeps_nothing_alive() -> None:
    owner = Owner()
    dead = weakref.ref(owner), weakref.ref(owner.lock)
    del owner
    gc.collect()
    assert [reference() for reference in dead] == [None, None]


SHORT = [Limit.concurrent("parallel", 2, ttl=1)]


def free(limiter: SyncRateLimiter) -> int:
    return limiter.available("key", "gpt-4", limits=SHORT)["parallel"]


@pytest.mark.unix
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_child_neither_frees_nor_renews_what_its_parent_holds(kind: str, tmp_path: Path) -> None:
    """Whether it leaves the block, fails or just dies; what it takes itself is its own. The parent goes on."""
    with place(kind, tmp_path) as url, SyncRateLimiter(url) as limiter:
        lease = limiter.acquire("key", "gpt-4", {}, limits=SHORT)
        lease.enter()

        def take() -> int:
            with limiter.acquire("key", "gpt-4", {}, limits=SHORT):
                return free(limiter)

        ways: list[Callable[[], object]] = [lease.exit, lambda: lease.exit(give_back=True), lambda: None]
        assert [in_a_fork(way)() for way in ways] == [None] * 3
        assert in_a_fork(take)() == 0
        assert free(limiter) == 1
        time.sleep(1.2)
        assert (lease.lost, free(limiter)) == (False, 1), "it is renewed by the parent"
        lease.exit()
        assert free(limiter) == 2


@pytest.mark.unix
def test_a_slot_of_a_child_that_dies_comes_back_and_the_parents_stays(tmp_path: Path) -> None:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db") as limiter:
        lease = limiter.acquire("key", "gpt-4", {}, limits=SHORT)
        lease.enter()

        def die() -> None:
            limiter.acquire("key", "gpt-4", {}, limits=SHORT).enter()

        assert in_a_fork(die)() is None
        assert free(limiter) == 0
        time.sleep(1.1)
        assert (lease.lost, free(limiter)) == (False, 1)
        lease.exit()
        assert free(limiter) == 2


@pytest.mark.unix
def test_an_open_lease_of_an_event_loop_stays_when_the_process_forks(tmp_path: Path) -> None:
    limiter = RateLimiter(f"sqlite:///{tmp_path}/limits.db")

    async def work() -> None:
        async with limiter.acquire("key", "gpt-4", {}, limits=SHORT) as lease:
            assert in_a_fork(lambda: limiter._slot_leases._records or None)() is None
            await asyncio.sleep(1.2)
            assert not lease.lost
            assert await limiter.available("key", "gpt-4", limits=SHORT) == {"parallel": 1}
        assert await limiter.available("key", "gpt-4", limits=SHORT) == {"parallel": 2}
        await limiter.close()

    asyncio.run(work())
