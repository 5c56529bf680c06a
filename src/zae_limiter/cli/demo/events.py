"""What happens in the demo, as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What happened."""

    GRANTED = "granted"
    REFUSED = "refused"
    SETTLED = "settled"
    FAILED = "failed"
    GAVE_UP = "gave up"
    REPAID = "repaid"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a key's call, or to a bucket."""

    at_ms: int
    """Since the start of the run."""
    kind: Kind
    who: str
    text: str
    debt: bool = False
    """Whether it drove a bucket below zero."""
