"""Express: the acquire that everybody makes all the time, in one go.

A known chain, nobody waiting or in flight, and a store that answers inside the call: then there is nothing to merge, to
queue for or to shield, and what the engine needs for these is left out. Whatever is not like that, a lost race too, is
None here and the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..core.decide import refusal
from ..records.algebra import applied
from ..records.bucket import current_reading
from ..records.charging import first_charge, is_ahead, is_current, spend
from ..runtime.blocking import run
from ..stores.port import Lender
from .committing import commit_parts
from .engine import seen_grant
from .planning import plan, serials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..records.algebra import Image
    from ..records.level import Level
    from ..repository.backend import Backend
    from ..repository.sights import Sight
    from ..runtime.deadline import Deadline
    from .chain import Chain
    from .engine import Engine, Grant


class Express(Protocol):
    """Takes tokens at once, or not at all."""

    waits: bool
    """Whether it asks a store that may keep it waiting, and so needs a deadline."""

    def take(self, chain: Chain, cost: Mapping[str, int], now_ms: int, deadline: Deadline | None) -> Grant | None:
        """Take ``cost``, or raise the refusal; None where it takes more to know."""
        ...


class Lent:
    """From a store that lends its records."""

    waits = False

    def __init__(self, lender: Lender) -> None:
        self._exchange = lender.exchange

    def take(self, chain: Chain, cost: Mapping[str, int], now_ms: int, deadline: Deadline | None) -> Grant | None:
        """Take ``cost`` from a chain of one level; a bucket that is not there is made."""
        steps = chain.steps
        if len(steps) != 1:
            return None
        level, sight = steps[0]
        if now_ms < sight.seen_ms:
            now_ms = sight.seen_ms  # the clock has stepped back
        image = None
        if sight.image is None:
            image = self._exchange(level.key, now_ms, _make, level, cost, now_ms)
        if image is None:
            image = self._exchange(level.key, now_ms, spend, level, cost, now_ms)
        if image is not None:
            return seen_grant(chain, cost, image, now_ms)
        if cost.keys() <= level.slots.keys():
            self._refuse(level, sight, cost, now_ms)
        return None

    def _refuse(self, level: Level, sight: Sight, cost: Mapping[str, int], now_ms: int) -> None:
        """Raise the refusal where only tokens are missing: what is lent is what there is."""
        seen: list[Image] = []
        self._exchange(level.key, now_ms, _look, seen)
        if seen and is_current(level, seen[0]):
            error = refusal((current_reading(level, seen[0]),), cost, now_ms)
            if error is not None:
                sight.show(seen[0], now_ms)
                try:
                    raise error
                finally:
                    del error  # it holds this frame, which must not hold it as well


def _make(image: Image | None, level: Level, cost: Mapping[str, int], now_ms: int) -> Image | None:
    """Return a new bucket from which ``cost`` was taken, if there is none and it fits; None: ask the engine."""
    if image is not None or level.count > 1 or not cost.keys() <= level.slots.keys():
        return None
    write = first_charge(level, cost, now_ms, 1, next(serials))
    return None if write is None else applied(None, write)


def _look(image: Image | None, seen: list[Image]) -> None:
    """Note what is lent, and change nothing."""
    if image is not None:
        seen.append(image)


class Prompt:
    """From a store that blocks until it has answered, with one commit."""

    waits = True

    def __init__(self, backend: Backend, engine: Engine) -> None:
        self._backend = backend
        self._engine = engine
        self._atomic = backend.store.capabilities.free_atomic_commit

    def take(self, chain: Chain, cost: Mapping[str, int], now_ms: int, deadline: Deadline | None) -> Grant | None:
        """Take ``cost`` at every level with the one write that the last sights call for."""
        assert deadline is not None  # it waits
        if chain.sharded or not (self._atomic or len(chain.steps) == 1) or not cost.keys() <= chain.names:
            return None
        lane = chain.lanes.of(self._backend.runtime.home())
        if not lane.lead():
            return None
        try:
            return self._taken(chain, cost, chain.instant(now_ms), deadline)
        finally:
            lane.leave()

    def _taken(self, chain: Chain, cost: Mapping[str, int], now_ms: int, deadline: Deadline) -> Grant | None:
        for level, sight in chain.steps:
            if sight.image is None or is_ahead(level, sight.image):
                return None
        parts = plan(chain, cost, now_ms)
        if parts is None:
            return None
        outcome = run(commit_parts(self._backend, parts, now_ms, deadline, atomic=False))
        return self._engine.landed(chain, parts, cost, outcome, now_ms)


def express(backend: Backend, engine: Engine, *, blocking: bool) -> Express | None:
    """The express lane of a store, where it has one."""
    store = backend.store
    if isinstance(store, Lender):
        return Lent(store)
    able = store.capabilities
    if not blocking or able.instant or able.partition_writes:
        return None
    return Prompt(backend, engine)
