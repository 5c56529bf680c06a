"""Deploy, look at and delete stacks from code, under the names that programs of 0.17 use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from ..aws import deployment, package, stack
from ..aws.calls import Aws
from ..aws.stack_options import StackOptions, check_stack_options
from ..aws.template import function_name as aggregator_name
from ..core import names
from ..core.errors import AccessDeniedError, InfrastructureNotFoundError, ValidationError

T = TypeVar("T")


class SyncStackManager:
    """Deploy, look at and delete stacks in one region. `SyncRepository.open` and the command line do the same.

    Args:
        stack_name: The name of the stack that is deployed.
        region: The AWS region; None for that of the environment.
        endpoint_url: The AWS endpoint, e.g. of a local AWS.
    """

    def __init__(self, stack_name: str, region: str | None = None, endpoint_url: str | None = None) -> None:
        self.stack_name = names.stack(stack_name, "stack_name")
        self._aws = Aws(region, endpoint_url)

    def create_stack(self, stack_options: StackOptions | None = None, wait: bool = True) -> dict[str, Any]:
        """Create the stack, or update it to match ``stack_options``. Return its name, id and status.

        Without ``wait`` it is only begun, and the code of the aggregator is not uploaded.
        """
        given = check_stack_options(stack_options)
        options = deployment.keep_guards(self._aws, self.stack_name, given)
        deployment.deploy(self._aws, self.stack_name, options, wait=wait)
        return self._describe()

    def apply_template(self) -> dict[str, Any]:
        """Update the stack to this version, with the options that it has. Return its name, id and status."""
        deployment.require_stack(self._aws, self.stack_name)
        return self.create_stack(deployment.read_options(self._aws, self.stack_name))

    def ensure_tags(self, user_tags: Mapping[str, str] | None = None) -> bool:
        """Add tags to those of the stack. Return whether that has changed any."""
        deployment.require_stack(self._aws, self.stack_name)
        options = deployment.read_options(self._aws, self.stack_name)
        tags = {**(options.tags or {}), **(user_tags or {})}
        if tags == (options.tags or {}):
            return False
        self.create_stack(replace(options, tags=tags))
        return True

    def delete_stack(self, stack_name: str, wait: bool = True) -> None:
        """Delete a stack and everything in it; one that does not exist is no error. Without ``wait`` only begin to."""
        if self.stack_exists(stack_name):
            deployment.delete(self._aws, stack_name, wait=wait)

    def stack_exists(self, stack_name: str) -> bool:
        """Return whether there is a stack of this name that has not failed to be created or been deleted."""
        found = stack.describe(self._aws, names.stack(stack_name, "stack_name"))
        return found is not None and not found.is_dead

    def get_stack_status(self, stack_name: str) -> str | None:
        """Return the status of a stack as CloudFormation calls it; None if it does not exist."""
        found = stack.describe(self._aws, names.stack(stack_name, "stack_name"))
        return None if found is None else found.status

    def aggregator_exists(self, function_name: str | None = None) -> bool | None:
        """Return whether the aggregator is deployed; None if these credentials may not look.

        ``function_name`` is that of the function; None for that of the stack.
        """
        function = function_name or aggregator_name(self.stack_name)
        try:
            self._aws.call("lambda", "get_function_configuration", FunctionName=function)
        except InfrastructureNotFoundError:
            return False
        except AccessDeniedError:
            return None
        return True

    def deploy_lambda_code(
        self, function_name: str | None = None, wait: bool = True, skip_absent: bool = False
    ) -> dict[str, Any]:
        """Upload this version's code to the aggregator. Return ``uploaded`` or ``unchanged`` as its ``status``.

        ``function_name`` may only be that of the stack's aggregator. With ``skip_absent`` one that does not exist is no
        error: the status is ``skipped``. Its end is waited for, also without ``wait``.
        """
        own = aggregator_name(self.stack_name)
        if function_name not in (None, own):
            raise ValidationError("function_name", function_name, f"must be {own!r}, the aggregator of the stack")
        if skip_absent and self.aggregator_exists() is False:
            return {"status": "skipped"}
        return {"status": package.upload(self._aws, self.stack_name)}

    def wait_for_esm_ready(self, function_name: str, max_seconds: float = 120) -> bool:
        """Wait until the stream is connected to a function. Return False if it is not after ``max_seconds``."""
        ends = time.monotonic() + max_seconds
        while True:
            answer = self._aws.call("lambda", "list_event_source_mappings", FunctionName=function_name)
            if any(each["State"] == "Enabled" for each in answer["EventSourceMappings"]):
                return True
            if time.monotonic() >= ends:
                return False
            time.sleep(min(1.0, max(0.0, ends - time.monotonic())))

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._aws.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _describe(self) -> dict[str, Any]:
        found = deployment.require_stack(self._aws, self.stack_name)
        return {"stack_name": found.name, "stack_id": found.id, "status": found.status}


class StackManager:
    """Deploy, look at and delete stacks in one region. `Repository.open` and the command line do the same.

    Args:
        stack_name: The name of the stack that is deployed.
        region: The AWS region; None for that of the environment.
        endpoint_url: The AWS endpoint, e.g. of a local AWS.
    """

    def __init__(self, stack_name: str, region: str | None = None, endpoint_url: str | None = None) -> None:
        self._manager = SyncStackManager(stack_name, region, endpoint_url)
        self.stack_name = self._manager.stack_name

    async def create_stack(self, stack_options: StackOptions | None = None, wait: bool = True) -> dict[str, Any]:
        """Create the stack, or update it to match ``stack_options``. Return its name, id and status.

        Without ``wait`` it is only begun, and the code of the aggregator is not uploaded.
        """
        return await _aside(partial(self._manager.create_stack, stack_options, wait))

    async def apply_template(self) -> dict[str, Any]:
        """Update the stack to this version, with the options that it has. Return its name, id and status."""
        return await _aside(self._manager.apply_template)

    async def ensure_tags(self, user_tags: Mapping[str, str] | None = None) -> bool:
        """Add tags to those of the stack. Return whether that has changed any."""
        return await _aside(partial(self._manager.ensure_tags, user_tags))

    async def delete_stack(self, stack_name: str, wait: bool = True) -> None:
        """Delete a stack and everything in it; one that does not exist is no error. Without ``wait`` only begin to."""
        await _aside(partial(self._manager.delete_stack, stack_name, wait))

    async def stack_exists(self, stack_name: str) -> bool:
        """Return whether there is a stack of this name that has not failed to be created or been deleted."""
        return await _aside(partial(self._manager.stack_exists, stack_name))

    async def get_stack_status(self, stack_name: str) -> str | None:
        """Return the status of a stack as CloudFormation calls it; None if it does not exist."""
        return await _aside(partial(self._manager.get_stack_status, stack_name))

    async def aggregator_exists(self, function_name: str | None = None) -> bool | None:
        """Return whether the aggregator is deployed; None if these credentials may not look.

        ``function_name`` is that of the function; None for that of the stack.
        """
        return await _aside(partial(self._manager.aggregator_exists, function_name))

    async def deploy_lambda_code(
        self, function_name: str | None = None, wait: bool = True, skip_absent: bool = False
    ) -> dict[str, Any]:
        """Upload this version's code to the aggregator. Return ``uploaded`` or ``unchanged`` as its ``status``.

        ``function_name`` may only be that of the stack's aggregator. With ``skip_absent`` one that does not exist is no
        error: the status is ``skipped``. Its end is waited for, also without ``wait``.
        """
        return await _aside(partial(self._manager.deploy_lambda_code, function_name, wait, skip_absent))

    async def wait_for_esm_ready(self, function_name: str, max_seconds: float = 120) -> bool:
        """Wait until the stream is connected to a function. Return False if it is not after ``max_seconds``."""
        return await _aside(partial(self._manager.wait_for_esm_ready, function_name, max_seconds))

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def _aside(work: Callable[[], T]) -> T:
    """Do ``work`` in a thread, while the event loop goes on."""
    from ..runtime.aio import AsyncioRuntime

    runtime = AsyncioRuntime()
    runtime.check_running()
    return await runtime.run_blocking(work)
