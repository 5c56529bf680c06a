"""WSGI servers in threads: waitress, and those that put ``X_Forwarded_For`` in the place of ``X-Forwarded-For``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from a2wsgi import WSGIMiddleware
from aiohttp import web
from aiohttp_wsgi.wsgi import WSGIHandler
from cheroot.wsgi import Server as CherootServer
from waitress import wasyncore
from waitress.server import create_server
from werkzeug.serving import WSGIRequestHandler as WerkzeugRequestHandler, make_server as make_werkzeug_server

from tests.web.servers.asgi import hypercorn, listen, running, uvicorn

THREADS = 8


@contextlib.contextmanager
def waitress(app: Any, **options: Any) -> Iterator[int]:
    """A port on which waitress serves ``app``."""
    open_sockets: dict[int, Any] = {}
    options |= {"host": "127.0.0.1", "port": 0, "threads": THREADS, "connection_limit": 500}
    server = create_server(app, map=open_sockets, **options)
    port: int = server.effective_port
    with _thread(server.run):
        try:
            yield port
        finally:
            server.task_dispatcher.shutdown()
            # Its loop ends when nothing is left to watch; only the loop itself may take things away from it.
            server.trigger.pull_trigger(lambda: wasyncore.close_all(open_sockets))


@contextlib.contextmanager
def cheroot(app: Any) -> Iterator[int]:
    """A port on which cheroot serves ``app``."""
    server = CherootServer(("127.0.0.1", 0), app, numthreads=THREADS)
    server.prepare()
    with _thread(server.serve):
        try:
            yield server.bind_addr[1]
        finally:
            server.stop()


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def wsgiref(app: Any) -> Iterator[int]:
    """A port on which the standard library's server serves ``app``, one connection after the other."""
    with make_server("127.0.0.1", 0, app, handler_class=_QuietHandler) as server, _thread(server.serve_forever):
        try:
            yield server.server_port
        finally:
            server.shutdown()


class _QuietWerkzeugHandler(WerkzeugRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def werkzeug(app: Any) -> Iterator[int]:
    """A port on which werkzeug's server for development serves ``app``."""
    server = make_werkzeug_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietWerkzeugHandler)
    with server, _thread(server.serve_forever):
        try:
            yield server.port
        finally:
            server.shutdown()


@contextlib.contextmanager
def hypercorn_wsgi(app: Any) -> Iterator[int]:
    """A port on which hypercorn serves a WSGI ``app``."""
    with hypercorn(app, "wsgi") as port:
        yield port


@contextlib.contextmanager
def a2wsgi(app: Any) -> Iterator[int]:
    """A port on which uvicorn serves a WSGI ``app`` through a2wsgi."""
    with uvicorn(WSGIMiddleware(app)) as port:
        yield port


@contextlib.contextmanager
def aiohttp_wsgi(app: Any) -> Iterator[int]:
    """A port on which aiohttp serves a WSGI ``app`` through aiohttp-wsgi."""
    listener, port = listen()
    over = threading.Event()

    async def serve() -> None:
        site = web.Application()
        site.router.add_route("*", "/{path_info:.*}", WSGIHandler(app).handle_request)
        runner = web.AppRunner(site, access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        while not over.is_set():  # noqa: ASYNC110  # an asyncio.Event cannot be set from another thread
            await asyncio.sleep(0.01)
        await runner.cleanup()

    with running(serve()):
        try:
            yield port
        finally:
            over.set()


@contextlib.contextmanager
def _thread(work: Callable[[], object]) -> Iterator[None]:
    """Run ``work`` in a thread, and wait for its end."""
    thread = threading.Thread(target=work, name="server")
    thread.start()
    try:
        yield
    finally:
        thread.join()
