"""The blocking facade: the same objects and the same logic, driven without an event loop.

A blocking store finishes inside the await without suspending, so each coroutine is run to its end by one
``send``. Every method is one line; signatures are those of the async form without ``await``.
"""

from .facade import BlockingRateLimiter as BlockingRateLimiter, SyncRateLimiter as SyncRateLimiter
from .lease import SyncLease as SyncLease
from .repository import (
    BlockingRepository as BlockingRepository,
    SyncRepository as SyncRepository,
    SyncRepositoryBuilder as SyncRepositoryBuilder,
)
