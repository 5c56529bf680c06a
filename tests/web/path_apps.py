"""One app per framework with the same routes, each of which has a rule of its own, in the ways in which apps are put
behind prefixes. A handler notes which route it is for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zae_limiter import Limit
from zae_limiter.web import Rule, asgi, wsgi

PLENTY = Limit.per_day("rpm", 10**9)
ROUTES = {
    "root": "/",
    "chat": "/v1/chat",
    "name": "/v1/{name}",
    "item": "/items/{id}",
    "number": "/numbers/{n:int}",
    "raw": "/files/{rest:path}/raw",
    "files": "/files/{rest:path}",
    "report": "/reports/{year}-{month}.json",
    "slash": "/dir/",
    "health": "/health",
    "rest": "/{anything:path}",
}
"""Routes in the order in which a router tries them. ``health`` is exempt, and ``rest`` is what no other rule is for."""

Served: TypeAlias = list[str]
Build: TypeAlias = Callable[[Any, Served], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """An app as it is put behind prefixes. ``root`` is the server's prefix, and ``tags`` are the routes that it has.

    ``lifespan``: it has to be started.
    """

    build: Build
    root: str = ""
    tags: frozenset[str] = frozenset(ROUTES)
    around: Callable[[], Any] = field(default=nullcontext)
    lifespan: bool = False


def find_rules(tags: Collection[str] = ROUTES, prefix: str = "") -> list[Rule]:
    """The rules of routes, and of everything else."""
    rules = [
        Rule(prefix + template, exempt=tag == "health", limits=[PLENTY], resource=tag)
        for tag, template in ROUTES.items()
        if tag in tags and tag != "rest"
    ]
    return [*rules, Rule(limits=[PLENTY], resource="rest")]


RULES = find_rules()


def respelt(template: str, pattern: str, kinds: dict[str, str]) -> str:
    """A template in the language of a framework."""

    def placeholder(found: re.Match[str]) -> str:
        return pattern.format(name=found[1], kind=kinds[found[2] or "str"])

    return re.sub(r"\{(\w+)(?::(\w+))?\}", placeholder, template)


# Starlette and FastAPI


def _starlette_routes(served: Served) -> list[Any]:
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def handler(tag: str) -> Any:
        async def serve(request: Request) -> PlainTextResponse:
            served.append(tag)
            return PlainTextResponse(tag)

        return serve

    return [Route(template, handler(tag)) for tag, template in ROUTES.items()]


def starlette_inside(limiter: Any, served: Served, *, rules: list[Rule] = RULES) -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware

    middleware = [Middleware(asgi.RateLimitMiddleware, limiter=limiter, rules=rules)]
    return Starlette(routes=_starlette_routes(served), middleware=middleware)


def starlette_mounted(limiter: Any, served: Served, *, where: str) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount(where, starlette_inside(limiter, served))])


def starlette_mounted_twice(limiter: Any, served: Served) -> Any:
    from starlette.routing import Mount, Router

    return Router([Mount("/api", Router([Mount("/{tenant}", starlette_inside(limiter, served))]))])


def starlette_mounted_inside(limiter: Any, served: Served, *, where: str) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount(where, Starlette(routes=_starlette_routes(served)))])
    return asgi.RateLimitMiddleware(app, limiter, rules=find_rules(prefix=where))


def _fastapi(served: Served, root: str) -> Any:
    from fastapi import FastAPI

    def handler(tag: str) -> Any:
        async def serve() -> str:
            served.append(tag)
            return tag

        return serve

    app = FastAPI(openapi_url=None)
    app.root_path = root  # as an argument it makes a warning: FastAPI would rather be told by the server
    for tag, template in ROUTES.items():
        app.add_api_route(template, handler(tag), methods=["GET", "HEAD"])
    return app


def fastapi_inside(limiter: Any, served: Served, *, root: str = "") -> Any:
    app = _fastapi(served, root)
    app.add_middleware(asgi.RateLimitMiddleware, limiter=limiter, rules=RULES)
    return app


def fastapi_outside(limiter: Any, served: Served, *, root: str = "/api") -> Any:
    return asgi.RateLimitMiddleware(_fastapi(served, root), limiter, rules=RULES)


def fastapi_mounted(limiter: Any, served: Served, *, where: str = "", root: str = "/api") -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount(where, _fastapi(served, root))])
    return asgi.RateLimitMiddleware(app, limiter, rules=find_rules(prefix=where))


def fastapi_hidden(limiter: Any, served: Served) -> Any:
    """An app in a wrapper that does not show it: its prefix is given."""
    inside = _fastapi(served, "/api")

    async def wrapper(scope: Any, receive: Any, send: Any) -> None:
        await inside(scope, receive, send)

    return asgi.RateLimitMiddleware(wrapper, limiter, rules=RULES, prefixes=["/api"])


# Litestar

LITESTAR = frozenset(ROUTES) - {"raw", "report"}
"""Its parameters are whole segments, and a path is the last one."""


def _litestar(served: Served, middleware: list[Any], *more: Any) -> Any:
    from litestar import Litestar, route
    from litestar.enums import HttpMethod, MediaType

    def handler(tag: str, template: str) -> Any:
        async def serve() -> str:
            served.append(tag)
            return tag

        path = respelt(template, "{{{name}:{kind}}}", {"str": "str", "int": "int", "path": "path"})
        return route(path, http_method=[HttpMethod.GET], media_type=MediaType.TEXT, status_code=200, name=tag)(serve)

    handlers = [handler(tag, template) for tag, template in ROUTES.items() if tag in LITESTAR]
    return Litestar([*handlers, *more], middleware=middleware, openapi_config=None)


def litestar_inside(limiter: Any, served: Served) -> Any:
    from litestar.middleware import DefineMiddleware

    middleware: Any = asgi.RateLimitMiddleware
    return _litestar(served, [DefineMiddleware(middleware, limiter=limiter, rules=find_rules(LITESTAR))])


def litestar_outside(limiter: Any, served: Served) -> Any:
    return asgi.RateLimitMiddleware(_litestar(served, []), limiter, rules=find_rules(LITESTAR))


def litestar_mounting(limiter: Any, served: Served, *, inside: bool) -> Any:
    from litestar import asgi as mounted
    from litestar.middleware import DefineMiddleware

    @mounted("/sub", is_mount=True, copy_scope=True)
    async def sub(scope: Any, receive: Any, send: Any) -> None:
        served.append("sub")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    rules = [Rule("/sub/*", limits=[PLENTY], resource="sub"), *find_rules(LITESTAR)]
    if inside:
        middleware: Any = asgi.RateLimitMiddleware
        return _litestar(served, [DefineMiddleware(middleware, limiter=limiter, rules=rules)], sub)
    return asgi.RateLimitMiddleware(_litestar(served, [], sub), limiter, rules=rules)


# Quart and Flask


def _add_werkzeug_rules(app: Any, served: Served, *, is_async: bool) -> None:
    def handler(tag: str) -> Any:
        def serve(**_: Any) -> str:
            served.append(tag)
            return tag

        async def serve_async(**_: Any) -> str:
            return serve()

        return serve_async if is_async else serve

    for tag, template in ROUTES.items():
        rule = respelt(template, "<{kind}:{name}>", {"str": "string", "int": "int", "path": "path"})
        app.add_url_rule(rule, tag, handler(tag))


def quart(limiter: Any, served: Served) -> Any:
    from quart import Quart

    app = Quart(__name__, static_folder=None)
    _add_werkzeug_rules(app, served, is_async=True)
    app.asgi_app = asgi.RateLimitMiddleware(app.asgi_app, limiter, rules=RULES)  # type: ignore[assignment, arg-type]  # Quart's own way
    return app


def quart_outside(limiter: Any, served: Served) -> Any:
    from quart import Quart

    app = Quart(__name__, static_folder=None)
    _add_werkzeug_rules(app, served, is_async=True)
    return asgi.RateLimitMiddleware(app, limiter, rules=RULES)  # type: ignore[arg-type]  # Quart has types of its own


def _flask(served: Served, *, strict: bool) -> Any:
    from flask import Flask

    app = Flask(__name__, static_folder=None)
    app.url_map.strict_slashes = strict
    _add_werkzeug_rules(app, served, is_async=False)
    return app


def flask(limiter: Any, served: Served, *, strict: bool = True, rules: list[Rule] = RULES) -> Any:
    app = _flask(served, strict=strict)
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, limiter, rules=rules)
    return app


def flask_dispatched(limiter: Any, served: Served) -> Any:
    """An app that something inside the middleware mounts: its prefix is given."""
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    app = _flask(served, strict=True)
    inside = DispatcherMiddleware(app, {"/api": app})
    return wsgi.RateLimitMiddleware(inside, limiter, rules=RULES, prefixes=["/api"])


# Django


def _django(served: Served, *, is_async: bool) -> None:
    """Point Django, whose settings are one for the process, to the handlers."""
    import django
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import path

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["testserver"], SECRET_KEY="for tests only", LOGGING_CONFIG=None)
        django.setup()

    def handler(tag: str) -> Any:
        def serve(request: Any, **_: Any) -> Any:
            served.append(tag)
            return HttpResponse(tag)

        async def serve_async(request: Any, **_: Any) -> Any:
            return serve(request)

        return serve_async if is_async else serve

    def route(template: str) -> str:
        return respelt(template, "<{kind}:{name}>", {"str": "str", "int": "int", "path": "path"})[1:]

    settings.ROOT_URLCONF = tuple(path(route(template), handler(tag)) for tag, template in ROUTES.items())


def django_asgi(limiter: Any, served: Served) -> Any:
    from django.core.handlers.asgi import ASGIHandler

    _django(served, is_async=True)
    return asgi.RateLimitMiddleware(ASGIHandler(), limiter, rules=RULES)


def django_wsgi(limiter: Any, served: Served) -> Any:
    from django.core.handlers.wsgi import WSGIHandler

    _django(served, is_async=False)
    return wsgi.RateLimitMiddleware(WSGIHandler(), limiter, rules=RULES)


@contextmanager
def script_name(name: str) -> Iterator[None]:
    """Django with ``FORCE_SCRIPT_NAME``."""
    from django.conf import settings
    from django.urls import set_script_prefix

    before = settings.FORCE_SCRIPT_NAME
    settings.FORCE_SCRIPT_NAME = name
    try:
        yield
    finally:
        settings.FORCE_SCRIPT_NAME = before
        set_script_prefix("/")


_part = functools.partial
SETTINGS: dict[str, tuple[str, dict[str, Setting]]] = {
    "starlette": (
        "asgi",
        {
            "inside": Setting(starlette_inside),
            "server's prefix": Setting(starlette_inside, root="/api"),
            "server's prefix with a slash": Setting(starlette_inside, root="/api/"),
            "mounted": Setting(_part(starlette_mounted, where="/api")),
            "mounted, inside": Setting(_part(starlette_mounted_inside, where="/api")),
            "mounted in a mount": Setting(starlette_mounted_twice),
            "mounted below a parameter": Setting(_part(starlette_mounted, where="/{tenant}")),
            "mounted below a parameter, inside": Setting(_part(starlette_mounted_inside, where="/{tenant}")),
        },
    ),
    "fastapi": (
        "asgi",
        {
            "inside": Setting(fastapi_inside),
            "prefix, inside": Setting(_part(fastapi_inside, root="/api")),
            "prefix, outside": Setting(fastapi_outside),
            "prefix, outside, and the server's": Setting(fastapi_outside, root="/t"),
            "prefix with a slash, outside": Setting(_part(fastapi_outside, root="/api/")),
            "prefix, mounted": Setting(fastapi_mounted),
            "prefix, mounted, and the server's": Setting(fastapi_mounted, root="/t"),
            "prefix, mounted below a path": Setting(_part(fastapi_mounted, where="/api", root="/api/t")),
            "prefix, given": Setting(fastapi_hidden),
        },
    ),
    "litestar": (
        "asgi",
        {
            "inside": Setting(litestar_inside, tags=LITESTAR),
            "inside, server's prefix": Setting(litestar_inside, root="/api", tags=LITESTAR),
            "outside": Setting(litestar_outside, tags=LITESTAR),
            "outside, server's prefix": Setting(litestar_outside, root="/api", tags=LITESTAR),
            "outside, server's prefix with a slash": Setting(litestar_outside, root="/api/", tags=LITESTAR),
            "mounting": Setting(_part(litestar_mounting, inside=False), tags=LITESTAR | {"sub"}),
            "mounting, inside": Setting(_part(litestar_mounting, inside=True), root="/api", tags=LITESTAR | {"sub"}),
        },
    ),
    "quart": (
        "asgi",
        {
            "inside": Setting(quart),
            "inside, server's prefix": Setting(quart, root="/api"),
            "outside, server's prefix": Setting(quart_outside, root="/api"),
        },
    ),
    "django-asgi": (
        "asgi",
        {
            "plain": Setting(django_asgi),
            "server's prefix": Setting(django_asgi, root="/api"),
            "script name": Setting(django_asgi, around=_part(script_name, "/api")),
            "script name with a slash": Setting(django_asgi, around=_part(script_name, "/api/")),
            "script name and server's prefix": Setting(django_asgi, root="/t", around=_part(script_name, "/api")),
        },
    ),
    "flask": (
        "wsgi",
        {
            "strict": Setting(flask),
            "not strict": Setting(_part(flask, strict=False)),
            "script name": Setting(flask, root="/api"),
            "dispatched": Setting(flask_dispatched),
        },
    ),
    "django-wsgi": (
        "wsgi",
        {
            "plain": Setting(django_wsgi),
            "server's prefix": Setting(django_wsgi, root="/api"),
            "script name": Setting(django_wsgi, around=_part(script_name, "/api")),
        },
    ),
}
"""The mode and the settings of each framework."""
