"""A path of 0.17 (`zae_limiter.v017`)."""

from .v017.bucket import *  # noqa: F403  # a door: every name in it is one of 0.17
