"""ASGI servers, each in a thread with an event loop of its own: uvicorn and hypercorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Literal

from hypercorn.asyncio import serve
from hypercorn.config import Config as HypercornConfig
from uvicorn import Config as UvicornConfig, Server as UvicornServer

App = Any
"""An ASGI callable; the types of the two servers for it do not agree."""


@contextlib.contextmanager
def uvicorn(app: App) -> Iterator[int]:
    """A port on which uvicorn serves ``app``."""
    config = UvicornConfig(app, lifespan="on", log_config=None, access_log=False, proxy_headers=False)
    server = UvicornServer(config)
    listener, port = listen()
    with running(server.serve(sockets=[listener])):
        try:
            yield port
        finally:
            server.should_exit = True


@contextlib.contextmanager
def hypercorn(app: App, mode: Literal["asgi", "wsgi"] = "asgi") -> Iterator[int]:
    """A port on which hypercorn serves ``app``, HTTP/2 without TLS included."""
    config = HypercornConfig()
    config.errorlog = logging.getLogger("hypercorn.error")
    listener, port = listen()
    config.bind = [f"fd://{listener.detach()}"]
    over = threading.Event()

    async def told() -> None:
        while not over.is_set():  # noqa: ASYNC110  # an asyncio.Event cannot be set from another thread
            await asyncio.sleep(0.01)

    with running(serve(app, config, shutdown_trigger=told, mode=mode)):
        try:
            yield port
        finally:
            over.set()


def listen() -> tuple[socket.socket, int]:
    """A socket that takes connections from now on, also while its server is still starting."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    return listener, listener.getsockname()[1]


@contextlib.contextmanager
def running(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """A coroutine in a thread; at the end it has finished, and what it has raised is raised here."""
    failures: list[BaseException] = []

    def drive() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=drive, name="server")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]
