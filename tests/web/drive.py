"""Apps asked without a server, by calls that check what a server relies on: ASGI's order, and `wsgiref.validate`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

if TYPE_CHECKING:
    from zae_limiter.web.asgi import Message

PEER = "192.0.2.1"

Raw: TypeAlias = dict[str, Any]
Line: TypeAlias = tuple[str, str]


class Gone(OSError):
    """What a server raises in an app that sends to a client who has gone."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request. ``stays`` is how many chunks the client reads before it leaves; ``loud`` servers tell the app so."""

    path: str = "/"
    method: str = "GET"
    headers: Sequence[Line] = ()
    peer: str | None = PEER
    body: bytes = b""
    user: str | None = None
    root: str = ""
    stays: int | None = None
    loud: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else is in the scope or the environment."""

    def scope(self, kind: str = "http") -> Raw:
        """As an ASGI server has it."""
        lines = (("host", "testserver"), *self.headers)
        scope = {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": self.root,
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in lines],
            "client": None if self.peer is None else (self.peer, 40_000),
            "server": ("testserver", 80),
            "extensions": {},
            "state": {},
            **self.extra,
        }
        return scope if self.user is None else {**scope, "user": self.user}

    def environ(self) -> Raw:
        """As a WSGI server has it."""
        path = self.path.encode().decode("latin-1")
        environ: Raw = {"REQUEST_METHOD": self.method, "SCRIPT_NAME": self.root, "PATH_INFO": path, "QUERY_STRING": ""}
        setup_testing_defaults(environ)
        environ |= {"HTTP_HOST": "testserver", "SERVER_NAME": "testserver", "wsgi.multithread": True}
        for name, value in self.headers:
            key = f"HTTP_{name.upper().replace('-', '_')}"
            environ[key] = f"{environ[key]},{value}" if key in environ else value
        if self.peer is not None:
            environ["REMOTE_ADDR"] = self.peer
        if self.user is not None:
            environ["REMOTE_USER"] = self.user
        return {**environ, **self.extra}


@dataclass(slots=True)
class Reply:
    """What the client got; ``error`` is what the server got instead of the rest."""

    status: int = 0
    headers: list[Line] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False
    error: BaseException | None = None

    @property
    def body(self) -> bytes:
        """All chunks together."""
        return b"".join(self.chunks)

    def lines(self, name: str) -> list[str]:
        """The values of a header, line by line."""
        return [value for found, value in self.headers if found.lower() == name]

    def header(self, name: str) -> str | None:
        """The value of a header that is there once or not at all."""
        lines = self.lines(name)
        assert len(lines) < 2, f"{name} is there {len(lines)} times"
        return lines[0] if lines else None

    def problem(self) -> dict[str, Any]:
        """The body of a refusal."""
        assert self.header("content-type") == "application/problem+json"
        assert self.header("content-length") == str(len(self.body))
        assert self.header("cache-control") == "no-store"
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        return found

    def told(self) -> str:
        """Everything that went to the client, as one text."""
        return "\n".join([*(f"{name}: {value}" for name, value in self.headers), self.body.decode("latin-1")])


async def call_asgi(app: Any, call: Call, scope: Raw | None = None) -> Reply:
    """Ask an ASGI app as a server would."""
    reply = Reply()
    requests = [{"type": "http.request", "body": call.body, "more_body": False}]
    over = asyncio.Event()
    if call.stays == 0:
        over.set()

    async def receive() -> Any:
        await asyncio.sleep(0)
        if requests:
            return requests.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        assert not reply.complete, "sent after the end"
        if call.stays is not None and len(reply.chunks) >= call.stays:
            over.set()
            if call.loud:
                raise Gone("the client has gone")
            return
        if _ends(reply, message):
            over.set()

    try:
        await app(call.scope() if scope is None else scope, receive, send)
    except Exception as error:
        reply.error = error
    return reply


def _ends(reply: Reply, message: Message) -> bool:
    """Take a message of an answer, which must come in its turn, and say whether it is the last one."""
    if message["type"] == "http.response.start":
        assert not reply.status, "started twice"
        reply.status = message["status"]
        reply.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        return False
    assert message["type"] == "http.response.body", message
    assert reply.status, "a body before the start"
    chunk = message.get("body", b"")
    reply.chunks += [chunk] if chunk else []
    reply.complete = not message.get("more_body", False)
    return reply.complete


def call_wsgi(app: Any, call: Call, environ: Raw | None = None, *, strictly: bool = True) -> Reply:
    """Ask a WSGI app as a server would; ``strictly`` keeps it to the specification."""
    reply = Reply()

    def start_response(status: str, headers: list[Line], exc_info: Any = None) -> Callable[[bytes], None]:
        if exc_info and reply.chunks:
            raise exc_info[1]
        assert exc_info or not reply.status, "started twice"
        reply.status, reply.headers = int(status.split(" ", 1)[0]), headers
        return reply.chunks.append

    body: Iterable[bytes] = ()
    try:
        body = (validator(app) if strictly else app)(call.environ() if environ is None else environ, start_response)
        for chunk in body if call.stays != 0 else ():
            assert reply.status, "a body before the start"
            reply.chunks += [chunk] if chunk else []
            if call.stays is not None and len(reply.chunks) >= call.stays:
                break
        else:
            reply.complete = call.stays != 0
    except Exception as error:
        reply.error = error
    finally:
        getattr(body, "close", lambda: None)()
    return reply
