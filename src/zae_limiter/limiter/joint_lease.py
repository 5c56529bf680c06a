"""A lease of several resources, taken together: the lease of the first one, which begins and ends those of the others.

One write or one round of writes takes all of it. What was granted is then divided by resource, so that each of them is
adjusted and settled as any lease is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Self

from ..core.errors import LeaseExpiredError, ZAELimiterError
from .amounts import qualify
from .grant import Grant
from .lease import Lease
from .lease_core import ENTERED_ONCE, LeaseCore
from .lease_port import Limiter
from .options import AcquireOptions


class _TakingLease(LeaseCore):
    """A lease that only takes: what was granted is held by the leases of the resources."""

    def _hold(self, grant: Grant) -> None:
        """Do nothing."""


class JointLeaseCore(LeaseCore):
    """One acquire of several resources, from the request to the settlement."""

    _part_type: type[LeaseCore]

    def __init__(
        self, limiter: Limiter, entity_id: str, costs: Mapping[str, dict[str, int]], options: AcquireOptions
    ) -> None:
        first, *others = [(resource, cost) for resource, cost in costs.items()]
        super().__init__(limiter, entity_id, *first, options)
        self._others = [self._part_type(limiter, entity_id, *each, options) for each in others]
        cost = {qualify(name, resource): need for resource, needs in costs.items() for name, need in needs.items()}
        self._lease = _TakingLease(limiter, entity_id, tuple(costs), cost, options)
        """The lease of all resources at once: it is entered, and the grant divided."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of the lease, in the order in which the acquire has named them."""
        return self._lease.resources

    def for_entity(self, entity_id: str) -> Self:
        """Return a new lease like this one for another entity: same resources, costs and options, not entered."""
        costs = {resource: part._cost for resource, part in zip(self.resources, self._parts, strict=True)}
        return type(self)(self._limiter, entity_id, costs, self._options)

    def try_enter(self) -> bool:
        """Return False: several resources are never taken without a coroutine."""
        if self._open or self._granted is not None:
            raise LeaseExpiredError(ENTERED_ONCE)
        return False

    def try_exit(self, *, final: bool = True) -> bool:
        """End the lease if there is nothing to write. Return False, with the lease still open, if `exit` is needed."""
        if any(part._open and part._delta is not None for part in self._parts):
            return False
        # The first one last: should a correction of another thread come in between, the lease is still open.
        return all(LeaseCore.try_exit(part, final=final) for part in reversed(self._parts))

    @property
    def _parts(self) -> list[LeaseCore]:
        """The leases of each resource."""
        return [self, *self._others]

    async def _enter(self) -> None:
        lease, parts = self._lease, self._parts
        await lease._enter()
        grants = [None] * len(parts) if lease._grant is None else lease._grant.split_by_resource()
        for part, grant in zip(parts, grants, strict=True):
            part._granted, part.degraded = grant, lease.degraded
            part._delta = dict(part._cost) if lease.degraded else None
            if grant is not None:
                part._hold(grant)
            part._open = True

    async def _check(self) -> None:
        await self._lease._check()
        self.degraded = self._lease.degraded

    async def _charge(self, times: int) -> None:
        charges = [partial(LeaseCore._charge, part, times) for part in self._parts]
        await self._limiter._engine.finish(_do_each(charges))

    async def _exit(self, *, failed: bool = False, give_back: bool = False, final: bool = True) -> None:
        parts = [part for part in self._parts if part._open]
        exits = [partial(LeaseCore._exit, part, failed=failed, give_back=give_back, final=final) for part in parts]
        for part in parts:
            part._open = False  # all at once: whatever comes later finds that it has ended
        await self._limiter._engine.finish(_do_each(exits))


async def _do_each(works: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Do one after the other, all of them even if one fails; then raise the first failure, if there was any."""
    failures: list[ZAELimiterError] = []
    for work in works:
        try:
            await work()
        except ZAELimiterError as error:
            failures.append(error)
    if failures:
        raise failures.pop(0)


class JointLease(JointLeaseCore, Lease):
    """A `Lease` of several resources."""

    _part_type = Lease

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._open and (error is not None or not self.try_exit()):
            await self._end(error)
