"""Locks are whole in a child process, and what is registered for it is called there."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from tests.support.deadlines import PATIENCE
from zae_limiter import forks

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
