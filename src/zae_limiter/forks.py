"""What happens to our locks and caches when the process forks.

A lock is never inherited in the middle of a change: before a fork all protected locks are taken, and parent and child
release them afterwards. Where processes do not fork (Windows), registering has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import threading

    Lock: TypeAlias = threading.Lock | threading.RLock
    Methods: TypeAlias = WeakKeyDictionary[object, Callable[[Any], None]]

K = TypeVar("K")

_PROTECTED: WeakKeyDictionary[Lock, None] = WeakKeyDictionary()
_BEFORE: Methods = WeakKeyDictionary()
_IN_CHILD: Methods = WeakKeyDictionary()
_HELD: list[Lock] = []


def protect(lock: Lock) -> None:
    """Hold ``lock``, which is held for moments only, during every fork, as long as somebody else refers to it."""
    _PROTECTED[lock] = None


def before_fork(method: Any) -> None:
    """Call the bound ``method`` before every fork, when the protected locks are held. Its owner is not kept alive."""
    _BEFORE[method.__self__] = method.__func__


def after_fork(method: Any) -> None:
    """Call the bound ``method`` in every child process, when the locks are released. Its owner is not kept alive."""
    _IN_CHILD[method.__self__] = method.__func__


def _before() -> None:
    _HELD.extend(_alive(_PROTECTED))
    for lock in _HELD:
        lock.acquire()
    for owner in _alive(_BEFORE):
        _BEFORE[owner](owner)


def _release() -> None:
    while _HELD:
        _HELD.pop().release()


def _in_child() -> None:
    _release()
    for owner in _alive(_IN_CHILD):
        _IN_CHILD[owner](owner)


def _alive(registry: WeakKeyDictionary[K, Any]) -> list[K]:
    """Return the keys that still exist; other threads may register at the same time."""
    return [key for reference in registry.keyrefs() if (key := reference()) is not None]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
