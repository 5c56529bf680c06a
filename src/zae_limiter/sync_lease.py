"""A path of 0.17 (`zae_limiter.v017`)."""

from .limiter.sync_lease import SyncLease as SyncLease
