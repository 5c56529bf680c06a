"""A stand-in for Cloudflare's REST API over a real socket: the two endpoints of Workers KV as they are documented."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

ACCOUNT = "023e105f4ecef8ad9ca31a8372d0c353"
NAMESPACE = "0f2ac74b498b48028cb68387c421e279"
TOKEN = "v1.secret-token_0123456789"
VALUES = f"/client/v4/accounts/{ACCOUNT}/storage/kv/namespaces/{NAMESPACE}/values/"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Cloud:
    """Keeps values, and misbehaves as it is told: a status for a method, ``"hang up"`` or ``"slow"``."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.ttls: dict[str, int] = {}
        self.asked: list[Asked] = []
        self.trouble: dict[str, int | str] = {}
        self.release = threading.Event()

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/client/v4"

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"cloud": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave before the answer are what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65_536  # an answer leaves as one packet, so that nobody waits for an acknowledgement
    cloud: Cloud

    def do_GET(self) -> None:
        self._handle(b"")

    def do_PUT(self) -> None:
        self._handle(self.rfile.read(int(self.headers["content-length"])))

    def _handle(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.cloud.asked.append(Asked(self.command, self.path, headers, body))
        trouble = self.cloud.trouble.get(self.command)
        if trouble == "hang up":
            self.close_connection = True
        elif isinstance(trouble, int):
            self._answer(trouble, _envelope(trouble, "something is wrong"))
        else:
            if trouble == "slow":
                self.cloud.release.wait()
            self._serve(body)

    def _serve(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            self._answer(401, _envelope(10000, "Authentication error"))
        elif not parts.path.startswith(VALUES):
            self._answer(404, _envelope(10013, "namespace not found"))
        elif self.command == "GET":
            found = self.cloud.values.get(unquote(parts.path.removeprefix(VALUES)))
            self._answer(404, _envelope(10009, "get: 'key not found'")) if found is None else self._answer(200, found)
        else:
            key = unquote(parts.path.removeprefix(VALUES))
            self.cloud.values[key] = body
            self.cloud.ttls[key] = int(parse_qs(parts.query)["expiration_ttl"][0])
            self._answer(200, json.dumps({"success": True, "errors": [], "messages": [], "result": {}}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _envelope(code: int, message: str) -> bytes:
    errors = [{"code": code, "message": message}]
    return json.dumps({"success": False, "errors": errors, "messages": [], "result": None}).encode()
