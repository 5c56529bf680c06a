"""`RateLimiter`: acquire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ..core.alerts import Alert
from ..core.errors import ValidationError
from ..core.limit import Limit, seconds, whole
from ..core.slots import SlotOwner
from ..core.validation import flag
from ..core.values import OnUnavailable
from ..observer import Observer
from ..repository.backend import MAX_MULTIPLIER, SharedBackend
from ..repository.configs import PolicyOperations
from ..repository.entities import EntityOperations
from ..repository.history import HistoryOperations
from ..repository.opening import StackOperations
from ..repository.repository import Repository
from ..runtime.deadline import Deadline
from ..stores.port import Store, UpdatesInPlace
from .availability import StoreAvailability
from .background import BackgroundStore
from .charge_paths import ChargePaths
from .charger import Charger, LeasePort, ObservedCharger, SettleNow, TakeNow
from .engine import Engine
from .in_place import InPlace
from .lease import Lease
from .observers import Announcer, ObservedStore, Observers
from .options import MOST_PREFETCH_MS, OnError, OnLost, OptionChecks, check_amounts, read_earlier, warn_stored_limits
from .queries import QueryOperations
from .slot_leases import SlotLeases
from .waiting import Lines

if TYPE_CHECKING:
    from ..repository.opening import StackOptions
    from ..v017.ignored import EarlierOptions
    from .prefetch.prefetcher import Prefetcher


class RateLimiter(QueryOperations, EntityOperations, PolicyOperations, HistoryOperations, StackOperations):
    """Limits calls whose cost is known only afterwards.

    ``repository`` is a `Repository`, a store URL, a store or a stack name. ``on_unavailable`` decides what happens
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

    _repository_type: type[Repository] = Repository

    def __init__(
        self,
        repository: Repository | Store | str | None = None,
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
        on_unavailable = read_earlier(earlier, on_unavailable)
        aws = {"name": name, "region": region, "endpoint_url": endpoint_url, "stack_options": stack_options}
        self.repository: Repository = self._open_repository(repository, aws)
        self._backend = SharedBackend(self.repository._backend)
        multiplier = self._backend.options.bucket_ttl_multiplier
        if bucket_ttl_refill_multiplier is not None:
            multiplier = whole("bucket_ttl_refill_multiplier", bucket_ttl_refill_multiplier, 0, MAX_MULTIPLIER)
        self._timeout = self._backend.timeout if timeout is None else seconds("timeout", timeout, zero=False)
        self._speculative = flag("speculative_writes", speculative_writes)
        self._refusal_ttl_ms = int(seconds("refusal_ttl", refusal_ttl, zero=True) * 1000)
        self._options = OptionChecks(self._backend, on_unavailable, self._timeout, atomic, on_lost)
        self._chains = ChargePaths(self._backend, multiplier)
        self._observers = Observers(self._backend)
        self._announcer = Announcer(self._backend, self._observers, on_alert)
        self._lines = Lines(self._backend, self._observers.now)
        self._availability = StoreAvailability(self._backend, self._chains, self._observers)
        self._prefetcher = self._open_background(prefetch)
        self._port = LeasePort()
        self.observers = () if observer is None else (observer,)

    def _open_repository(self, given: Repository | Store | str | None, aws: dict[str, Any]) -> Repository:
        blocks = self._repository_type.is_blocking
        if getattr(given, "is_blocking", blocks) != blocks:
            reason = "is async; pass a SyncRepository to SyncRateLimiter"
            raise ValidationError(
                "repository", given, reason if blocks else "is blocking; pass a Repository to RateLimiter"
            )
        if not isinstance(given, Repository):
            return self._repository_type(given, **aws)
        for field, value in aws.items():
            if value is not None:
                raise ValidationError(field, value, "cannot be combined with a Repository")
        return given

    def _open_background(self, prefetch: float) -> Prefetcher | None:
        """Open what works in the background; return what draws tokens in advance, None if nothing does.

        In a store inside the process nothing has to.
        """
        self._background = BackgroundStore(self._backend, self.repository.store)
        self._slot_leases = SlotLeases(self._backend, self._background, self._observers)
        keep_ms = int(seconds("prefetch", prefetch, zero=True) * 1000)
        if keep_ms > MOST_PREFETCH_MS:
            raise ValidationError("prefetch", prefetch, f"must be at most {MOST_PREFETCH_MS // 1000} seconds")
        if keep_ms and not self._speculative:
            raise ValidationError("prefetch", prefetch, "cannot be combined with speculative_writes=False")
        if not keep_ms or isinstance(self.repository.store, UpdatesInPlace):
            return None
        from .prefetch.prefetcher import Prefetcher  # on first use: most limiters do without

        return Prefetcher(self._backend, self._chains, self._background, keep_ms)

    @property
    def name(self) -> str | None:
        """The name of the DynamoDB stack; None on other stores."""
        return self.stack_name

    @property
    def held_slots(self) -> Mapping[SlotOwner, int]:
        """How many slots of concurrency limits the leases of this limiter hold now, by entity, resource and limit."""
        return self._slot_leases.count()

    @property
    def observers(self) -> tuple[Observer, ...]:
        """All observers of this limiter, `telemetry` among them. Assign a tuple to add or remove some."""
        return self._observers.all

    @observers.setter
    def observers(self, observers: tuple[Observer, ...]) -> None:
        self._observers.replace(observers)
        self._port.charger = self._make_charger(observers)

    def _make_charger(self, observers: tuple[Observer, ...]) -> Charger:
        """Return what charges the requests of this limiter, over a new engine."""
        store, prefetcher = self.repository.store, self._prefetcher
        self._backend.store = ObservedStore(store, self._observers) if self._observers.of["on_store_call"] else store
        engine = Engine(self._backend, self._chains, self._refusal_ttl_ms, self._announcer, self._lines)
        take_now: TakeNow | None = None
        settle_now: SettleNow | None = None
        if prefetcher is not None:
            from .prefetch.engine import extend

            engine = extended = extend(engine, self._backend, prefetcher)
            take_now = extended.take_now
        elif self._speculative and isinstance(store, UpdatesInPlace):
            in_place = InPlace(store, self._backend, self._chains, self._lines, self._announcer)
            take_now, settle_now = in_place.take, in_place.settle
        self._engine = engine
        kind, parts = ObservedCharger if observers else Charger, (self._backend, self._chains, engine, self._lines)
        others = (self._availability, self._slot_leases, self._observers)
        return kind(*parts, *others, not self._speculative, take_now, settle_now)

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
    ) -> Lease:
        """Take ``consume`` for the entity and those above it, all or nothing, for the length of a block.

        Several resources are taken together, all or nothing: ``resource`` maps each of them to its amounts, and
        ``consume`` is not given; or ``also`` has those besides ``resource``. `Lease.resource` is the lease of one.
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
        A limit that `Lease.settle` has named keeps that value, and slots are always freed.

        >>> import asyncio
        >>> from zae_limiter import Limit
        >>> async def chat() -> dict[str, int]:
        ...     limiter = RateLimiter("memory://")
        ...     await limiter.set_system_defaults([Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)])
        ...     async with limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        ...         await lease.settle(tpm=1_730)
        ...         return lease.consumed
        >>> asyncio.run(chat())
        {'rpm': 1, 'tpm': 1730}
        """
        if (
            (limits is None and on_unavailable is None and max_wait is None and timeout is None and atomic is None)
            and (priority is None and holder is None and on_lost is None and also is None and consume is not None)
            and (type(resource) is str and on_error == "give_back" and not exact and not use_stored_limits)
        ):
            return Lease(self._port, entity_id, resource, check_amounts("consume", consume), self._options.usual)
        warn_stored_limits(use_stored_limits)
        stated = (limits, on_unavailable, max_wait, timeout, atomic, priority, holder, on_lost, exact, on_error)
        options, (first, *others) = self._options.check(resource, consume, also, stated)
        leases = [Lease(self._port, entity_id, *each, options) for each in others]
        return Lease(self._port, entity_id, *first, options, leases)

    async def _deadline(self) -> Deadline:
        """Return the deadline of a call that begins now."""
        return await self._backend.begin(self._timeout)

    async def renew_slots(self) -> None:
        """Renew the slots of open leases that are due by now.

        This happens in the background by itself; call it in tests that have a clock of their own.
        """
        self._backend.runtime.check_running()
        await self._slot_leases.renew_due(self._backend.store, self._backend.runtime)

    async def flush(self) -> None:
        """Give back the tokens that were drawn in advance (``prefetch``), and write the corrections that wait for it.

        This happens by itself, within ``prefetch`` seconds, and when the limiter is closed.
        """
        self._backend.runtime.check_running()
        if self._prefetcher is not None:
            await self._prefetcher.flush()

    async def close(self) -> None:
        """Close the repository; closing twice is fine. From then on everything raises `RateLimiterClosedError`.

        Leases that are open then can still be left: what they settle is written. Callers waiting for tokens are woken.
        Tokens that were drawn in advance go back before.
        """
        self._backend.runtime.check_running()
        if self._prefetcher is not None and not self._backend.closed:
            await self._prefetcher.close()
        await self._backend.runtime.run_blocking(self._slot_leases.close)
        await self._backend.runtime.run_blocking(self._background.close)
        await self.repository.close()
        self._lines.stir()

    async def __aenter__(self) -> RateLimiter:
        self._backend.check_usable()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
