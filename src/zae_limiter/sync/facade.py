"""The blocking form of `QueryOperations`, `RateLimiter`.

Written by ``python -m tools.faces``: change the async classes, not this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from ..limiter.blocking import BlockingRateLimiter
from ..limiter.options import check_amounts, warn_stored_limits
from ..limiter.sync_lease import SyncLease
from ..runtime.blocking import run
from .opening import SyncStackOperations
from .operations import SyncEntityOperations, SyncHistoryOperations
from .policies import SyncPolicyOperations
from .repository import SyncRepository

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Unpack

    from ..core.alerts import Alert
    from ..core.limit import Limit
    from ..core.reports import Availability, LevelStatus, ResourceCapacity, Status
    from ..core.slots import SlotOwner
    from ..core.values import OnUnavailable
    from ..limiter.options import OnError, OnLost
    from ..limiter.queries import QueryOperations
    from ..observer import Observer
    from ..repository.opening import StackOptions
    from ..stores.port import Store
    from ..v017.ignored import EarlierOptions


class SyncQueryOperations:
    """Questions that take nothing."""

    _inner: QueryOperations
    repository: SyncRepository

    def available(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
        *,
        use_stored_limits: bool = False,
    ) -> dict[str, int]:
        """Return the whole tokens left by limit, the least over all levels that an acquire charges; may be negative.

        ``limits`` are counted by instead of the stored ones; nothing is written. What the floors of a ``priority`` keep
        for others is not counted as left. ``use_stored_limits`` has no effect.
        """
        return run(self._inner.available(entity_id, resource, limits, priority, use_stored_limits=use_stored_limits))

    def time_until_available(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
        *,
        use_stored_limits: bool = False,
    ) -> float:
        """Return the seconds until ``needed`` fits at every level. Raise `CapacityExceeded` if it never does.

        ``needed`` are tokens by limit name, and a slot of every concurrency limit even if it does not name it: of
        these it is the latest moment. With ``limits`` it is counted as if the bucket had them, instead of the stored
        ones, from now on; nothing is written. ``priority`` is that of the request. ``use_stored_limits`` has no effect.
        """
        return run(
            self._inner.time_until_available(
                entity_id, resource, needed, limits, priority, use_stored_limits=use_stored_limits
            )
        )

    @overload
    def get_status(self) -> Status: ...

    @overload
    def get_status(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None = None,
        needed: Mapping[str, int] | None = None,
        priority: str | None = None,
    ) -> list[LevelStatus]: ...

    def get_status(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        limits: Sequence[Limit] | None = None,
        needed: Mapping[str, int] | None = None,
        priority: str | None = None,
    ) -> Status | list[LevelStatus]:
        """Return the status of every limit of every level, the entity itself first, and where the limit comes from.

        Without ``entity_id`` and ``resource`` it is the status of the store, as `SyncRepository.status` returns it.
        ``limits`` are counted by instead of the stored ones; nothing is written. ``needed`` are the tokens by limit
        name that ``retry_after_seconds`` waits for; one of each limit if None. ``priority`` is that of the request.
        """
        inner: Any = self._inner
        answer: Status | list[LevelStatus] = run(inner.get_status(entity_id, resource, limits, needed, priority))
        return answer

    @overload
    def check_availability(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> Availability: ...

    @overload
    def check_availability(
        self,
        entity_id: list[str] | tuple[str, ...],
        resource: str | list[str] | tuple[str, ...] | Mapping[str, Mapping[str, int] | None],
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> list[Availability]: ...

    @overload
    def check_availability(
        self,
        entity_id: str,
        resource: list[str] | tuple[str, ...] | Mapping[str, Mapping[str, int] | None],
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> list[Availability]: ...

    def check_availability(
        self,
        entity_id: str | list[str] | tuple[str, ...],
        resource: str | list[str] | tuple[str, ...] | Mapping[str, Mapping[str, int] | None],
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> Availability | list[Availability]:
        """Return whether ``needed`` would be granted, when it would be, and what is left; nothing is taken.

        ``needed`` are tokens by limit name; None asks for nothing. A slot of every concurrency limit is needed as well,
        as an acquire takes one. ``limits`` are counted by instead of the stored ones. With a list of ``entity_id``, of
        ``resource`` or of both it answers for each entity on each resource, in that order, reading all of them at once;
        a mapping says what is needed of each resource. ``priority`` is that of the requests.
        """
        inner: Any = self._inner
        answer: Availability | list[Availability] = run(
            inner.check_availability(entity_id, resource, needed, limits, priority)
        )
        return answer

    def get_resource_capacity(self, resource: str, limit_name: str, parents_only: bool = False) -> ResourceCapacity:
        """Return one limit of a resource over all entities with a bucket for it; ``parents_only``: without a parent.

        Capacities are those in force; for entities without stored limits those of the last charge.
        """
        return run(self._inner.get_resource_capacity(resource, limit_name, parents_only))

    def is_available(self, timeout: float = 1.0) -> bool:
        """Return whether the store can be used and answers within ``timeout`` seconds."""
        return run(self._inner.is_available(timeout))


class SyncRateLimiter(
    SyncQueryOperations, SyncEntityOperations, SyncPolicyOperations, SyncHistoryOperations, SyncStackOperations
):
    """Limits calls whose cost is known only afterwards.

    ``repository`` is a `SyncRepository`, a store URL, a store or a stack name. ``on_unavailable`` decides what happens
    when the store is unavailable (call > limiter > system config > block). ``timeout`` is how many seconds an acquire
    may take, over all that it asks of the store; so may the settlement at the end of its block, and each other call.
    Waiting for tokens (``max_wait``) is beside it: every try has ``timeout`` seconds, and all is over after
    ``max_wait + timeout``. The default is the store's.
    ``refusal_ttl`` is for how many seconds a bucket that was seen too empty refuses without asking (0: never).
    ``observer`` is an `Observer`, notified of decisions, settlements and store calls. ``on_alert`` is called with an
    `Alert` when a write of this limiter crosses a threshold of a limit; at once, so it has to be quick. ``on_lost`` is
    the one of `acquire` for calls that state none.
    ``bucket_ttl_refill_multiplier`` is for how many times the time that it takes to fill an unused bucket is kept; None
    for that of the repository. ``earlier`` are options of earlier versions: ``failure_mode`` is ``on_unavailable``,
    and those that have no effect raise a `DeprecationWarning`.
    ``prefetch`` is for how many seconds tokens of keys that are asked for often are drawn in advance, so that most
    acquires need no call of the store (0: never). It is never more than the limit; by the wall clock a grant may come
    so much later than it is decided as of. `acquire` with ``exact=True`` goes around it, and a store inside the
    process needs none of it.
    Entity and config operations work here as on the repository.
    """

    _inner: BlockingRateLimiter

    def __init__(
        self,
        repository: SyncRepository | Store | str | None = None,
        name: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        stack_options: StackOptions | None = None,
        on_unavailable: OnUnavailable | str | None = None,
        *,
        speculative_writes: bool = True,
        bucket_ttl_refill_multiplier: int | None = None,
        refusal_ttl: float = 1.0,
        timeout: float | None = None,
        atomic: bool = False,
        observer: Observer | None = None,
        on_alert: Callable[[Alert], None] | None = None,
        on_lost: OnLost | None = None,
        prefetch: float = 0,
        **earlier: Unpack[EarlierOptions],
    ) -> None:
        self._inner = BlockingRateLimiter(
            repository._inner if isinstance(repository, SyncRepository) else repository,
            name,
            region,
            endpoint_url,
            stack_options,
            on_unavailable,
            speculative_writes=speculative_writes,
            bucket_ttl_refill_multiplier=bucket_ttl_refill_multiplier,
            refusal_ttl=refusal_ttl,
            timeout=timeout,
            atomic=atomic,
            observer=observer,
            on_alert=on_alert,
            on_lost=on_lost,
            prefetch=prefetch,
            **earlier,
        )
        self.repository = SyncRepository._of(self._inner.repository, repository)
        self._options, self._port = self._inner.leasing

    @property
    def name(self) -> str | None:
        """The name of the DynamoDB stack; None on other stores."""
        return self._inner.name

    @property
    def held_slots(self) -> Mapping[SlotOwner, int]:
        """How many slots of concurrency limits the leases of this limiter hold now, by entity, resource and limit."""
        return self._inner.held_slots

    @property
    def observers(self) -> tuple[Observer, ...]:
        """All observers of this limiter, `telemetry` among them. Assign a tuple to add or remove some."""
        return self._inner.observers

    @observers.setter
    def observers(self, observers: tuple[Observer, ...]) -> None:
        self._inner.observers = observers

    def acquire(
        self,
        entity_id: str,
        resource: str | Mapping[str, Mapping[str, int]],
        consume: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | str | None = None,
        max_wait: float | None = None,
        timeout: float | None = None,
        atomic: bool | None = None,
        priority: str | None = None,
        *,
        also: Mapping[str, Mapping[str, int]] | None = None,
        holder: str | None = None,
        on_lost: OnLost | None = None,
        use_stored_limits: bool = False,
        exact: bool = False,
        on_error: OnError = "give_back",
    ) -> SyncLease:
        """Take ``consume`` for the entity and those above it, all or nothing, for the length of a block.

        Several resources are taken together, all or nothing: ``resource`` maps each of them to its amounts, and
        ``consume`` is not given; or ``also`` has those besides ``resource``. `SyncLease.resource` is the lease of one.
        ``atomic`` makes the levels one transaction even on a store that bills for it; otherwise such a store writes
        them in parallel and what was taken goes back if another level refuses. A ``priority`` leaves the floors that
        limits have for it untouched. ``use_stored_limits`` has no effect: they are used where ``limits`` are not given.

        A slot of every concurrency limit is taken, even if ``consume`` does not name it, and held until the lease ends.
        ``holder`` is a name that is shown with it. ``on_lost`` is called with the lease if the slot is lost (it was not
        renewed in time, or an operator has freed it); ``"cancel"`` cancels the task, and the block raises
        `SlotLostError`.
        ``exact`` asks the store even if the limiter holds tokens that were drawn in advance (``prefetch``).

        ``on_error`` says what a block that raises is charged: nothing (``"give_back"``), as if it had not raised
        (``"keep"``), or amounts by limit, as for a stream that breaks off; for several resources by resource and limit.
        A limit that `SyncLease.settle` has named keeps that value, and slots are always freed.

        >>> from zae_limiter import Limit
        >>> def chat() -> dict[str, int]:
        ...     limiter = SyncRateLimiter("memory://")
        ...     limiter.set_system_defaults([Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)])
        ...     with limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        ...         lease.settle(tpm=1_730)
        ...         return lease.consumed
        >>> chat()
        {'rpm': 1, 'tpm': 1730}
        """
        if (
            (
                limits is None
                and on_unavailable is None
                and (max_wait is None)
                and (timeout is None)
                and (atomic is None)
            )
            and (priority is None and holder is None and (on_lost is None) and (also is None) and (consume is not None))
            and (type(resource) is str and on_error == "give_back" and (not exact) and (not use_stored_limits))
        ):
            return SyncLease(self._port, entity_id, resource, check_amounts("consume", consume), self._options.usual)
        warn_stored_limits(use_stored_limits)
        stated = (limits, on_unavailable, max_wait, timeout, atomic, priority, holder, on_lost, exact, on_error)
        options, (first, *others) = self._options.check(resource, consume, also, stated)
        leases = [SyncLease(self._port, entity_id, *each, options) for each in others]
        return SyncLease(self._port, entity_id, *first, options, leases)

    def renew_slots(self) -> None:
        """Renew the slots of open leases that are due by now.

        This happens in the background by itself; call it in tests that have a clock of their own.
        """
        run(self._inner.renew_slots())

    def flush(self) -> None:
        """Give back the tokens that were drawn in advance (``prefetch``), and write the corrections that wait for it.

        This happens by itself, within ``prefetch`` seconds, and when the limiter is closed.
        """
        run(self._inner.flush())

    def close(self) -> None:
        """Close the repository; closing twice is fine. From then on everything raises `RateLimiterClosedError`.

        Leases that are open then can still be left: what they settle is written. Callers waiting for tokens are woken.
        Tokens that were drawn in advance go back before.
        """
        run(self._inner.close())

    def __enter__(self) -> SyncRateLimiter:
        run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
