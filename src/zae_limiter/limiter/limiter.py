"""`RateLimiter`: acquire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable, RateLimitExceeded, ValidationError
from ..core.limit import check_limits, seconds, whole
from ..core.values import OnUnavailable
from ..forks import after_fork
from ..logs import BREAKER_CLOSED, BREAKER_OPENED, STORE_AVAILABLE, STORE_UNAVAILABLE, tell
from ..repository.configs import ConfigOperations, check_policy
from ..repository.entities import EntityOperations
from ..repository.history import HistoryOperations
from ..repository.repository import Repository
from ..runtime.blocking import run
from ..runtime.deadline import Deadline
from .amounts import check_amounts, check_known
from .breaker import Breaker
from .chains import Chains
from .engine import Engine
from .lease import Lease
from .lease_core import AcquireOptions, apportioned
from .queries import QueryOperations
from .waiting import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from ..core.errors import ZAELimiterError
    from ..core.limit import Limit
    from ..core.values import StackOptions
    from ..stores.port import Store
    from .chain import Chain
    from .grant import Grant
    from .lease_core import LeaseCore


class RateLimiter(QueryOperations, EntityOperations, ConfigOperations, HistoryOperations):
    """Limits calls whose cost is known only afterwards.

    ``repository`` is a `Repository`, a store URL, a store or a stack name. ``on_unavailable`` decides what happens
    when the store cannot be asked (call > limiter > system config > block). ``timeout`` is how many seconds an acquire
    may take, over all that it asks of the store; so may the settlement at the end of its block, and each other call.
    Waiting for tokens (``max_wait``) is beside it: every try has ``timeout`` seconds, and all is over after
    ``max_wait + timeout``. The default is the store's.
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
        atomic: bool = False,
    ) -> None:
        self.repository: Repository = self._opened(repository, name, region, endpoint_url, stack_options)
        multiplier = whole("bucket_ttl_refill_multiplier", bucket_ttl_refill_multiplier, 0, 1_000_000)
        refusal_ttl = seconds("refusal_ttl", refusal_ttl, zero=True)
        self._backend = self.repository._backend
        self._clock = self._backend.clock
        self._policy = None if on_unavailable is None else check_policy(on_unavailable)
        self._timeout = self._backend.timeout if timeout is None else seconds("timeout", timeout, zero=False)
        self._speculative = speculative_writes
        self._chains = Chains(self._backend, multiplier)
        self._engine = Engine(self._backend, self._chains, int(refusal_ttl * 1000))
        self._lines = Lines(self._backend.runtime, self._backend.clock)
        self._usual = AcquireOptions(None, self._policy, 0, self._timeout, self._checked_atomic(atomic), plain=True)
        self._in_place = speculative_writes and self._engine.updates_in_place
        self._breaker = Breaker(self._backend.stopwatch)
        self._up = True
        after_fork(self._forget_waiting)

    def _opened(
        self,
        given: Repository | Store | str | None,
        name: str | None,
        region: str | None,
        endpoint_url: str | None,
        stack_options: StackOptions | None,
    ) -> Repository:
        if not isinstance(given, Repository):
            if isinstance(getattr(given, "_inner", None), Repository):
                raise ValidationError("repository", given, "is blocking; pass a Repository to RateLimiter")
            return self._repository_type(
                given, name=name, region=region, endpoint_url=endpoint_url, stack_options=stack_options
            )
        if given._blocking != self._repository_type._blocking:
            raise ValidationError(
                "repository", given, "pass a SyncRepository to SyncRateLimiter and a Repository to RateLimiter"
            )
        aws = {"name": name, "region": region, "endpoint_url": endpoint_url, "stack_options": stack_options}
        for field, value in aws.items():
            if value is not None:
                raise ValidationError(field, value, "cannot be combined with a Repository")
        return given

    def acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | str | None = None,
        max_wait: float | None = None,
        timeout: float | None = None,
        atomic: bool | None = None,
    ) -> Lease:
        """Take ``consume`` for the entity and those above it, all or nothing, for the length of a block.

        ``atomic`` makes the levels one transaction also on a store that bills for it; otherwise such a store writes
        them side by side and what was taken goes back when another level refuses.

        >>> import asyncio
        >>> from zae_limiter import Limit
        >>> async def chat() -> dict[str, int]:
        ...     limiter = RateLimiter("memory://")
        ...     await limiter.set_system_defaults([Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)])
        ...     async with limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        ...         await lease.adjust(tpm=+1_230)  # it has used 1,730
        ...         return lease.consumed
        >>> asyncio.run(chat())
        {'rpm': 1, 'tpm': 1730}
        """
        cost = check_amounts("consume", consume)
        options = self._usual
        if not (limits is None and on_unavailable is None and max_wait is None and timeout is None and atomic is None):
            options = self._check_options(limits, on_unavailable, max_wait, timeout, atomic)
        return Lease(self, entity_id, resource, cost, options)

    def _deadline(self) -> Deadline:
        """The deadline of a call that begins now."""
        return self._backend.deadline(self._timeout)

    async def close(self) -> None:
        """Close the repository; closing twice is fine. From then on everything raises `RateLimiterClosedError`.

        A lease that is open then can still be left: what it settles is written. Whoever waits for tokens here is woken.
        """
        await self.repository.close()
        self._lines.stir_all()

    async def __aenter__(self) -> RateLimiter:
        self._backend.check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_options(
        self,
        limits: Sequence[Limit] | None,
        on_unavailable: OnUnavailable | str | None,
        max_wait: float | None,
        timeout: float | None,
        atomic: bool | None,
    ) -> AcquireOptions:
        """What one acquire asks for besides tokens, checked."""
        return AcquireOptions(
            None if limits is None else check_limits(limits),
            self._policy if on_unavailable is None else check_policy(on_unavailable),
            0 if max_wait is None else round(seconds("max_wait", max_wait, zero=True) * 1000),
            self._timeout if timeout is None else seconds("timeout", timeout, zero=False),
            self._usual.atomic if atomic is None else self._checked_atomic(atomic),
            plain=not max_wait and timeout is None and atomic is None,
        )

    def _checked_atomic(self, atomic: bool) -> bool:
        able = self._backend.store.capabilities
        if atomic and not able.wide_commits:
            reason = f"is not supported on {able.name}, where entities are in different slots; leave it out"
            raise ValidationError("atomic", atomic, f"{reason}: what was taken is returned when a level refuses")
        return atomic

    def _take_now(self, lease: LeaseCore) -> Grant | None:
        """Take the cost of a lease where nobody has to be asked or waited for; return None otherwise."""
        options = lease._options
        if not options.plain or self._lines.waiting:
            return None
        now_ms = self._clock.now_ms()
        name = (lease._entity_id, lease._resource, options.given)
        chain = self._chains.known(*name, now_ms)
        if chain is None:
            chain = run(self._chains.resolve(*name, Deadline(options.timeout, self._backend.stopwatch)))
        return self._engine.take_now(chain, lease._cost, now_ms)

    async def _take(self, lease: LeaseCore, cost: Mapping[str, int], max_wait_ms: int) -> Grant:
        """Take ``cost`` for a lease: at once, or after waiting in line."""
        options = lease._options
        name = (lease._entity_id, lease._resource, options.given)
        deadline, answers = Deadline(options.timeout, self._backend.stopwatch), self._breaker.answers
        now_ms = self._clock.now_ms()
        chain = self._chains.known(*name, now_ms)
        if self._breaker.is_open:
            self._spare(lease, chain, cost)
        try:
            if chain is None or (self._chains.resolving and self._chains.is_resolving(*name)):
                chain = await self._chains.resolve(*name, deadline)
                now_ms = self._clock.now_ms()
            if not cost.keys() <= chain.names:
                check_known("consume", cost, chain.names)
            if max_wait_ms or self._lines.waiting or not self._speculative:
                grant = await self._take_in_turn(chain, cost, max_wait_ms, deadline, options.atomic)
            else:
                grant = await self._engine.take(chain, cost, now_ms, deadline, options.atomic)
        except RateLimiterUnavailable as error:
            self._tell(lease, error, deadline, answers)
            raise
        except RateLimitExceeded:
            if chain is not None and any(seen.seen_ms >= now_ms for _, seen in chain.homes):
                self._note_answer()
            raise
        self._breaker.answers += 1
        if self._breaker.is_open or not self._up:
            self._note_answer()
        return grant

    def _spare(self, lease: LeaseCore, chain: Chain | None, cost: Mapping[str, int]) -> None:
        """Raise what can be said without asking a store that hangs; return where it has to be asked."""
        if self._policy_of(lease) is OnUnavailable.BLOCK:
            return
        if chain is not None:
            check_known("consume", cost, chain.names)
            self._engine.refuse_unasked(chain, cost, self._clock.now_ms())
        unasked = self._unasked(lease)
        if unasked is not None:
            raise unasked

    def _unasked(self, lease: LeaseCore) -> RateLimiterUnavailable | None:
        """Return why a lease does without a store that hangs; None where the store is to be asked."""
        breaker = self._breaker
        if not breaker.is_open or self._policy_of(lease) is OnUnavailable.BLOCK:
            return None
        if not breaker.skips(lease._options.timeout):
            return None
        error = RateLimiterUnavailable("The store is not answering; it was not called.")
        error.entity_id, error.resource = lease._entity_id, lease._resource
        return error

    async def _check(self, lease: LeaseCore, cost: Mapping[str, int]) -> None:
        """Raise as `_take` would, but take nothing."""
        deadline, answers = self._backend.deadline(lease._options.timeout), self._breaker.answers
        if self._breaker.is_open:
            self._spare(lease, self._known_chain(lease), cost)
        try:
            chain = await self._chain_of(lease, deadline)
            check_known("consume", cost, chain.names)
            await self._engine.check(chain, cost, self._clock.now_ms(), deadline)
        except RateLimiterUnavailable as error:
            self._tell(lease, error, deadline, answers)
            raise
        self._note_answer()

    async def _nothing_taken(self, lease: LeaseCore, deadline: Deadline) -> Grant:
        """A grant of no cost as of now: to settle what a lease owes that has taken nothing."""
        return await self._engine.grant_nothing(await self._chain_of(lease, deadline), deadline)

    def _known_chain(self, lease: LeaseCore) -> Chain | None:
        given, now_ms = lease._options.given, self._backend.clock.now_ms()
        return self._chains.known(lease._entity_id, lease._resource, given, now_ms)

    async def _chain_of(self, lease: LeaseCore, deadline: Deadline) -> Chain:
        """The chain that a lease charges."""
        known = self._known_chain(lease)
        return known or await self._chains.resolve(lease._entity_id, lease._resource, lease._options.given, deadline)

    async def _settle(self, lease: LeaseCore, grants: tuple[Grant, ...], delta: Mapping[str, int]) -> None:
        """Settle ``delta`` with all grants of a lease, to the end also if the caller is cancelled."""
        await self._engine.finish(lease._settle_each(tuple(apportioned(grants, delta))))

    async def _settle_grant(
        self, lease: LeaseCore, grant: Grant | None, delta: Mapping[str, int], deadline: Deadline
    ) -> None:
        """Settle ``delta`` with one grant of a lease, or with none where nothing was taken.

        Where the lease may go on without a store that hangs, the settlement waits for it no more than an acquire does.
        """
        unasked, answers = self._unasked(lease), self._breaker.answers
        if unasked is not None:
            raise unasked
        try:
            if grant is None:
                grant = await self._nothing_taken(lease, deadline)
            await self._engine.settle(grant, delta, deadline)
        except RateLimiterUnavailable:
            self._spare_others(lease, deadline, answers)
            raise
        self._note_answer()

    async def _give_back(self, lease: LeaseCore, grants: tuple[Grant, ...]) -> list[ZAELimiterError]:
        """Give the grants of a lease back whole, as `_settle_grant` settles; return what went wrong."""
        if not any(any(grant.cost.values()) for grant in grants):
            return []
        unasked, answers = self._unasked(lease), self._breaker.answers
        if unasked is not None:
            return [unasked]
        deadline = self._backend.deadline(lease._options.timeout)
        errors = await self._engine.give_back(grants, deadline)
        if any(isinstance(error, RateLimiterUnavailable) for error in errors):
            self._spare_others(lease, deadline, answers)
        elif not errors:
            self._note_answer()
        return errors

    async def _take_in_turn(
        self, chain: Chain, cost: Mapping[str, int], max_wait_ms: int, deadline: Deadline, atomic: bool
    ) -> Grant:
        if not self._speculative:
            chain = await self._engine.look(chain, deadline)
        self._lines.check(chain, cost, max_wait_ms)
        if not max_wait_ms:
            return await self._engine.take(chain, cost, self._clock.now_ms(), deadline, atomic)
        most = deadline.seconds + max_wait_ms / 1000
        return await self._lines.stand(
            chain, cost, max_wait_ms, lambda: self._attempt(chain, cost, deadline.renewed(most), atomic)
        )

    async def _attempt(self, chain: Chain, cost: Mapping[str, int], deadline: Deadline, atomic: bool) -> Grant:
        """Try under the limits in force by now, which may have changed while somebody waited."""
        first, now_ms = chain.homes[0].level, self._clock.now_ms()
        known = self._chains.known(first.entity_id, first.resource, chain.given, now_ms)
        if known is None:
            known = await self._chains.resolve(first.entity_id, first.resource, chain.given, deadline)
        check_known("consume", cost, known.names)
        return await self._engine.take(known, cost, now_ms, deadline, atomic)

    def _policy_of(self, lease: LeaseCore) -> OnUnavailable:
        """What to do without a store: call > limiter > system config > block."""
        return lease._options.policy or self._chains.system_policy or OnUnavailable.BLOCK

    def _tell(self, lease: LeaseCore, error: RateLimiterUnavailable, deadline: Deadline | None, answers: int) -> None:
        """Say who could not be served, and spare others the wait where they may go on without the store."""
        error.entity_id, error.resource = lease._entity_id, lease._resource
        error.stack_name = getattr(self._backend.store, "stack_name", None)
        self._note(False, error)
        if deadline is not None:
            self._spare_others(lease, deadline, answers)

    def _spare_others(self, lease: LeaseCore, deadline: Deadline, answers: int) -> None:
        """Let others no longer wait for a store that has kept a lease waiting, where they may go on without it."""
        if self._policy_of(lease) is OnUnavailable.BLOCK:
            return
        if self._breaker.report_failure(deadline, answers):
            tell(
                BREAKER_OPENED,
                "store is not answering: calls that are allowed without it no longer wait",
                **self._where(),
            )

    def _note_answer(self) -> None:
        """The store has answered."""
        self._note(True)
        if self._breaker.report_answer():
            tell(BREAKER_CLOSED, "all calls use the store again", **self._where())

    def _note(self, up: bool, error: BaseException | None = None) -> None:
        """One log line per change of state."""
        if up != self._up:
            self._up = up
            if up:
                tell(STORE_AVAILABLE, "store available again", **self._where())
            else:
                details = {**self._where(), "zae_error_type": type(error).__name__}
                tell(STORE_UNAVAILABLE, "store unavailable: %s", error, **details)

    def _where(self) -> dict[str, object]:
        """The namespace and the kind of store, as fields of a log record."""
        backend = self._backend
        return {"zae_namespace": backend.namespace_name, "zae_backend": backend.store.capabilities.name}

    def _forget_waiting(self) -> None:
        """Forget who waits for tokens or for limits: in a child process nobody does."""
        self._chains.forget()
        self._lines.forget()
