"""Arguments that were not passed."""

from __future__ import annotations

import enum


class Unset(enum.Enum):
    """Marks an argument that was not passed, where None has a meaning of its own."""

    UNSET = enum.auto()


UNSET = Unset.UNSET
