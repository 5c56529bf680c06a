"""One request over HTTP/2 without TLS: what HTTP/1.1 has no place for, early hints and trailers."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    TrailersReceived,
)

from tests.support.deadlines import PATIENCE


@dataclass
class Heard:
    """An answer with what came before and after it."""

    hints: list[dict[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    ended: bool = False

    def take(self, event: Event) -> None:
        """Note one event."""
        match event:
            case InformationalResponseReceived(headers=headers):
                self.hints.append(_texts(headers))
            case ResponseReceived(headers=headers):
                self.headers = _texts(headers)
            case DataReceived(data=data) if data:
                self.body += data
            case TrailersReceived(headers=headers):
                self.trailers = _texts(headers)
            case StreamEnded():
                self.ended = True


def _texts(headers: Iterable[tuple[bytes, bytes]] | None) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers or ()}


def get(port: int, path: str, client: str) -> Heard:
    """Ask for ``path``, ready for trailers."""
    wire = H2Connection(H2Configuration(client_side=True))
    wire.initiate_connection()
    asked = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "localhost", "x-client": client}
    wire.send_headers(1, [*asked.items(), ("te", "trailers")], end_stream=True)
    heard = Heard()
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as line:
        while not heard.ended:
            line.sendall(wire.data_to_send())
            for event in wire.receive_data(line.recv(65_536)):
                heard.take(event)
    return heard
