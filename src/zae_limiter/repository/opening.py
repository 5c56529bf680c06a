"""Opening a repository, by its name or with a builder: find it, provision the stack around its table, enter it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .._version import __version__
from ..core import names
from ..core.errors import InfrastructureError, InfrastructureNotFoundError, ValidationError
from ..core.validation import flag, show_url
from ..logs import AGGREGATOR_NOT_RENEWED, AGGREGATOR_RENEWED, STACK_DEPLOYING, log_event
from ..records import keys, namespace as record, version
from ..records.algebra import PRESENT, Write
from ..records.version import Deployed
from ..runtime.port import Runtime
from ..stores.opening import ENVIRONMENT
from ..stores.port import MayEvict, Provisioned, Store
from .backend import DEFAULT_NAMESPACE, Operations
from .configs import ConfigOperations, check_policy
from .namespaces import NamespaceOperations

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..aws.stack_options import StackOptions as StackOptions
    from ..clock import Clock
    from ..core.reports import LimiterInfo
    from ..core.values import OnUnavailable
    from ..v017.builder import OldBuilder
else:
    OldBuilder = object

STACK = "ZAEL_STACK"
"""The environment variable with the name of the stack."""
NAMESPACE = "ZAEL_NAMESPACE"
"""The environment variable with the name of the namespace."""
DEFAULT_STACK = "zae-limiter"


def find_store(stack: str | None, url: str | None) -> str:
    """Return the store to open: a stack or a URL as given or from the environment, else the default stack."""
    if stack is not None and url is not None:
        reason = f"cannot be combined with url={show_url(url)!r}; pass one of them"
        raise ValidationError("stack", show_url(stack), reason)
    if stack is not None:
        return names.stack(stack, "stack")
    if url is not None:
        if not isinstance(url, str) or "://" not in url:
            raise ValidationError("url", show_url(url), "must be a store URL, such as memory:// or dynamodb://my-app")
        return url
    return os.environ.get(ENVIRONMENT) or os.environ.get(STACK) or DEFAULT_STACK


def find_namespace(namespace: str | None) -> str:
    """Return the namespace to work in: the given one, that of the environment, or the default."""
    return os.environ.get(NAMESPACE) or DEFAULT_NAMESPACE if namespace is None else namespace


def check_deployable(store: Store, stack_options: StackOptions | None) -> None:
    """Raise `ValidationError` if a stack with these options cannot be deployed for a store."""
    if stack_options is not None:
        from ..aws.deployment import check_store
        from ..aws.stack_options import check_stack_options

        check_store(store, check_stack_options(stack_options))


class StackOperations(Operations):
    """Operations on the stack of a DynamoDB table; other stores have none."""

    @classmethod
    def _runtime(cls) -> Runtime:
        from ..runtime.aio import AsyncioRuntime

        return AsyncioRuntime()

    @property
    def stack_name(self) -> str | None:
        """The name of the DynamoDB stack; None on other stores."""
        store = self._backend.store
        return store.stack_name if isinstance(store, Provisioned) else None

    @property
    def table_name(self) -> str | None:
        """The name of the DynamoDB table, which is that of its stack; None on other stores."""
        return self.stack_name

    @property
    def region(self) -> str | None:
        """The AWS region; None on other stores, and while it has not been looked up."""
        store = self._backend.store
        return store.region if isinstance(store, Provisioned) else None

    @property
    def endpoint_url(self) -> str | None:
        """The AWS endpoint that was given; None for that of AWS, and on other stores."""
        store = self._backend.store
        return store.endpoint_url if isinstance(store, Provisioned) else None

    @classmethod
    async def list_deployed(cls, region: str | None = None, endpoint_url: str | None = None) -> list[LimiterInfo]:
        """Return the limiters that are deployed in the AWS account, sorted by name.

        ``region`` is the AWS region and ``endpoint_url`` the endpoint; None for those of the environment.
        """
        from ..aws.deployment import list_deployed

        runtime = cls._runtime()
        runtime.check_running()
        return await runtime.run_blocking(partial(list_deployed, region, endpoint_url))

    async def _describe_deployment(self) -> dict[str, Any]:
        """Return the fields of `Status` that only some stores have: about table and stack, about eviction."""
        store = self._backend.store
        if isinstance(store, MayEvict):
            return {"eviction_policy": await store.find_eviction_policy()}
        if self.stack_name is None:
            return {}
        from ..aws.health import describe_deployment

        return await self._backend.runtime.run_blocking(partial(describe_deployment, self._backend.store))

    async def create_stack(self, stack_options: StackOptions | None = None) -> None:
        """Create the stack, or update it to match ``stack_options``; None for the defaults.

        Deprecated: `Repository.open` creates a stack that does not exist, ``zae-limiter deploy`` also changes one.
        """
        from ..aws.stack_options import check_stack_options
        from ..v017 import ignored

        options = check_stack_options(stack_options)
        ignored.warn_deprecated("create_stack is deprecated: use Repository.open(stack=...) or `zae-limiter deploy`.")
        await self._deploy_stack(options)

    async def _deploy_stack(self, stack_options: StackOptions | None) -> None:
        from ..aws.deployment import deploy_store
        from ..aws.stack_options import check_stack_options

        options = check_stack_options(stack_options)
        self._backend.check_usable()
        await self._backend.runtime.run_blocking(partial(deploy_store, self._backend.store, options))

    async def delete_stack(self) -> None:
        """Delete the stack with its table and all data. Raise `InfrastructureNotFoundError` if it does not exist."""
        from ..aws.deployment import delete_store

        self._backend.check_usable()
        if self.stack_name is None:
            name = self._backend.store.capabilities.name
            raise ValidationError("store", name, "has no stack; only DynamoDB tables are deployed as one")
        await self._backend.runtime.run_blocking(partial(delete_store, self._backend.store))
        self._backend.leave_namespace()


class OpeningOperations(NamespaceOperations, StackOperations, ConfigOperations):
    """Enter the namespace of a store, with or without provisioning what is missing."""

    async def _enter(self, stack_options: StackOptions | None, *, auto_update: bool) -> None:
        """Deploy the stack if there is no table, renew an older aggregator, and register the namespace."""
        flag("auto_update", auto_update)
        check_deployable(self._backend.store, stack_options)
        async with self._closing_on_failure():
            if not await self._provision(stack_options, auto_update=auto_update):
                await self.register_namespace(self._backend.namespace_name)
            await self._backend.ns(await self._deadline())

    async def _enter_existing(self) -> None:
        """Do the same without changing anything. Raise an error if the table or the namespace is missing."""
        async with self._closing_on_failure():
            _, is_registered = await self._check_versions()
            if not is_registered:
                await self._backend.check_registrable(await self._deadline())
                await self.get_namespace(self._backend.namespace_name)
            await self._backend.ns(await self._deadline())

    @asynccontextmanager
    async def _closing_on_failure(self) -> AsyncIterator[None]:
        """Close the store if the body fails: no caller has it yet."""
        try:
            yield
        except BaseException:
            await self._backend.close()
            raise

    async def _provision(self, stack_options: StackOptions | None, *, auto_update: bool) -> bool:
        """Deploy the stack if there is no table, and renew an older aggregator. Return if the namespace is there."""
        try:
            deployed, is_registered = await self._check_versions()
        except InfrastructureNotFoundError:
            name, region = self.stack_name, self.region
            message = "stack %r does not exist in %s: deploying it"
            log_event(STACK_DEPLOYING, message, name, region, zae_stack=name, zae_region=region)
            await self._deploy_stack(stack_options)
            return False
        if auto_update and version.is_aggregator_older(deployed, __version__):
            await self._renew_aggregator(deployed)
        return is_registered

    async def _check_versions(self) -> tuple[Deployed, bool]:
        """Return the versions of the store, and whether the namespace is registered.

        Raise `VersionError` if this client cannot use it. It is the first call of a client: it loads what is needed for
        it, finds credentials and connects. It reads no more than a role of one namespace may.
        """
        wanted = [version.KEY, keys.namespace(self._backend.namespace_name)]
        stamped, found = await self._backend.read(wanted, await self._deadline())
        deployed = version.decode(stamped)
        version.check(deployed, __version__)
        if found is not None:
            record.decode(found)
        return deployed, found is not None

    async def _renew_aggregator(self, deployed: Deployed) -> None:
        """Upload this version's code to the aggregator. Log it if that is not possible, and go on."""
        from ..aws.deployment import renew_aggregator

        backend = self._backend
        fields = {"zae_aggregator_version": deployed.aggregator, "zae_client_version": __version__}
        try:
            await backend.runtime.run_blocking(partial(renew_aggregator, backend.store))
            stamp = Write(version.KEY, (PRESENT,), {"lambda_version": __version__})
            await backend.commit([stamp], await self._deadline())
        except InfrastructureError as error:
            log_event(AGGREGATOR_NOT_RENEWED, "the aggregator was not renewed: %s", error, **fields)
        else:
            log_event(AGGREGATOR_RENEWED, "the aggregator was renewed to version %s", __version__, **fields)


R = TypeVar("R", bound=OpeningOperations)


class RepositoryOptions(OldBuilder):
    """Collects the arguments of a repository and the options of its stack, which are those of `StackOptions`."""

    def __init__(self) -> None:
        self._stack_options: StackOptions | None = None
        self._settings: dict[str, Any] = {}
        self._url: str | Store | None = None
        self._stack: str | None = None
        self._options: dict[str, Any] = {}
        self._auto_update = True
        self._on_unavailable: OnUnavailable | None = None

    def stack_options(self, stack_options: StackOptions | None = None, **options: Any) -> Self:
        """Deploy the stack with these options; those that are set one by one replace single ones of them.

        ``options`` are single ones by their names in `StackOptions`, e.g. ``lambda_architecture="arm64"``.
        """
        from ..aws.stack_options import StackOptions, check_stack_options

        if stack_options is not None:
            self._stack_options = check_stack_options(stack_options)
        for unknown in options.keys() - set(StackOptions.__match_args__):
            raise ValidationError(unknown, options[unknown], "is no option of a stack; see StackOptions")
        self._settings |= options
        return self

    def stack(self, name: str | None) -> Self:
        """Use the DynamoDB stack of this name. `build` deploys it if it does not exist, as `Repository.open` does.

        None is for the stack that `Repository.open` finds by itself, as it is where no place is named.
        """
        self._stack = name
        return self

    def url(self, url_or_name: str | Store) -> Self:
        """Use a store URL, a store object or a stack name."""
        self._url = url_or_name
        return self

    def name(self, name: str) -> Self:
        """Use the DynamoDB stack of this name. It is deployed only if options of a stack are set."""
        return self._with(name=name)

    def region(self, name: str) -> Self:
        """Set the AWS region."""
        return self._with(region=name)

    def endpoint_url(self, url: str) -> Self:
        """Set the URL of the AWS endpoint."""
        return self._with(endpoint_url=url)

    def namespace(self, name: str) -> Self:
        """Set the namespace to work in; by default ``$ZAEL_NAMESPACE``, else ``default``."""
        return self._with(namespace=name)

    def config_cache_ttl(self, seconds: float) -> Self:
        """Cache stored limits for this many seconds."""
        return self._with(config_cache_ttl=seconds)

    def max_cached_keys(self, count: int) -> Self:
        """Keep limits and last seen buckets of this many keys in memory."""
        return self._with(max_cached_keys=count)

    def bucket_ttl_multiplier(self, value: int) -> Self:
        """Keep an unused bucket for this many times the time that it takes to fill."""
        return self._with(bucket_ttl_multiplier=value)

    def clock(self, clock: Clock) -> Self:
        """Set this process's clock."""
        return self._with(clock=clock)

    def auto_update(self, enabled: bool) -> Self:
        """Upload this version's code to an older aggregator of a `stack`, or not."""
        self._auto_update = flag("auto_update", enabled)
        return self

    def on_unavailable(self, value: OnUnavailable | str) -> Self:
        """Store what acquires of the namespace do when the store is unavailable: ``allow`` or ``block``."""
        self._on_unavailable = check_policy(value)
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a method that a builder had in 0.17."""
            from ..v017.builder import find_method

            return find_method(self, name)

    def _with(self, **option: Any) -> Self:
        self._options |= option
        return self

    async def _open(self, kind: Callable[..., R]) -> R:
        options = self._stack_options
        if self._settings:
            from ..aws.stack_options import StackOptions

            options = replace(options or StackOptions(), **self._settings)
        elsewhere = self._url if self._url is not None else self._options.get("name")
        chosen = self._options | {"namespace": find_namespace(self._options.get("namespace"))}
        if elsewhere is None:
            repository = kind(find_store(self._stack, None), **chosen)
            await repository._enter(options, auto_update=self._auto_update)
        elif self._stack is not None:
            raise ValidationError("stack", self._stack, f"cannot be combined with {elsewhere!r}; use one of them")
        else:
            repository = kind(self._url, **chosen, stack_options=options)
            backend = repository._backend
            backend.runtime.check_running()
            if backend.prepared is not None:
                await backend.prepared.finish()
            await repository.register_namespace(backend.namespace_name)
        if self._on_unavailable is not None:
            await repository._set({}, None, on_unavailable=self._on_unavailable)
        return repository
