"""The sites under test: an app behind the middleware, and what can be seen of it from outside.

Paths below ``/blocked`` and ``/allowed`` go to a middleware whose store is down; those below ``/simple`` to one in its
shortest form, which goes by the address of the client. Everybody else is named by the header ``X-Client``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import deadlines
from tests.support.deadlines import PATIENCE
from tests.web.servers import asgi_apps, wsgi_apps
from tests.web.servers.calls import FIVE, AsgiCall, WsgiCall
from tests.web.servers.stage import Stage
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.web import MessageLimit, Request, Rule, asgi, wsgi

DAY = 86_400
LIMITS = [Limit.custom("rpm", 100, 1, DAY), Limit.custom("tpm", 100_000, 1, DAY)]
"""They fill up so slowly that a balance tells exactly what was taken, also by a real clock."""
CHAT = [Limit.custom("messages", 3, 1, DAY)]
NARROW = [Limit.custom("rpm", 10, 1, DAY)]
FULL = {"rpm": 100, "tpm": 100_000}
COST = {"rpm": 1, "tpm": 500}
RULES = [
    Rule("/narrow/*", limits=NARROW, resource="narrow"),
    Rule("/five/*", limits=FIVE, resource="five", cost=0),
    Rule("/queue/*", limits=FIVE, resource="queue", cost=0, max_wait=PATIENCE),
    Rule("/costly/*", limits=LIMITS, resource="api", cost={"rpm": 1, "tpm": 200_000}),
    Rule("/free/*", exempt=True),
    Rule(limits=LIMITS, resource="api", cost=COST),
]


def named(request: Request) -> str | None:
    """Each test is a client of its own."""
    return request.header("x-client")


@dataclass(frozen=True, slots=True)
class Stores:
    """What the middlewares of a site take their tokens from, as limiters or URLs."""

    main: Any
    blocked: Any
    allowed: Any

    @classmethod
    def in_file(cls, url: str, kind: type[RateLimiter] | type[SyncRateLimiter]) -> Stores:
        """A SQLite file, and two servers at a port where none listens."""
        return cls(url, *(kind("redis://127.0.0.1:1/0", on_unavailable=policy) for policy in ("block", "allow")))

    def guarded(self, middleware: Any, app: Any) -> dict[str, Any]:
        """The app behind each middleware, by the first part of the path."""
        return {
            "simple": middleware(app, self.main, limits=LIMITS),
            "blocked": middleware(app, self.blocked, rules=RULES, key=named),
            "allowed": middleware(app, self.allowed, rules=RULES, key=named),
            "": middleware(app, self.main, rules=RULES, key=named),
        }


def asgi_site(stores: Stores, stage: Stage) -> Any:
    """All of it as one ASGI callable; it notes ``called`` when the app is reached, and ``over`` when all is done."""

    messages = MessageLimit(stores.main, "chat", limits=CHAT, key=named)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        call = AsgiCall(scope, receive, send, stage, messages)
        if scope["type"] == "lifespan":
            await asgi_apps.lifespan(call)
            return
        call.note("called", scope["method"] if scope["type"] == "http" else scope["type"])
        await asgi_apps.ROUTES[_last(scope["path"])](call)

    guarded = stores.guarded(asgi.RateLimitMiddleware, app)

    async def site(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await guarded[""](scope, receive, send)
            return
        try:
            await guarded.get(_first(scope["path"]), guarded[""])(scope, receive, send)
        finally:
            AsgiCall(scope, receive, send, stage).note("over")

    return site


def wsgi_site(stores: Stores, stage: Stage) -> Any:
    """All of it as one WSGI callable; notes as for ASGI."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call = WsgiCall(environ, start_response, stage)
        call.note("called", environ["REQUEST_METHOD"])
        return wsgi_apps.ROUTES[_last(environ["PATH_INFO"])](call)

    guarded = stores.guarded(wsgi.RateLimitMiddleware, app)

    def site(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def over() -> None:
            stage.note(environ["HTTP_X_CLIENT"], "over")

        try:
            answer = guarded.get(_first(environ["PATH_INFO"]), guarded[""])(environ, start_response)
        except BaseException:
            over()
            raise
        return _Noted(answer, over)

    return site


class _Noted:
    """A body that tells when it has been closed."""

    def __init__(self, body: Iterable[bytes], over: Callable[[], None]) -> None:
        self._body = body
        self._over = over

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Close what is inside, then tell."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._over()


def _first(path: str) -> str:
    return path.split("/")[1]


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def asgi_in_file(url: str, folder: str) -> Any:
    """The site of a server process."""
    deadlines.lengthen()
    return asgi_site(Stores.in_file(url, RateLimiter), Stage(Path(folder)))


def wsgi_in_file(url: str, folder: str) -> Any:
    """The site of a server process."""
    deadlines.lengthen()
    return wsgi_site(Stores.in_file(url, SyncRateLimiter), Stage(Path(folder)))
