"""A path of 0.17 (`zae_limiter.v017`)."""

from .core.reports import CacheStats as CacheStats
from .repository.cache import ConfigCache as ConfigCache
