"""A path of 0.17 (`zae_limiter.v017`)."""

from .sync.lease import SyncLease as SyncLease
