"""How many generated requests an attack sends: few in ``make test``, many in ``make attack``."""

from __future__ import annotations

import os

REQUESTS = int(os.environ.get("ZAE_ATTACK_REQUESTS", "500"))
"""Requests sent to each framework or server."""
