"""The routes of `path_apps` in frameworks that read paths in ways of their own, and rules that are callables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from tests.web.path_apps import (
    PLENTY,
    ROUTES,
    RULES,
    Served,
    Setting,
    find_rules,
    flask,
    respelt,
    starlette_inside,
)
from zae_limiter.web import Request, Rule, asgi, wsgi

_numbers = itertools.count()


def _below(start: str, segments: int | None = None, *, empty: bool = False) -> Callable[[str], bool]:
    def wanted(path: str) -> bool:
        return path.startswith(start) and (empty or path != start) and segments in (None, path.count("/"))

    return wanted


WANTED: dict[str, Callable[[str], bool]] = {
    "root": "/".__eq__,
    "chat": "/v1/chat".__eq__,
    "name": _below("/v1/", 2),
    "item": _below("/items/", 2),
    "number": lambda path: path.removeprefix("/numbers/").lstrip("-").isdecimal(),
    "raw": lambda path: path.startswith("/files/") and path.endswith("/raw") and path.count("/") > 2,
    "files": _below("/files/"),
    "report": lambda path: _below("/reports/", 2)(path) and path.endswith(".json") and "-" in path,
    "slash": "/dir/".__eq__,
    "health": "/health".__eq__,
}
"""The routes as somebody compares ``request.path`` who knows nothing of spellings."""


def find_callable_rules(tags: Collection[str] = ROUTES, *, empty: bool = False) -> list[Rule]:
    """The rules of routes as callables; ``empty``: the framework takes an empty text for a path."""

    def make_rule(tag: str, wanted: Callable[[str], bool]) -> Rule:
        def match(request: Request) -> bool:
            return wanted(request.path)

        return Rule(match, exempt=tag == "health", limits=[PLENTY], resource=tag)

    every = {**WANTED, "files": _below("/files/", empty=empty)}
    rules = [make_rule(tag, wanted) for tag, wanted in every.items() if tag in tags]
    return [*rules, Rule(limits=[PLENTY], resource="rest")]


# Bottle: drops bytes that are not UTF-8


def bottle(limiter: Any, served: Served, *, rules: list[Rule] = RULES) -> Any:
    from bottle import Bottle

    def handler(tag: str) -> Any:
        def serve(**_: Any) -> str:
            served.append(tag)
            return tag

        return serve

    app = Bottle()
    for tag, template in ROUTES.items():
        path = respelt(template, "<{name}{kind}>", {"str": "", "int": ":int", "path": ":path"})
        app.route(path, ["GET", "HEAD"], handler(tag))
    return wsgi.RateLimitMiddleware(app, limiter, rules=rules)


# Sanic: routes by the path as it was sent, up to a ``#``

SANIC = frozenset(ROUTES) - {"raw", "report", "slash"}
"""A path is its last parameter, parameters are whole segments, and ``/dir/`` is the same route as ``/dir``."""


def sanic(limiter: Any, served: Served, *, callables: bool = False) -> Any:
    from sanic import Sanic
    from sanic.response import text

    def handler(tag: str) -> Any:
        async def serve(request: Any, **_: Any) -> Any:
            served.append(tag)
            return text(tag)

        return serve

    app = Sanic(f"attacked-{next(_numbers)}", configure_logging=False)
    app.config.TOUCHUP = False  # it rewrites methods of classes that all apps share
    for tag in SANIC:
        path = respelt(ROUTES[tag], "<{name}:{kind}>", {"str": "str", "int": "int", "path": "path"})
        app.add_route(handler(tag), path, methods=["GET", "HEAD"], name=tag)
    rules = find_callable_rules(SANIC, empty=True) if callables else find_rules(SANIC)
    return asgi.RateLimitMiddleware(app, limiter, rules=rules)


# BlackSheep: routes by the path as it was sent, in any case; ``/files/*`` is for ``/filesX`` too

BLACKSHEEP = frozenset(ROUTES) - {"raw", "report", "slash"}
"""A star is the last one, parameters are whole segments, and ``/dir/`` is the same route as ``/dir``."""


def blacksheep(limiter: Any, served: Served, *, callables: bool = False, mounting: bool = False) -> Any:
    from blacksheep import Application, Router, text

    def handler(tag: str) -> Any:
        async def serve() -> Any:
            served.append(tag)
            return text(tag)

        return serve

    app = Application(router=Router())
    for tag, template in ROUTES.items():
        if tag in BLACKSHEEP:
            path = respelt(template, "{kind}{name}}}", {"str": "{", "int": "{int:", "path": "*"})
            path = path.partition("*")[0] + "*" if "*" in path else path
            for method in ("GET", "HEAD"):
                app.router.add(method, path, handler(tag))
    rules = find_callable_rules(BLACKSHEEP, empty=True) if callables else find_rules(BLACKSHEEP)
    if mounting:

        async def sub(scope: Any, receive: Any, send: Any) -> None:
            served.append("sub")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        app.mount("/sub", sub)
        rules = [Rule("/sub/*", limits=[PLENTY], resource="sub"), *rules]
    return asgi.RateLimitMiddleware(app, limiter, rules=rules)


OTHER_SETTINGS: dict[str, tuple[str, dict[str, Setting]]] = {
    "bottle": (
        "wsgi",
        {
            "plain": Setting(bottle),
            "server's prefix": Setting(bottle, root="/api"),
            "callables": Setting(partial(bottle, rules=find_callable_rules())),
        },
    ),
    "sanic": (
        "asgi",
        {
            "plain": Setting(sanic, tags=SANIC, lifespan=True),
            "callables": Setting(partial(sanic, callables=True), tags=SANIC, lifespan=True),
        },
    ),
    "blacksheep": (
        "asgi",
        {
            "plain": Setting(blacksheep, tags=BLACKSHEEP),
            "server's prefix": Setting(blacksheep, root="/api", tags=BLACKSHEEP),
            "mounting": Setting(partial(blacksheep, mounting=True), tags=BLACKSHEEP | {"sub"}),
            "callables": Setting(partial(blacksheep, callables=True), tags=BLACKSHEEP),
        },
    ),
    "callables": (
        "wsgi",
        {
            "flask": Setting(partial(flask, rules=find_callable_rules())),
            "flask, not strict": Setting(partial(flask, strict=False, rules=find_callable_rules())),
        },
    ),
    "callables-asgi": (
        "asgi",
        {"starlette": Setting(partial(starlette_inside, rules=find_callable_rules(empty=True)))},
    ),
}
"""The mode and the settings of each framework."""
