"""Calls in flight behind the ASGI middleware on real servers: uvicorn, hypercorn and gunicorn, which cancels tasks."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from tests.support.deadlines import PATIENCE
from tests.web.servers import laws, slot_laws
from tests.web.servers.calls import HELLO
from tests.web.servers.client import Connection
from tests.web.servers.site import Visit, served_by
from tests.web.test_asgi_servers import closed_with, dialled
from zae_limiter.clock import SystemClock

site = served_by("uvicorn", "hypercorn", "gunicorn-asgi", clock=SystemClock)


class TestSlots(slot_laws.Slots):
    """Calls in flight."""

    @laws.leaving
    def test_who_leaves_a_generator_at_its_yield_frees_its_slot(
        self, visit: Visit, leave: Callable[[Connection], None]
    ) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/five/spills", visit.client)
            connection.head()
            visit.hear("sent")
            assert visit.in_flight() == 1
            leave(connection)
        visit.hear("over")
        assert visit.in_flight() == 0

    def test_background_tasks_hold_no_slot_of_the_request(self, visit: Visit) -> None:
        with visit.connect() as connection:
            assert connection.ask("GET", "/five/background", visit.client).body == HELLO
            assert (visit.in_flight(), visit.heard("over")) == (0, [])
            visit.tell("go")
        visit.hear("over")

    def test_background_tasks_hold_what_they_take(self, visit: Visit) -> None:
        with visit.connect() as connection:
            assert connection.ask("GET", "/free/takes-late", visit.client).body == HELLO
            visit.hear("taken")
            assert visit.in_flight() == 1
            visit.tell("go")
        visit.hear("over")
        assert visit.in_flight() == 0


def end_politely(websocket: ClientConnection) -> None:
    """Say goodbye."""
    websocket.close()


def end_abruptly(websocket: ClientConnection) -> None:
    """Leave without a word."""
    websocket.socket.shutdown(socket.SHUT_RDWR)


class TestWebsockets:
    """A websocket holds its slot until it is closed."""

    @pytest.mark.parametrize("end", [end_politely, end_abruptly])
    @pytest.mark.parametrize("messages", [0, 1, 3])
    def test_who_leaves_frees_its_slot(
        self, visit: Visit, messages: int, end: Callable[[ClientConnection], None]
    ) -> None:
        with dialled(visit, "/stays") as websocket:
            for number in range(messages):
                websocket.send(f"{number}")
                assert websocket.recv(timeout=PATIENCE) == f"{number}"
            assert visit.in_flight() == 1
            end(websocket)
            visit.hear("over")
            assert visit.in_flight() == 0

    def test_one_too_many_is_refused(self, visit: Visit) -> None:
        with contextlib.ExitStack() as held:
            for _ in range(5):
                held.enter_context(dialled(visit, "/stays"))
            with pytest.raises(InvalidStatus) as refused, dialled(visit, "/stays"):
                pass
            assert refused.value.response.status_code in (403, 429)
        visit.hear("over", 6)
        assert visit.in_flight() == 0

    def test_the_app_closes_it(self, visit: Visit) -> None:
        with dialled(visit, "/hangs-up") as websocket:
            assert visit.in_flight() == 1
            visit.tell("close")
            assert closed_with(websocket) == 1000
            assert visit.in_flight() == 0
            assert visit.site.cancels or not visit.heard("over")
            visit.tell("go")
        visit.hear("over")
