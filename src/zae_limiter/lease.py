"""A path of 0.17 (`zae_limiter.v017`)."""

from .limiter.lease import Lease as Lease
