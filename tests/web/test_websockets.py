"""Rules are for handshakes as well; a refusal that nobody catches ends a websocket in the way that it allows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.drive import PEER
from tests.web.sockets import ACCEPT, App, Socket, echo, limited, limiter_at, text
from zae_limiter import CapacityExceeded, Limit, RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.web import Rule, asgi, lease_of

IP = f"ip:{PEER}"


def raising(error: Exception, *before: dict[str, Any]) -> App:
    """An app that sends something and then raises."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in before:
            await send(message)
        raise error

    return app


async def nothing(scope: Any) -> None:
    pass


async def test_a_handshake_is_charged_as_a_request_is() -> None:
    """Messages are not: they are what `MessageLimit` is for."""
    limiter = limiter_at()
    limits = [Limit.per_minute("rpm", 2)]
    app = limited(echo(nothing), limiter, limits=limits)
    for left in (1, 0):
        socket = await Socket(text(1), text(2)).through(app)
        assert [message.get("text") for message in socket.sent] == [None, "1", "2"]
        assert await limiter.available(IP, "http", limits=limits) == {"rpm": left}
    refused = await Socket(text(1)).through(app)
    assert refused.sent == [{"type": "websocket.close", "code": 1013, "reason": "retry in 30 s"}]
    answered = await Socket(text(1), extensions=SPEAKS_HTTP).through(app)
    assert [message.get("status") for message in answered.sent] == [429, None]


async def test_rules_choose_handshakes_by_path_and_as_get() -> None:
    limiter = limiter_at()
    limits = [Limit.per_minute("rpm", 9)]
    rules = [Rule("/elsewhere", resource="other"), Rule(methods=["GET"], limits=limits, resource="mine")]
    await Socket().through(limited(echo(nothing), limiter, rules=rules))
    assert await limiter.available(IP, "mine", limits=limits) == {"rpm": 8}


async def test_handshakes_can_be_exempt() -> None:
    limiter = limiter_at()
    limits = [Limit.per_minute("rpm", 1)]
    free = Rule(lambda request: request.raw["type"] == "websocket", exempt=True)
    app = limited(echo(nothing), limiter, rules=[free], limits=limits)
    for _ in range(3):
        assert (await Socket(text(1)).through(app)).sent[0] == ACCEPT
    assert await limiter.available(IP, "http", limits=limits) == {"rpm": 1}


async def test_a_slot_is_held_until_the_websocket_ends() -> None:
    limiter = limiter_at()
    limits = [Limit.concurrent("open", 1)]
    held: list[int] = []

    async def look(scope: Any) -> None:
        held.append((await limiter.available(IP, "http", limits=limits))["open"])

    await Socket(text(1)).through(limited(echo(look), limiter, limits=limits))
    assert (held, await limiter.available(IP, "http", limits=limits)) == ([0], {"open": 1})


@pytest.mark.parametrize(
    ("message", "left"),
    [
        (ACCEPT, 5),
        ({"type": "websocket.close", "code": 1008}, 4),
        ({"type": "websocket.http.response.start", "status": 401, "headers": []}, 4),
        ({"type": "websocket.http.response.start", "status": 404, "headers": []}, 5),
    ],
    ids=["accepted", "closed", "401", "404"],
)
async def test_a_refused_handshake_is_a_failure(message: dict[str, Any], left: int) -> None:
    """Whoever guesses keys of a websocket is counted; closing it before it is accepted is a 403."""
    limiter = limiter_at()
    guesses = [Limit.per_day("guesses", 5)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(message)

    await Socket().through(limited(app, limiter, rules=[Rule(limits=guesses, count="failures")]))
    assert await limiter.available(IP, "failures", limits=guesses) == {"guesses": left}


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
