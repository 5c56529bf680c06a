"""What an ASGI app can do to its server, one function each; ``/plain`` calls `plain`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from tests.web.servers.calls import CHUNKS, FIVE, FLOOD, HELLO, MOST, PER_CHUNK, AppError, AsgiCall, Receive
from zae_limiter import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.web.asgi import acquire


async def plain(call: AsgiCall) -> None:
    """Five bytes."""
    await call.whole(HELLO)


async def adjusted(call: AsgiCall) -> None:
    """More than was estimated."""
    await call.lease.adjust(tpm=120)
    await call.whole(HELLO)


async def released(call: AsgiCall) -> None:
    """Less than was estimated."""
    await call.lease.release(tpm=300)
    await call.whole(HELLO)


async def stream(call: AsgiCall) -> None:
    """A chunk, and the next one when the test has seen it."""
    await call.start()
    for number, chunk in enumerate(CHUNKS, start=1):
        await call.body(chunk, more=True)
        await call.sign("seen", number)
    await call.body(b"")


async def events(call: AsgiCall) -> None:
    """Server-sent events, each of which costs something."""

    async def ticks() -> AsyncIterator[str]:
        for number in range(5):
            await call.lease.adjust(tpm=PER_CHUNK)
            yield f"data: {number}\n\n"
            await call.sign("seen", number + 1)

    await call.by(StreamingResponse(ticks(), media_type="text/event-stream"))


async def file(call: AsgiCall) -> None:
    """A few MiB from the disk, or a range of them."""
    await call.by(FileResponse(call.stage.folder / "blob.bin"))


async def nothing(call: AsgiCall) -> None:
    """204."""
    await call.start(204)
    await call.body(b"")


async def empty(call: AsgiCall) -> None:
    """200 without a byte."""
    await call.whole(b"")


async def fails(call: AsgiCall) -> None:
    """An exception before the answer."""
    await call.lease.adjust(tpm=120)
    raise AppError("before the start")


async def breaks(call: AsgiCall) -> None:
    """An exception in the middle of the answer."""
    await call.start()
    await call.body(CHUNKS[0], more=True)
    await call.lease.adjust(tpm=120)
    await call.sign("seen")
    raise AppError("after the start")


async def raises_late(call: AsgiCall) -> None:
    """An exception when the answer is out."""
    await call.lease.adjust(tpm=120)
    await call.whole(HELLO)
    raise AppError("after the end")


async def waits(call: AsgiCall) -> None:
    """An answer that takes time, whoever is still there to read it."""
    call.note("waiting")
    try:
        await call.sign("go")
    except asyncio.CancelledError:
        call.note("cancelled")
        raise
    await call.lease.adjust(tpm=120)
    call.note("adjusted")
    await call.whole(HELLO)


async def holds(call: AsgiCall) -> None:
    """An answer that takes as long as the test says."""
    call.note("moves", 1)
    await call.sign("go")
    call.note("moves", -1)
    await call.whole(HELLO)


async def gathers(call: AsgiCall) -> None:
    """An answer when five calls have been in here."""
    call.note("moves", 1)
    await call.sign("moves", 5)
    call.note("moves", -1)
    await call.whole(HELLO)


async def notices(call: AsgiCall) -> None:
    """No answer at all for a client that leaves."""
    call.note("waiting")
    while (await call.receive())["type"] != "http.disconnect":
        pass
    await call.lease.adjust(tpm=120)
    call.note("adjusted")


async def reads(call: AsgiCall) -> None:
    """A framework that reads the body, and raises when the client leaves meanwhile."""
    call.note("waiting")
    await call.whole(await Request(call.scope, call.receive).body())


async def counts(call: AsgiCall) -> None:
    """A stream whose price is what was sent of it; the test says after how many chunks the app is to wait."""
    pause = call.number("after")

    async def counted() -> AsyncIterator[bytes]:
        sent = 0
        try:
            while True:
                if sent == pause:
                    call.note("paused")
                    await call.sign("go")
                yield CHUNKS[0]
                sent += 1
        finally:
            await call.lease.adjust(tpm=PER_CHUNK * sent)
            call.note("counted", sent)

    await call.by(StreamingResponse(counted()))


async def floods(call: AsgiCall) -> None:
    """As much as the client takes: the app is held up inside ``send`` when it leaves."""
    sent = 0
    await call.start()
    try:
        while sent < MOST:
            await call.body(FLOOD, more=True)
            sent += 1
            call.note("sent")
    finally:
        await call.lease.adjust(tpm=PER_CHUNK * sent)
        call.note("counted", sent)


async def spills(call: AsgiCall) -> None:
    """The same from a generator that nobody closes: Starlette leaves it to the garbage collection."""

    async def counted() -> AsyncIterator[bytes]:
        sent = 0
        try:
            while sent < MOST:
                yield FLOOD
                sent += 1
                call.note("sent")
        finally:
            await call.lease.adjust(tpm=PER_CHUNK * sent)
            call.note("counted", sent)

    await call.by(StreamingResponse(counted()))


async def upload(call: AsgiCall) -> None:
    """What has arrived of the body, as a digest."""
    digest, length = hashlib.sha256(), 0
    async for piece in Request(call.scope, call.receive).stream():
        digest.update(piece)
        length += len(piece)
    await call.whole(f"{length} {digest.hexdigest()}".encode())


async def cookies(call: AsgiCall) -> None:
    """Headers of the app's own, some of them twice."""
    headers = [(b"Set-Cookie", b"a=1"), (b"X-App", b"kept"), (b"Set-Cookie", b"b=2"), (b"Vary", b"Accept")]
    await call.whole(HELLO, 201, headers)


async def background(call: AsgiCall) -> None:
    """Work that goes on when the answer is out."""

    async def work() -> None:
        await call.sign("go")
        call.note("worked")

    await call.lease.adjust(tpm=120)
    await call.by(Response(HELLO, background=BackgroundTask(work)))


async def takes_late(call: AsgiCall) -> None:
    """A slot for work that goes on when the answer is out."""

    async def work() -> None:
        await acquire(call.scope, call.client, "five", {}, FIVE)
        call.note("taken")
        await call.sign("go")

    await call.by(Response(HELLO, background=BackgroundTask(work)))


async def hints(call: AsgiCall) -> None:
    """Early hints before the answer, trailers after it."""
    await call.send({"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]})
    await call.send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
    await call.body(HELLO)
    await call.send({"type": "http.response.trailers", "headers": [(b"x-digest", b"abc")]})


async def state(call: AsgiCall) -> None:
    """What the lifespan has left for requests."""
    await call.whole(call.scope["state"]["greeting"])


async def takes_more(call: AsgiCall) -> None:
    """A second taking that has to wait."""
    await call.lease.consume(tpm=99_900)


async def takes_too_much(call: AsgiCall) -> None:
    """A second taking that never fits."""
    await call.lease.consume(tpm=200_000)


async def loses_store(call: AsgiCall) -> None:
    """A second taking with nobody to ask."""
    raise RateLimiterUnavailable("nobody there")


async def echo(call: AsgiCall) -> None:
    """A websocket that says what it hears."""
    await _echo(call, call.receive)


async def chats(call: AsgiCall) -> None:
    """The same, with a limit of messages."""
    assert call.messages is not None
    await _echo(call, call.messages.wrap(call.scope, call.receive))


async def _echo(call: AsgiCall, receive: Receive) -> None:
    await receive()
    await call.send({"type": "websocket.accept", "subprotocol": "mirror", "headers": [(b"x-app", b"kept")]})
    while (message := await receive())["type"] == "websocket.receive":
        heard = {name: message[name] for name in ("text", "bytes") if message.get(name) is not None}
        await call.send({"type": "websocket.send", **heard})
    call.note("left", message["code"])


async def stays(call: AsgiCall) -> None:
    """A websocket that holds a slot, and says what it hears."""
    await acquire(call.scope, call.client, "five", {}, FIVE)
    await _echo(call, call.receive)


async def hangs_up(call: AsgiCall) -> None:
    """A websocket that holds a slot, is closed by the app, and leaves work behind."""
    await call.receive()
    await acquire(call.scope, call.client, "five", {}, FIVE)
    await call.send({"type": "websocket.accept"})
    await call.sign("close")
    await call.send({"type": "websocket.close"})
    call.note("closed")
    await call.sign("go")


async def refuses(call: AsgiCall) -> None:
    """A websocket whose app lets a refusal through."""
    await call.receive()
    await call.send({"type": "websocket.accept"})
    raise RateLimitExceeded([])


async def lifespan(call: AsgiCall) -> None:
    """Startup and shutdown, noted under the name ``lifespan``; requests find what startup has left."""
    while True:
        message = await call.receive()
        call.stage.note("lifespan", message["type"])
        call.scope["state"]["greeting"] = HELLO
        await call.send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


ROUTES = {
    found.__name__.replace("_", "-"): found
    for found in (
        plain, adjusted, released, stream, events, file, nothing, empty, fails, breaks, raises_late, waits, notices,
        reads, counts, floods, spills, upload, cookies, background, hints, state, takes_more, takes_too_much,
        loses_store, echo, chats, refuses, holds, gathers, stays, hangs_up, takes_late,
    )
}  # fmt: skip
"""By the last part of the path."""
