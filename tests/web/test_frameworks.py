"""The middleware in every framework that it is for, with the framework's own request objects and its own routing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.web.drive import PEER, Call, Reply, call_asgi, call_wsgi
from tests.web.frameworks import CHAT, CHUNKS, FRAMEWORKS, ONCE, RPM, TPM, Handlers
from tests.web.scripted import limiter_for
from tests.web.test_templates import SPELLINGS
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import asgi, by_user

IP = f"ip:{PEER}"


@dataclass(frozen=True, slots=True)
class Served:
    """A framework's app at work; ``ledger`` is a limiter on its data."""

    mode: str
    app: Any
    handlers: Handlers
    ledger: SyncRateLimiter

    def ask(self, path: str = "/", **fields: Any) -> Reply:
        """One request; whatever comes out of the app besides an answer fails the test."""
        call = Call(path, **fields)
        strictly = path.startswith("/") and call.method.isupper()
        reply = (
            asyncio.run(call_asgi(self.app, call))
            if self.mode == "asgi"
            else call_wsgi(self.app, call, strictly=strictly)
        )
        if reply.error is not None:
            raise reply.error
        return reply

    def left(self, resource: str, *limits: Limit, who: str = IP) -> Mapping[str, int]:
        """A balance."""
        return self.ledger.available(who, resource, limits=limits)


@pytest.fixture(params=FRAMEWORKS)
def served(request: pytest.FixtureRequest) -> Served:
    """The app of each framework on a store of its own."""
    mode, build = FRAMEWORKS[request.param]
    store = MemoryStore(ManualClock())
    handlers = Handlers()
    return Served(mode, build(limiter_for(mode, store), handlers), handlers, SyncRateLimiter(store))


def test_two_pass_and_the_third_is_refused(served: Served) -> None:
    replies = [served.ask() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert [reply.body.strip(b'"') for reply in replies[:2]] == [b"index"] * 2
    assert served.handlers.calls == ["index"] * 2
    assert [reply.header("ratelimit-policy") for reply in replies] == ['"rpm";q=2;w=86400'] * 3
    assert [(reply.header("ratelimit") or "").split(";t=")[0] for reply in replies] == [
        f'"rpm";r={r}' for r in (1, 0, 0)
    ]
    assert replies[2].problem()["violated-policies"] == ["rpm"]
    assert int(replies[2].header("retry-after") or 0) >= 1
    assert served.left("site", RPM, TPM) == {"rpm": 0, "tpm": 790}


def test_a_stream_is_settled_when_it_ends(served: Served) -> None:
    reply = served.ask("/stream")
    assert (reply.status, reply.chunks, reply.complete) == (200, CHUNKS, True)
    assert reply.header("ratelimit") is not None
    assert served.handlers.calls == ["stream"]
    assert served.left("site", RPM, TPM) == {"rpm": 1, "tpm": 897}


def test_a_stream_that_nobody_reads_on_is_settled_with_what_was_sent(served: Served) -> None:
    """The framework may make a chunk or two that nobody gets."""
    reply = served.ask("/stream", stays=1, loud=False) if served.mode == "asgi" else served.ask("/stream", stays=1)
    assert reply.chunks == CHUNKS[:1]
    left = served.left("site", RPM, TPM)
    assert left["rpm"] == 1
    assert 897 <= left["tpm"] <= 900


def test_a_refusal_inside_the_app_can_be_answered(served: Served) -> None:
    assert served.ask("/inside").status == 200
    assert served.left("llm", ONCE, who="org") == {"once": 0}
    reply = served.ask("/inside")
    assert reply.status == 429
    assert reply.problem()["violated-policies"] == ["once"]
    assert served.handlers.calls == ["inside"]


def test_an_exempt_path_is_free(served: Served) -> None:
    reply = served.ask("/health")
    assert (reply.status, reply.header("ratelimit"), served.handlers.calls) == (200, None, ["health"])


@pytest.mark.parametrize("method", ["GET", "POST", "post", "HEAD"])
def test_whatever_reaches_the_handler_is_limited(served: Served, method: str) -> None:
    """One resource spelt in many ways: whoever is served has paid from its budget, and for nothing twice."""
    reached = []
    for number, path in enumerate(("/v1/chat", *SPELLINGS.values())):
        if served.mode == "wsgi" and not path.startswith("/"):
            continue
        peer = f"198.51.100.{number}"
        served.ask(path, method=method, peer=peer)
        if served.handlers.calls:
            reached.append(path)
            assert served.left("chat", CHAT, who=f"ip:{peer}") == {"rpm": 99}, path
            served.handlers.calls.clear()
    assert "/v1/chat" in reached or method in ("post", "HEAD")


def test_only_what_the_framework_takes_for_the_exempt_path_is_free(served: Served) -> None:
    """Litestar tidies paths up, and asks no middleware where it has no route; elsewhere only the plain one is free."""
    tidied = type(served.app).__name__ == "Litestar"
    for number, path in enumerate(SPELLINGS.values()):
        odd = path.replace("v1/chat", "health").replace("V1/CHAT", "HEALTH").replace("v1/Chat", "Health")
        if served.mode == "wsgi" and not odd.startswith("/"):
            continue
        served.handlers.calls.clear()
        limited = served.ask(odd, peer=f"198.51.100.{number}").header("ratelimit") is not None
        assert limited or (tidied and served.handlers.calls in ([], ["health"])), odd


async def test_a_user_of_starlette_is_known() -> None:
    from starlette.applications import Starlette
    from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
    from starlette.middleware import Middleware
    from starlette.middleware.authentication import AuthenticationMiddleware
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    class Named(AuthenticationBackend):
        async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
            name = conn.headers.get("x-name")
            return (AuthCredentials(), SimpleUser(name)) if name else None

    async def index(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    limiter = RateLimiter(MemoryStore(ManualClock()))
    app = Starlette(
        routes=[Route("/", index)],
        middleware=[
            Middleware(AuthenticationMiddleware, backend=Named()),
            Middleware(asgi.RateLimitMiddleware, limiter=limiter, limits=[RPM], key=by_user()),
        ],
    )
    for headers in ([("x-name", "ann")], [("x-name", "ann")], []):
        assert (await call_asgi(app, Call(headers=headers))).status == 200
    assert (await call_asgi(app, Call(headers=[("x-name", "ann")]))).status == 429
    assert await limiter.available("user:ann", "http", limits=[RPM]) == {"rpm": 0}
    assert await limiter.available(IP, "http", limits=[RPM]) == {"rpm": 1}
