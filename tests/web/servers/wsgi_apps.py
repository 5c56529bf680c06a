"""What a WSGI app can do to its server, one function each; ``/plain`` calls `plain`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from tests.web.servers.calls import CHUNKS, FLOOD, HELLO, MOST, PER_CHUNK, AppError, WsgiCall
from zae_limiter import RateLimiterUnavailable


def plain(call: WsgiCall) -> Iterable[bytes]:
    """Five bytes."""
    return call.whole(HELLO)


def adjusted(call: WsgiCall) -> Iterable[bytes]:
    """More than was estimated."""
    call.lease.adjust(tpm=120)
    return call.whole(HELLO)


def released(call: WsgiCall) -> Iterable[bytes]:
    """Less than was estimated."""
    call.lease.release(tpm=300)
    return call.whole(HELLO)


def stream(call: WsgiCall) -> Iterator[bytes]:
    """A chunk, and the next one when the test has seen it; nothing is started before the server asks for a byte."""
    call.start()
    for number, chunk in enumerate(CHUNKS, start=1):
        yield chunk
        call.sign("seen", number)


def events(call: WsgiCall) -> Iterable[bytes]:
    """Server-sent events, each of which costs something."""

    def ticks() -> Iterator[bytes]:
        for number in range(5):
            call.lease.adjust(tpm=PER_CHUNK)
            yield f"data: {number}\n\n".encode()
            call.sign("seen", number + 1)

    call.start(headers=[("Content-Type", "text/event-stream")])
    return ticks()


def file(call: WsgiCall) -> Iterable[bytes]:
    """A few MiB from the disk, by the way of the server's own."""
    path = call.stage.folder / "blob.bin"
    call.start(headers=[("Content-Length", str(path.stat().st_size))])
    wrapped: Iterable[bytes] = call.environ["wsgi.file_wrapper"](path.open("rb"), 65_536)
    return wrapped


def nothing(call: WsgiCall) -> Iterable[bytes]:
    """204."""
    call.start("204 No Content")
    return []


def empty(call: WsgiCall) -> Iterable[bytes]:
    """200 without a byte."""
    return call.whole(b"")


def writes(call: WsgiCall) -> Iterable[bytes]:
    """The old way: the body goes through what ``start_response`` returns."""
    write = call.start(headers=[("Content-Length", "10")])
    write(HELLO)
    call.lease.adjust(tpm=120)
    return [HELLO]


def breaks_written(call: WsgiCall) -> Iterable[bytes]:
    """An exception when some of the body has gone out that way."""
    write = call.start(headers=[("Content-Length", "10")])
    write(HELLO)
    call.lease.adjust(tpm=120)
    raise AppError("after the start")


def fails(call: WsgiCall) -> Iterable[bytes]:
    """An exception before the answer."""
    call.lease.adjust(tpm=120)
    raise AppError("before the start")


def fails_lazily(call: WsgiCall) -> Iterator[bytes]:
    """The same, when the server asks for the first byte."""
    call.lease.adjust(tpm=120)
    if call.environ["REQUEST_METHOD"] == "GET":
        raise AppError("before the start")
    yield b""


def breaks(call: WsgiCall) -> Iterator[bytes]:
    """An exception in the middle of the answer."""
    call.start()
    yield CHUNKS[0]
    call.lease.adjust(tpm=120)
    call.sign("seen")
    raise AppError("after the start")


def raises_late(call: WsgiCall) -> Iterator[bytes]:
    """An exception when the answer is out."""
    call.lease.adjust(tpm=120)
    call.start(headers=[("Content-Length", str(len(HELLO)))])
    yield HELLO
    raise AppError("after the end")


def waits(call: WsgiCall) -> Iterable[bytes]:
    """An answer that takes time, whoever is still there to read it."""
    call.note("waiting")
    call.sign("go")
    call.lease.adjust(tpm=120)
    call.note("adjusted")
    return call.whole(HELLO)


def holds(call: WsgiCall) -> Iterable[bytes]:
    """An answer that takes as long as the test says."""
    call.note("moves", 1)
    call.sign("go")
    call.note("moves", -1)
    return call.whole(HELLO)


def gathers(call: WsgiCall) -> Iterable[bytes]:
    """An answer when five calls have been in here."""
    call.note("moves", 1)
    call.sign("moves", 5)
    call.note("moves", -1)
    return call.whole(HELLO)


def counts(call: WsgiCall) -> Iterable[bytes]:
    """A stream whose price is what was sent of it; the test says after how many chunks the app is to wait."""
    pause = call.number("after")

    def counted() -> Iterator[bytes]:
        sent = 0
        try:
            while sent < MOST:
                if sent == pause:
                    call.note("paused")
                    call.sign("go")
                yield CHUNKS[0] if sent < pause else FLOOD
                sent += 1
        finally:
            call.lease.adjust(tpm=PER_CHUNK * sent)
            call.note("counted", sent)

    call.start()
    return counted()


def floods(call: WsgiCall) -> Iterable[bytes]:
    """As much as the client takes."""

    def counted() -> Iterator[bytes]:
        sent = 0
        try:
            while sent < MOST:
                yield FLOOD
                sent += 1
                call.note("sent")
        finally:
            call.lease.adjust(tpm=PER_CHUNK * sent)
            call.note("counted", sent)

    call.start()
    return counted()


def upload(call: WsgiCall) -> Iterable[bytes]:
    """What has arrived of the body, as a digest."""
    digest, length = hashlib.sha256(), 0
    while piece := call.environ["wsgi.input"].read(65_536):
        digest.update(piece)
        length += len(piece)
    return call.whole(f"{length} {digest.hexdigest()}".encode())


def cookies(call: WsgiCall) -> Iterable[bytes]:
    """Headers of the app's own, some of them twice."""
    headers = [("Set-Cookie", "a=1"), ("X-App", "kept"), ("Set-Cookie", "b=2"), ("Vary", "Accept")]
    return call.whole(HELLO, "201 Created", headers)


def takes_more(call: WsgiCall) -> Iterable[bytes]:
    """A second taking that has to wait."""
    call.lease.consume(tpm=99_900)
    return call.whole(HELLO)


def takes_too_much(call: WsgiCall) -> Iterable[bytes]:
    """A second taking that never fits."""
    call.lease.consume(tpm=200_000)
    return call.whole(HELLO)


def loses_store(call: WsgiCall) -> Iterable[bytes]:
    """A second taking with nobody to ask."""
    raise RateLimiterUnavailable("nobody there")


ROUTES = {
    found.__name__.replace("_", "-"): found
    for found in (
        plain, adjusted, released, stream, events, file, nothing, empty, writes, breaks_written, fails, fails_lazily,
        breaks, raises_late, waits, counts, floods, upload, cookies, takes_more, takes_too_much, loses_store,
        holds, gathers,
    )
}  # fmt: skip
"""By the last part of the path."""
