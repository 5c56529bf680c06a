"""The two kinds of limiter. What the middleware does with them is written once, as coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import ValidationError
from ..limiter.amounts import check_amounts
from ..limiter.limiter import RateLimiter
from .leases import ResponseLease

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..core.limit import Limit
    from ..limiter.lease import LeaseCore
    from ..sync.facade import SyncRateLimiter


class Mode:
    """A limiter, and the type of its leases."""

    def __init__(self, limiter: RateLimiter, lease_type: type[LeaseCore], *, owned: bool) -> None:
        self.limiter = limiter
        self.lease_type = lease_type
        self._owned = owned

    def lease(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None,
        max_wait: float | None,
    ) -> LeaseCore:
        """A lease as `RateLimiter.acquire` makes it, for the length of a response."""
        terms = self.limiter._check_options(limits, None, max_wait, None, None)
        return self.lease_type(self.limiter, entity_id, resource, check_amounts("consume", consume), terms)

    async def close(self) -> None:
        """Close the store of a limiter that was opened here. The next request opens it again.

        A server may end the lifespan of an app that goes on serving: an app without lifespan ends it at once.
        """
        if self._owned:
            await self.limiter.repository.store.close()


class Waiting(Mode):
    """On an event loop."""

    def __init__(self, limiter: RateLimiter | str) -> None:
        opened = RateLimiter(limiter) if isinstance(limiter, str) else limiter
        if not isinstance(opened, RateLimiter):
            raise ValidationError("limiter", limiter, "must be a RateLimiter or a store URL such as 'memory://'")
        super().__init__(opened, ResponseLease, owned=isinstance(limiter, str))


class Blocking(Mode):
    """In a thread; the coroutines never suspend."""

    def __init__(self, limiter: SyncRateLimiter | str) -> None:
        from ..sync.facade import SyncRateLimiter  # an ASGI app needs none of it
        from .sync_leases import SyncResponseLease

        opened = SyncRateLimiter(limiter) if isinstance(limiter, str) else limiter
        if not isinstance(opened, SyncRateLimiter):
            raise ValidationError("limiter", limiter, "must be a SyncRateLimiter or a store URL such as 'memory://'")
        super().__init__(opened._inner, SyncResponseLease, owned=isinstance(limiter, str))
