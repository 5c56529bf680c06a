"""The ASGI middleware on real servers over sockets: what clients get, and what is charged when all is over.

uvicorn runs on a store that never suspends, hypercorn on one that always does, gunicorn on a file shared with this
process. When a client leaves, the first two tell the app; gunicorn cancels its task.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.deadlines import PATIENCE
from tests.support.waiting import eventually
from tests.web.apps import CHAT, COST
from tests.web.servers import http2, laws
from tests.web.servers.calls import HELLO, PER_CHUNK
from tests.web.servers.client import Connection
from tests.web.servers.site import BLOB, Site, Visit, opened, served_by

site = served_by("uvicorn", "hypercorn", "gunicorn-asgi")


class TestAnswers(laws.Answers):
    """Answers that nothing disturbs."""

    def test_a_range_of_a_file(self, visit: Visit) -> None:
        answer = visit.ask("/file", headers=[("Range", "bytes=1000-2000000")])
        assert (answer.status, answer.body) == (206, BLOB[1000:2_000_001])
        assert answer.header("content-range") == f"bytes 1000-2000000/{len(BLOB)}"
        visit.settled(**COST)

    def test_it_is_settled_before_background_tasks_run(self, visit: Visit) -> None:
        with visit.connect() as connection:
            assert connection.ask("GET", "/background", visit.client).body == HELLO
            eventually(visit.left, {"rpm": 99, "tpm": 99_380})
            assert (visit.heard("worked"), visit.heard("over")) == ([], [])
            visit.tell("go")
            visit.hear("worked")
        visit.settled(rpm=1, tpm=620)

    def test_what_startup_leaves_reaches_requests(self, visit: Visit) -> None:
        assert visit.ask("/state").body == HELLO
        assert visit.site.stage.notes("lifespan", "lifespan.startup") == [""]


class TestFailures(laws.Failures):
    """Apps that fail, clients that leave, and what of the charge stays."""

    @laws.leaving
    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_who_leaves_a_stream_pays_for_what_was_sent(
        self, visit: Visit, leave: Callable[[Connection], None], after: int
    ) -> None:
        laws.leave_a_stream(visit, leave, after)
        visit.hear("over")
        assert visit.heard("counted") == [str(after)]
        visit.settled(rpm=1, tpm=500 + PER_CHUNK * after)

    @laws.leaving
    def test_who_leaves_a_generator_at_its_yield_pays_for_what_was_sent(
        self, visit: Visit, leave: Callable[[Connection], None]
    ) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/spills", visit.client)
            connection.head()
            visit.hear("sent")
            leave(connection)
        (counted,) = visit.hear("counted")
        visit.settled(rpm=1, tpm=500 + PER_CHUNK * int(counted))

    @laws.leaving
    @pytest.mark.parametrize("path", ["/notices", "/reads"])
    def test_who_leaves_an_app_that_listens_pays(
        self, visit: Visit, leave: Callable[[Connection], None], path: str
    ) -> None:
        with visit.connect() as connection:
            connection.request("POST", path, visit.client, headers=[("Content-Length", "1000")])
            connection.send(b"half")
            visit.hear("waiting")
            leave(connection)
        visit.hear("over")
        visit.settled(rpm=1, tpm=500 + 120 * len(visit.heard("adjusted")))

    def test_a_task_is_cancelled_where_the_server_does_so(self, visit: Visit) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/waits", visit.client)
            visit.hear("waiting")
        if visit.site.cancels:
            visit.hear("cancelled")
        else:
            visit.tell("go")
        visit.settled(rpm=1, tpm=500 if visit.site.cancels else 620)


class TestRefusals(laws.Refusals):
    """Requests that never reach the app."""


class TestWebsockets:
    """A handshake is charged, and everything after it passes through."""

    def test_nothing_is_changed(self, visit: Visit) -> None:
        with dialled(visit, "/echo") as websocket:
            assert websocket.subprotocol == "mirror"
            assert websocket.response is not None
            assert websocket.response.headers["x-app"] == "kept"
            for message in ("text", b"\x00bytes", "x" * 100_000, ""):
                websocket.send(message)
                assert websocket.recv(timeout=PATIENCE) == message
        assert len(visit.hear("left")) == 1
        visit.settled(rpm=1, tpm=500)  # the handshake

    def test_one_message_too_many_closes_it(self, visit: Visit) -> None:
        with dialled(visit, "/chats") as websocket:
            for number in range(3):
                websocket.send(f"{number}")
                assert websocket.recv(timeout=PATIENCE) == f"{number}"
            websocket.send("one too many")
            assert closed_with(websocket) == 1013
        visit.hear("over")
        assert visit.left("chat", CHAT) == {"messages": 0}

    def test_a_refusal_that_nobody_catches_closes_it(self, visit: Visit) -> None:
        with dialled(visit, "/refuses") as websocket:
            assert closed_with(websocket) == 1013


def dialled(visit: Visit, path: str) -> ClientConnection:
    """An open websocket."""
    url = f"ws://127.0.0.1:{visit.site.port}{path}"
    return connect(url, subprotocols=[Subprotocol("mirror")], additional_headers={"X-Client": visit.client}, proxy=None)


def closed_with(websocket: ClientConnection) -> int | None:
    """The code with which the server closes it."""
    with pytest.raises(ConnectionClosed) as closed:
        websocket.recv(timeout=PATIENCE)
    return None if closed.value.rcvd is None else closed.value.rcvd.code


def test_startup_and_shutdown_reach_the_app(tmp_path_factory: pytest.TempPathFactory, site: Site) -> None:
    with opened(site.name, tmp_path_factory.mktemp("short")) as short:
        assert Visit(short, "anybody").ask("/plain").body == HELLO
    assert [short.stage.notes("lifespan", name) for name in ("lifespan.startup", "lifespan.shutdown")] == [[""], [""]]


def test_early_hints_and_trailers_pass(tmp_path: Path) -> None:
    with opened("hypercorn", tmp_path) as site:
        heard = http2.get(site.port, "/hints", "hinted")
        Visit(site, "hinted").settled(**COST)
    assert [(hint[":status"], hint["link"]) for hint in heard.hints] == [("103", "</style.css>; rel=preload")]
    assert (heard.headers[":status"], heard.body) == ("200", HELLO)
    assert heard.headers["ratelimit"].startswith('"rpm";r=99')
    assert heard.trailers == {"x-digest": "abc"}
