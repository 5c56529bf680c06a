"""Moments as they are written on the command line.

2026-11-16T12:00:00Z   RFC 3339, with its time zone
2026-11-16             midnight UTC
24h, 7d, 30min         so long ago
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from .limits import parse_span

if TYPE_CHECKING:
    from collections.abc import Callable

FORMS = "2026-11-16T12:00:00Z, 2026-11-16 (midnight UTC) or how long ago, such as 24h or 7d"


def parse_moment(text: str, now: datetime) -> datetime:
    """Return the moment of a text. Raise `ValueError` that says how to write one."""
    span = parse_span(text) if text[:1].isdigit() else None
    try:
        if span is not None:
            return now - timedelta(seconds=span)
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a moment; write {FORMS}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; end it with Z for UTC, or with an offset such as +09:00")
    return moment


def spell_window(start: str, window_type: str) -> str:
    """Return the start of a window, as precisely as its kind needs."""
    shown = {"monthly": len("2026-11"), "daily": len("2026-11-16")}.get(window_type, len("2026-11-16T12:00"))
    return start[:shown].replace("T", " ")


def axis_label(start: str, window_type: str) -> str:
    """Return the start of a window in short, for an axis."""
    shown = spell_window(start, window_type)
    return shown if window_type == "monthly" else shown.removeprefix(f"{start[:4]}-")


def moment_option(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that takes a moment."""
    return click.option(name, metavar="WHEN", callback=_parse_option, **settings)


def _parse_option(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_moment(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None
