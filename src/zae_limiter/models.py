"""The values of the public API, as one door."""

from .aws.stack_options import StackOptions as StackOptions
from .core.alerts import Alert as Alert
from .core.limit import Limit as Limit
from .core.names import (
    validate_identifier as validate_identifier,
    validate_name as validate_name,
    validate_resource as validate_resource,
)
from .core.reports import (
    Availability as Availability,
    BackendStats as BackendStats,
    BucketOperationResult as BucketOperationResult,
    BucketState as BucketState,
    CacheStats as CacheStats,
    Credit as Credit,
    EntityCapacity as EntityCapacity,
    LevelStatus as LevelStatus,
    LimiterInfo as LimiterInfo,
    PrefetchStats as PrefetchStats,
    ResourceCapacity as ResourceCapacity,
    SlotState as SlotState,
    Status as Status,
)
from .core.schedule import ScheduleEntry as ScheduleEntry
from .core.usage import (
    InFlight as InFlight,
    Load as Load,
    Survey as Survey,
    UsageSnapshot as UsageSnapshot,
    UsageSummary as UsageSummary,
)
from .core.values import (
    Access as Access,
    AuditAction as AuditAction,
    AuditEvent as AuditEvent,
    BackendCapabilities as BackendCapabilities,
    Entity as Entity,
    LimitStatus as LimitStatus,
    Namespace as Namespace,
    OnUnavailable as OnUnavailable,
)
