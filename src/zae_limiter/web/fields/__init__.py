"""What clients are told about their limits: standings in, header lines out."""

from __future__ import annotations

from .fields import Fields, unsaid
from .standing import Standing

__all__ = ["Fields", "Standing", "unsaid"]
