"""One call of an app, ASGI or WSGI, and the stage that it plays on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import Response

from tests.web.servers.stage import Stage
from zae_limiter import Lease, Limit, SyncLease
from zae_limiter.web import MessageLimit, lease_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Write = Callable[[bytes], object]

HELLO = b"hello"
CHUNKS = [b"chunk %d\n" % number for number in range(5)]
FLOOD = b"x" * 262_144
MOST = 200
"""Chunks of a flood: more than all buffers between app and client can hold."""
PER_CHUNK = 10
"""Tokens that a chunk of a counted stream costs."""


FIVE = [Limit.concurrent("parallel", 5, ttl=600), Limit.custom("tpm", 100_000, 1, 86_400)]
"""Five calls in flight, whose slots do not come back by themselves while a test runs."""


class AppError(Exception):
    """Something that the app did not expect."""


@dataclass(frozen=True, slots=True)
class AsgiCall:
    """One call of the app, and the stage it plays on."""

    scope: Message
    receive: Receive
    send: Callable[[Message], Awaitable[None]]
    stage: Stage
    messages: MessageLimit | None = None

    @property
    def client(self) -> str:
        """Who calls."""
        found: bytes = dict(self.scope["headers"])[b"x-client"]
        return found.decode()

    @property
    def lease(self) -> Lease:
        """What was taken for the call."""
        found: Lease = lease_of(self.scope)
        return found

    def number(self, name: str) -> int:
        """A number from the query string."""
        return int(parse_qs(self.scope["query_string"].decode())[name][0])

    def note(self, name: str, text: object = "") -> None:
        """Tell the test."""
        self.stage.note(self.client, name, text)

    async def sign(self, name: str, count: int = 1) -> None:
        """Wait for the test."""
        await self.stage.wait_async(self.client, name, count)

    async def start(self, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Begin the answer."""
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def body(self, data: bytes, *, more: bool = False) -> None:
        """A part of the body, or its end."""
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, data: bytes, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """An answer of known length."""
        await self.start(status, [(b"content-length", b"%d" % len(data)), *headers])
        await self.body(data)

    async def by(self, response: Response) -> None:
        """An answer made by Starlette."""
        await response(self.scope, self.receive, self.send)


@dataclass(frozen=True, slots=True)
class WsgiCall:
    """One call of the app, and the stage it plays on."""

    environ: dict[str, Any]
    start_response: Callable[[str, list[tuple[str, str]]], Write]
    stage: Stage

    @property
    def client(self) -> str:
        """Who calls."""
        found: str = self.environ["HTTP_X_CLIENT"]
        return found

    @property
    def lease(self) -> SyncLease:
        """What was taken for the call."""
        found: SyncLease = lease_of(self.environ)
        return found

    def number(self, name: str) -> int:
        """A number from the query string."""
        return int(parse_qs(self.environ["QUERY_STRING"])[name][0])

    def note(self, name: str, text: object = "") -> None:
        """Tell the test."""
        self.stage.note(self.client, name, text)

    def sign(self, name: str, count: int = 1) -> None:
        """Wait for the test."""
        self.stage.wait(self.client, name, count)

    def start(self, status: str = "200 OK", headers: Iterable[tuple[str, str]] = ()) -> Write:
        """Begin the answer."""
        return self.start_response(status, list(headers))

    def whole(self, data: bytes, status: str = "200 OK", headers: Iterable[tuple[str, str]] = ()) -> list[bytes]:
        """An answer of known length."""
        self.start(status, [("Content-Length", str(len(data))), *headers])
        return [data]
