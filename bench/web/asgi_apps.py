"""One small Starlette app, bare and behind each limiter: so many requests an hour, by address, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ratelimit import RateLimitMiddleware as AsgiRateLimit, Rule
from ratelimit.auths.ip import client_ip
from ratelimit.backends.simple import MemoryBackend
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from zae_limiter import Limit
from zae_limiter.web import Proxies
from zae_limiter.web.asgi import RateLimitMiddleware

PROXIES = Proxies(["127.0.0.1"], "x-real-ip")
"""Ours believes the same header as asgi-ratelimit does; slowapi reads none."""
Build: TypeAlias = Callable[[int], Starlette]


async def hello(request: Request) -> JSONResponse:
    """All that the app does."""
    return JSONResponse({"hello": "world"})


def bare(limit: int) -> Starlette:
    """Without a limiter."""
    return Starlette(routes=[Route("/", hello)])


def ours(headers: str) -> Build:
    """Two lines, as in the README."""

    def build(limit: int) -> Starlette:
        app = bare(limit)
        limits = [Limit.per_hour("rph", limit)]
        app.add_middleware(RateLimitMiddleware, "memory://", limits=limits, headers=headers, proxies=PROXIES)
        return app

    return build


def slowapi_decorator(headers: bool) -> Build:
    """Its quick start: a decorated route."""

    def build(limit: int) -> Starlette:
        limiter = Limiter(key_func=get_remote_address, headers_enabled=headers)
        return _with_slowapi(Starlette(routes=[Route("/", limiter.limit(f"{limit}/hour")(hello))]), limiter)

    return build


def slowapi_middleware(headers: bool) -> Build:
    """Its pure ASGI middleware, with a default limit for all routes."""

    def build(limit: int) -> Starlette:
        limiter = Limiter(key_func=get_remote_address, headers_enabled=headers, default_limits=[f"{limit}/hour"])
        app = _with_slowapi(bare(limit), limiter)
        app.add_middleware(SlowAPIASGIMiddleware)
        return app

    return build


def _with_slowapi(app: Starlette, limiter: Limiter) -> Starlette:
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    return app


def asgi_ratelimit(limit: int) -> Starlette:
    """Its middleware on its memory backend, by address as it reads it; it tells clients nothing unless it refuses."""
    app = bare(limit)
    app.add_middleware(
        AsgiRateLimit, authenticate=client_ip, backend=MemoryBackend(), config={r"^/": [Rule(hour=limit)]}
    )
    return app


APPS: dict[str, Build] = {
    "bare": bare,
    "zae-limiter": ours("ietf"),
    "zae-limiter, no headers": ours("none"),
    "slowapi, headers": slowapi_decorator(True),
    "slowapi": slowapi_decorator(False),
    "slowapi middleware, headers": slowapi_middleware(True),
    "slowapi middleware": slowapi_middleware(False),
    "asgi-ratelimit": asgi_ratelimit,
}
"""By name; a rival writes no headers unless its name says so."""
