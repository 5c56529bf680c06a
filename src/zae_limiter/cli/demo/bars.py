"""Draw bars of buckets, precise to an eighth of a cell, with debt to the left of zero."""

from __future__ import annotations

from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉"
_TRACK = "grey23"
_DEBT = "bright_red"


def bar(available: int, capacity: int, width: int, debt_width: int = 0) -> Text:
    """Return a bar of what is left in a bucket, with debt to the left of zero on the same scale."""
    scale = width / capacity
    text = Text()
    if debt_width:
        text.append_text(_debt(max(0, -available) * scale, debt_width))
        text.append("│", style=_DEBT if available < 0 else "grey50")
    return text.append_text(_balance(max(0, available) * scale, width, _colour(available, capacity)))


def used_bar(available: int, capacity: int, width: int) -> Text:
    """Return a bar of what is used of a bucket; full in debt."""
    return _balance((capacity - max(0, available)) * width / capacity, width, _colour(available, capacity))


def _colour(available: int, capacity: int) -> str:
    share = available / capacity
    return "green" if share > 0.5 else "yellow" if share > 0.15 else "red"


def _balance(cells: float, width: int, colour: str) -> Text:
    eighths = min(round(cells * 8), width * 8)
    whole, part = divmod(eighths, 8)
    drawn = "█" * whole + (_EIGHTHS[part] if part else "")
    return Text(drawn, style=f"{colour} on {_TRACK}").append(" " * (width - len(drawn)), style=f"on {_TRACK}")


def _debt(cells: float, width: int) -> Text:
    if cells > width:
        return Text("◀" + "█" * (width - 1), style=_DEBT)
    eighths = round(cells * 8)
    whole, part = divmod(eighths, 8)
    drawn = Text(" " * (width - whole - bool(part)))
    if part:
        # A block that is filled from the right: the same glyph, colours exchanged.
        drawn.append(_EIGHTHS[8 - part], style=f"{_DEBT} reverse")
    return drawn.append("█" * whole, style=_DEBT)
