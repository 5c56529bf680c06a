"""Durations in words."""

from __future__ import annotations

import math

_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def spell_duration(seconds: float) -> str:
    """Return a duration in two units, rounded up, so that a promised wait is never too short.

    >>> spell_duration(0.25), spell_duration(17_277.1), spell_duration(90_000)
    ('0.25 s', '4 h 48 min', '1 d 1 h')
    """
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"
    for size, unit, part, small in _UNITS:
        if seconds >= size:
            whole, rest = divmod(math.ceil(seconds / part), size // part)
            return f"{whole} {unit}" + (f" {rest} {small}" if rest else "")
    raise AssertionError  # 60 seconds or more have a unit above
