"""The blocking facade: the same objects and the same logic, driven without an event loop.

A blocking store finishes inside the await without suspending, so each coroutine is run to its end by one ``send``.
Signatures are those of the async form without ``await``.

Written by ``python -m tools.faces``: change the async classes, not this.
"""

from ..limiter.blocking import BlockingRateLimiter as BlockingRateLimiter, BlockingRepository as BlockingRepository
from ..limiter.sync_lease import SyncLease as SyncLease
from .facade import SyncRateLimiter as SyncRateLimiter
from .repository import SyncRepository as SyncRepository, SyncRepositoryBuilder as SyncRepositoryBuilder
