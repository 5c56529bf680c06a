"""A path of 0.17 (`zae_limiter.v017`)."""

from .earlier import SyncRepositoryProtocol as SyncRepositoryProtocol
