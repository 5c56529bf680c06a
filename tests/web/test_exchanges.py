"""What only one kind of app can do, and how a handler finds its lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.web.drive import PEER, Call, call_asgi, call_wsgi
from tests.web.scripted import SCRIPT, SERVE, Site, Start, adjust, limiter_for
from zae_limiter import Lease, Limit, SyncLease, ValidationError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Rule, lease_of

TPM = Limit.per_day("tpm", 1_000)
RULE = Rule(limits=[TPM], cost={"tpm": 100})
IP = f"ip:{PEER}"


class Boom(Exception):
    """What an app raises."""


def spent(site: Site) -> int:
    """What the client has been charged so far."""
    return 1_000 - site.left(IP, "http", TPM)["tpm"]


def on_memory(mode: str, app: Any = None, rule: Rule = RULE) -> Site:
    """A site with a store of its own."""
    return Site(mode, limiter_for(mode, MemoryStore(ManualClock())), app, rules=[rule])


@pytest.mark.parametrize("kind", ["lifespan", "something.else"])
async def test_what_is_no_request_passes_through(kind: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, await receive()))
        await send({"type": "passed"})

    site = Site("asgi", limiter_for("asgi", MemoryStore(ManualClock())), app=app, limits=[TPM])
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": f"{kind}.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind}
    await site.app(scope, receive, send)
    assert seen == [({"type": kind}, {"type": f"{kind}.startup"})]
    assert sent == [{"type": "passed"}]


async def test_a_body_is_never_held_back_on_asgi() -> None:
    """Every chunk has left before the app makes the next one."""
    sent: list[str] = []
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            seen.append(len(sent))

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await on_memory("asgi", app).app(Call().scope(), None, send)
    assert seen == [2, 3, 4]


def test_a_body_is_never_held_back_on_wsgi() -> None:
    """No chunk is made before the server asks for it."""
    made: list[str] = []
    script = [Start(), b"a", lambda raw: made.append("b"), b"b", lambda raw: made.append("c"), b"c"]
    chunks = iter(on_memory("wsgi-lazy").app(Call(extra={SCRIPT: script}).environ(), lambda *_: None))
    assert [(next(chunks), len(made)) for _ in range(3)] == [(b"a", 0), (b"b", 1), (b"c", 2)]
    chunks.close()


@pytest.mark.parametrize("written", [b"", b"one"], ids=["nothing", "something"])
def test_what_a_wsgi_app_writes_itself_begins_the_answer(written: bytes) -> None:
    boom = Boom()

    def app(environ: Any, start_response: Any) -> Any:
        write = start_response("200 OK", [("content-type", "text/plain")])
        if written:
            write(written)
        raise boom

    site = on_memory("wsgi", app, replace(RULE, refund=(500,)))
    reply = call_wsgi(site.app, Call())
    assert (reply.error, reply.body) == (boom, written)
    assert spent(site) == (100 if written else 0)


@pytest.mark.parametrize(
    "script", [[KeyboardInterrupt()], [Start(), b"a", KeyboardInterrupt()]], ids=["before", "after"]
)
@pytest.mark.parametrize("mode", ["wsgi", "wsgi-lazy"])
def test_an_interrupt_keeps_the_charge(mode: str, script: Any) -> None:
    """Nobody knows what the work has cost by then."""
    site = on_memory(mode)
    with pytest.raises(KeyboardInterrupt):
        call_wsgi(site.app, Call(extra={SCRIPT: [adjust(tpm=1), *script, KeyboardInterrupt()]}))
    assert spent(site) == 101


def test_an_app_that_fails_because_the_client_has_gone_gives_nothing_back() -> None:
    """As Starlette does while it reads the body of the request: who hangs up pays."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise Boom

    site = on_memory("asgi", app, replace(RULE, refund=(500,)))
    reply = asyncio.run(call_asgi(site.app, Call(stays=0)))
    assert isinstance(reply.error, Boom)
    assert spent(site) == 100


@pytest.mark.parametrize("kind", ["http.response.body", "http.response.pathsend", "http.response.zerocopysend"])
async def test_the_end_of_the_body_settles(kind: str) -> None:
    """Also of one that the server sends by itself; the app may go on for long after it."""
    seen: list[dict[str, int]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await lease_of(scope).adjust(tpm=1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more_body in (True, False):
            await send({"type": kind, "more_body": more_body})
            seen.append(await site.limiter.available(IP, "http", limits=[TPM]))

    async def send(message: Any) -> None:
        pass

    site = on_memory("asgi", app)
    await site.app(Call().scope(), None, send)
    assert seen == [{"tpm": 900}, {"tpm": 899}]


class Holder:
    """A request object of some framework."""

    def __init__(self, name: str, raw: Any) -> None:
        setattr(self, name, raw)


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
@pytest.mark.parametrize("name", ["scope", "environ", "META", "raw"])
def test_the_lease_of_a_request_is_found_in_whatever_holds_it(mode: str, name: str) -> None:
    site = on_memory(mode)
    found: list[Any] = []
    site.ask("/", lambda raw: found.extend([lease_of(raw), lease_of(Holder(name, raw))]), *SERVE)
    assert found[0] is found[1]
    assert isinstance(found[0], Lease if mode == "asgi" else SyncLease)


@pytest.mark.parametrize(
    "request_", [None, 5, {}, Holder("scope", {}), Holder("scope", None), Holder("META", {"a": 1})]
)
def test_what_never_met_the_middleware_has_no_lease(request_: Any) -> None:
    with pytest.raises(ValidationError, match="did not pass through RateLimitMiddleware; add it to the app"):
        lease_of(request_)


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_what_was_not_limited_has_no_lease(mode: str) -> None:
    site = Site(mode, limiter_for(mode, MemoryStore(ManualClock())), rules=[Rule("/free", exempt=True)])
    for path in ("/free", "/other"):
        with pytest.raises(ValidationError, match="is not limited: no rule matches, or it is exempt"):
            site.ask(path, lease_of)
