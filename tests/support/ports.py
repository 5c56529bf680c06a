"""Free ports of 127.0.0.1, below the range from which the kernel takes the ports of outgoing connections.

A port of that range can be lost while its server is down: to anybody's connection, and even to a client that calls the
dead port until the kernel connects it to itself. A cluster node also needs the port 10000 above its own.
"""

from __future__ import annotations

import secrets
import socket

FIRST, LAST = 11_000, 20_999
BUS = 10_000
ATTEMPTS = 200


def free_port() -> int:
    """A port that nobody listens on, nor on its cluster bus."""
    for _ in range(ATTEMPTS):
        port = _any()
        if all(map(_is_free, (port, port + BUS))):
            return port
    raise OSError(f"no free port on 127.0.0.1 between {FIRST} and {LAST}")


def listener(port: int = 0) -> socket.socket:
    """A socket that listens on a port of the same range, or on the given one."""
    if port:
        return socket.create_server(("127.0.0.1", port))
    for _ in range(ATTEMPTS):
        try:
            return socket.create_server(("127.0.0.1", _any()))
        except OSError:
            continue
    raise OSError(f"no free port on 127.0.0.1 between {FIRST} and {LAST}")


def _any() -> int:
    return FIRST + secrets.randbelow(LAST - FIRST + 1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
