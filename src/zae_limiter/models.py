"""The values of the public API, as one door."""

from .core.limit import Limit
from .core.values import (
    AuditAction,
    AuditEvent,
    BackendCapabilities,
    BucketState,
    CacheStats,
    Entity,
    EntityCapacity,
    LevelStatus,
    LimiterInfo,
    LimitStatus,
    Namespace,
    OnUnavailable,
    ResourceCapacity,
    StackOptions,
    Status,
    UsageSnapshot,
    UsageSummary,
)

__all__ = [
    "AuditAction",
    "AuditEvent",
    "BackendCapabilities",
    "BucketState",
    "CacheStats",
    "Entity",
    "EntityCapacity",
    "LevelStatus",
    "Limit",
    "LimitStatus",
    "LimiterInfo",
    "Namespace",
    "OnUnavailable",
    "ResourceCapacity",
    "StackOptions",
    "Status",
    "UsageSnapshot",
    "UsageSummary",
]
