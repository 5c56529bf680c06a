"""The settings of the function, read from its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zae_limiter.records.usage import WINDOWS


class AggregatorSettings(NamedTuple):
    """The settings that the stack passes to the function."""

    table: str
    windows: tuple[str, ...] = ("hourly", "daily")
    retention_days: int = 90
    bucket: str | None = None


def read_settings(environment: Mapping[str, str]) -> AggregatorSettings:
    """Read the settings. Raise `ValueError` for an invalid one: the first batch fails and is delivered again."""
    named = environment.get("ZAE_LIMITER_SNAPSHOT_WINDOWS", "hourly,daily").split(",")
    windows = tuple(window.strip() for window in named if window.strip())
    unknown = set(windows) - set(WINDOWS)
    if unknown:
        raise ValueError(f"ZAE_LIMITER_SNAPSHOT_WINDOWS names {sorted(unknown)}; known are {', '.join(WINDOWS)}")
    return AggregatorSettings(
        table=environment["ZAE_LIMITER_TABLE"],
        windows=windows,
        retention_days=int(environment.get("ZAE_LIMITER_USAGE_RETENTION_DAYS", "90")),
        bucket=environment.get("ZAE_LIMITER_ARCHIVE_BUCKET") or None,
    )
