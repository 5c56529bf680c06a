"""WSGI middleware: Flask, Django, anything that PEP 3333 describes. It never buffers and never looks into a body.

When tokens are taken, go back or stay is as in `asgi`. An answer has begun with its first chunk: until then the server
can still answer otherwise. The end of the body settles: the last byte of its ``Content-Length``, else the end of its
chunks; or the server's ``close()`` where it was not read to its end.
"""

from __future__ import annotations

from collections.abc import Sized
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..runtime.blocking import run
from .answers import Answer
from .fields import unsaid
from .guard import REFUSALS
from .middleware import Middleware
from .modes import Blocking
from .request import WsgiRequest
from .tab import TAB, Tab, tab_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..core.limit import Limit
    from ..sync.facade import SyncLease, SyncRateLimiter
    from .modes import Mode
    from .tab import Pending

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

    def _mode(self, limiter: SyncRateLimiter | str) -> Mode:
        return Blocking(limiter)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        request = WsgiRequest(environ, self.guard.proxies, self._prefixes)
        environ[TAB] = tab = Tab(self.guard, environ.get(TAB))
        exchange = Exchange(request, tab, start_response)
        try:
            finish(self.guard.admit(request, tab))
            source = self.app(environ, exchange.start_response)
            return SizedBody(exchange, source) if isinstance(source, Sized) else Body(exchange, source)
        except Exception as error:
            return exchange.failed(error)
        except BaseException:
            run(tab.settle())
            raise

    def close(self) -> None:
        """Close the limiter, if it was opened from a URL here."""
        run(self.guard.mode.close())


class Exchange:
    """The answer to one request, watched: has it been promised, has it begun."""

    def __init__(self, request: WsgiRequest, tab: Tab, start_response: StartResponse) -> None:
        self._request = request
        self._start_response = start_response
        self._promised = False
        self._length: int | None = None
        """How many bytes are still to come, if the app has said so."""
        self.tab = tab
        self.begun = False

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        """The app promises an answer; it gets where the client stands on top."""
        self._promised = True
        self.tab.answered(int(status.split(" ", 1)[0]))
        said = {name.lower(): value for name, value in headers}
        length = said.get("content-length", "")
        self._length = int(length) if length.isdecimal() else None
        lines = unsaid(self.tab.guard.lines(self.tab), said.keys())
        write = self._start_response(status, [*headers, *lines], *(() if exc_info is None else (exc_info,)))

        def written(data: bytes) -> Any:
            self.begin()
            return write(data)

        return written

    def begin(self) -> None:
        """Something goes to the client: from here on the answer stands. A failure has been charged by then."""
        self.begun = True
        if self.tab.failed:
            run(self.tab.charge_failure())

    def send(self, chunk: bytes) -> None:
        """A chunk of the body goes to the client; the last one settles."""
        if chunk and not self.begun:
            self.begin()
        if self._length is not None:
            self._length -= len(chunk)
            if self._length <= 0:
                self.settle()

    def settle(self) -> None:
        """Settle what the request has taken."""
        if not self.tab.settle_at_once():
            run(self.tab.settle())

    def failed(self, error: Exception) -> Iterable[bytes]:
        """The app has raised: settle, and answer a refusal if nothing was answered yet."""
        run(self.tab.settle_failed(error, untouched=not self.begun))
        if self.begun or not isinstance(error, REFUSALS):
            raise error
        self.begun = True
        made = run(self.tab.guard.response(self._request, error))
        instead = ((type(error), error, error.__traceback__),) if self._promised else ()
        if isinstance(made, Answer):
            return start(made, self._start_response, *instead, bodiless=self._request.method == "HEAD")

        def start_response(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            return self._start_response(status, headers, *(exc_info or instead))

        chunks: Iterable[bytes] = made(self._request.raw, start_response)
        return chunks


class Body:
    """What the server iterates over: the app's chunks as they come, and the settlement when it closes them."""

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
            self._instead = exchange.failed(error)
            self._chunks = iter(self._instead)
            return next(self._chunks)
        exchange.send(chunk)
        return chunk

    def close(self) -> None:
        """The server is done, or the client has gone: the app's generator ends first, and may adjust as it does."""
        try:
            for source in (self._source, self._instead):
                close = getattr(source, "close", None)
                if close is not None:
                    close()
        finally:
            self._exchange.settle()


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
    """Take tokens inside a handler; as `asgi.acquire`, blocking."""
    tab = tab_of(request)
    lease = cast("SyncLease", tab.guard.mode.lease(entity_id, resource, consume, limits, max_wait))
    finish(tab.take(lease))
    return lease


def finish(pending: Pending) -> None:
    """Do what is left to do."""
    if pending is not None:
        run(pending)


def start(answer: Answer, start_response: StartResponse, *exc_info: Any, bodiless: bool = False) -> list[bytes]:
    """Begin an answer, and give its body."""
    phrase = HTTPStatus(answer.status).phrase if answer.status in _STATUSES else "Refused"
    start_response(f"{answer.status} {phrase}", list(answer.headers), *exc_info)
    return [] if bodiless else [answer.body]
