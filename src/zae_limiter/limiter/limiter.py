"""`RateLimiter`: acquire."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..core import names
from ..core.errors import RateLimiterUnavailable, ValidationError
from ..core.limit import check_limits
from ..core.values import OnUnavailable
from ..repository.configs import ConfigOperations, check_policy
from ..repository.entities import EntityOperations
from ..repository.history import HistoryOperations
from ..repository.repository import Repository
from .amounts import check_amounts, check_known
from .chains import Chains
from .engine import Engine, Grant
from .lease import Lease
from .looking import LookOperations
from .sights import Sights
from .waiting import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from ..core.limit import Limit
    from ..core.values import StackOptions
    from ..stores.port import Store
    from .chains import Chain

_LOG = logging.getLogger("zae_limiter")


class RateLimiter(LookOperations, EntityOperations, ConfigOperations, HistoryOperations):
    """Limits calls whose cost is known only afterwards.

    ``repository`` is a `Repository`, a store URL, a store or a stack name. ``on_unavailable`` decides what happens
    when the store cannot be asked (call > limiter > system config > block), after at most ``timeout`` seconds.
    ``refusal_ttl`` is for how many seconds a bucket that was seen too empty refuses without asking (0: never).
    Entity and config operations work here as on the repository.
    """

    _repository_type: type[Repository] = Repository

    def __init__(
        self,
        repository: Repository | Store | str | None = None,
        *,
        name: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        stack_options: StackOptions | None = None,
        on_unavailable: OnUnavailable | str | None = None,
        speculative_writes: bool = True,
        bucket_ttl_refill_multiplier: int = 7,
        refusal_ttl: float = 1.0,
        timeout: float | None = None,
    ) -> None:
        if isinstance(repository, Repository):
            aws = {
                "name": name,
                "region": region,
                "endpoint_url": endpoint_url,
                "stack_options": stack_options,
            }
            for field, value in aws.items():
                if value is not None:
                    raise ValidationError(field, value, "was given besides a Repository; set it there")
            self.repository = repository
        else:
            self.repository = self._repository_type(
                repository, name=name, region=region, endpoint_url=endpoint_url, stack_options=stack_options
            )
        if isinstance(bucket_ttl_refill_multiplier, bool) or not bucket_ttl_refill_multiplier >= 0:
            raise ValidationError("bucket_ttl_refill_multiplier", bucket_ttl_refill_multiplier, "must be 0 or more")
        if not refusal_ttl >= 0:
            raise ValidationError("refusal_ttl", refusal_ttl, "must be 0 or more seconds")
        self._backend = self.repository._backend
        self._policy = None if on_unavailable is None else check_policy(on_unavailable)
        self._timeout = _check_timeout(timeout) if timeout is not None else self._backend.timeout
        self._speculative = speculative_writes
        self._sights = Sights()
        self._chains = Chains(self._backend, self._sights, bucket_ttl_refill_multiplier)
        self._engine = Engine(self._backend, self._chains, self._sights, int(refusal_ttl * 1000))
        self._lines = Lines(self._backend.runtime, self._backend.clock)
        self._up = True

    def acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | str | None = None,
        max_wait: float | None = None,
        timeout: float | None = None,
    ) -> Acquire:
        """Take ``consume`` for the entity and those above it, all or nothing, for the length of a block.

        >>> async with limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:  # doctest: +SKIP
        ...     answer = await call_llm()
        ...     await lease.adjust(tpm=answer.tokens - 500)
        """
        return Acquire(self, entity_id, resource, consume, limits, on_unavailable, max_wait, timeout)

    async def close(self) -> None:
        """Close the repository; closing twice is fine."""
        await self.repository.close()

    async def __aenter__(self) -> RateLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _chain(self, entity_id: str, resource: str, given: tuple[Limit, ...] | None) -> Chain:
        chain = self._chains.known(entity_id, resource, given, self._backend.clock.now_ms())
        return chain if chain is not None else await self._chains.resolve(entity_id, resource, given)

    async def _admit(
        self,
        chain: Chain,
        cost: Mapping[str, int],
        max_wait_ms: int,
        timeout: float | None,
    ) -> Grant:
        key = chain.levels[0].key
        if not self._speculative:
            await self._engine.look(chain, timeout)
        if self._lines.waiting:
            now_ms = self._backend.clock.now_ms()
            self._lines.check(key, self._engine.readings(chain, now_ms), cost, now_ms, max_wait_ms)
        if not max_wait_ms:
            return await self._engine.admit(chain, cost, timeout)
        return await self._lines.stand(key, cost, max_wait_ms, lambda: self._engine.admit(chain, cost, timeout))

    def _note(self, up: bool, error: BaseException | None = None) -> None:
        """One log line per change of state."""
        if up != self._up:
            self._up = up
            if up:
                _LOG.info("store answers again")
            else:
                _LOG.warning("store unavailable: %s", error)


class Acquire:
    """The context manager of one acquire."""

    __slots__ = (
        "_consume",
        "_entity_id",
        "_lease",
        "_limiter",
        "_limits",
        "_max_wait",
        "_policy",
        "_resource",
        "_timeout",
    )

    def __init__(
        self,
        limiter: RateLimiter,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None,
        on_unavailable: OnUnavailable | str | None,
        max_wait: float | None,
        timeout: float | None,
    ) -> None:
        self._limiter = limiter
        self._entity_id = entity_id
        self._resource = resource
        self._consume = consume
        self._limits = limits
        self._policy = on_unavailable
        self._max_wait = max_wait
        self._timeout = timeout
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        """Take the tokens, or raise."""
        limiter = self._limiter
        cost = check_amounts("consume", self._consume)
        given = None if self._limits is None else check_limits(self._limits)
        max_wait_ms = 0 if self._max_wait is None else int(_check_wait(self._max_wait) * 1000)
        policy = None if self._policy is None else check_policy(self._policy)
        timeout = limiter._timeout if self._timeout is None else _check_timeout(self._timeout)
        names.entity_id(self._entity_id)
        names.resource(self._resource)

        async def take(more: Mapping[str, int], wait_ms: int = 0) -> Grant:
            chain = await limiter._chain(self._entity_id, self._resource, given)
            check_known("consume", more, chain.levels[0].slots)
            return await limiter._admit(chain, more, wait_ms, timeout)

        try:
            grant: Grant | None = await take(cost, max_wait_ms)
            limiter._note(True)
        except RateLimiterUnavailable as error:
            limiter._note(False, error)
            error.entity_id, error.resource = self._entity_id, self._resource
            if self._in_force(policy) is OnUnavailable.BLOCK:
                raise
            grant = None
        self._lease = Lease(limiter._engine, grant, take, self._in_force(policy), timeout)
        if grant is None:
            self._lease._collect(cost, 1)
        return self._lease

    def _in_force(self, policy: OnUnavailable | None) -> OnUnavailable:
        limiter = self._limiter
        return policy or limiter._policy or limiter._chains.system_policy or OnUnavailable.BLOCK

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle, or give everything back."""
        lease = self._lease
        assert lease is not None  # the block was entered
        if error is not None:
            await lease.roll_back()
        elif not lease.end_quietly():
            await lease.settle()


def _check_timeout(timeout: float) -> float:
    if not timeout > 0:
        raise ValidationError("timeout", timeout, "must be above 0 seconds, or None")
    return timeout


def _check_wait(max_wait: float) -> float:
    if not 0 <= max_wait < 10**7:
        raise ValidationError("max_wait", max_wait, "must be 0 or more seconds")
    return max_wait
