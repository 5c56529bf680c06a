"""A WSGI server in a thread: waitress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from waitress import wasyncore
from waitress.server import create_server

THREADS = 8


@contextlib.contextmanager
def waitress(app: Any) -> Iterator[int]:
    """A port on which waitress serves ``app``."""
    open_sockets: dict[int, Any] = {}
    server = create_server(app, map=open_sockets, host="127.0.0.1", port=0, threads=THREADS, connection_limit=500)
    port: int = server.effective_port
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        yield port
    finally:
        server.task_dispatcher.shutdown()
        # Its loop ends when nothing is left to watch; only the loop itself may take things away from it.
        server.trigger.pull_trigger(lambda: wasyncore.close_all(open_sockets))
        thread.join()
