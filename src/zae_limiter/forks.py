"""What happens to our locks and caches when the process forks.

A lock is never inherited in the middle of a change: before a fork all protected locks are taken, and parent and child
release them afterwards. Where processes do not fork (Windows), registering has no effect.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary, WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable


class Lock(Protocol):
    """A `threading.Lock` or `threading.RLock` that is held for moments only."""

    def acquire(self) -> bool:
        """Wait for the lock."""
        ...

    def release(self) -> None:
        """Let go of it."""
        ...


_PROTECTED: WeakKeyDictionary[Lock, WeakMethod[Callable[[], None]] | None] = WeakKeyDictionary()
_IN_CHILD: set[WeakMethod[Callable[[], None]]] = set()
_HELD: list[Lock] = []


def protect(lock: Lock, before_fork: Callable[[], None] | None = None) -> None:
    """Hold ``lock`` during every fork, and call the method ``before_fork`` while it is held.

    Neither the lock nor the owner of the method is kept alive by this.
    """
    _PROTECTED[lock] = None if before_fork is None else WeakMethod(before_fork)


def after_fork(method: Callable[[], None]) -> None:
    """Call ``method`` in every child process, after the locks are released. Its owner is not kept alive by this."""
    _IN_CHILD.add(WeakMethod(method, _IN_CHILD.discard))


def _before() -> None:
    for reference in _PROTECTED.keyrefs():  # a list: other threads may register meanwhile
        lock = reference()
        if lock is not None:
            lock.acquire()
            _HELD.append(lock)
            _call(_PROTECTED[lock])


def _release() -> None:
    while _HELD:
        _HELD.pop().release()


def _in_child() -> None:
    _release()
    for method in tuple(_IN_CHILD):
        _call(method)


def _call(reference: WeakMethod[Callable[[], None]] | None) -> None:
    method = None if reference is None else reference()
    if method is not None:
        method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
