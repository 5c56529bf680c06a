"""Settling: adding to or giving back what a lease took, by writes that nothing can refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.bucket import level as level_at, produced
from ..core.errors import RateLimiterUnavailable
from ..records import bucket, charging
from ..records.algebra import PRESENT, Committed, Image, Key, Write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..repository.backend import Backend
    from .chains import Step
    from .engine import Grant

_MAX_TRIES = 200


class Part(NamedTuple):
    """What is settled at one level: how much, since when, and how much of it may at most be given back."""

    step: Step
    delta: Mapping[str, int]
    charged_ms: int
    most_back: Mapping[str, int]

    def write(self, now_ms: int, gone: bool) -> Write:
        """An add; to a bucket that is gone, because it was full, only what is owed."""
        level, sight = self.step
        if gone or sight.image is None:
            return charging.create(level, {name: max(0, amount) for name, amount in self.delta.items()}, now_ms)
        return charging.settle(level, sight.image, self.delta, self.charged_ms, now_ms, self.most_back)


async def settle_grant(backend: Backend, grant: Grant, delta: Mapping[str, int], timeout: float | None) -> None:
    """Add ``delta`` to what every level of a grant has consumed."""
    parts = _parts(grant, delta, max(backend.clock.now_ms(), grant.now_ms))
    if backend.store.capabilities.free_atomic_commit:
        await _settle(backend, parts, timeout)
        return
    for result in await backend.runtime.together([_settle(backend, [part], timeout) for part in parts]):
        if isinstance(result, BaseException):
            raise result


def _parts(grant: Grant, delta: Mapping[str, int], now_ms: int) -> list[Part]:
    parts = []
    for step, image in zip(grant.chain.steps, grant.images, strict=True):
        mine = {name: amount for name, amount in delta.items() if amount and name in step.level.slots}
        if mine:
            parts.append(Part(step, mine, grant.now_ms, _most_back(grant, step, image, mine, now_ms)))
    return parts


def _most_back(grant: Grant, step: Step, image: Image | None, delta: Mapping[str, int], now_ms: int) -> dict[str, int]:
    """What a give-back can be worth: the room that the refill since the charge has left, were nobody else there.

    The bucket may have been fuller than it is now; had the tokens never been taken, it would have run over then.
    """
    tokens = bucket.reading(step.level, image, grant.now_ms).tokens
    most = {}
    for name, amount in delta.items():
        if amount < 0:
            rule = step.level.slots[name].rule
            made = produced(now_ms, rule.amount, rule.period) - produced(grant.now_ms, rule.amount, rule.period)
            held = level_at(rule, *tokens[name], grant.now_ms) + grant.later.get(name, 0)
            most[name] = max(0, rule.capacity - held - made)
    return most


async def _settle(backend: Backend, parts: list[Part], timeout: float | None) -> None:
    await _look(backend, [part.step for part in parts if part.step.sight.image is None], timeout)
    gone: set[Key] = set()
    for _ in range(_MAX_TRIES):
        if not parts:
            return
        now_ms = backend.clock.now_ms()
        writes = [part.write(now_ms, part.step.level.key in gone) for part in parts]
        outcome = await backend.store.commit(writes, timeout=timeout)
        if isinstance(outcome, Committed):
            for part, image in zip(parts, outcome.images, strict=True):
                part.step.sight.show(image, now_ms)
                await _keep(backend, part.step.level.key, image, timeout)
            return
        for part in parts:
            level, sight = part.step
            if level.key in outcome.images:
                sight.show(outcome.images[level.key], now_ms)
        gone = {key for key, image in outcome.images.items() if image is None}
        parts = [part for part in parts if part.step.level.key not in gone or max(part.delta.values()) > 0]
    raise RateLimiterUnavailable(f"Lost {_MAX_TRIES} races for {parts[0].step.level.key.pk} in a row.")


async def _look(backend: Backend, steps: Sequence[Step], timeout: float | None) -> None:
    if steps:
        images = await backend.store.read([step.level.key for step in steps], timeout=timeout)
        for step, image in zip(steps, images, strict=True):
            step.sight.show(image, backend.clock.now_ms())


async def _keep(backend: Backend, key: Key, image: Image | None, timeout: float | None) -> None:
    """Put the expiry off where the debts of several clients together outlive what each of them knew of."""
    until_ms = None if image is None else bucket.outlives(image)
    if until_ms is not None:
        await backend.store.commit([Write(key, (PRESENT,), expires_at_ms=until_ms)], timeout=timeout)
