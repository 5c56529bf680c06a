"""Every public name. `zae_limiter` itself loads this on first use, so that importing the package costs nothing."""

from . import exceptions, models
from ._version import __version__
from .clock import Clock, SystemClock
from .exceptions import *  # noqa: F403  # the door's __all__ is the public list
from .limiter.lease import Lease
from .limiter.limiter import RateLimiter
from .models import *  # noqa: F403  # the same
from .observer import Decision, Observer, Settlement, StoreCall
from .repository.repository import Repository, RepositoryBuilder
from .stores.port import Store
from .sync import SyncLease, SyncRateLimiter, SyncRepository, SyncRepositoryBuilder

__all__ = [
    "Clock",
    "Decision",
    "Lease",
    "Observer",
    "RateLimiter",
    "Repository",
    "RepositoryBuilder",
    "Settlement",
    "Store",
    "StoreCall",
    "SyncLease",
    "SyncRateLimiter",
    "SyncRepository",
    "SyncRepositoryBuilder",
    "SystemClock",
    "__version__",
]
__all__ += exceptions.__all__
__all__ += models.__all__
