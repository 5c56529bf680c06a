"""Websockets pass through the middleware; a refusal that nobody catches ends them in the way that they allow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.drive import PEER
from tests.web.sockets import ACCEPT, App, Socket, echo, limited, limiter_at, text
from zae_limiter import CapacityExceeded, Limit, RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.web import asgi, lease_of

IP = f"ip:{PEER}"


def raising(error: Exception, *before: dict[str, Any]) -> App:
    """An app that sends something and then raises."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in before:
            await send(message)
        raise error

    return app


async def test_a_websocket_passes_through() -> None:
    """The rules are for requests: a handshake takes nothing."""
    limiter = limiter_at()

    async def nothing(scope: Any) -> None:
        pass

    app = limited(echo(nothing), limiter, limits=[Limit.per_minute("rpm", 1)])
    for _ in range(3):
        socket = await Socket(text(1), text(2)).through(app)
        assert [message.get("text") for message in socket.sent] == [None, "1", "2"]
    assert await limiter.available(IP, "http", limits=[Limit.per_minute("rpm", 1)]) == {"rpm": 1}


SPEAKS_HTTP: dict[str, Any] = {"websocket.http.response": {}}
EXTENSIONS: dict[str, Any] = {"absent": ..., "none": None, "empty": {}, "http": SPEAKS_HTTP}


@pytest.mark.parametrize(
    ("refused", "accepts", "left"), [(False, False, 2), (False, True, 2), (True, False, 5), (True, True, 2)]
)
async def test_a_handshake_that_is_refused_costs_nothing(refused: bool, accepts: bool, left: int) -> None:
    """As with a request: what was taken goes back if nothing had been answered, and an exception is charged."""
    limiter = limiter_at()
    limits = [Limit.per_minute("messages", 5)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asgi.acquire(scope, "org", "chat", {"messages": 3}, limits)
        if accepts:
            await send(ACCEPT)
        if refused:
            await asgi.acquire(scope, "org", "chat", {"messages": 3}, limits)
        raise KeyError("broken")

    try:
        await Socket().through(limited(app, limiter))
    except KeyError:
        assert not refused
    assert await limiter.available("org", "chat", limits=limits) == {"messages": left}


@pytest.mark.parametrize("extensions", EXTENSIONS)
async def test_a_refusal_before_the_handshake(extensions: str) -> None:
    """A server that can sends the whole answer, any other refuses the handshake."""
    limiter = limiter_at()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asgi.acquire(scope, "org", "chat", {"messages": 3}, [Limit.per_minute("messages", 5)])
        raise AssertionError("not reached")

    async def work() -> Socket:
        async with limiter.acquire("org", "chat", {"messages": 5}, [Limit.per_minute("messages", 5)]):
            pass
        return await Socket(extensions=EXTENSIONS[extensions]).through(limited(app, limiter))

    socket = await work()
    if extensions != "http":
        assert socket.sent == [{"type": "websocket.close", "code": 1013, "reason": "retry in 36 s"}]
        return
    start, body = socket.sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert dict(start["headers"])[b"retry-after"] == b"36"
    assert body["type"] == "websocket.http.response.body"
    assert b"quota-exceeded" in body["body"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(RateLimitExceeded([]), 429), (CapacityExceeded([]), 413), (RateLimiterUnavailable("down"), 503)],
    ids=["not yet", "never", "nobody knows"],
)
async def test_every_refusal_is_told(error: Exception, status: int) -> None:
    early = await Socket(extensions=SPEAKS_HTTP).through(limited(raising(error)))
    assert [message.get("status") for message in early.sent] == [status, None]
    late = await Socket(extensions=SPEAKS_HTTP).through(limited(raising(error, ACCEPT)))
    assert late.sent[0] == ACCEPT
    assert (late.sent[1]["type"], late.sent[1]["code"]) == ("websocket.close", 1013 if status != 413 else 1009)
    assert ("retry" in late.sent[1]["reason"]) == (status != 413)
    assert len(late.sent[1]["reason"].encode()) <= 123


@pytest.mark.parametrize(
    "before",
    [
        [ACCEPT, {"type": "websocket.close", "code": 1000}],
        [{"type": "websocket.close", "code": 4000}],
        [{"type": "websocket.http.response.start", "status": 403, "headers": []}],
    ],
    ids=["closed", "refused", "answered"],
)
async def test_what_is_over_is_not_closed_again(before: list[dict[str, Any]]) -> None:
    error = RateLimitExceeded([])
    socket = Socket(extensions=SPEAKS_HTTP)
    with pytest.raises(RateLimitExceeded):
        await socket.through(limited(raising(error, *before)))
    assert socket.sent == before


async def test_a_client_that_has_gone_is_not_told() -> None:
    """Some servers take a message after the end for an error."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "websocket.disconnect":
            pass
        raise RateLimitExceeded([])

    socket = Socket()
    with pytest.raises(RateLimitExceeded):
        await socket.through(limited(app))
    assert socket.sent == []


async def test_another_error_passes_on() -> None:
    socket = Socket()
    with pytest.raises(ZeroDivisionError):
        await socket.through(limited(raising(ZeroDivisionError())))
    assert socket.sent == []


async def test_what_an_app_takes_for_a_websocket_is_settled_at_its_end() -> None:
    limiter = limiter_at()
    tokens = Limit.per_day("tpm", 1_000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        lease = await asgi.acquire(scope, "org", "chat", {"tpm": 100}, [tokens])
        assert lease_of(scope) is lease
        await lease.adjust(tpm=11)

    await Socket().through(limited(app, limiter))
    assert await limiter.available("org", "chat", limits=[tokens]) == {"tpm": 889}
