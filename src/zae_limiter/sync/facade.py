"""Repository, limiter and lease, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, overload

from ..core.errors import ValidationError
from ..limiter.amounts import check_amounts, check_costs
from ..limiter.joint_lease import SyncJointLease
from ..limiter.lease import SyncLease
from ..limiter.limiter import RateLimiter
from ..repository.backend import DEFAULT_NAMESPACE
from ..repository.buckets import MAX_RECORDS
from ..repository.repository import Repository, RepositoryOptions
from ..runtime.blocking import BlockingRuntime, run
from ..stores.bounded import MAX_CACHED_KEYS
from .operations import SyncOperations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..clock import Clock
    from ..core.alerts import Alert
    from ..core.limit import Limit
    from ..core.reports import (
        Availability,
        BackendStats,
        CacheStats,
        LevelStatus,
        ResourceCapacity,
        StackOptions,
        Status,
        Survey,
    )
    from ..core.values import BackendCapabilities, Namespace, OnUnavailable
    from ..limiter.options import OptionChecks
    from ..manifest.states import Change, Manifest, Plan, Stored
    from ..observer import Observer
    from ..stores.port import Store


class BlockingRepository(Repository):
    """A repository whose coroutines never suspend."""

    is_blocking = True

    def _runtime(self) -> BlockingRuntime:
        return BlockingRuntime()


class BlockingRateLimiter(RateLimiter):
    """A limiter whose coroutines never suspend."""

    _repository_type = BlockingRepository

    @property
    def options(self) -> OptionChecks:
        """The checks of the options of an acquire."""
        return self._options


class SyncRepository(SyncOperations):
    """Entities, limits, namespaces, audit log and usage in one store, seen from one namespace.

    Args:
        url_or_name: A store URL (``memory://``, ``sqlite:///limits.db``, ``redis://host``, ``dynamodb://my-app``), a
            store object, or without ``://`` the name of a DynamoDB stack. By default ``$ZAE_LIMITER_URL``, else memory.
        name: The name of a DynamoDB stack, instead of ``url_or_name``.
        region: The AWS region of the stack.
        endpoint_url: The AWS endpoint, e.g. of a local AWS.
        namespace: The namespace to work in. Only ``default`` is registered automatically.
        stack_options: Deploy the stack with these options before the first use.
        config_cache_ttl: For how many seconds stored limits are cached.
        max_cached_keys: For how many keys (an entity and a resource) limits and last seen buckets are kept in memory.
        clock: This process's clock. An embedded store opened by URL uses it; a store with a clock of its own decides by
            that one, and a difference between the two is logged.
        timeout: How many seconds a call may take in all; None for the store's default.
    """

    is_blocking: ClassVar[bool] = True
    """Whether its methods block, instead of being awaited."""
    _inner: BlockingRepository

    def __init__(
        self,
        url_or_name: str | Store | None = None,
        *,
        name: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        stack_options: StackOptions | None = None,
        config_cache_ttl: float = 60,
        max_cached_keys: int = MAX_CACHED_KEYS,
        clock: Clock | None = None,
        timeout: float | None = None,
    ) -> None:
        self._inner = BlockingRepository(
            url_or_name,
            name=name,
            region=region,
            endpoint_url=endpoint_url,
            namespace=namespace,
            stack_options=stack_options,
            config_cache_ttl=config_cache_ttl,
            max_cached_keys=max_cached_keys,
            clock=clock,
            timeout=timeout,
        )

    @classmethod
    def _of(cls, inner: BlockingRepository) -> SyncRepository:
        """Return the blocking form of a repository that is open."""
        repository = cls.__new__(cls)
        repository._inner = inner
        return repository

    @classmethod
    def builder(cls) -> SyncRepositoryBuilder:
        """Return a builder: ``SyncRepository.builder().url("memory://").namespace("prod").build()``."""
        return SyncRepositoryBuilder()

    @property
    def namespace(self) -> str:
        """The name of the namespace."""
        return self._inner.namespace

    @property
    def store(self) -> Store:
        """The store, for operations that the repository does not offer."""
        return self._inner.store

    @property
    def capabilities(self) -> BackendCapabilities:
        """The capabilities of the store."""
        return self._inner.capabilities

    @property
    def clock_skew_ms(self) -> int:
        """By how many ms this process's clock is ahead of the store's, as far as known."""
        return self._inner.clock_skew_ms

    def invalidate_config_cache(self) -> None:
        """Forget all cached config: the next acquire reads it again."""
        self._inner.invalidate_config_cache()

    def get_cache_stats(self) -> CacheStats:
        """Return the statistics of the config cache."""
        return self._inner.get_cache_stats()

    def get_backend_stats(self) -> BackendStats:
        """Return the calls to the store and their cost; empty for stores that do not count them."""
        return self._inner.get_backend_stats()

    def create_table(self, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False) -> None:
        """Create the DynamoDB table without CloudFormation; a suitable one is left alone.

        ``tags`` and ``deletion_protection`` are for a new table. Other stores need no table.
        """
        run(self._inner.create_table(tags=tags, deletion_protection=deletion_protection))

    def ensure_infrastructure(self) -> None:
        """Make sure that the store can be used. An embedded store needs nothing.

        With ``stack_options`` the stack is created or updated to match them, as the first use does once. Without them
        nothing is created, so that a mistyped name provisions nothing.
        """
        run(self._inner.ensure_infrastructure())

    def status(self) -> Status:
        """Return whether the store is available, its latency and the versions."""
        return run(self._inner.status())

    def register_namespace(self, namespace: str, principal: str | None = None) -> Namespace:
        """Register a namespace, unless it exists, and return it. ``principal`` goes into the audit log."""
        return run(self._inner.register_namespace(namespace, principal))

    def register_namespaces(self, namespaces: Iterable[str], principal: str | None = None) -> list[Namespace]:
        """Register ``namespaces`` by their names and return them. ``principal`` goes into the audit log."""
        return run(self._inner.register_namespaces(namespaces, principal))

    def get_namespace(self, namespace: str) -> Namespace:
        """Return the namespace of this name. Raise `NamespaceNotFoundError` if it is not registered."""
        return run(self._inner.get_namespace(namespace))

    def list_namespaces(self) -> list[Namespace]:
        """Return all active namespaces, sorted by name."""
        return run(self._inner.list_namespaces())

    def list_orphan_namespaces(self) -> list[Namespace]:
        """Return deleted namespaces whose data still exist, to be recovered or purged."""
        return run(self._inner.list_orphan_namespaces())

    def delete_namespace(self, namespace: str, principal: str | None = None) -> Namespace:
        """Free the name; the data stay until `purge_namespace`. ``principal`` goes into the audit log."""
        return run(self._inner.delete_namespace(namespace, principal))

    def recover_namespace(self, namespace_id: str, principal: str | None = None) -> Namespace:
        """Restore a deleted namespace, by its id from `list_orphan_namespaces`, and return it.

        ``principal`` says in the audit log who did it.
        """
        return run(self._inner.recover_namespace(namespace_id, principal))

    def purge_namespace(
        self, namespace_id: str, principal: str | None = None, on_progress: Callable[[int], None] | None = None
    ) -> int:
        """Delete all data of a deleted namespace for good. Return the number of records.

        An interrupted purge can be repeated. ``namespace_id`` is from `list_orphan_namespaces`; ``principal`` says in
        the audit log who did it; ``on_progress`` is called with the number of records deleted so far.
        """
        return run(self._inner.purge_namespace(namespace_id, principal, on_progress))

    def survey_buckets(self, resource: str | None = None, max_records: int = MAX_RECORDS) -> Survey:
        """Return the present load of every bucket of a resource, or of the namespace.

        At most ``max_records`` records are read: on DynamoDB about one read unit per bucket and shard.
        """
        return run(self._inner.survey_buckets(resource, max_records))

    def plan_limits(self, manifest: Manifest, *, prune: bool = False, file: str = "limits") -> Plan:
        """Return the changes that make the store say what a limits file states; nothing is changed.

        With ``prune`` limits of resources and entities that the file does not state are removed. ``file`` is its name.
        Raise `ManifestError` for parents that do not exist.
        """
        return run(self._inner.plan_limits(manifest, prune=prune, file=file))

    def apply_plan(
        self, plan: Plan, principal: str | None = None, on_change: Callable[[Change], None] | None = None
    ) -> int:
        """Make the changes of a plan and return how many were made; those that others have made already are left out.

        Raise `PlanOutdatedError` if others have changed what the plan is about, before anything is changed if it is
        seen in time. A plan that was interrupted can be applied again. ``principal`` goes into the audit log, which has
        an event per change and one for all of them; ``on_change`` is called after each change.
        """
        return run(self._inner.apply_plan(plan, principal, on_change))

    def export_limits(self) -> Stored:
        """Return all entities, limits and switches of the namespace."""
        return run(self._inner.export_limits())

    def close(self) -> None:
        """Close the store; closing twice is fine. Later calls raise `RateLimiterClosedError`."""
        run(self._inner.close())

    def __enter__(self) -> SyncRepository:
        run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SyncRepositoryBuilder(RepositoryOptions):
    """A builder of a `SyncRepository`. `build` also deploys its stack, if it has one, and registers its namespace."""

    def build(self) -> SyncRepository:
        """Open the repository, deploy its stack if it has options, and register its namespace."""
        return SyncRepository._of(run(self._open(BlockingRepository)))


class SyncRateLimiter(SyncOperations):
    """Limits calls whose cost is known only afterwards.

    ``repository`` is a `SyncRepository`, a store URL, a store or a stack name. ``on_unavailable`` decides what happens
    when the store is unavailable (call > limiter > system config > block). ``timeout`` is how many seconds an acquire
    may take, over all that it asks of the store; so may the settlement at the end of its block, and each other call.
    Waiting for tokens (``max_wait``) is beside it: every try has ``timeout`` seconds, and all is over after
    ``max_wait + timeout``. The default is the store's.
    ``refusal_ttl`` is for how many seconds a bucket that was seen too empty refuses without asking (0: never).
    ``observer`` is told of decisions, settlements and calls of the store: an `Observer`. ``on_alert`` is called with an
    `Alert` when a write of this limiter crosses a threshold of a limit; at once, so it has to be quick.
    Entity and config operations work here as on the repository.
    """

    repository: SyncRepository
    _inner: BlockingRateLimiter

    def __init__(
        self,
        repository: SyncRepository | Store | str | None = None,
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
        observer: Observer | None = None,
        on_alert: Callable[[Alert], None] | None = None,
    ) -> None:
        given = {"name": name, "region": region, "endpoint_url": endpoint_url, "stack_options": stack_options}
        if isinstance(repository, SyncRepository):
            self.repository = repository
        elif isinstance(repository, Repository):
            raise ValidationError("repository", repository, "is async; pass a SyncRepository to SyncRateLimiter")
        else:
            self.repository = SyncRepository(repository, **given)  # type: ignore[arg-type]  # each by its own name
            given = {}
        self._inner = BlockingRateLimiter(
            self.repository._inner,
            **given,  # type: ignore[arg-type]  # refused there, each by its own name
            on_unavailable=on_unavailable,
            speculative_writes=speculative_writes,
            bucket_ttl_refill_multiplier=bucket_ttl_refill_multiplier,
            refusal_ttl=refusal_ttl,
            timeout=timeout,
            atomic=atomic,
            observer=observer,
            on_alert=on_alert,
        )
        self._options = self._inner.options

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
    ) -> SyncLease:
        """Take ``consume`` for the entity and those above it, all or nothing, for the length of a block.

        Several resources are taken together, all or nothing: ``resource`` maps each of them to its amounts, and
        ``consume`` is not given; or ``also`` has those besides ``resource``. `SyncLease.resource` is the lease of one.
        ``atomic`` makes the levels one transaction also on a store that bills for it; otherwise such a store writes
        them side by side and what was taken goes back when another level refuses. A ``priority`` leaves the floors that
        limits have for it untouched.

        >>> from zae_limiter import Limit
        >>> def chat() -> dict[str, int]:
        ...     limiter = SyncRateLimiter("memory://")
        ...     limiter.set_system_defaults([Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)])
        ...     with limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        ...         lease.adjust(tpm=+1_230)  # it has used 1,730
        ...         return lease.consumed
        >>> chat()
        {'rpm': 1, 'tpm': 1730}
        """
        if consume is None or also is not None or type(resource) is not str:
            costs = check_costs(resource, consume, also)
            options = self._options.check(limits, on_unavailable, max_wait, timeout, atomic, priority)
            if len(costs) > 1:
                return SyncJointLease(self._inner, entity_id, costs, options)
            ((name, cost),) = costs.items()
            return SyncLease(self._inner, entity_id, name, cost, options)
        cost = check_amounts("consume", consume)
        options = self._options.usual
        is_usual = limits is None and on_unavailable is None and max_wait is None
        if not (is_usual and timeout is None and atomic is None and priority is None):
            options = self._options.check(limits, on_unavailable, max_wait, timeout, atomic, priority)
        return SyncLease(self._inner, entity_id, resource, cost, options)

    def available(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None = None, priority: str | None = None
    ) -> dict[str, int]:
        """Return the whole tokens left by limit, the least over all levels that an acquire charges; may be negative.

        ``limits`` are counted by instead of the stored ones; nothing is written. What the floors of a ``priority`` keep
        for others is not counted as left.
        """
        return run(self._inner.available(entity_id, resource, limits, priority))

    def time_until_available(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> float:
        """Return the seconds until ``needed`` fits at every level. Raise `CapacityExceeded` if it never does.

        ``needed`` are tokens by limit name. With ``limits`` it is counted as if the bucket had them, instead of the
        stored ones, from now on; nothing is written. ``priority`` is that of the request.
        """
        return run(self._inner.time_until_available(entity_id, resource, needed, limits, priority))

    def get_status(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None = None,
        needed: Mapping[str, int] | None = None,
        priority: str | None = None,
    ) -> list[LevelStatus]:
        """Return the status of every limit of every level, the entity itself first, and where the limit comes from.

        ``limits`` are counted by instead of the stored ones; nothing is written. ``needed`` are the tokens by limit
        name that ``retry_after_seconds`` waits for; one of each limit if None. ``priority`` is that of the request.
        """
        return run(self._inner.get_status(entity_id, resource, limits, needed, priority))

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

        ``needed`` are tokens by limit name; None asks for nothing. ``limits`` are counted by instead of the stored
        ones. With a list of ``entity_id``, of ``resource`` or of both it answers for each entity on each resource, in
        that order, reading all of them at once; a mapping says what is needed of each resource. ``priority`` is that of
        the requests.
        """
        answer = self._inner.check_availability(entity_id, resource, needed, limits, priority)
        return run(answer)  # type: ignore[return-value]  # one of the two

    def get_resource_capacity(self, resource: str, limit_name: str, parents_only: bool = False) -> ResourceCapacity:
        """Return one limit of a resource over all entities with a bucket for it; ``parents_only``: without a parent."""
        return run(self._inner.get_resource_capacity(resource, limit_name, parents_only))

    def is_available(self, timeout: float = 1.0) -> bool:
        """Return whether the store answers within ``timeout`` seconds."""
        return run(self._inner.is_available(timeout))

    def close(self) -> None:
        """Close the repository; closing twice is fine. From then on everything raises `RateLimiterClosedError`.

        A lease that is open then can still be left: what it settles is written. Whoever waits for tokens here is woken.
        """
        run(self._inner.close())

    def __enter__(self) -> SyncRateLimiter:
        run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
