"""Limits of FastAPI's websocket routes, by a dependency and by the decorator."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, WebSocket

from tests.web.drive import PEER
from tests.web.sockets import Socket, limiter_at, text
from zae_limiter import Lease, Limit, RateLimiter
from zae_limiter.web import by_api_key
from zae_limiter.web.asgi import RateLimitMiddleware
from zae_limiter.web.fastapi import Limited, limited

LIMITS = [Limit.per_day("connections", 2), Limit.per_day("tpm", 1_000)]
COST = {"connections": 1, "tpm": 100}
IP = f"ip:{PEER}"


def with_dependency(app: FastAPI) -> None:
    @app.websocket("/ws")
    async def chat(
        websocket: WebSocket, lease: Annotated[Lease, Depends(Limited("chat", COST, limits=LIMITS))]
    ) -> None:
        await serve(websocket, lease)


def with_decorator(app: FastAPI) -> None:
    @app.websocket("/ws")
    @limited("chat", COST, limits=LIMITS)
    async def chat(websocket: WebSocket, lease: Lease) -> None:
        await serve(websocket, lease)


async def serve(websocket: WebSocket, lease: Lease) -> None:
    """Echo, and charge 5 for each message."""
    await websocket.accept()
    async for message in websocket.iter_text():
        await lease.adjust(tpm=5)
        await websocket.send_text(message)


@pytest.fixture(params=[with_dependency, with_decorator], ids=lambda way: way.__name__)
def app(request: pytest.FixtureRequest) -> FastAPI:
    """An app with a websocket that is limited."""
    made = FastAPI()
    made.state.limiter = limiter_at()
    made.add_middleware(RateLimitMiddleware, limiter=made.state.limiter)
    request.param(made)
    return made


def left(limiter: RateLimiter) -> dict[str, int]:
    """What the address has left."""
    return asyncio.run(limiter.available(IP, "chat", limits=LIMITS))


def test_connections_are_limited_and_settled_at_their_end(app: FastAPI) -> None:
    sockets = [asyncio.run(Socket(text(1), text(2)).through(app)) for _ in range(2)]
    assert [[message.get("text") for message in socket.sent] for socket in sockets] == [[None, "1", "2"]] * 2
    assert left(app.state.limiter) == {"connections": 0, "tpm": 1_000 - 2 * 110}
    refused = asyncio.run(Socket(text(1)).through(app))
    assert [(message["type"], message["code"]) for message in refused.sent] == [("websocket.close", 1013)]
    assert left(app.state.limiter) == {"connections": 0, "tpm": 1_000 - 2 * 110}


async def test_a_server_that_can_answers_with_429(app: FastAPI) -> None:
    for _ in range(2):
        await Socket().through(app)
    refused = await Socket(extensions={"websocket.http.response": {}}).through(app)
    assert [message.get("status") for message in refused.sent] == [429, None]


@pytest.mark.parametrize("extensions", [None, {"websocket.http.response": {}}])
async def test_several_keys_are_refused(extensions: Any) -> None:
    made = FastAPI()
    made.add_middleware(RateLimitMiddleware, limiter=limiter_at(), key=by_api_key())
    with_dependency(made)
    headers = [("x-api-key", "k"), ("x-api-key", "l")]
    socket = await Socket(extensions=extensions, headers=headers).through(made)
    if extensions is None:
        assert socket.sent == [{"type": "websocket.close", "code": 1008, "reason": "several API keys"}]
    else:
        assert [message.get("status") for message in socket.sent] == [400, None]
