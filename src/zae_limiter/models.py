"""The values of the public API, as one door."""

from .core.limit import Limit as Limit
from .core.survey import Load as Load, Survey as Survey
from .core.values import (
    AuditAction as AuditAction,
    AuditEvent as AuditEvent,
    BackendCapabilities as BackendCapabilities,
    BackendStats as BackendStats,
    BucketState as BucketState,
    CacheStats as CacheStats,
    Entity as Entity,
    EntityCapacity as EntityCapacity,
    LevelStatus as LevelStatus,
    LimiterInfo as LimiterInfo,
    LimitStatus as LimitStatus,
    Namespace as Namespace,
    OnUnavailable as OnUnavailable,
    ResourceCapacity as ResourceCapacity,
    StackOptions as StackOptions,
    Status as Status,
    UsageSnapshot as UsageSnapshot,
    UsageSummary as UsageSummary,
)
