"""An app whose rules contradict each other does not start: with FastAPI's routes too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket

from tests.web.drive import Call, call_asgi
from tests.web.sockets import limiter_at
from zae_limiter import Lease, Limit, ValidationError
from zae_limiter.web import Rule
from zae_limiter.web.asgi import RateLimitMiddleware
from zae_limiter.web.fastapi import Limited, limited

FEW = [Limit.per_minute("rpm", 1)]
MANY = [Limit.per_minute("rpm", 60)]


def start(app: Any) -> list[dict[str, Any]]:
    """Start and stop an app as a server does; returns what it has sent, and raises what it has raised."""
    sent: list[dict[str, Any]] = []
    incoming = ["lifespan.startup", "lifespan.shutdown"]

    async def receive() -> Any:
        return {"type": incoming.pop(0)}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def lifespan() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)

    failure: Exception | None = None
    try:
        asyncio.run(lifespan())
    except ValidationError as error:
        failure = error
    if failure is not None:
        assert sent == [{"type": "lifespan.startup.failed", "message": str(failure)}]
        raise failure
    return sent


def decorated(app: FastAPI) -> None:
    @app.get("/few")
    @limited("chat", limits=FEW)
    async def few() -> None: ...


def dependency(app: FastAPI) -> None:
    @app.get("/few", dependencies=[Depends(Limited("chat", limits=FEW))])
    async def few() -> None: ...


async def inner(lease: Annotated[Lease, Depends(Limited("chat", limits=FEW))]) -> None:
    """What an endpoint depends on."""


def dependency_of_a_dependency(app: FastAPI) -> None:
    @app.get("/few")
    async def few(found: Annotated[None, Depends(inner)]) -> None: ...


def websocket(app: FastAPI) -> None:
    @app.websocket("/few")
    async def few(websocket: WebSocket, lease: Annotated[Lease, Depends(Limited("chat", limits=FEW))]) -> None: ...


def router(app: FastAPI) -> None:
    outer = APIRouter(prefix="/v1")
    inner = APIRouter()

    @inner.get("/few")
    @limited("chat", limits=FEW)
    async def few() -> None: ...

    outer.include_router(inner)
    app.include_router(outer)


def dependency_of_a_router(app: FastAPI) -> None:
    found = APIRouter(dependencies=[Depends(Limited("chat", limits=FEW))])

    @found.get("/few")
    async def few() -> None: ...

    app.include_router(found)


def mounted(app: FastAPI) -> None:
    below = FastAPI()
    decorated(below)
    app.mount("/below", below)


WAYS: list[Callable[[FastAPI], None]] = [
    decorated, dependency, dependency_of_a_dependency, websocket, router, dependency_of_a_router, mounted,
]  # fmt: skip


def with_route(way: Callable[[FastAPI], None], *limits: Limit, **options: Any) -> FastAPI:
    """An app whose route has one limit in one way, and whose other route has others by the decorator."""
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter_at(), **options)
    way(app)

    @app.get("/other")
    @limited("chat", limits=limits or MANY)
    async def other() -> None: ...

    return app


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_routes_that_contradict_each_other_stop_the_start(way: Callable[[FastAPI], None]) -> None:
    with pytest.raises(ValidationError, match="name one with resource="):
        start(with_route(way))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_routes_that_agree_start(way: Callable[[FastAPI], None]) -> None:
    assert [message["type"] for message in start(with_route(way, *FEW))] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


def test_a_route_that_contradicts_a_rule_stops_the_start() -> None:
    app = FastAPI()
    rules = [Rule("/chat", resource="chat", limits=MANY)]
    app.add_middleware(RateLimitMiddleware, limiter=limiter_at(), rules=rules)
    decorated(app)
    with pytest.raises(ValidationError, match="name one with resource="):
        start(app)


def test_an_app_that_is_wrapped_from_outside_is_checked_too() -> None:
    app = FastAPI()
    decorated(app)
    rules = [Rule("/chat", resource="chat", limits=MANY)]
    with pytest.raises(ValidationError, match="name one with resource="):
        start(RateLimitMiddleware(app, limiter_at(), rules=rules))


def test_only_the_innermost_middleware_is_asked() -> None:
    """Routes take their tokens from it: what an outer one calls the same is something else."""
    app = FastAPI()
    decorated(app)
    app.add_middleware(RateLimitMiddleware, limiter=limiter_at())
    app.add_middleware(RateLimitMiddleware, limiter=limiter_at(), rules=[Rule(resource="chat", limits=MANY)])
    wrapped = RateLimitMiddleware(app, limiter_at(), rules=[Rule(resource="chat", limits=MANY)])
    assert start(wrapped)[0] == {"type": "lifespan.startup.complete"}


def test_a_mounted_app_with_a_middleware_of_its_own_is_not_asked() -> None:
    below, app = FastAPI(), FastAPI()
    decorated(below)
    below.add_middleware(RateLimitMiddleware, limiter=limiter_at())
    app.mount("/below", below)
    app.add_middleware(RateLimitMiddleware, limiter=limiter_at(), rules=[Rule(resource="chat", limits=MANY)])
    assert start(app)[0] == {"type": "lifespan.startup.complete"}
    asyncio.run(call_asgi(app, Call("/below/few")))
