"""Deploy, list and delete the stack around a table, and say where that is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.errors import ValidationError
from ..stores.port import MayEvict, Provisioned
from .backend import Operations

if TYPE_CHECKING:
    from ..aws.stack_options import StackOptions
    from ..core.reports import LimiterInfo
    from ..runtime.port import Runtime


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
        from ..v017.ignored import warn_deprecated

        options = check_stack_options(stack_options)
        warn_deprecated("create_stack is deprecated: use Repository.open(stack=...) or `zae-limiter deploy`.")
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
