"""The values of the public API, as one door."""

from .core.limit import Limit
from .core.survey import Load, Survey
from .core.values import (
    AuditAction,
    AuditEvent,
    BackendCapabilities,
    BackendStats,
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
    "BackendStats",
    "BucketState",
    "CacheStats",
    "Entity",
    "EntityCapacity",
    "LevelStatus",
    "Limit",
    "LimitStatus",
    "LimiterInfo",
    "Load",
    "Namespace",
    "OnUnavailable",
    "ResourceCapacity",
    "StackOptions",
    "Status",
    "Survey",
    "UsageSnapshot",
    "UsageSummary",
]
