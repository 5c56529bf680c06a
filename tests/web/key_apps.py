"""One app per framework that looks for API keys in every way in which apps do it, and then behaves as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from zae_limiter.web import asgi, wsgi

KNOWN = ("k1", "k2")
BEHAVIOUR = "x-behaviour"
Lines: TypeAlias = Callable[[str], list[str]]
"""The values of a header as the framework gives them."""


class AppError(Exception):
    """What an app raises."""


@dataclass(slots=True)
class Readings:
    """What the app of one request has found: the known keys, by who looks at schemes and by who does not."""

    reached: bool = False
    strict: set[str] = field(default_factory=set)
    careless: set[str] = field(default_factory=set)

    def behave(self, lines: Lines, *helped: str | None) -> int:
        """Note every key that an app could accept, and answer with a status or an exception, as the client wants it."""
        self.reached = True
        keys, credentials = lines("x-api-key"), lines("authorization")
        self.strict |= {*_plain(keys), *_bearer(credentials), *filter(None, helped)}.intersection(KNOWN)
        self.careless |= set(_any_scheme(credentials)).intersection(KNOWN)
        wanted = next(iter(lines(BEHAVIOUR)), "200")
        if wanted == "raise":
            raise AppError
        return int(wanted)


def _plain(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from (line, line.strip(), line.removeprefix("Bearer "))
        yield from (part.strip() for part in line.split(","))
    yield from (", ".join(lines), ",".join(lines))


def _bearer(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from (line, line.strip(), line.removeprefix("Bearer "))
    for line in (*lines, *(part.strip() for part in ",".join(lines).split(","))):
        scheme, _, rest = line.partition(" ")
        if scheme.lower() == "bearer":
            yield from (rest, rest.strip(), rest.split(",")[0].strip())
            yield from rest.split()


def _any_scheme(lines: list[str]) -> Iterator[str]:
    for line in lines:
        for words in (line.split(), line.split(" ")):
            yield from (words[1:2] + words[-1:]) if len(words) > 1 else words


def starlette(limiter: Any, readings: Readings, options: dict[str, Any]) -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def index(request: Request) -> PlainTextResponse:
        return PlainTextResponse("served", readings.behave(request.headers.getlist))

    middleware = [Middleware(asgi.RateLimitMiddleware, limiter=limiter, **options)]
    return Starlette(routes=[Route("/", index)], middleware=middleware)


def fastapi(limiter: Any, readings: Readings, options: dict[str, Any]) -> Any:
    from fastapi import Depends, FastAPI, Request, Response
    from fastapi.security import APIKeyHeader, HTTPBearer

    app = FastAPI()
    app.add_middleware(asgi.RateLimitMiddleware, limiter=limiter, **options)
    bearer, key = HTTPBearer(auto_error=False), APIKeyHeader(name="X-API-Key", auto_error=False)

    async def index(request: Request, found: Any, given: Any) -> Response:
        token = None if found is None else found.credentials
        return Response("served", readings.behave(request.headers.getlist, token, given))

    index.__annotations__ |= {
        "request": Request,
        "found": Annotated[Any, Depends(bearer)],
        "given": Annotated[Any, Depends(key)],
        "return": Response,
    }
    app.get("/")(index)
    return app


def litestar(limiter: Any, readings: Readings, options: dict[str, Any]) -> Any:
    from litestar import Litestar, Request, Response, get
    from litestar.middleware import DefineMiddleware

    middleware: Any = asgi.RateLimitMiddleware  # Litestar has types of its own for scopes and messages

    async def index(request: Any) -> Any:
        return Response("served", status_code=readings.behave(lambda name: request.headers.getall(name, [])))

    index.__annotations__ |= {"request": Request, "return": Response}
    return Litestar(
        [get("/")(index)],
        middleware=[DefineMiddleware(middleware, limiter=limiter, **options)],
        openapi_config=None,
        logging_config=None,
    )


def quart(limiter: Any, readings: Readings, options: dict[str, Any]) -> Any:
    from quart import Quart, Response, request

    app = Quart(__name__)
    app.asgi_app = asgi.RateLimitMiddleware(app.asgi_app, limiter, **options)  # type: ignore[assignment, arg-type]  # Quart's own way

    @app.get("/")
    async def index() -> Response:
        readings.reached = True  # what follows may fail
        found = request.authorization
        token = found.token if found and found.type == "bearer" else None
        status = readings.behave(request.headers.getlist, token)
        return Response("served", status)

    return app


def flask(limiter: Any, readings: Readings, options: dict[str, Any]) -> Any:
    from flask import Flask, Response, request

    app = Flask(__name__)
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, limiter, **options)  # type: ignore[method-assign]  # Flask's own way

    @app.get("/")
    def index() -> Response:
        readings.reached = True  # what follows may fail
        found = request.authorization
        token = found.token if found and found.type == "bearer" else None
        status = readings.behave(request.headers.getlist, token)
        return Response("served", status)

    return app


def _django(readings: Readings) -> None:
    import django
    from django.conf import settings
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["testserver"], SECRET_KEY="for tests only", LOGGING_CONFIG=None)
        django.setup()

    def index(request: HttpRequest) -> HttpResponse:
        def lines(name: str) -> list[str]:
            found = request.headers.get(name)
            return [] if found is None else [found]

        return HttpResponse("served", status=readings.behave(lines))

    settings.ROOT_URLCONF = (path("", index),)


def django_asgi(limiter: Any, readings: Readings, options: dict[str, Any]) -> Any:
    from django.core.handlers.asgi import ASGIHandler

    _django(readings)
    return asgi.RateLimitMiddleware(ASGIHandler(), limiter, **options)


def django_wsgi(limiter: Any, readings: Readings, options: dict[str, Any]) -> Any:
    from django.core.handlers.wsgi import WSGIHandler

    _django(readings)
    return wsgi.RateLimitMiddleware(WSGIHandler(), limiter, **options)


KEY_APPS: dict[str, tuple[str, Callable[[Any, Readings, dict[str, Any]], Any]]] = {
    "starlette": ("asgi", starlette),
    "fastapi": ("asgi", fastapi),
    "litestar": ("asgi", litestar),
    "quart": ("asgi", quart),
    "django-asgi": ("asgi", django_asgi),
    "flask": ("wsgi", flask),
    "django-wsgi": ("wsgi", django_wsgi),
}
"""The mode and the app of each."""
