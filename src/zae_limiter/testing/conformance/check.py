"""A check: one claim about a store, proved by one coroutine that runs in both modes, and what it expects.

Expectations raise AssertionError themselves, so that they also hold under ``python -O``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.errors import ZAELimiterError
from ...stores.port import Store
from ..harness import Harness

if TYPE_CHECKING:
    from ...clock import Clock

Work: TypeAlias = Callable[[Harness], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Check:
    """Run it with `run`, or await it where a harness is being driven already.

    With a ``deviation`` the store declares that the claim does not hold for it, and why. The check is run all the
    same and has to fail: a deviation that is none is an error too.
    """

    name: str
    claim: str
    work: Work
    deviation: str | None = None

    def __str__(self) -> str:
        return self.name if self.deviation is None else f"{self.name} [deviates: {self.deviation}]"

    def run(self, harness: Harness) -> None:
        """Prove the claim in the mode of the harness, or raise AssertionError."""
        harness.run(self(harness))

    async def __call__(self, harness: Harness) -> None:
        """Prove the claim inside a running harness, and close whatever the check has opened."""
        opened: list[Store] = []

        def open_store(clock: Clock, blocking: bool) -> Store:
            opened.append(harness.store(clock))
            return opened[-1]

        inner = Harness(open_store, blocking=harness.blocking, prefetch=harness.prefetch)
        inner.clock = harness.clock
        try:
            await self._prove(inner)
        finally:
            for store in opened:
                await store.close()

    async def _prove(self, harness: Harness) -> None:
        try:
            await self.work(harness)
        except Exception as error:
            if self.deviation is not None:
                return
            if isinstance(error, ZAELimiterError):
                raise AssertionError(f"{self.name}: unexpected {type(error).__name__}: {error}") from error
            raise
        if self.deviation is None:
            return
        raise AssertionError(f"{self.name} holds, but a deviation is declared: {self.deviation!r}; take it back")


def check(work: Work) -> Check:
    """Make a check of a coroutine function: named by its module and name, claiming its docstring."""
    doc = work.__doc__
    if not doc:
        raise ValueError(f"{work.__qualname__} makes no claim: give it a docstring")
    return Check(f"{work.__module__.rpartition('.')[2]}.{work.__qualname__}", doc.strip(), work)


def checks_of(module: Mapping[str, object]) -> tuple[Check, ...]:
    """Return the checks that a module defines, in their order, by its ``globals()`` or ``vars``."""
    own = module["__name__"]
    found = (value for value in module.values() if isinstance(value, Check))
    return tuple(each for each in found if each.work.__module__ == own)


def deviating(checks: Iterable[Check], deviations: Mapping[str, str]) -> tuple[Check, ...]:
    """Return the same checks, with the declared deviations marked. Raise ValueError for a name that no check has."""
    every = tuple(checks)
    unknown = deviations.keys() - {each.name for each in every}
    if unknown:
        raise ValueError(f"no such checks: {', '.join(sorted(unknown))}")
    return tuple(replace(each, deviation=deviations[each.name]) if each.name in deviations else each for each in every)


def true(holds: object, claim: str) -> None:
    """Raise AssertionError unless ``claim`` holds."""
    if not holds:
        raise AssertionError(claim)


def same(found: object, expected: object, claim: str) -> None:
    """Raise AssertionError unless both are equal, with the same types all the way down: 1, 1.0 and True differ."""
    if not _alike(found, expected):
        raise AssertionError(f"{claim}\n  expected: {expected!r}\n  found:    {found!r}")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):  # a store may hand out images of a class of its own
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)
