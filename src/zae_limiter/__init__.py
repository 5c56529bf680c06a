"""A rate limiter for calls whose cost is known only afterwards.

Names are loaded on first use: ``import zae_limiter`` alone costs next to nothing.
"""

from ._version import __version__ as __version__

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself would cost more than all else here
if TYPE_CHECKING:
    from .clock import Clock as Clock, SystemClock as SystemClock
    from .exceptions import *  # noqa: F403  # a door: every name in it is public
    from .limiter.lease import Lease as Lease
    from .limiter.limiter import RateLimiter as RateLimiter
    from .limiter.sync_lease import SyncLease as SyncLease
    from .models import *  # noqa: F403  # the same
    from .observer import (
        Decision as Decision,
        Observer as Observer,
        Settlement as Settlement,
        SlotLost as SlotLost,
        StoreCall as StoreCall,
    )
    from .repository.repository import Repository as Repository, RepositoryBuilder as RepositoryBuilder
    from .stores.port import Store as Store
    from .sync import (
        SyncRateLimiter as SyncRateLimiter,
        SyncRepository as SyncRepository,
        SyncRepositoryBuilder as SyncRepositoryBuilder,
    )
    from .v017.manager import StackManager as StackManager, SyncStackManager as SyncStackManager
    from .v017.names import (
        ConfigSource as ConfigSource,
        FailureMode as FailureMode,
        LimitName as LimitName,
        RepositoryProtocol as RepositoryProtocol,
        SyncConfigCache as SyncConfigCache,
        SyncRepositoryProtocol as SyncRepositoryProtocol,
    )
else:
    from importlib import import_module

    _NAMES = {
        "v017.manager": ("StackManager", "SyncStackManager"),
        "clock": ("Clock", "SystemClock"),
        "core.limit": ("Limit",),
        "v017.names": (
            *("ConfigSource", "FailureMode", "LimitName"),
            *("RepositoryProtocol", "SyncConfigCache", "SyncRepositoryProtocol"),
        ),
        "limiter.lease": ("Lease",),
        "limiter.limiter": ("RateLimiter",),
        "limiter.sync_lease": ("SyncLease",),
        "observer": ("Decision", "Observer", "Settlement", "SlotLost", "StoreCall"),
        "repository.repository": ("Repository", "RepositoryBuilder"),
        "stores.port": ("Store",),
        "sync": ("SyncRateLimiter", "SyncRepository", "SyncRepositoryBuilder"),
    }
    """Modules and those of their names that are public. Whatever else is public is in one of the doors."""
    _DOORS = ("exceptions", "models")

    def __getattr__(name: str) -> object:
        if name == "__all__":
            listed = [*_NAMES.values(), *(vars(import_module(f".{door}", __name__)) for door in _DOORS)]
            return ["__version__", *sorted({each for names in listed for each in names if not each.startswith("_")})]
        if not name.startswith("_"):
            for module in [module for module, names in _NAMES.items() if name in names] or _DOORS:
                found = getattr(import_module(f".{module}", __name__), name, None)
                if found is not None:
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
