"""The middleware around an app that follows a script, so that one test is for ASGI and WSGI alike.

In a script bytes are a chunk of the body, a `Start` begins the answer, an exception is raised, and anything else is
called with the scope or the environment.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from tests.web.drive import PEER, Call, Gone, Line, Raw, Reply, call_asgi, call_wsgi
from zae_limiter import Limit, RateLimiter, Repository, Store, SyncRateLimiter, SyncRepository
from zae_limiter.testing import Harness
from zae_limiter.web import Rule, asgi, lease_of, wsgi

MODES = ("asgi", "wsgi", "wsgi-lazy")
"""A lazy WSGI app is a generator: it does nothing before its first chunk is asked for."""

SCRIPT = "tests.script"
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Start:
    """The app begins to answer."""

    status: int = 200
    headers: tuple[Line, ...] = ()


Step: TypeAlias = Start | bytes | BaseException | Callable[[Raw], Any]
SERVE: tuple[Step, ...] = (Start(), b"served")


def adjust(**amounts: int) -> Callable[[Raw], Any]:
    """A step: the app learns what the request really cost."""
    return lambda raw: lease_of(raw).adjust(**amounts)


async def play(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """An ASGI app that follows the script."""
    started = False
    for step in scope[SCRIPT]:
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, Start):
            started = True
            headers = [(name.encode(), value.encode()) for name, value in _typed(step.headers)]
            await send({"type": "http.response.start", "status": step.status, "headers": headers})
        elif isinstance(step, bytes):
            await send({"type": "http.response.body", "body": step, "more_body": True})
        else:
            made = step(cast("Raw", scope))
            if inspect.isawaitable(made):
                await made
    if started:
        await send({"type": "http.response.body"})


def play_lazily(environ: Raw, start_response: wsgi.StartResponse) -> Iterator[bytes]:
    """A WSGI app that follows the script while its chunks are asked for."""
    for step in environ[SCRIPT]:
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, Start):
            start_response(f"{step.status} Whatever", _typed(step.headers))
        elif isinstance(step, bytes):
            yield step
        else:
            step(environ)


class _Begun:
    """A body whose first chunk was made before anybody asked for it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._first = [*_next(chunks)]

    def __iter__(self) -> Iterator[bytes]:
        yield from self._first
        yield from self._chunks

    def close(self) -> None:
        self._chunks.close()  # type: ignore[attr-defined]  # it is a generator


def play_at_once(environ: Raw, start_response: wsgi.StartResponse) -> Iterable[bytes]:
    """A WSGI app that follows the script up to its first chunk when it is called."""
    return _Begun(play_lazily(environ, start_response))


def _next(chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        return


def _typed(headers: Sequence[Line]) -> list[Line]:
    return [*headers] if any(name == "content-type" for name, _ in headers) else [("content-type", "text/x"), *headers]


class Site:
    """The middleware of one mode around the app that plays scripts."""

    def __init__(self, mode: str, limiter: Any, app: Any = None, **options: Any) -> None:
        self.mode = mode
        self.limiter = limiter
        if mode == "asgi":
            self.app: Any = asgi.RateLimitMiddleware(app or play, limiter, **options)
        else:
            plain = play_lazily if mode == "wsgi-lazy" else play_at_once
            self.app = wsgi.RateLimitMiddleware(app or plain, limiter, **options)

    def ask(self, path: str = "/", *script: Step, **fields: Any) -> Reply:
        """One request; an error that is not in the script is a failure of the test."""
        call = Call(path, extra={SCRIPT: script or SERVE}, **fields)
        return self._checked(call, asyncio.run(call_asgi(self.app, call)) if self.mode == "asgi" else self._wsgi(call))

    def ask_together(self, count: int, call: Call) -> list[Reply]:
        """Many requests at the same time."""
        if self.mode != "asgi":
            with ThreadPoolExecutor(_THREADS) as pool:
                return [self._checked(call, reply) for reply in pool.map(self._wsgi, [call] * count)]

        async def gathered() -> list[Reply]:
            return await asyncio.gather(*(call_asgi(self.app, call) for _ in range(count)))

        return [self._checked(call, reply) for reply in asyncio.run(gathered())]

    def do(self, work: Awaitable[Any] | Any) -> Any:
        """The result of an operation of the limiter, in either mode."""
        return asyncio.run(_awaited(work)) if inspect.isawaitable(work) else work

    def left(self, entity_id: str = f"ip:{PEER}", resource: str = "http", *limits: Limit) -> dict[str, int]:
        """A balance."""
        found: dict[str, int] = self.do(self.limiter.available(entity_id, resource, limits=limits or None))
        return found

    def acquire(self, raw: Raw, entity_id: str, resource: str, consume: Mapping[str, int], *limits: Limit) -> Any:
        """Take tokens inside the app, by the function of the mode."""
        take: Any = asgi.acquire if self.mode == "asgi" else wsgi.acquire
        return take(raw, entity_id, resource, consume, limits or None)

    def _wsgi(self, call: Call) -> Reply:
        return call_wsgi(self.app, call)

    def _checked(self, call: Call, reply: Reply) -> Reply:
        expected = isinstance(reply.error, Gone) or any(reply.error is step for step in call.extra[SCRIPT])
        if reply.error is not None and not expected:
            raise reply.error
        return reply


@dataclass(frozen=True, slots=True)
class Place:
    """Where sites are: the data of one store, and a mode."""

    harness: Harness
    mode: str

    def site(self, *rules: Rule, store: Store | None = None, **options: Any) -> Site:
        """A site with a limiter of its own on the data of the place."""
        limiter = limiter_for(self.mode, store or self.harness.store())
        return Site(self.mode, limiter, rules=rules or None, **options)


def limiter_for(mode: str, store: Store, **options: Any) -> Any:
    """A limiter as the middleware of the mode needs it."""
    if mode == "asgi":
        return RateLimiter(Repository(store), **options)
    return SyncRateLimiter(SyncRepository(store), **options)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work
