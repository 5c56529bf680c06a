"""`Repository`: access to everything that is stored."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from .._version import __version__
from ..core import names
from ..core.errors import RateLimiterUnavailable, ValidationError
from ..core.limit import MAX_AMOUNT, seconds, whole
from ..logs import CLOCK_SKEWED, tell
from ..records import keys
from ..stores.bounded import MAX_CACHED_KEYS
from ..stores.port import Metered, Provisioned
from .backend import DEFAULT_NAMESPACE, Backend
from .buckets import SurveyOperations
from .history import HistoryOperations
from .manifest import ManifestOperations
from .namespaces import NamespaceOperations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..clock import Clock
    from ..core.reports import BackendStats, CacheStats, Status
    from ..core.stack_options import StackOptions
    from ..core.values import BackendCapabilities
    from ..runtime.port import Runtime
    from ..stores.port import Store

R = TypeVar("R", bound="Repository")
_SKEW_WORTH_TELLING_MS = 1000


class Repository(ManifestOperations, NamespaceOperations, SurveyOperations, HistoryOperations):
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

    is_blocking: ClassVar[bool] = False
    """Whether its methods block, instead of being awaited."""

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
        names.namespace(namespace)
        config_cache_ttl = seconds("config_cache_ttl", config_cache_ttl, zero=True)
        max_cached_keys = whole("max_cached_keys", max_cached_keys, 1, MAX_AMOUNT, "keys")
        if timeout is not None:
            timeout = seconds("timeout", timeout, zero=False)
        aws = {"name": name, "region": region, "endpoint_url": endpoint_url, "stack_options": stack_options}
        store = self._open_store(url_or_name, clock, aws)
        self._skew_ms = _measure_skew(store, clock)
        self._stack_options = stack_options
        prepare = None if stack_options is None else self._deploy
        self._backend = Backend(store, self._runtime(), namespace, config_cache_ttl, timeout, prepare, max_cached_keys)

    def _open_store(self, given: str | Store | None, clock: Clock | None, aws: dict[str, Any]) -> Store:
        """Return the store of a URL, a stack name or itself; the arguments ``aws`` are for DynamoDB only."""
        from ..stores.opening import open_store, store_url

        if given is None or isinstance(given, str):
            where = store_url(given, aws["name"])
        elif all(hasattr(given, part) for part in ("commit", "read", "query", "clock", "capabilities")):
            where = "a store object"
        else:
            raise ValidationError("url_or_name", given, "must be a store URL, a stack name or a Store")
        for field, value in aws.items():
            if value is not None and not where.startswith("dynamodb:"):
                raise ValidationError(field, value, f"is not supported on {where}; it is for DynamoDB only")
        if given is not None and not isinstance(given, str):
            return given
        region, endpoint_url, stack_options = aws["region"], aws["endpoint_url"], aws["stack_options"]
        store = open_store(where, blocking=self.is_blocking, clock=clock, region=region, endpoint_url=endpoint_url)
        if stack_options is not None:
            from ..aws.deployment import check_store

            check_store(store, stack_options)
        return store

    def _runtime(self) -> Runtime:
        from ..runtime.aio import AsyncioRuntime

        return AsyncioRuntime()

    @classmethod
    def builder(cls) -> RepositoryBuilder:
        """Return a builder: ``await Repository.builder().url("memory://").namespace("prod").build()``."""
        return RepositoryBuilder()

    @property
    def namespace(self) -> str:
        """The name of the namespace."""
        return self._backend.namespace_name

    @property
    def store(self) -> Store:
        """The store, for operations that the repository does not offer."""
        return self._backend.store

    @property
    def capabilities(self) -> BackendCapabilities:
        """The capabilities of the store."""
        return self._backend.store.capabilities

    def invalidate_config_cache(self) -> None:
        """Forget all cached config: the next acquire reads it again."""
        self._backend.cache.clear()

    def get_cache_stats(self) -> CacheStats:
        """Return the statistics of the config cache."""
        return self._backend.cache.stats()

    @property
    def clock_skew_ms(self) -> int:
        """By how many ms this process's clock is ahead of the store's, as far as known."""
        return int(getattr(self._backend.clock, "skew_ms", self._skew_ms))

    def get_backend_stats(self) -> BackendStats:
        """Return the calls to the store and their cost; empty for stores that do not count them."""
        from ..core.reports import BackendStats

        store = self._backend.store
        return store.stats() if isinstance(store, Metered) else BackendStats()

    async def create_table(self, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False) -> None:
        """Create the DynamoDB table without CloudFormation; a suitable one is left alone.

        ``tags`` and ``deletion_protection`` are for a new table. Other stores need no table.
        """
        self._backend.check_usable()
        store = self._backend.store
        if isinstance(store, Provisioned):
            await store.create_table(tags=tags, deletion_protection=deletion_protection)

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
        await self._backend.ns(self._deadline())

    async def _prepare(self) -> None:
        """Deploy the stack if there are options for one, and register the namespace."""
        self._backend.runtime.check_running()
        if self._backend.prepared is not None:
            await self._backend.prepared.finish()
        await self.register_namespace(self.namespace)

    async def _deploy(self) -> None:
        from ..aws.deployment import deploy_store

        assert self._stack_options is not None  # else nobody deploys
        await self._backend.runtime.run_blocking(partial(deploy_store, self._backend.store, self._stack_options))

    async def status(self) -> Status:
        """Return whether the store is available, its latency and the versions."""
        from ..core.reports import Status

        started = perf_counter()
        schema: str | None = None
        reason: str | None = None
        latency: float | None = None
        try:
            deadline, ns = await self._begin()
            (record,) = await self._backend.read([keys.version(ns)], deadline)
            schema = None if record is None else record.get("schema_version")
            latency = round((perf_counter() - started) * 1000, 3)
        except RateLimiterUnavailable as error:
            reason = str(error)
        name, skew_ms = self.capabilities.name, self.clock_skew_ms
        return Status(reason is None, name, latency, self.namespace, schema, __version__, skew_ms, reason)

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
        tell(CLOCK_SKEWED, message, skew, name, zae_backend=name, zae_skew_ms=skew)
    return skew


class RepositoryOptions:
    """Collects the arguments of a repository, one method call each."""

    def __init__(self) -> None:
        self._url: str | Store | None = None
        self._options: dict[str, Any] = {}

    def url(self, url_or_name: str | Store) -> Self:
        """Use a store URL, a store object or a stack name."""
        self._url = url_or_name
        return self

    def name(self, name: str) -> Self:
        """Use the DynamoDB stack of this name."""
        return self._with(name=name)

    def region(self, region: str) -> Self:
        """Set the AWS region."""
        return self._with(region=region)

    def endpoint_url(self, endpoint_url: str) -> Self:
        """Set the URL of the AWS endpoint."""
        return self._with(endpoint_url=endpoint_url)

    def namespace(self, namespace: str) -> Self:
        """Set the namespace to work in."""
        return self._with(namespace=namespace)

    def stack_options(self, stack_options: StackOptions) -> Self:
        """Deploy the stack with these options."""
        return self._with(stack_options=stack_options)

    def config_cache_ttl(self, seconds: float) -> Self:
        """Cache stored limits for so many seconds."""
        return self._with(config_cache_ttl=seconds)

    def max_cached_keys(self, count: int) -> Self:
        """Keep limits and last seen buckets of so many keys in memory."""
        return self._with(max_cached_keys=count)

    def clock(self, clock: Clock) -> Self:
        """Set this process's clock."""
        return self._with(clock=clock)

    def _with(self, **option: Any) -> Self:
        self._options |= option
        return self

    async def _open(self, kind: type[R]) -> R:
        """Open a repository of this kind, with its stack and its namespace."""
        repository = kind(self._url, **self._options)
        await repository._prepare()
        return repository


class RepositoryBuilder(RepositoryOptions):
    """A builder of a `Repository`. `build` also deploys its stack, if it has one, and registers its namespace."""

    async def build(self) -> Repository:
        """Open the repository, deploy its stack if it has options, and register its namespace."""
        return await self._open(Repository)
