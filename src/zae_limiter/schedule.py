"""A path of 0.17 (`zae_limiter.v017`)."""

from .core.schedule import ScheduleEntry as ScheduleEntry
