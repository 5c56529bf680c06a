"""A path of 0.17 (`zae_limiter.v017`)."""

from .v017.names import SyncRepositoryProtocol as SyncRepositoryProtocol
