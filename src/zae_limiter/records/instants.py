"""Instants as text: RFC 3339 in UTC, the form in which records and users see them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(instant_ms: int) -> str:
    """Return an instant with milliseconds: ``2026-01-31T12:00:00.250Z``."""
    moment = datetime.fromtimestamp(instant_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
