"""Calls in flight behind the WSGI middleware on real servers: waitress, and gunicorn with threads in two processes."""

from __future__ import annotations

from tests.web.servers import slot_laws
from tests.web.servers.site import served_by
from zae_limiter.clock import SystemClock

site = served_by("waitress", "gunicorn-wsgi", clock=SystemClock)


class TestSlots(slot_laws.Slots):
    """Calls in flight."""
