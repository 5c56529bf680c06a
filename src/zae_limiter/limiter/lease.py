"""A lease: tokens that were taken before the block ran, and are settled when it ends.

The consumption is in the store before the body starts. Adjustments are collected and written once, at the end,
as plain adds. An exception gives everything back. A crash leaves the estimate charged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..core.bucket import MILLI, Rule, level
from ..core.errors import LeaseExpiredError, RateLimiterUnavailable
from ..core.values import OnUnavailable
from ..records import bucket
from .amounts import check_amounts, check_known

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from ..core.limit import Limit
    from .engine import Engine, Grant

_LOG = logging.getLogger("zae_limiter")


class Lease:
    """What an acquire yields. ``degraded`` is true when the body runs without any limit."""

    __slots__ = ("_delta", "_engine", "_extra", "_grant", "_more", "_open", "_policy", "_timeout", "degraded")

    def __init__(
        self,
        engine: Engine,
        grant: Grant | None,
        more: Callable[[Mapping[str, int]], Coroutine[Any, Any, Grant]],
        policy: OnUnavailable,
        timeout: float | None,
    ) -> None:
        self._engine = engine
        self._grant = grant
        self._more = more
        self._policy = policy
        self._timeout = timeout
        self._extra: list[Grant] | None = None
        self._delta: dict[str, int] | None = None
        self._open = True
        self.degraded = grant is None

    @property
    def consumed(self) -> dict[str, int]:
        """What the caller has asked for so far, adjustments included; once, not once per level."""
        grants = [] if self._grant is None else [self._grant, *(self._extra or ())]
        total: dict[str, int] = {}
        for amounts in (*(grant.cost for grant in grants), self._delta or {}):
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        return {name: amount // MILLI for name, amount in total.items()}

    @property
    def available(self) -> dict[str, int]:
        """What was left right after this acquire, by the write that granted it: the least over all levels."""
        grant = self._grant
        left: dict[str, int] = {}
        if grant is None:
            return left
        for step, image in zip(grant.levels, grant.images, strict=True):
            tokens = bucket.reading(step, image, grant.now_ms).tokens
            for limit in step.limits:
                later = grant.later.get(limit.name, 0)
                here = (level(Rule.of(limit), *tokens[limit.name], grant.now_ms) + later) // MILLI
                left[limit.name] = min(here, left.get(limit.name, here))
        return left

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of the entity itself that were charged."""
        return self._grant.levels[0].limits if self._grant is not None else ()

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more, checked by the store: may raise `RateLimitExceeded`, and then nothing is taken."""
        cost = self._checked("consume", amounts, named, 0)
        if self._grant is None:
            self._collect(cost, 1)
            return
        grant = await self._more(cost)
        self._extra = [*(self._extra or ()), grant]

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Correct the estimate by the difference; never refused, may drive the bucket into debt."""
        self._collect(self._checked("adjust", amounts, named, -(10**12)), 1)

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Give unused tokens back."""
        self._collect(self._checked("release", amounts, named, 0), -1)

    def _checked(
        self, verb: str, amounts: Mapping[str, int] | None, named: Mapping[str, int], least: int
    ) -> dict[str, int]:
        if not self._open:
            raise LeaseExpiredError(f"{verb}() after the block of its lease had ended; call it inside the block.")
        checked = check_amounts(verb, {**(amounts or {}), **named}, least)
        if self._grant is not None:
            check_known(verb, checked, self._grant.levels[0].slots)
        return checked

    def _collect(self, amounts: Mapping[str, int], sign: int) -> None:
        delta = self._delta if self._delta is not None else {}
        for name, amount in amounts.items():
            delta[name] = delta.get(name, 0) + sign * amount
        self._delta = delta

    def end_quietly(self) -> bool:
        """End a lease that has nothing to write; False where `settle` is needed."""
        if self._delta is None:
            self._open = False
            return True
        return False

    async def settle(self) -> None:
        """Write the collected adjustments. The work is done: under ALLOW a failure is only reported."""
        self._open = False
        delta = {name: amount for name, amount in (self._delta or {}).items() if amount}
        if self._grant is None or not delta:
            return
        try:
            await self._engine.settle(self._grant.levels, delta, self._timeout)
        except RateLimiterUnavailable as error:
            _LOG.warning("settlement lost, the estimate stays charged: %s", error)
            if self._policy is OnUnavailable.BLOCK:
                raise

    async def roll_back(self) -> None:
        """Give everything back. The caller's exception matters more than a failure here."""
        self._open = False
        if self._grant is None:
            return
        for grant in (self._grant, *(self._extra or ())):
            try:
                back = {name: -amount for name, amount in grant.cost.items()}
                await self._engine.settle(grant.levels, back, self._timeout)
            except RateLimiterUnavailable as error:
                _LOG.warning("tokens of a failed call were not given back: %s", error)
