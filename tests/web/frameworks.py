"""One small app in each framework, behind the middleware in the way that the framework documents.

Every app has ``/`` (its request cost 5 tokens more than estimated), ``/stream`` (1 more per chunk), ``/inside`` (takes
from another budget, of which there is enough once), ``/v1/chat`` and ``/health``; each notes that it was called. Only
Starlette and FastAPI let a refusal inside the app through to the middleware; elsewhere a handler answers it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request as FastAPIRequest
from litestar import Litestar, Request as LitestarRequest, Response as LitestarResponse, get, route
from litestar.enums import HttpMethod, MediaType
from litestar.middleware import DefineMiddleware
from litestar.response import Stream

from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.web import Rule, answer_of, asgi, lease_of, wsgi

RPM = Limit.per_day("rpm", 2)
TPM = Limit.per_day("tpm", 1_000)
CHAT = Limit.per_day("rpm", 100)
ONCE = Limit.per_day("once", 1)
CHUNKS = [b"one", b"two", b"three"]
RULES = [
    Rule("/health", exempt=True),
    Rule("/v1/chat", limits=[CHAT], resource="chat"),
    Rule(limits=[RPM, TPM], cost={"rpm": 1, "tpm": 100}, resource="site"),
]


@dataclass(slots=True)
class Handlers:
    """What the handlers of every framework do, as coroutines and without."""

    calls: list[str] = field(default_factory=list)

    async def index(self, request: Any) -> str:
        await lease_of(request).adjust(tpm=5)
        return self.note("index")

    def index_sync(self, request: Any) -> str:
        lease_of(request).adjust(tpm=5)
        return self.note("index")

    async def inside(self, request: Any) -> str:
        await asgi.acquire(request, "org", "llm", {"once": 1}, [ONCE])
        return self.note("inside")

    def inside_sync(self, request: Any) -> str:
        wsgi.acquire(request, "org", "llm", {"once": 1}, [ONCE])
        return self.note("inside")

    async def stream(self, request: Any) -> AsyncIterator[bytes]:
        lease = lease_of(request)
        for chunk in CHUNKS:
            yield chunk
            await lease.adjust(tpm=1)
        self.note("stream")

    def stream_sync(self, request: Any) -> Iterator[bytes]:
        lease = lease_of(request)
        for chunk in CHUNKS:
            yield chunk
            lease.adjust(tpm=1)
        self.note("stream")

    def note(self, name: str) -> str:
        """Say that a handler was called."""
        self.calls.append(name)
        return name


def starlette(limiter: Any, handlers: Handlers) -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    async def index(request: Request) -> Any:
        return PlainTextResponse(await handlers.index(request))

    async def inside(request: Request) -> Any:
        return PlainTextResponse(await handlers.inside(request))

    async def stream(request: Request) -> Any:
        return StreamingResponse(handlers.stream(request))

    async def chat(request: Request) -> Any:
        return PlainTextResponse(handlers.note("chat"))

    async def health(request: Request) -> Any:
        return PlainTextResponse(handlers.note("health"))

    routes = [
        Route("/", index),
        Route("/inside", inside),
        Route("/stream", stream),
        Route("/v1/chat", chat, methods=["GET", "POST"]),
        Route("/health", health),
    ]
    return Starlette(routes=routes, middleware=[Middleware(asgi.RateLimitMiddleware, limiter=limiter, rules=RULES)])


def fastapi(limiter: Any, handlers: Handlers) -> Any:
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    app.add_middleware(asgi.RateLimitMiddleware, limiter=limiter, rules=RULES)

    @app.get("/")
    async def index(request: FastAPIRequest) -> str:
        return await handlers.index(request)

    @app.get("/inside")
    async def inside(request: FastAPIRequest) -> str:
        return await handlers.inside(request)

    @app.get("/stream", response_model=None)
    async def stream(request: FastAPIRequest) -> Any:
        return StreamingResponse(handlers.stream(request))

    @app.get("/health")
    async def health() -> str:
        return handlers.note("health")

    @app.api_route("/v1/chat", methods=["GET", "POST"])
    async def chat() -> str:
        return handlers.note("chat")

    return app


def litestar(limiter: Any, handlers: Handlers) -> Any:
    middleware: Any = asgi.RateLimitMiddleware  # Litestar has types of its own for scopes and messages

    @get("/", media_type=MediaType.TEXT)
    async def index(request: LitestarRequest[Any, Any, Any]) -> str:
        return await handlers.index(request)

    @get("/inside", media_type=MediaType.TEXT)
    async def inside(request: LitestarRequest[Any, Any, Any]) -> str:
        return await handlers.inside(request)

    @get("/stream", media_type=MediaType.TEXT)
    async def stream(request: LitestarRequest[Any, Any, Any]) -> Stream:
        return Stream(handlers.stream(request))

    @get("/health", media_type=MediaType.TEXT)
    async def health() -> str:
        return handlers.note("health")

    @route("/v1/chat", http_method=[HttpMethod.GET, HttpMethod.POST], media_type=MediaType.TEXT, status_code=200)
    async def chat() -> str:
        return handlers.note("chat")

    def refused(request: LitestarRequest[Any, Any, Any], error: Exception) -> LitestarResponse[bytes]:
        answer = answer_of(request, error)
        return LitestarResponse(answer.body, status_code=answer.status, headers=dict(answer.headers))

    return Litestar(
        [index, inside, stream, health, chat],
        middleware=[DefineMiddleware(middleware, limiter=limiter, rules=RULES)],
        exception_handlers={RateLimitExceeded: refused},
        openapi_config=None,
    )


def quart(limiter: Any, handlers: Handlers) -> Any:
    from quart import Quart, Response, request

    app = Quart(__name__)
    app.asgi_app = asgi.RateLimitMiddleware(app.asgi_app, limiter, rules=RULES)  # type: ignore[assignment, arg-type]  # Quart's own way

    @app.get("/")
    async def index() -> str:
        return await handlers.index(request)

    @app.get("/inside")
    async def inside() -> str:
        return await handlers.inside(request)

    @app.get("/stream")
    async def stream() -> Response:
        return Response(handlers.stream(request._get_current_object()))  # type: ignore[attr-defined]  # of a proxy

    @app.get("/health")
    async def health() -> str:
        return handlers.note("health")

    @app.route("/v1/chat", methods=["GET", "POST"])
    async def chat() -> str:
        return handlers.note("chat")

    @app.errorhandler(RateLimitExceeded)
    async def refused(error: Exception) -> Response:
        answer = answer_of(request, error)
        return Response(answer.body, answer.status, dict(answer.headers))

    return app


def flask(limiter: Any, handlers: Handlers) -> Any:
    from flask import Flask, Response, request

    app = Flask(__name__)
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, limiter, rules=RULES)  # type: ignore[method-assign]  # Flask's own way

    @app.get("/")
    def index() -> str:
        return handlers.index_sync(request)

    @app.get("/inside")
    def inside() -> str:
        return handlers.inside_sync(request)

    @app.get("/stream")
    def stream() -> Response:
        return Response(handlers.stream_sync(request._get_current_object()))  # type: ignore[attr-defined]  # of a proxy

    @app.get("/health")
    def health() -> str:
        return handlers.note("health")

    @app.route("/v1/chat", methods=["GET", "POST"])
    def chat() -> str:
        return handlers.note("chat")

    @app.errorhandler(RateLimitExceeded)
    def refused(error: Exception) -> Response:
        answer = answer_of(request, error)
        return Response(answer.body, answer.status, list(answer.headers))

    return app


def _django(handlers: Handlers, *, is_async: bool) -> None:
    """Point Django, whose settings are one for the process, to the handlers."""
    import django
    from django.conf import settings
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import path

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["testserver"], SECRET_KEY="for tests only", LOGGING_CONFIG=None)
        django.setup()

    async def index(request: Any) -> Any:
        return HttpResponse(await handlers.index(request))

    async def inside(request: Any) -> Any:
        try:
            return HttpResponse(await handlers.inside(request))
        except RateLimitExceeded as error:
            return refused(request, error)

    def inside_sync(request: Any) -> Any:
        try:
            return HttpResponse(handlers.inside_sync(request))
        except RateLimitExceeded as error:
            return refused(request, error)

    def refused(request: Any, error: Exception) -> Any:
        answer = answer_of(request, error)
        return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))

    views: dict[str, Any] = {
        "": index if is_async else lambda request: HttpResponse(handlers.index_sync(request)),
        "inside": inside if is_async else inside_sync,
        "stream": lambda request: StreamingHttpResponse(
            handlers.stream(request) if is_async else handlers.stream_sync(request)
        ),
        "v1/chat": lambda request: HttpResponse(handlers.note("chat")),
        "health": lambda request: HttpResponse(handlers.note("health")),
    }
    settings.ROOT_URLCONF = tuple(path(where, view) for where, view in views.items())


def django_asgi(limiter: Any, handlers: Handlers) -> Any:
    from django.core.handlers.asgi import ASGIHandler

    _django(handlers, is_async=True)
    return asgi.RateLimitMiddleware(ASGIHandler(), limiter, rules=RULES)


def django_wsgi(limiter: Any, handlers: Handlers) -> Any:
    from django.core.handlers.wsgi import WSGIHandler

    _django(handlers, is_async=False)
    return wsgi.RateLimitMiddleware(WSGIHandler(), limiter, rules=RULES)


FRAMEWORKS: dict[str, tuple[str, Callable[[Any, Handlers], Any]]] = {
    "starlette": ("asgi", starlette),
    "fastapi": ("asgi", fastapi),
    "litestar": ("asgi", litestar),
    "quart": ("asgi", quart),
    "django-asgi": ("asgi", django_asgi),
    "flask": ("wsgi", flask),
    "django-wsgi": ("wsgi", django_wsgi),
}
"""The mode and the app of each."""
