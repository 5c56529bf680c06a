"""Settling: adding to or giving back what a lease took, by writes that nothing can refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.bucket import between
from ..core.errors import RateLimiterUnavailable
from ..records import bucket, charging, ledger
from ..records.algebra import Committed, Image, Key, Write
from ..records.level import ANCHOR, SHARDS
from .booking import commit_turned
from .chain import Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..records.ledger import Turned
    from ..records.level import Level
    from ..repository.backend import Backend
    from .engine import Grant

_MAX_TRIES = 200


class Part(NamedTuple):
    """What is settled at one level: how much, since when, and how much of it may at most be given back."""

    step: Step
    delta: Mapping[str, int]
    charged_ms: int
    most_back: Mapping[str, int]

    @property
    def survives(self) -> bool:
        """Whether it matters for a bucket that is gone: debt and usage do, but no shard is made for it."""
        level = self.step.level
        return level.shard == 0 and (level.usage_days > 0 or max(self.delta.values()) > 0)

    @property
    def outgrown(self) -> bool:
        """Whether the shard has been split since it was charged."""
        image = self.step.sight.image
        return image is not None and image.get(SHARDS, 1) > self.step.level.count

    def halves(self, backend: Backend) -> tuple[Part, Part]:
        """The part divided as the balance of its shard was when that was split: each half has room for its own."""
        level, sight = self.step
        count = level.count
        sibling = level.at(level.shard + count, 2 * count)
        other = Step(sibling, backend.sights.of(sibling.key))
        mine = Step(level.at(level.shard, 2 * count), sight)
        (kept, given), (most_kept, most_given) = _halved(self.delta), _halved(self.most_back)
        return Part(mine, kept, self.charged_ms, most_kept), Part(other, given, self.charged_ms, most_given)

    def change(self, now_ms: int) -> Turned:
        """An add; to a bucket that is gone, because it was full, only what is owed."""
        level, sight = self.step
        if sight.image is None and max(self.delta.values()) < 0:
            return ledger.unhoused(level, self.delta, 1, now_ms)
        if sight.image is None:
            write = charging.create(level, self.delta, now_ms)
        else:
            write = charging.settle(level, sight.image, self.delta, self.charged_ms, now_ms, self.most_back)
        return ledger.turned(level, sight.image, write, now_ms)


def _halved(amounts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    return {name: amount // 2 for name, amount in amounts.items()}, {
        name: amount - amount // 2 for name, amount in amounts.items()
    }


async def settle_grant(backend: Backend, grant: Grant, delta: Mapping[str, int], timeout: float | None) -> None:
    """Add ``delta`` to what every level of a grant has consumed."""
    parts = _parts(grant, delta, max(backend.clock.now_ms(), grant.now_ms))
    await _settle_all(backend, parts, timeout)


async def _settle_all(backend: Backend, parts: list[Part], timeout: float | None) -> None:
    """Side by side where one commit of them all would cost more."""
    if len(parts) < 2 or backend.store.capabilities.free_atomic_commit:
        await _settle(backend, parts, timeout)
        return
    for result in await backend.runtime.together([_settle(backend, [part], timeout) for part in parts]):
        if isinstance(result, BaseException):
            raise result


def _parts(grant: Grant, delta: Mapping[str, int], now_ms: int) -> list[Part]:
    """What is settled where: each shard gets back what it gave, the last one the rest."""
    parts = []
    left: dict[str, dict[str, int]] = {}
    portions = list(grant.portions())
    last = {step.level.entity_id: step for step, _, _ in portions}
    for step, cost, image in portions:
        who, slots = step.level.entity_id, step.level.slots
        mine = left.setdefault(who, {name: amount for name, amount in delta.items() if amount and name in slots})
        here = mine if last[who] is step else {name: max(amount, -cost.get(name, 0)) for name, amount in mine.items()}
        left[who] = {name: amount - here[name] for name, amount in mine.items() if amount != here[name]}
        here = {name: amount for name, amount in here.items() if amount}
        if here:
            charged = step if image is None else step._replace(level=step.level.at(step.level.shard, image[SHARDS]))
            most = most_back(step.level, image, here, grant.now_ms, now_ms, grant.later)
            parts.append(Part(charged, here, grant.now_ms, most))
    return parts


def most_back(
    level: Level, image: Image | None, delta: Mapping[str, int], charged_ms: int, now_ms: int, later: Mapping[str, int]
) -> dict[str, int]:
    """What a give-back can be worth: the room that the refill since the charge has left, were nobody else there.

    ``image`` is the bucket right after the charge. It may have been fuller than it is now; had the tokens never been
    taken, it would have run over then.
    """
    pots = bucket.reading([(level, image)], charged_ms).pots
    most = {}
    for name, amount in delta.items():
        if amount < 0:
            (pot,) = pots[name]
            held = pot.level(charged_ms) + later.get(name, 0)
            most[name] = max(0, pot.rule.capacity - held - between(pot.rule, charged_ms, now_ms))
    return most


async def _settle(backend: Backend, parts: list[Part], timeout: float | None) -> None:
    await _look(backend, [part.step for part in parts if part.step.sight.image is None], timeout)
    for _ in range(_MAX_TRIES):
        if any(part.outgrown for part in parts):
            divided = [half for part in parts for half in (part.halves(backend) if part.outgrown else (part,))]
            await _settle_all(backend, divided, timeout)
            return
        parts = [part for part in parts if part.step.sight.image is not None or part.survives]
        if not parts:
            return
        now_ms = backend.clock.now_ms()
        outcome = await commit_turned(backend.store, [part.change(now_ms) for part in parts], timeout)
        if isinstance(outcome, Committed):
            for part, image in zip(parts, outcome.images, strict=True):
                part.step.sight.show(image, now_ms)
                await _keep(backend, part.step.level.key, image, timeout)
            return
        for part in parts:
            level, sight = part.step
            if level.key in outcome.images:
                sight.show(outcome.images[level.key], now_ms)
    raise RateLimiterUnavailable(f"Lost {_MAX_TRIES} races for {parts[0].step.level.key.pk} in a row.")


async def _look(backend: Backend, steps: Sequence[Step], timeout: float | None) -> None:
    if steps:
        images = await backend.store.read([step.level.key for step in steps], timeout=timeout)
        for step, image in zip(steps, images, strict=True):
            step.sight.show(image, backend.clock.now_ms())


async def _keep(backend: Backend, key: Key, image: Image | None, timeout: float | None) -> None:
    """Put the expiry off where the debts of several clients together outlive what each of them knew of."""
    until_ms = None if image is None else bucket.outlives(image)
    if image is not None and until_ms is not None:
        unmoved = (ANCHOR, "=", image[ANCHOR])  # neither reshaped, which knows the debt, nor split, which never expires
        await backend.store.commit([Write(key, (unmoved,), expires_at_ms=until_ms)], timeout=timeout)
