"""The async classes on the blocking runtime: their coroutines never suspend. `zae_limiter.sync` phrases them."""

from __future__ import annotations

from ..repository.opening import StackOperations
from ..repository.repository import Repository
from ..runtime.blocking import BlockingRuntime
from .charger import LeasePort
from .limiter import RateLimiter
from .options import OptionChecks


class BlockingStackOperations(StackOperations):
    """Operations on a stack whose coroutines never suspend."""

    @classmethod
    def _runtime(cls) -> BlockingRuntime:
        return BlockingRuntime()


class BlockingRepository(BlockingStackOperations, Repository):
    """A repository whose coroutines never suspend."""

    is_blocking = True


class BlockingRateLimiter(BlockingStackOperations, RateLimiter):
    """A limiter whose coroutines never suspend."""

    repository: BlockingRepository
    _repository_type = BlockingRepository

    @property
    def leasing(self) -> tuple[OptionChecks, LeasePort]:
        """What makes leases: the checks of options, and how leases reach what charges them."""
        return self._options, self._port
