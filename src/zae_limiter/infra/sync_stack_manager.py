"""A path of 0.17 (`zae_limiter.v017`)."""

from ..aws.manager import SyncStackManager as SyncStackManager
