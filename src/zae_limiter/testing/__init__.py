"""The testing kit: a manual clock, a failing store, and the suite that proves a store.

With `ManualClock` and the memory store your own tests are deterministic and never sleep:

>>> from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
>>> clock = ManualClock()
>>> limiter = SyncRateLimiter(SyncRepository("memory://", clock=clock))
>>> limits = [Limit.per_minute("rpm", 1)]
>>> with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, limits=limits) as lease:
...     lease.available
{'rpm': 0}
>>> clock.advance(60)
>>> limiter.available("key-1", "gpt-4", limits=limits)
{'rpm': 1}
"""

from .clock import ManualClock
from .faults import Fault, FaultyStore
from .harness import Harness

__all__ = ["Fault", "FaultyStore", "Harness", "ManualClock"]
