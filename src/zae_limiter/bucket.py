"""The arithmetic of a token bucket, as one door."""

from .core.bucket import (
    ConsumeResult as ConsumeResult,
    RefillResult as RefillResult,
    build_limit_status as build_limit_status,
    calculate_available as calculate_available,
    calculate_retry_after as calculate_retry_after,
    force_consume as force_consume,
    refill_bucket as refill_bucket,
    try_consume as try_consume,
    would_refill_satisfy as would_refill_satisfy,
)
