"""Clients that do not read their answers: whether a slot bounds them depends on when it is freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from tests.web.drive import Call, call_asgi, call_wsgi
from tests.web.servers.asgi import hypercorn, uvicorn
from tests.web.servers.client import Connection
from tests.web.servers.wsgi import cheroot
from zae_limiter import Limit, RateLimiter, SyncRateLimiter, ValidationError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import asgi, wsgi

ONE = [Limit.concurrent("parallel", 1)]
CLIENTS = 4
LARGE = b"x" * (24 << 20)
"""More than two sockets hold."""
START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}


async def answer_asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    length = (b"content-length", b"%d" % len(LARGE))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": LARGE})


def answer_wsgi(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(LARGE)))])
    return [LARGE]


def open_asgi(free_slots: str) -> Any:
    return asgi.RateLimitMiddleware(answer_asgi, RateLimiter("memory://"), limits=ONE, free_slots=free_slots)


def open_wsgi(free_slots: str) -> Any:
    return wsgi.RateLimitMiddleware(answer_wsgi, SyncRateLimiter("memory://"), limits=ONE, free_slots=free_slots)


SERVERS: dict[str, tuple[Callable[[Any], AbstractContextManager[int]], Callable[[str], Any]]] = {
    "uvicorn": (uvicorn, open_asgi),
    "hypercorn": (hypercorn, open_asgi),
    "cheroot": (cheroot, open_wsgi),
}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("free_slots", "served"), [("before", CLIENTS), ("after", 1)])
def test_a_slot_bounds_clients_that_do_not_read_if_it_is_freed_after_the_last_piece(
    server: str, free_slots: str, served: int
) -> None:
    serve, build = SERVERS[server]
    with serve(build(free_slots)) as port, ExitStack() as stack:
        connections = [stack.enter_context(Connection(port)) for _ in range(CLIENTS)]
        statuses = []
        for connection in connections:
            connection.request("GET", "/", "client")
            statuses.append(connection.head().status)
        assert statuses == [200] * served + [429] * (CLIENTS - served)
        for connection, status in zip(connections, statuses, strict=True):
            assert (connection.rest() == LARGE) == (status == 200)


class Books:
    """A store and how many of its slots are held."""

    def __init__(self) -> None:
        self.store = MemoryStore(ManualClock())

    def held(self) -> int:
        left: int = SyncRateLimiter(self.store).available("ip:192.0.2.1", "http", limits=ONE)["parallel"]
        return 1 - left


@pytest.mark.parametrize(("free_slots", "seen"), [("before", [1, 0]), ("after", [1, 1, 1])])
async def test_on_asgi_the_slot_is_held_until_the_server_has_taken_the_last_piece(
    free_slots: str, seen: list[int]
) -> None:
    """A server takes a piece when the next ``send`` begins, so the end is a piece of its own."""
    books = Books()
    held: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"all"})

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            held.append(books.held())
            await send(message)

        limited = asgi.RateLimitMiddleware(app, RateLimiter(books.store), limits=ONE, free_slots=free_slots)
        await limited(scope, receive, note)

    reply = await call_asgi(watched, Call())
    assert (reply.status, reply.body, reply.complete) == (200, b"all", True)
    assert (held, books.held()) == (seen, 0)


@pytest.mark.parametrize(("free_slots", "seen"), [("before", 0), ("after", 1)])
def test_on_wsgi_it_is_held_until_the_server_asks_for_more(free_slots: str, seen: int) -> None:
    books = Books()
    held: list[int] = []

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
        return [b"all"]

    limited = wsgi.RateLimitMiddleware(app, SyncRateLimiter(books.store), limits=ONE, free_slots=free_slots)

    def watched(environ: Any, start_response: Any) -> Iterable[bytes]:
        for chunk in limited(environ, start_response):
            held.append(books.held())
            yield chunk
        held.append(books.held())

    assert call_wsgi(watched, Call(), strictly=False).body == b"all"
    assert held == [seen, 0]


@pytest.mark.parametrize("wrong", ["late", None, 1])
def test_the_option_is_checked(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="free_slots"):
        open_asgi(wrong)
