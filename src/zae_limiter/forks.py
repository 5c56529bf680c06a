"""Forks: no lock of ours is ever inherited in the middle of something.

Whoever guards its state with a ``_lock`` registers here. Before a fork all these locks are taken, so that nobody is
in the middle of a change; after it parent and child let go of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from typing import Protocol

    class Locked(Protocol):
        """Something with a lock that is held for moments only."""

        _lock: Any  # a Lock or an RLock


_OWNERS: WeakSet[Any] = WeakSet()
_HELD: list[Any] = []


def protect(owner: Locked) -> None:
    """Keep ``owner`` whole across forks."""
    _OWNERS.add(owner)


def _before() -> None:
    _HELD.extend(_OWNERS)
    for owner in _HELD:
        owner._lock.acquire()
        prepare = getattr(owner, "before_fork", None)
        if prepare is not None:
            prepare()


def _after() -> None:
    while _HELD:
        _HELD.pop()._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
