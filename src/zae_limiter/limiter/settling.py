"""Settling: adding to or giving back what a lease took, as adds that nothing can refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..records import bucket
from ..records.algebra import Committed, Key, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..repository.backend import Backend
    from .chains import Chain, Step


async def settle_chain(
    backend: Backend, chain: Chain, delta: Mapping[str, int], charged_ms: int, timeout: float | None
) -> None:
    """Add ``delta`` to what every level has consumed since ``charged_ms``."""
    parts = []
    for step in chain.steps:
        mine = {name: amount for name, amount in delta.items() if amount and name in step.level.slots}
        if mine:
            parts.append(Part(step, mine, charged_ms))
    if backend.store.capabilities.free_atomic_commit:
        await _settle(backend, parts, timeout)
        return
    for result in await backend.runtime.together([_settle(backend, [part], timeout) for part in parts]):
        if isinstance(result, BaseException):
            raise result


class Part(NamedTuple):
    """What is settled at one level."""

    step: Step
    delta: Mapping[str, int]
    charged_ms: int

    def write(self, now_ms: int, gone: bool) -> Write:
        """An add; to a bucket that is gone, because it was full, only what is owed."""
        level, sight = self.step
        if gone:
            return bucket.create(level, {name: max(0, amount) for name, amount in self.delta.items()}, now_ms)
        return bucket.settle(level, sight.image, self.delta, self.charged_ms, now_ms)


async def _settle(backend: Backend, parts: list[Part], timeout: float | None) -> None:
    gone: set[Key] = set()
    while parts:
        now_ms = backend.clock.now_ms()
        writes = [part.write(now_ms, part.step.level.key in gone) for part in parts]
        outcome = await backend.store.commit(writes, timeout=timeout)
        if isinstance(outcome, Committed):
            for part, image in zip(parts, outcome.images, strict=True):
                part.step.sight.show(image, now_ms)
            return
        for part in parts:
            level, sight = part.step
            if level.key in outcome.images:
                sight.show(outcome.images[level.key], now_ms)
        gone = {key for key, image in outcome.images.items() if image is None}
        parts = [part for part in parts if part.step.level.key not in gone or max(part.delta.values()) > 0]
