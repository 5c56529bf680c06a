"""The values of the public API, as one door."""

from .core.limit import Limit
from .core.reports import (
    BackendStats,
    BucketState,
    CacheStats,
    EntityCapacity,
    LevelStatus,
    LimiterInfo,
    Load,
    ResourceCapacity,
    StackOptions,
    Status,
    Survey,
    UsageSnapshot,
    UsageSummary,
)
from .core.values import AuditAction, AuditEvent, BackendCapabilities, Entity, LimitStatus, Namespace, OnUnavailable

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
