"""Apps that answer with the entity that a request was charged to, by the proxies that its path names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.web.forged_headers import PEER
from tests.web.spoofs import CF, FWD, REAL, XFF
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.web import Identity, Proxies, Request, asgi, by_ip, wsgi

PLENTY = Limit.per_day("rpm", 10**9)
CHARGED = "tests.charged"
TRUSTED: dict[str, tuple[Proxies, int]] = {
    "/one": (Proxies(1), 1),
    "/list": (Proxies([PEER]), 1),
    "/two": (Proxies(2), 2),
    "/forwarded": (Proxies(1, FWD), 1),
    "/real": (Proxies([PEER], REAL), 1),
    "/cloudflare": (Proxies(1, CF), 1),
}
"""By path: who is trusted, and how many proxies a request passes."""
assert {proxies.header for proxies, _ in TRUSTED.values()} == {XFF, FWD, REAL, CF}


def _note_charged(request: Request) -> Identity:
    identity = by_ip(128)(request)
    request.raw[CHARGED] = identity.entity_id
    return identity


def wsgi_site() -> Any:
    """The WSGI app."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ[CHARGED].encode()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    limiter = SyncRateLimiter("memory://")
    sites = {
        path: wsgi.RateLimitMiddleware(answer, limiter, limits=[PLENTY], key=_note_charged, proxies=proxies)
        for path, (proxies, _) in TRUSTED.items()
    }
    return lambda environ, start_response: sites[environ["PATH_INFO"]](environ, start_response)


def asgi_site() -> Any:
    """The ASGI app."""

    async def answer(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope[CHARGED].encode()})

    limiter = RateLimiter("memory://")
    sites = {
        path: asgi.RateLimitMiddleware(answer, limiter, limits=[PLENTY], key=_note_charged, proxies=proxies)
        for path, (proxies, _) in TRUSTED.items()
    }

    async def choose(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        await sites[scope["path"]](scope, receive, send)

    return choose
