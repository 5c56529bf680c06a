"""Settling: adding to or giving back what a lease took, as plain adds that nothing can refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import bucket
from ..records.algebra import Committed, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..repository.backend import Backend
    from .chains import Chain, Step


async def settle_chain(backend: Backend, chain: Chain, delta: Mapping[str, int], timeout: float | None) -> None:
    """Add ``delta`` to what every level has consumed."""
    now_ms = backend.clock.now_ms()
    parts = []
    for step in chain.steps:
        mine = {name: amount for name, amount in delta.items() if amount and name in step.level.slots}
        if mine:
            parts.append((step, mine))
    if backend.store.capabilities.free_atomic_commit:
        await _settle(backend, parts, now_ms, timeout)
        return
    each = [_settle(backend, [part], now_ms, timeout) for part in parts]
    for result in await backend.runtime.together(each):
        if isinstance(result, BaseException):
            raise result


async def _settle(
    backend: Backend, parts: list[tuple[Step, dict[str, int]]], now_ms: int, timeout: float | None
) -> None:
    missing: set[Step] = set()
    while parts:
        writes = [_write(step, mine, now_ms, step in missing) for step, mine in parts]
        outcome = await backend.store.commit(writes, timeout=timeout)
        if isinstance(outcome, Committed):
            for (step, _), image in zip(parts, outcome.images, strict=True):
                step.sight.show(image, now_ms)
            return
        absent = {step for step, _ in parts if outcome.images.get(step.level.key, step) is None}
        missing = absent
        # A bucket that is gone was full: there is nothing to give back to it.
        parts = [(step, mine) for step, mine in parts if step not in absent or any(n > 0 for n in mine.values())]


def _write(step: Step, mine: dict[str, int], now_ms: int, missing: bool) -> Write:
    if missing:
        return bucket.create(step.level, {name: max(0, amount) for name, amount in mine.items()}, now_ms)
    return bucket.settle(step.level, step.sight.image, mine, now_ms)
