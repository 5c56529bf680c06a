"""The blocking form of `NamespaceOperations`, `ManifestOperations`, `Repository`, `RepositoryBuilder`.

Written by ``python -m tools.faces``: change the async classes, not this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..limiter.blocking import BlockingRepository
from ..repository.backend import BUCKET_TTL_MULTIPLIER, DEFAULT_NAMESPACE
from ..repository.namespaces import NamespaceName
from ..repository.opening import RepositoryOptions
from ..runtime.blocking import run
from .opening import SyncStackOperations
from .operations import SyncEntityOperations, SyncHistoryOperations, SyncSurveyOperations
from .policies import SyncConfigOperations, SyncPolicyOperations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, ClassVar, Self, Unpack

    from ..aws.stack_options import StackOptions
    from ..clock import Clock
    from ..core.reports import BackendStats, CacheStats, Status
    from ..core.values import BackendCapabilities, Namespace
    from ..manifest.states import Change, Manifest, Plan, Stored
    from ..repository.manifest import ManifestOperations
    from ..repository.namespaces import NamespaceOperations
    from ..stores.port import Store
    from ..v017.ignored import IgnoredByConstructor, IgnoredOptions


class SyncNamespaceOperations:
    """Register, list, delete, recover and purge namespaces."""

    _inner: NamespaceOperations

    def register_namespace(self, namespace: str, principal: str | None = None) -> Namespace:
        """Register a namespace, unless it exists, and return it."""
        return run(self._inner.register_namespace(namespace, principal))

    def register_namespaces(self, namespaces: Iterable[str], principal: str | None = None) -> list[Namespace]:
        """Register namespaces with the names ``namespaces`` and return them."""
        return run(self._inner.register_namespaces(namespaces, principal))

    def get_namespace(self, namespace: str) -> Namespace:
        """Return the namespace. Raise `NamespaceNotFoundError` if the name ``namespace`` is not registered."""
        return run(self._inner.get_namespace(namespace))

    def list_namespaces(self) -> list[Namespace]:
        """Return all active namespaces, sorted by name."""
        return run(self._inner.list_namespaces())

    def list_orphan_namespaces(self) -> list[Namespace]:
        """Return deleted namespaces whose data still exist, to be recovered or purged."""
        return run(self._inner.list_orphan_namespaces())

    def delete_namespace(self, namespace: str, principal: str | None = None) -> Namespace:
        """Free the name; the data stay until `purge_namespace`."""
        return run(self._inner.delete_namespace(namespace, principal))

    def recover_namespace(self, namespace_id: str, principal: str | None = None) -> Namespace:
        """Restore a deleted namespace, by its id from `list_orphan_namespaces`, and return it."""
        return run(self._inner.recover_namespace(namespace_id, principal))

    def purge_namespace(
        self, namespace_id: str, principal: str | None = None, on_progress: Callable[[int], None] | None = None
    ) -> int:
        """Delete all data of a deleted namespace for good. Return the number of records.

        An interrupted purge can be repeated. ``namespace_id`` is from `list_orphan_namespaces`; ``on_progress`` is
        called with the number of records deleted so far.
        """
        return run(self._inner.purge_namespace(namespace_id, principal, on_progress))


class SyncManifestOperations(SyncEntityOperations, SyncPolicyOperations):
    """Plan, apply and export limits files."""

    _inner: ManifestOperations

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
        seen in time. A plan that was interrupted can be applied again. The audit log
        has an event per change and one for all of them; ``on_change`` is called after each change.
        """
        return run(self._inner.apply_plan(plan, principal, on_change))

    def export_limits(self) -> Stored:
        """Return all entities, limits and switches of the namespace."""
        return run(self._inner.export_limits())


class SyncRepository(
    SyncManifestOperations,
    SyncNamespaceOperations,
    SyncStackOperations,
    SyncConfigOperations,
    SyncSurveyOperations,
    SyncHistoryOperations,
):
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

    _inner: BlockingRepository

    @classmethod
    def _of(cls, inner: BlockingRepository, given: object = None) -> Self:
        """Return the face of a repository, which is the ``given`` one if that is a face."""
        if isinstance(given, cls):
            return given
        repository = cls.__new__(cls)
        repository._inner = inner
        return repository

    is_blocking: ClassVar[bool] = True
    "Whether its methods block, instead of being awaited."

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
        self._inner = BlockingRepository(
            url_or_name,
            region,
            endpoint_url,
            stack_options,
            config_cache_ttl,
            name=name,
            namespace=namespace,
            max_cached_keys=max_cached_keys,
            clock=clock,
            timeout=timeout,
            bucket_ttl_multiplier=bucket_ttl_multiplier,
            **ignored,
        )

    @classmethod
    def open(
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

        The others are those of `SyncRepository`.
        """
        return cls._of(
            run(
                BlockingRepository.open(
                    namespace,
                    parallel_mode,
                    stack=stack,
                    url=url,
                    region=region,
                    endpoint_url=endpoint_url,
                    config_cache_ttl=config_cache_ttl,
                    auto_update=auto_update,
                    stack_options=stack_options,
                    clock=clock,
                    timeout=timeout,
                    **ignored,
                )
            )
        )

    @classmethod
    def connect(
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
        return cls._of(
            run(
                BlockingRepository.connect(
                    namespace,
                    stack=stack,
                    url=url,
                    region=region,
                    endpoint_url=endpoint_url,
                    config_cache_ttl=config_cache_ttl,
                    clock=clock,
                    timeout=timeout,
                    **ignored,
                )
            )
        )

    @classmethod
    def builder(cls) -> SyncRepositoryBuilder:
        """Return a builder: ``SyncRepository.builder().url("memory://").namespace("prod").build()``."""
        return SyncRepositoryBuilder()

    @property
    def namespace(self) -> NamespaceName[Self]:
        """The name of the namespace, a string. Called, it opens another one: ``repo.namespace("tenant-a")``."""
        opens = self._inner.namespace.opens
        return NamespaceName(self._inner.namespace_name, lambda *given: self._of(run(opens(*given))))

    @property
    def namespace_name(self) -> str:
        """The name of the namespace."""
        return self._inner.namespace_name

    @property
    def namespace_id(self) -> str | None:
        """The id of the namespace; None before the first use of a repository that was not opened by `open`."""
        return self._inner.namespace_id

    @property
    def store(self) -> Store:
        """The store, for operations that the repository does not offer."""
        return self._inner.store

    @property
    def capabilities(self) -> BackendCapabilities:
        """The capabilities of the store."""
        return self._inner.capabilities

    def invalidate_config_cache(self) -> None:
        """Forget all cached config: the next acquire reads it again."""
        run(self._inner.invalidate_config_cache())

    def get_cache_stats(self) -> CacheStats:
        """Return the statistics of the config cache."""
        return self._inner.get_cache_stats()

    @property
    def clock_skew_ms(self) -> int:
        """By how many ms this process's clock is ahead of the store's, as far as known."""
        return self._inner.clock_skew_ms

    def get_backend_stats(self) -> BackendStats:
        """Return the calls to the store and their cost; empty for stores that do not count them.

        ``prefetch`` is what its limiters with that option have done.
        """
        return self._inner.get_backend_stats()

    def create_table(self, *, tags: Mapping[str, str] | None = None, deletion_protection: bool = False) -> None:
        """Create the DynamoDB table without CloudFormation; a suitable one is left alone.

        ``tags`` and ``deletion_protection`` are for a new table. Other stores need no table.
        """
        run(self._inner.create_table(tags=tags, deletion_protection=deletion_protection))

    def delete_table(self) -> None:
        """Delete the DynamoDB table with all data; one that does not exist is no error. Other stores have no table."""
        run(self._inner.delete_table())

    def ensure_infrastructure(self) -> None:
        """Make sure that the store can be used. An embedded store needs nothing.

        With ``stack_options`` the stack is created or updated to match them, as the first use does once. Without them
        nothing is created, so that a mistyped name provisions nothing.
        """
        run(self._inner.ensure_infrastructure())

    def status(self) -> Status:
        """Return whether the store is available, its latency and the versions; on DynamoDB also table and stack.

        AWS is asked about these each time. `is_available` and `ping` are for health checks that are called often.
        """
        return run(self._inner.status())

    def ping(self) -> bool:
        """Return whether the store answers within the time that a call has."""
        return run(self._inner.ping())

    def get_version_record(self) -> dict[str, Any] | None:
        """Return the record of the versions that the data and the deployment have; None if there is none."""
        return run(self._inner.get_version_record())

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
