"""A path of 0.17 (`zae_limiter.v017`)."""

from .archive import Archive as Archive, archive_objects as archive_objects
