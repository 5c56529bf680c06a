"""A server process: ``python -m bench.web.serving KIND APP LIMIT`` tells its port, then its CPU time when asked.

A line on standard input is the question, the end of standard input the end of the process: it cannot outlive whoever
has started it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time

from bench.web.cores import keep_to_the_last

PATIENCE_S = 600
"""Idle timeout of a connection in seconds: the load comes in turns."""


def answer() -> None:
    """Tell the CPU time so far, in nanoseconds, for every line."""
    for _ in sys.stdin:
        print(time.process_time_ns(), flush=True)
    os._exit(0)


def serve_asgi(name: str, limit: int, listener: socket.socket) -> None:
    """With uvicorn: one worker, no access log."""
    import uvicorn

    from bench.web.asgi_apps import APPS

    config = uvicorn.Config(
        APPS[name](limit),
        loop="asyncio",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=PATIENCE_S,
    )
    uvicorn.Server(config).run(sockets=[listener])


def serve_wsgi(name: str, limit: int, listener: socket.socket) -> None:
    """With waitress: one thread, so that no time goes to a fight for the interpreter."""
    import waitress

    from bench.web.wsgi_apps import APPS

    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # several clients for one thread: meant so
    waitress.create_server(APPS[name](limit), sockets=[listener], threads=1, channel_timeout=PATIENCE_S).run()


def main(kind: str, name: str, limit: str) -> None:
    """Serve until standard input ends."""
    keep_to_the_last()
    # asyncio switches Nagle's algorithm off only where the protocol is named, as it is by uvicorn's own sockets
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=answer, daemon=True).start()
    {"asgi": serve_asgi, "wsgi": serve_wsgi}[kind](name, int(limit), listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
