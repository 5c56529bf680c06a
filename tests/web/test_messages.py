"""The messages of a websocket are limited one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.support.virtual_time import VirtualLoop, run_virtually
from tests.web.drive import PEER
from tests.web.sockets import Socket, echo, limited, limiter_at, text
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, ValidationError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, ManualClock
from zae_limiter.web import MessageLimit, Rule, asgi, by_api_key, by_header

MESSAGES = Limit.per_minute("messages", 2)
IP = f"ip:{PEER}"


async def test_one_message_too_many_closes() -> None:
    limiter = limiter_at()
    messages = MessageLimit(limiter, "chat", limits=[MESSAGES])
    socket = await Socket(*map(text, range(5))).through(limited(echo(messages.take)))
    assert [message["type"] for message in socket.sent] == [
        "websocket.accept",
        *["websocket.send"] * 2,
        "websocket.close",
    ]
    assert (socket.sent[-1]["code"], socket.sent[-1]["reason"]) == (1013, "retry in 30 s")
    assert await limiter.available(IP, "chat", limits=[MESSAGES]) == {"messages": 0}


async def test_an_app_can_catch_it_and_go_on() -> None:
    clock = ManualClock()
    messages = MessageLimit(limiter_at(clock), limits=[MESSAGES])
    refused: list[float | None] = []

    async def take(scope: Any) -> None:
        try:
            await messages.take(scope)
        except RateLimitExceeded as error:
            refused.append(error.retry_after_seconds)
            clock.advance(error.retry_after_seconds or 0)
            await messages.take(scope)

    socket = await Socket(*map(text, range(4))).through(limited(echo(take)))
    assert [message.get("text") for message in socket.sent[1:]] == ["0", "1", "2", "3"]
    assert refused == [30.0, 30.0]


@pytest.mark.parametrize("middleware", [True, False], ids=["behind the middleware", "alone"])
async def test_the_channel_can_be_watched(middleware: bool) -> None:
    """Only messages count, not the handshake nor the end."""
    limiter = limiter_at()
    messages = MessageLimit(limiter, "chat", limits=[MESSAGES])
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        websocket = WebSocket(scope, messages.wrap(scope, receive), send)
        await websocket.accept()
        try:
            while True:
                got.append(await websocket.receive_text())
        except WebSocketDisconnect:
            got.append("over")

    served = limited(app) if middleware else app
    await Socket(text(0)).through(served)
    assert got == ["0", "over"]
    assert await limiter.available(IP, "chat", limits=[MESSAGES]) == {"messages": 1}
    if not middleware:
        with pytest.raises(RateLimitExceeded):
            await Socket(text(1), text(2)).through(served)
        return
    socket = await Socket(text(1), text(2)).through(served)
    assert got == ["0", "over", "1"]
    assert socket.sent[-1]["code"] == 1013


KEYS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "peer": ({}, {}, IP),
    "another peer": ({}, {"peer": "2001:db8::7"}, "ip:2001:db8::/64"),
    "proxy": ({"proxies": 1}, {"headers": [("x-forwarded-for", "6.6.6.6, 203.0.113.9")]}, "ip:203.0.113.9"),
    "header": ({"key": by_header("x-tenant")}, {"headers": [("x-tenant", "t")]}, "header:x-tenant:t"),
    "text": ({"key": lambda request: f"room{request.path}"}, {}, "room/ws"),
}


@pytest.mark.parametrize("kind", KEYS)
async def test_whose_messages_they_are(kind: str) -> None:
    options, fields, entity_id = KEYS[kind]
    limiter = limiter_at()
    messages = MessageLimit(limiter, "chat", limits=[MESSAGES], **options)
    scope = Socket(**fields).scope
    await messages.take(scope)
    await messages.take(WebSocket(scope, None, None))  # type: ignore[arg-type]  # only its scope is looked at
    assert await limiter.available(entity_id, "chat", limits=[MESSAGES]) == {"messages": 0}
    with pytest.raises(RateLimitExceeded):
        await messages.take(scope)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_several_keys_are_refused_and_charged_to_the_address(is_async: bool) -> None:
    async def accept_later(key: str) -> bool:
        return False

    limiter = limiter_at()
    key = by_api_key(accept=accept_later if is_async else lambda key: False)
    messages = MessageLimit(limiter, "chat", limits=[MESSAGES], key=key)
    headers = [("x-api-key", "a"), ("x-api-key", "b")]
    codes = []
    for _ in range(2):
        socket = await Socket(text(1), headers=headers).through(limited(echo(messages.take)))
        codes.append(socket.sent[-1]["code"])
    assert codes == [1008, 1013]
    assert await limiter.available(IP, "chat", limits=[MESSAGES]) == {"messages": 0}


async def test_a_message_can_cost_more_and_by_stored_limits() -> None:
    limiter = limiter_at()
    messages = MessageLimit(limiter, "chat", cost={"messages": 1, "bytes": 40})
    await limiter.set_system_defaults([MESSAGES, Limit.per_minute("bytes", 50)])
    scope = Socket().scope
    await messages.take(scope)
    with pytest.raises(RateLimitExceeded) as raised:
        await messages.take(scope)
    assert [violation.limit_name for violation in raised.value.violations] == ["bytes"]
    assert await limiter.available(IP, "chat") == {"messages": 1, "bytes": 10}


def test_a_message_may_wait_for_its_turn() -> None:
    """Messages within ``max_wait`` are late, none is lost; beyond it they are refused at once."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        messages = MessageLimit(RateLimiter(MemoryStore(loop)), limits=[Limit.per_second("messages", 1)], max_wait=2.5)
        scope = Socket().scope
        began = loop.time()

        async def at() -> float:
            await messages.take(scope)
            return round(loop.time() - began, 3)

        outcomes = await asyncio.gather(*(at() for _ in range(5)), return_exceptions=True)
        assert outcomes[:3] == [0.0, 1.0, 2.0]
        assert [type(outcome) for outcome in outcomes[3:]] == [RateLimitExceeded] * 2

    run_virtually(work())


async def test_the_clock_moves_for_who_waits() -> None:
    clock = ManualClock()
    messages = MessageLimit(limiter_at(clock), limits=[Limit.per_second("messages", 1)], max_wait=60)
    scope = Socket().scope
    began_ms = clock.now_ms()
    for number in range(4):
        await messages.take(scope)
        assert clock.now_ms() - began_ms == number * 1_000


@pytest.mark.parametrize("url", [True, False], ids=["url", "limiter"])
async def test_the_limiter_can_be_a_url(url: bool) -> None:
    messages = MessageLimit("memory://" if url else limiter_at(), limits=[MESSAGES])
    scope = Socket().scope
    await messages.take(scope)
    await messages.take(scope)
    with pytest.raises(RateLimitExceeded):
        await messages.take(scope)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"limiter": None}, "limiter"),
        ({"resource": "a#b"}, "resource"),
        ({"limits": []}, "limits"),
        ({"cost": -1}, "cost"),
        ({"key": "x"}, "key"),
        ({"max_wait": -1}, "max_wait"),
        ({"proxies": "10.0.0.1"}, "trusted"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        MessageLimit(**{"limiter": "memory://", **arguments})
    assert raised.value.field == field


async def test_a_store_that_is_down() -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    messages = MessageLimit(RateLimiter(store), "chat", limits=[MESSAGES])
    store.inject(Fault.FAIL_BEFORE, times=100)
    socket = await Socket(text(1)).through(limited(echo(messages.take)))
    assert (socket.sent[-1]["type"], socket.sent[-1]["code"]) == ("websocket.close", 1013)
    lenient = MessageLimit(RateLimiter(store, on_unavailable="allow"), "chat", limits=[MESSAGES])
    socket = await Socket(*map(text, range(4))).through(limited(echo(lenient.take)))
    assert len(socket.sent) == 5


async def test_in_a_route_of_starlette() -> None:
    limiter = limiter_at()
    messages = MessageLimit(limiter, "chat", limits=[MESSAGES])

    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        async for message in websocket.iter_text():
            await messages.take(websocket)
            await websocket.send_text(message)

    app = Starlette(
        routes=[WebSocketRoute("/ws", chat)],
        middleware=[Middleware(asgi.RateLimitMiddleware, limiter=limiter, rules=[Rule(limits=[MESSAGES])])],
    )
    socket = await Socket(*map(text, range(3)), extensions={}).through(app)
    assert [message.get("text") for message in socket.sent[1:-1]] == ["0", "1"]
    assert socket.sent[-1]["code"] == 1013
