"""The stack around a table, and opening a repository by its name: find it, provision what is missing, enter it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

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
from .configs import ConfigOperations
from .namespaces import NamespaceOperations

if TYPE_CHECKING:
    from ..aws.stack_options import StackOptions as StackOptions
    from ..core.reports import LimiterInfo

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

    async def _prepare(self) -> None:
        self._backend.runtime.check_running()
        if self._backend.prepared is not None:
            await self._backend.prepared.finish()
        await self.register_namespace(self._backend.namespace_name)

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
        """Close the store if the body fails: nobody else has it yet."""
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
