"""Middleware on the key-value limiter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.web.drive import PEER, Call, Reply, call_asgi, call_wsgi
from zae_limiter import Limit, ValidationError
from zae_limiter.kv import ClientIdentity, DictRepository, EnforceRateLimit, RateLimitPolicy, SyncEnforceRateLimit
from zae_limiter.testing import ManualClock
from zae_limiter.web import asgi, wsgi
from zae_limiter.web.kv import AsgiKVMiddleware, WsgiKVMiddleware

POLICY = RateLimitPolicy.create(2)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


def hello_too(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


class Site:
    """One app behind the middleware, in either mode."""

    def __init__(self, mode: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.states = DictRepository(clock=self.clock)
        self._mode = mode
        if mode == "asgi":
            inner = options.pop("inner", hello)
            self._app: Any = AsgiKVMiddleware(inner, EnforceRateLimit(self.states, POLICY, self.clock), **options)
        else:
            inner = options.pop("inner", hello_too)
            self._app = WsgiKVMiddleware(inner, SyncEnforceRateLimit(self.states, POLICY, self.clock), **options)

    def ask(self, **fields: Any) -> Reply:
        call = Call("/", **fields)
        return asyncio.run(call_asgi(self._app, call)) if self._mode == "asgi" else call_wsgi(self._app, call)


@pytest.fixture(params=["asgi", "wsgi"])
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_an_address_has_so_many_requests_a_minute(mode: str) -> None:
    site = Site(mode)
    replies = [site.ask() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert [reply.header("ratelimit") for reply in replies] == [
        f'"rpm";r={r};t={t}' for r, t in ((1, 30), (0, 60), (0, 30))
    ]
    told = replies[2].problem()
    assert (told["error"], told["retryAfter"], told["limit"], told["remaining"]) == ("Rate Limit Exceeded", 30, 2, 0)
    assert told["resetTime"] == site.clock.now_ms() + 30_000
    assert replies[2].header("retry-after") == "30"
    site.clock.advance(29.999)
    assert site.ask().status == 429
    site.clock.advance(0.001)
    assert site.ask().status == 200


def test_the_state_is_under_the_key_of_the_address(mode: str) -> None:
    site = Site(mode)
    site.ask()
    found = asyncio.run(site.states.get(ClientIdentity.from_ip(PEER).kv_key))
    assert found is not None
    assert found.tokens == 1


def test_a_header_is_believed_from_a_trusted_peer_only(mode: str) -> None:
    for proxies, statuses in ((None, [200, 200, 429]), ([PEER], [200, 200, 200])):
        site = Site(mode, proxies=proxies)
        asked = [site.ask(headers=[("x-forwarded-for", f"203.0.113.{n}")]).status for n in range(3)]
        assert asked == statuses


def test_a_refusal_of_a_head_has_no_body(mode: str) -> None:
    site = Site(mode)
    replies = [site.ask(method="HEAD") for _ in range(3)]
    assert (replies[2].status, replies[2].body) == (429, b"")


def test_fields_are_sent_once_around_another_middleware(mode: str) -> None:
    limits = [Limit.per_minute("rpm", 100)]
    inner: Any = asgi.RateLimitMiddleware(hello, "memory://", limits=limits)
    if mode == "wsgi":
        inner = wsgi.RateLimitMiddleware(hello_too, "memory://", limits=limits)
    reply = Site(mode, inner=inner).ask()
    assert reply.lines("ratelimit-policy") == ['"rpm";q=100;w=60']
    assert len(reply.lines("ratelimit")) == 1


def test_the_wrong_use_case_is_refused_at_once() -> None:
    with pytest.raises(ValidationError, match="must be of type EnforceRateLimit"):
        AsgiKVMiddleware(hello, SyncEnforceRateLimit(DictRepository()))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValidationError, match="must be of type SyncEnforceRateLimit"):
        WsgiKVMiddleware(hello_too, EnforceRateLimit(DictRepository()))  # type: ignore[arg-type]  # what is tested
