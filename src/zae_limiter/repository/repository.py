"""`Repository`: access to everything that is stored."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from copy import copy
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from .._version import __version__
from ..clock import Clock
from ..core import names
from ..core.errors import ConfigurationError, InfrastructureNotFoundError, RateLimiterUnavailable, ValidationError
from ..core.limit import MAX_AMOUNT, seconds, whole
from ..core.validation import show_url
from ..core.values import BackendCapabilities, OnUnavailable
from ..logs import CLOCK_SKEWED, log_event
from ..records import keys, version
from ..stores.bounded import CACHED_KEYS_INSIDE, MAX_CACHED_KEYS
from ..stores.port import Metered, Provisioned, Store, UpdatesInPlace
from .backend import BUCKET_TTL_MULTIPLIER, DEFAULT_NAMESPACE, MAX_MULTIPLIER, Backend, BackendOptions
from .buckets import SurveyOperations
from .configs import check_policy
from .history import HistoryOperations
from .manifest import ManifestOperations
from .namespaces import NamespaceName
from .opening import OpeningOperations, RepositoryOptions, check_deployable, find_namespace, find_store

if TYPE_CHECKING:
    from ..aws.stack_options import StackOptions
    from ..core.reports import BackendStats, CacheStats, Status
    from ..v017.ignored import IgnoredByConstructor, IgnoredOptions

_SKEW_WORTH_TELLING_MS = 1000


class Repository(ManifestOperations, OpeningOperations, SurveyOperations, HistoryOperations):
    """Entities, limits, namespaces, audit log and usage in one store, seen from one namespace.

    ``principal`` of its methods is who makes a change, for the audit log.

    Args:
        url_or_name: A store URL (``memory://``, ``sqlite:///limits.db``, ``redis://host``, ``dynamodb://my-app``), a
            store object, or without ``://`` the name of a DynamoDB stack. By default ``$ZAE_LIMITER_URL``, else memory.
        region: The AWS region of the stack.
        endpoint_url: The AWS endpoint, e.g. of a local AWS.
        stack_options: Deploy the stack with these options before the first use.
        config_cache_ttl: For how many seconds stored limits are cached.
        name: The name of a DynamoDB stack, instead of ``url_or_name``.
        namespace: The namespace to work in. Only ``default`` is registered automatically.
        max_cached_keys: For how many keys (an entity and a resource) limits and last seen buckets are kept in memory;
            None for 131,072, or 10,000 on the memory store.
        clock: This process's clock. An embedded store opened by URL uses it; a store with a clock of its own decides by
            that one, and a difference between the two is logged.
        timeout: How many seconds a call may take in all; None for the store's default.
        bucket_ttl_multiplier: For how many times the time that it takes to fill an unused bucket is kept.
        ignored: Options of earlier versions that have no effect; they raise a `DeprecationWarning`.
    """

    is_blocking: ClassVar[bool] = False
    """Whether its methods block, instead of being awaited."""

    def __init__(
        self,
        url_or_name: str | Store | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        stack_options: StackOptions | None = None,
        config_cache_ttl: float = 60,
        *,
        name: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        max_cached_keys: int | None = None,
        clock: Clock | None = None,
        timeout: float | None = None,
        bucket_ttl_multiplier: int = BUCKET_TTL_MULTIPLIER,
        **ignored: Unpack[IgnoredByConstructor],
    ) -> None:
        if ignored:
            from ..v017.ignored import IgnoredByConstructor, warn_ignored

            warn_ignored(ignored, IgnoredByConstructor)
        namespace = names.namespace(namespace)
        config_cache_ttl = seconds("config_cache_ttl", config_cache_ttl, zero=True)
        if max_cached_keys is not None:
            max_cached_keys = whole("max_cached_keys", max_cached_keys, 1, MAX_AMOUNT, "keys")
        multiplier = whole("bucket_ttl_multiplier", bucket_ttl_multiplier, 0, MAX_MULTIPLIER)
        if timeout is not None:
            timeout = seconds("timeout", timeout, zero=False)
        if clock is not None and not callable(getattr(clock, "now_ms", None)):
            raise ValidationError("clock", clock, "must be a clock with a method now_ms, such as SystemClock()")
        aws = {"name": name, "region": region, "endpoint_url": endpoint_url, "stack_options": stack_options}
        store = self._open_store(url_or_name, clock, aws)
        self._skew_ms = _measure_skew(store, clock)
        prepare = None if stack_options is None else partial(self._deploy_stack, stack_options)
        most = CACHED_KEYS_INSIDE if isinstance(store, UpdatesInPlace) else MAX_CACHED_KEYS
        options = BackendOptions(config_cache_ttl, timeout, max_cached_keys or most, multiplier)
        self._backend = Backend(store, self._runtime(), namespace, options, prepare)

    def _open_store(self, given: str | Store | None, clock: Clock | None, aws: dict[str, Any]) -> Store:
        """Return the store of a URL, a stack name or itself; the arguments ``aws`` are for DynamoDB only."""
        from ..stores.opening import open_store, store_url

        if given is None or isinstance(given, str):
            where = store_url(given, aws["name"])
        elif all(hasattr(given, part) for part in ("commit", "read", "query", "clock", "capabilities")):
            where = "a store object"
        else:
            raise ValidationError("url_or_name", show_url(given), "must be a store URL, a stack name or a Store")
        for field, value in aws.items():
            if value is not None and not where.startswith("dynamodb:"):
                reason = f"is not supported on {show_url(where)}; it is for DynamoDB only"
                raise ValidationError(field, show_url(value), reason)
        if given is not None and not isinstance(given, str):
            return given
        region, endpoint_url, stack_options = aws["region"], aws["endpoint_url"], aws["stack_options"]
        store = open_store(where, blocking=self.is_blocking, clock=clock, region=region, endpoint_url=endpoint_url)
        check_deployable(store, stack_options)
        return store

    @classmethod
    async def open(
        cls,
        namespace: str | None = None,
        parallel_mode: str = "auto",
        *,
        stack: str | None = None,
        url: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        config_cache_ttl: float = 60,
        auto_update: bool = True,
        stack_options: StackOptions | None = None,
        clock: Clock | None = None,
        timeout: float | None = None,
        **ignored: Unpack[IgnoredOptions],
    ) -> Self:
        """Open a repository that is ready for use: a stack that does not exist is deployed, which is logged.

        An existing stack is not changed; a namespace that is missing is registered. The other ways to open one,
        `connect` among them, never deploy a stack without options for one.

        Args:
            namespace: The namespace to work in; by default ``$ZAEL_NAMESPACE``, else ``default``.
            parallel_mode: One of the modes of earlier versions; without effect.
            stack: The name of a DynamoDB stack; by default that of the environment, see ``url``.
            url: A store URL instead; by default ``$ZAE_LIMITER_URL``, else stack ``$ZAEL_STACK``, else ``zae-limiter``.
            auto_update: Upload this version's code to an older aggregator. If that is not possible, it is logged.
            stack_options: The options of a stack that has to be deployed; None for the defaults.

        The others are those of `Repository`.
        """
        if parallel_mode != "auto":
            from ..v017.ignored import check_parallel_mode

            check_parallel_mode(parallel_mode)
        where, name = (find_store(stack, url), region, endpoint_url, None), find_namespace(namespace)
        repository = cls(*where, config_cache_ttl, namespace=name, clock=clock, timeout=timeout, **ignored)
        await repository._enter(stack_options, auto_update=auto_update)
        return repository

    @classmethod
    async def connect(
        cls,
        namespace: str | None = None,
        *,
        stack: str | None = None,
        url: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        config_cache_ttl: float = 60,
        clock: Clock | None = None,
        timeout: float | None = None,
        **ignored: Unpack[IgnoredOptions],
    ) -> Self:
        """Open a repository on what exists; nothing is deployed, registered or changed.

        Raise `InfrastructureNotFoundError` if there is no table, `NamespaceNotFoundError` if the namespace is not
        registered, and `VersionError` if this version cannot use the table. The arguments are those of `open`.
        """
        where, name = (find_store(stack, url), region, endpoint_url, None), find_namespace(namespace)
        repository = cls(*where, config_cache_ttl, namespace=name, clock=clock, timeout=timeout, **ignored)
        await repository._enter_existing()
        return repository

    @classmethod
    def builder(cls) -> RepositoryBuilder:
        """Return a builder: ``await Repository.builder().url("memory://").namespace("prod").build()``."""
        return RepositoryBuilder()

    @property
    def namespace(self) -> NamespaceName[Coroutine[Any, Any, Self]]:
        """The name of the namespace, a string. Called, it opens another one: ``await repo.namespace("tenant-a")``."""
        return NamespaceName(self._backend.namespace_name, self._open_namespace)

    @property
    def namespace_name(self) -> str:
        """The name of the namespace."""
        return self._backend.namespace_name

    @property
    def namespace_id(self) -> str | None:
        """The id of the namespace; None before the first use of a repository that was not opened by `open`."""
        return self._backend.namespace_id

    async def _open_namespace(
        self, name: str, on_unavailable: OnUnavailable | str | None, bucket_ttl_multiplier: int | None
    ) -> Self:
        """Return a repository of another namespace over the same store; closing it closes nothing."""
        policy = None if on_unavailable is None else check_policy(on_unavailable)
        multiplier = self._backend.options.bucket_ttl_multiplier
        if bucket_ttl_multiplier is not None:
            multiplier = whole("bucket_ttl_multiplier", bucket_ttl_multiplier, 0, MAX_MULTIPLIER)
        repository = copy(self)
        repository._backend = self._backend.view(names.namespace(name, "name"), multiplier)
        await repository._backend.ns(await self._deadline())
        if policy is not None:
            await repository._set({}, None, on_unavailable=policy)
        return repository

    @property
    def store(self) -> Store:
        """The store, for operations that the repository does not offer."""
        return self._backend.store

    @property
    def capabilities(self) -> BackendCapabilities:
        """The capabilities of the store."""
        return self._backend.store.capabilities

    async def invalidate_config_cache(self) -> None:
        """Forget all cached config: the next acquire reads it again."""
        self._backend.runtime.check_running()
        self._backend.cache.clear()

    def get_cache_stats(self) -> CacheStats:
        """Return the statistics of the config cache."""
        return self._backend.cache.stats()

    @property
    def clock_skew_ms(self) -> int:
        """By how many ms this process's clock is ahead of the store's, as far as known."""
        return int(getattr(self._backend.clock, "skew_ms", self._skew_ms))

    def get_backend_stats(self) -> BackendStats:
        """Return the calls to the store and their cost; empty for stores that do not count them.

        ``prefetch`` is what its limiters with that option have done.
        """
        from dataclasses import replace

        from ..core.reports import BackendStats, PrefetchStats

        store = self._backend.store
        stats = store.stats() if isinstance(store, Metered) else BackendStats()
        return replace(stats, prefetch=PrefetchStats.sum_up([each.stats() for each in self._backend.prefetching]))

    async def create_table(self, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False) -> None:
        """Create the DynamoDB table without CloudFormation; a suitable one is left alone.

        ``tags`` and ``deletion_protection`` are for a new table. Other stores need no table.
        """
        self._backend.check_usable()
        store = self._backend.store
        if isinstance(store, Provisioned):
            await store.create_table(tags=tags, deletion_protection=deletion_protection)

    async def delete_table(self) -> None:
        """Delete the DynamoDB table with all data; one that does not exist is no error. Other stores have no table."""
        self._backend.check_usable()
        store = self._backend.store
        if not isinstance(store, Provisioned):
            raise ValidationError("store", store.capabilities.name, "has no table; delete its file or its keys instead")
        await store.delete_table()
        self._backend.leave_namespace()

    async def ensure_infrastructure(self) -> None:
        """Make sure that the store can be used. An embedded store needs nothing.

        With ``stack_options`` the stack is created or updated to match them, as the first use does once. Without them
        nothing is created, so that a mistyped name provisions nothing.
        """
        self._backend.check_usable()
        if self._backend.prepared is not None:
            self._backend.prepared.done = False
            await self._backend.prepared.finish()
        elif isinstance(self._backend.store, Provisioned):
            await self._backend.store.check_table()
        await self._backend.ns(await self._deadline())

    async def status(self) -> Status:
        """Return whether the store is available, its latency and the versions; on DynamoDB also table and stack.

        AWS is asked about these each time. `is_available` and `ping` are for health checks that are called often.
        """
        from ..core.reports import Status

        started = perf_counter()
        found: dict[str, Any] = {"schema_version": None, "latency_ms": None, "reason": None}
        try:
            deadline, ns = await self._begin()
            record, stamped = await self._backend.read([keys.version(ns), version.KEY], deadline)
            found["schema_version"] = (record or {}).get("schema_version")
            found["latency_ms"] = round((perf_counter() - started) * 1000, 3)
            found |= {**await self._describe_deployment(), version.AGGREGATOR: (stamped or {}).get(version.AGGREGATOR)}
        except RateLimiterUnavailable as error:
            found["reason"] = str(error)
        found |= {"backend": self.capabilities.name, "namespace": self.namespace_name}
        return Status(found["reason"] is None, client_version=__version__, clock_skew_ms=self.clock_skew_ms, **found)

    async def ping(self) -> bool:
        """Return whether the store answers within the time that a call has."""
        self._backend.runtime.check_running()
        try:
            await self._backend.read([version.KEY], await self._deadline())
        except (RateLimiterUnavailable, ConfigurationError, InfrastructureNotFoundError):
            return False
        return True

    async def get_version_record(self) -> dict[str, Any] | None:
        """Return the record of the versions that the data and the deployment have; None if there is none."""
        (found,) = await self._backend.read([version.KEY], await self._deadline())
        return None if found is None else {version.AGGREGATOR: None, **found}

    async def close(self) -> None:
        """Close the store; closing twice is fine. Later calls raise `RateLimiterClosedError`."""
        await self._backend.close()

    async def __aenter__(self) -> Repository:
        self._backend.check_usable()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _measure_skew(store: Store, clock: Clock | None) -> int:
    """Return by how many ms this process's clock is ahead of the store's. Log a large difference."""
    if clock is None or clock is store.clock or not store.capabilities.own_clock:
        return 0
    skew = clock.now_ms() - store.clock.now_ms()
    if abs(skew) >= _SKEW_WORTH_TELLING_MS:
        message = "clock of this process is %+d ms off the clock of the %s store; decisions follow the store"
        name = store.capabilities.name
        log_event(CLOCK_SKEWED, message, skew, name, zae_backend=name, zae_skew_ms=skew)
    return skew


class RepositoryBuilder(RepositoryOptions):
    """A builder of a `Repository`. `build` also deploys its stack, if it has one, and registers its namespace."""

    async def build(self) -> Repository:
        """Open the repository, deploy its stack if it has options, and register its namespace."""
        return await self._open(Repository)
