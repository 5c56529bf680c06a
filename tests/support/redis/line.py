"""One plain connection to a server: a question, its answer, nothing repeated."""

from __future__ import annotations

import inspect
import os
import threading
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as Disconnected, TimeoutError as TooLate
from redis.retry import Retry

from tests.support.deadlines import PATIENCE

_PARAMETERS = inspect.signature(AbstractConnection.__init__).parameters
NAMELESS = dict.fromkeys(("driver_info",) if "driver_info" in _PARAMETERS else ("lib_name", "lib_version"))
"""Lets a connection not introduce itself: that would be calls in the statistics that nobody asked for."""


class Line:
    """A connection of each process that uses it (a fork opens its own), for one thread at a time.

    After an error of the transport it is closed; the next question opens a new one.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._owner = 0
        self._lock = threading.Lock()
        self._connection: Any = None

    def ask(self, *args: str | bytes | int | float) -> Any:
        """The answer as RESP2 has it, decoded to ``str``; bytes that are no UTF-8 survive as surrogates."""
        if self._owner != os.getpid():
            self._owner, self._lock, self._connection = os.getpid(), threading.Lock(), None
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.send_command(*args, check_health=False)
                return self._connection.read_response()
            except (Disconnected, TooLate):
                self._drop()
                raise

    def close(self) -> None:
        """Hang up."""
        if self._owner == os.getpid():
            with self._lock:
                self._drop()

    def _connect(self) -> Any:
        pool = ConnectionPool.from_url(
            self.url.replace("valkey", "redis", 1) if self.url.startswith("valkey") else self.url,
            protocol=2,
            decode_responses=True,
            encoding_errors="surrogateescape",
            socket_timeout=PATIENCE,
            socket_connect_timeout=PATIENCE,
            retry=Retry(NoBackoff(), 0),
            **NAMELESS,
        )
        connection: Any = pool.make_connection()
        connection.connect()
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
