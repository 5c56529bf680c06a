"""The blocking form of `StackOperations`.

Written by ``python -m tools.faces``: change the async classes, not this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..limiter.blocking import BlockingStackOperations
from ..runtime.blocking import run

if TYPE_CHECKING:
    from ..aws.stack_options import StackOptions
    from ..core.reports import LimiterInfo
    from ..repository.opening import StackOperations


class SyncStackOperations:
    """Operations on the stack of a DynamoDB table; other stores have none."""

    _inner: StackOperations

    @property
    def stack_name(self) -> str | None:
        """The name of the DynamoDB stack; None on other stores."""
        return self._inner.stack_name

    @property
    def table_name(self) -> str | None:
        """The name of the DynamoDB table, which is that of its stack; None on other stores."""
        return self._inner.table_name

    @property
    def region(self) -> str | None:
        """The AWS region; None on other stores, and while it has not been looked up."""
        return self._inner.region

    @property
    def endpoint_url(self) -> str | None:
        """The AWS endpoint that was given; None for that of AWS, and on other stores."""
        return self._inner.endpoint_url

    @classmethod
    def list_deployed(cls, region: str | None = None, endpoint_url: str | None = None) -> list[LimiterInfo]:
        """Return the limiters that are deployed in the AWS account, sorted by name.

        ``region`` is the AWS region and ``endpoint_url`` the endpoint; None for those of the environment.
        """
        return run(BlockingStackOperations.list_deployed(region, endpoint_url))

    def create_stack(self, stack_options: StackOptions | None = None) -> None:
        """Create the stack, or update it to match ``stack_options``; None for the defaults.

        Deprecated: `SyncRepository.open` creates a stack that does not exist, ``zae-limiter deploy`` also changes one.
        """
        run(self._inner.create_stack(stack_options))

    def delete_stack(self) -> None:
        """Delete the stack with its table and all data. Raise `InfrastructureNotFoundError` if it does not exist."""
        run(self._inner.delete_stack())
