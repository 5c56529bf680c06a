"""Open a repository by the name of a stack: find it, provision what is missing, and enter the namespace."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from .._version import __version__
from ..core import names
from ..core.errors import InfrastructureError, InfrastructureNotFoundError, ValidationError
from ..core.urls import show_url
from ..core.validation import flag
from ..logs import AGGREGATOR_NOT_RENEWED, AGGREGATOR_RENEWED, STACK_DEPLOYING, tell
from ..records import keys, namespace as record, version
from ..records.algebra import PRESENT, Write
from ..stores.opening import ENVIRONMENT
from .backend import DEFAULT_NAMESPACE
from .configs import ConfigOperations
from .namespaces import NamespaceOperations
from .stacks import StackOperations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..aws.stack_options import StackOptions as StackOptions
    from ..records.version import Deployed

STACK = "ZAEL_STACK"
"""The environment variable with the name of the stack."""
NAMESPACE = "ZAEL_NAMESPACE"
"""The environment variable with the name of the namespace."""
DEFAULT_STACK = "zae-limiter"


def find_store(stack: str | None, url: str | None) -> str:
    """Return the store to open: a stack or a URL as given or from the environment, else the default stack."""
    if stack is not None and url is not None:
        raise ValidationError(
            "stack", show_url(stack), f"cannot be combined with url={show_url(url)!r}; pass one of them"
        )
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


def check_parallel_mode(mode: str) -> None:
    """Check a mode that a program written for 0.17 passes. It has no effect."""
    if mode != "auto":
        from ..v017 import ignored

        ignored.check_parallel_mode(mode)


class OpeningOperations(NamespaceOperations, StackOperations, ConfigOperations):
    """Enter the namespace of a store, with or without provisioning what is missing."""

    async def _prepare(self) -> None:
        """Deploy the stack if there are options for one, and register the namespace."""
        self._backend.runtime.check_running()
        if self._backend.prepared is not None:
            await self._backend.prepared.finish()
        await self.register_namespace(self._backend.namespace_name)

    async def _enter(self, stack_options: StackOptions | None, *, auto_update: bool) -> None:
        """Deploy the stack if there is no table, renew an older aggregator, and register the namespace."""
        flag("auto_update", auto_update)
        if stack_options is not None:
            from ..aws.deployment import check_store
            from ..aws.stack_options import check_stack_options

            check_store(self._backend.store, check_stack_options(stack_options))
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
            tell(STACK_DEPLOYING, message, name, region, zae_stack=name, zae_region=region)
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
            tell(AGGREGATOR_NOT_RENEWED, "the aggregator was not renewed: %s", error, **fields)
        else:
            tell(AGGREGATOR_RENEWED, "the aggregator was renewed to version %s", __version__, **fields)
