"""What limits of any kind may have besides: whom they leave something for, what they announce, whether they refuse."""

from __future__ import annotations

from . import names
from .validation import ValidationError


def check_floors(floors: object) -> tuple[tuple[str, float], ...]:
    """Return floors as pairs sorted by priority. Raise `ValidationError` unless they are parts from 0 to below 1."""
    if not floors:
        return ()
    try:
        pairs = dict(floors)  # type: ignore[call-overload]  # what the except is for
    except (TypeError, ValueError):
        raise ValidationError(
            "floors", floors, "must map priorities to parts of the capacity: {'batch': 0.3}"
        ) from None
    for priority, part in pairs.items():
        names.limit_name(priority, "floors")
        if type(part) not in (int, float) or not 0 <= part < 1:
            raise ValidationError(f"floors[{priority!r}]", part, "must be a part of the capacity from 0 to below 1")
    return tuple(sorted(pairs.items()))


def check_alerts(alerts: object) -> tuple[float, ...]:
    """Return thresholds, sorted. Raise `ValidationError` unless they are at most eight parts of the capacity."""
    if alerts is None:
        return ()
    if not isinstance(alerts, (tuple, list)) or len(alerts) > 8:
        raise ValidationError("alerts", alerts, "must be a list of at most 8 parts of the capacity, e.g. (0.8, 0.95)")
    for part in alerts:
        if type(part) not in (int, float) or not 0 < part <= 1:
            raise ValidationError("alerts", part, "must be a part of the capacity above 0 and at most 1, e.g. 0.8")
        if abs(round(part * 1000) - part * 1000) > 1e-6:  # what a float cannot say exactly
            raise ValidationError("alerts", part, "must be in whole thousandths, e.g. 0.8 or 0.995")
    return tuple(sorted({round(float(part), 3) for part in alerts}))
