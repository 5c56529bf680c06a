"""A path of 0.17 (`zae_limiter.v017`)."""

from .repository.repository import RepositoryBuilder as RepositoryBuilder
