"""WSGI middleware: Flask, Django, anything that PEP 3333 describes. It never buffers and never looks into a body.

When tokens are taken, go back or stay is as in `asgi`. An answer has begun with its first chunk: until then the server
can still answer otherwise. The end of the body settles and frees slots: the last byte of its ``Content-Length``, else
the end of its chunks; or the server's ``close()`` if it was not read to its end. With ``free_slots="after"`` it is
always the end of the chunks, when the server has taken the last one and asks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..core.limit import Limit
from ..runtime.blocking import run
from .answers import Answer
from .fields import omit_present
from .middleware import Middleware
from .request import WsgiRequest
from .request_leases import LEASES, RequestLeases, find_leases, finish, is_refusal

if TYPE_CHECKING:
    from ..limiter.sync_lease import SyncLease
    from ..sync.facade import SyncRateLimiter


Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_STATUSES = frozenset(HTTPStatus)


class RateLimitMiddleware(Middleware["App", "SyncRateLimiter"]):
    """Limits the requests of a WSGI app; the arguments are those of the ASGI middleware, with a `SyncRateLimiter`.

    >>> from flask import Flask
    >>> from zae_limiter import Limit
    >>> app = Flask("chat")
    >>> app.wsgi_app = RateLimitMiddleware(app.wsgi_app, "memory://", limits=[Limit.per_minute("rpm", 60)])
    """

    def _limiter_type(self) -> type[SyncRateLimiter]:
        from ..sync.facade import SyncRateLimiter  # an ASGI app that imports this module needs none of it

        return SyncRateLimiter

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        request = WsgiRequest(environ, self.proxies, self.prefixes)
        exchange = Exchange(self, request, start_response)
        try:
            pending = self.admit(request, exchange.leases)
            if pending is not None:
                run(pending)
            source = self.app(environ, exchange.start_response)
            return (SizedBody if isinstance(source, Sized) else Body)(exchange, source)
        except Exception as error:
            return exchange.answer_error(error)
        except BaseException:
            exchange.end()
            raise

    def close(self) -> None:
        """Close the limiter, if it was opened from a URL here."""
        run(self._close_store())


class Exchange:
    """The answer to one request, watched: has it been promised, has it begun."""

    begun = False
    _promised = False
    _length: int | None = None
    """How many bytes are still to come, if the app has said so."""

    def __init__(self, middleware: RateLimitMiddleware, request: WsgiRequest, start_response: StartResponse) -> None:
        self._middleware = middleware
        self._request = request
        self._start_response = start_response
        self.leases = request.raw[LEASES] = RequestLeases(middleware, request.raw.get(LEASES))

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        """Take the app's promise of an answer, and add the header lines that tell how much is left."""
        self._promised = True
        self.leases.note_status(int(status.split(" ", 1)[0]))
        present = {name.lower(): value for name, value in headers}
        length = present.get("content-length", "")
        self._length = int(length) if length.isdecimal() else None
        lines = omit_present(self._middleware.lines(self.leases), present.keys())
        write = self._start_response(status, [*headers, *lines], *(() if exc_info is None else (exc_info,)))

        def begin_and_write(data: bytes) -> Any:
            self.begin()
            return write(data)

        return begin_and_write

    def begin(self) -> None:
        """Note that something goes to the client: from here on the answer stands. A failure is charged before."""
        self.begun = True
        if self.leases.failed:
            run(self.leases.charge_failure())

    def send(self, chunk: bytes) -> None:
        """Note that a chunk of the body goes to the client; the last one settles."""
        if chunk and not self.begun:
            self.begin()
        if self._length is not None:
            self._length -= len(chunk)
            if self._length <= 0 and not self._middleware.frees_late:
                self.settle()

    def settle(self) -> None:
        """Settle what the request has taken."""
        if not self.leases.try_settle():
            run(self.leases.settle())

    def end(self) -> None:
        """Settle what the request has taken; nothing comes after it."""
        self.leases.is_over = True
        self.settle()

    def answer_error(self, error: Exception) -> Iterable[bytes]:
        """Settle after the app has raised, and answer a refusal if nothing was answered yet; raise any other error."""
        run(self.leases.settle_error(error, untouched=not self.begun))
        if self.begun or not is_refusal(error):
            raise error
        self.begun = True
        made = run(self._middleware.respond(self._request, self._middleware.answer(error), error))
        instead = ((type(error), error, error.__traceback__),) if self._promised else ()
        if isinstance(made, Answer):
            return start_answer(made, self._start_response, *instead, bodiless=self._request.method == "HEAD")

        def start_response(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            return self._start_response(status, headers, *(exc_info or instead))

        chunks: Iterable[bytes] = made(self._request.raw, start_response)
        return chunks


class Body:
    """The body that the server iterates over: the app's chunks as they come, and the settlement when it closes them."""

    def __init__(self, exchange: Exchange, source: Iterable[bytes]) -> None:
        self._exchange = exchange
        self._source = source
        self._instead: Iterable[bytes] = ()
        self._chunks = iter(source)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        exchange = self._exchange
        try:
            chunk = next(self._chunks)
        except StopIteration:
            exchange.settle()
            raise
        except Exception as error:
            if exchange.begun:
                raise
            self._instead = exchange.answer_error(error)
            self._chunks = iter(self._instead)
            return next(self._chunks)
        exchange.send(chunk)
        return chunk

    def close(self) -> None:
        """End the app's generator, which may adjust as it ends, and settle: the server is done or the client gone."""
        try:
            for source in (self._source, self._instead):
                close = getattr(source, "close", None)
                if close is not None:
                    close()
        finally:
            self._exchange.end()


class SizedBody(Body):
    """A body whose number of chunks is known: of a single one, the server can tell the length."""

    def __len__(self) -> int:
        return len(cast("Sized", self._source))


def acquire(
    request: Any,
    entity_id: str,
    resource: str,
    consume: Mapping[str, int],
    limits: Sequence[Limit] | None = None,
    max_wait: float | None = None,
) -> SyncLease:
    """Take tokens inside a handler and return the lease; as `zae_limiter.web.asgi.acquire`, blocking.

    ``request``: the WSGI environment, or the request object of a framework. ``entity_id``, ``resource``, ``consume``,
    ``limits`` and ``max_wait`` are as for `SyncRateLimiter.acquire`.
    """
    leases = find_leases(request)
    lease: SyncLease = leases.middleware.limiter.acquire(entity_id, resource, consume, limits, None, max_wait)
    run(finish(leases.take(lease)))
    return lease


def start_answer(answer: Answer, start_response: StartResponse, *exc_info: Any, bodiless: bool = False) -> list[bytes]:
    """Begin an answer, and return its body; an empty one if the request was ``HEAD``."""
    phrase = HTTPStatus(answer.status).phrase if answer.status in _STATUSES else "Refused"
    start_response(f"{answer.status} {phrase}", list(answer.headers), *exc_info)
    return [] if bodiless else [answer.body]
