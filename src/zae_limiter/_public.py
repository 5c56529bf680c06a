"""Every public name and the module that it is loaded from, which `zae_limiter` does on first use."""

from . import exceptions

_NAMES = {
    "_version": ["__version__"],
    "clock": ["Clock", "SystemClock"],
    "core.limit": ["Limit"],
    "core.reports": [
        "BackendStats",
        "BucketState",
        "CacheStats",
        "EntityCapacity",
        "LevelStatus",
        "LimiterInfo",
        "Load",
        "ResourceCapacity",
        "StackOptions",
        "Status",
        "Survey",
        "UsageSnapshot",
        "UsageSummary",
    ],
    "core.values": [
        "AuditAction",
        "AuditEvent",
        "BackendCapabilities",
        "Entity",
        "LimitStatus",
        "Namespace",
        "OnUnavailable",
    ],
    "exceptions": exceptions.__all__,
    "limiter.lease": ["Lease"],
    "limiter.limiter": ["RateLimiter"],
    "observer": ["Decision", "Observer", "Settlement", "StoreCall"],
    "repository.repository": ["Repository", "RepositoryBuilder"],
    "stores.port": ["Store"],
    "sync": ["SyncLease", "SyncRateLimiter", "SyncRepository", "SyncRepositoryBuilder"],
}
MODULES = {name: module for module, names in _NAMES.items() for name in names}
