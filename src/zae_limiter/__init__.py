"""A rate limiter for calls whose cost is known only afterwards.

Names are loaded on first use: ``import zae_limiter`` alone costs next to nothing.
"""

from ._version import __version__ as __version__

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself would cost more than all else here
if TYPE_CHECKING:  # the same names as in `_public`, for type checkers
    from .clock import Clock as Clock, SystemClock as SystemClock
    from .core.limit import Limit as Limit
    from .core.reports import (
        BackendStats as BackendStats,
        BucketState as BucketState,
        CacheStats as CacheStats,
        EntityCapacity as EntityCapacity,
        LevelStatus as LevelStatus,
        LimiterInfo as LimiterInfo,
        Load as Load,
        ResourceCapacity as ResourceCapacity,
        StackOptions as StackOptions,
        Status as Status,
        Survey as Survey,
        UsageSnapshot as UsageSnapshot,
        UsageSummary as UsageSummary,
    )
    from .core.values import (
        AuditAction as AuditAction,
        AuditEvent as AuditEvent,
        BackendCapabilities as BackendCapabilities,
        Entity as Entity,
        LimitStatus as LimitStatus,
        Namespace as Namespace,
        OnUnavailable as OnUnavailable,
    )
    from .exceptions import (
        AccessDeniedError as AccessDeniedError,
        CapacityExceeded as CapacityExceeded,
        CorruptRecordError as CorruptRecordError,
        EntityError as EntityError,
        EntityExistsError as EntityExistsError,
        EntityNotFoundError as EntityNotFoundError,
        EntityVersionError as EntityVersionError,
        IncompatibleSchemaError as IncompatibleSchemaError,
        InfrastructureError as InfrastructureError,
        InfrastructureNotFoundError as InfrastructureNotFoundError,
        InvalidIdentifierError as InvalidIdentifierError,
        InvalidNameError as InvalidNameError,
        LeaseExpiredError as LeaseExpiredError,
        NamespaceNotFoundError as NamespaceNotFoundError,
        NamespaceStateError as NamespaceStateError,
        RateLimiterClosedError as RateLimiterClosedError,
        RateLimitError as RateLimitError,
        RateLimiterUnavailable as RateLimiterUnavailable,
        RateLimitExceeded as RateLimitExceeded,
        StackAlreadyExistsError as StackAlreadyExistsError,
        StackOperationError as StackOperationError,
        ValidationError as ValidationError,
        VersionError as VersionError,
        VersionMismatchError as VersionMismatchError,
        ZAELimiterError as ZAELimiterError,
    )
    from .limiter.lease import Lease as Lease
    from .limiter.limiter import RateLimiter as RateLimiter
    from .observer import (
        Decision as Decision,
        Observer as Observer,
        Settlement as Settlement,
        StoreCall as StoreCall,
    )
    from .repository.repository import Repository as Repository, RepositoryBuilder as RepositoryBuilder
    from .stores.port import Store as Store
    from .sync import (
        SyncLease as SyncLease,
        SyncRateLimiter as SyncRateLimiter,
        SyncRepository as SyncRepository,
        SyncRepositoryBuilder as SyncRepositoryBuilder,
    )
else:
    from importlib import import_module

    def __getattr__(name: str) -> object:
        if name == "__all__" or not name.startswith("_"):
            modules = import_module("._public", __name__).MODULES
            if name == "__all__":
                return list(modules)
            if name in modules:
                return getattr(import_module(f".{modules[name]}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("._public", __name__).MODULES})
