"""Cancelled at any await, a request is charged once or not at all, adjustments are written, and no lease stays open.

The law: tokens that were taken stay taken once the app runs, since somebody has worked for them; before that they go
back. The app says how far it came, and the balance must say the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from tests.runtime.test_cancellation import CancelAt
from tests.support.deadlines import PATIENCE
from tests.web.drive import Call, call_asgi
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, Store
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import FaultyStore, ManualClock
from zae_limiter.web import Rule, asgi, lease_of
from zae_limiter.web.request_leases import LEASES

TPM = Limit.per_day("tpm", 1_000)
Opener = Callable[[], Store]


class Boom(Exception):
    """What an app raises."""


@pytest.fixture(params=["memory", "independent", "sqlite"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Clients of one store that suspends around each call; ``independent`` writes the levels side by side."""
    clock = ManualClock()
    if request.param == "sqlite":
        return lambda: FaultyStore(open_store(f"sqlite:///{tmp_path}/l.db", blocking=False, clock=clock), suspend=True)
    shared = MemoryStore(clock)
    return lambda: FaultyStore(shared, suspend=True, free_atomic_commit=request.param == "memory")


@dataclass(slots=True)
class Progress:
    """How far an app came, and what it must have cost by then."""

    key: str
    limiter: RateLimiter
    owed: dict[str, int] = field(default_factory=dict)
    scope: Any = None

    def owe(self, **amounts: int) -> None:
        """The app has come to a point from which on this much more is due, by the name of who pays."""
        for who, amount in amounts.items():
            self.owed[who] = self.owed.get(who, 0) + amount

    async def check(self, step: int) -> None:
        """Compare with the balances; every lease is over."""
        for who in ("first", "second"):
            spent = 1_000 - (await self.limiter.available(f"{who}-{self.key}", "http", limits=[TPM]))["tpm"]
            assert spent == self.owed.get(who, 0), f"step {step}, {who}: {self.owed}"
        if LEASES in self.scope:
            assert not any(lease.is_open for lease in self.scope[LEASES].leases)


App = Callable[[Progress, Any, Any], Awaitable[None]]


def middleware(progress: Progress, app: App) -> asgi.RateLimitMiddleware:
    """The app behind a rule that takes 100."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        progress.owe(first=100)
        await app(progress, receive, send)

    key = f"first-{progress.key}"
    return asgi.RateLimitMiddleware(
        served, progress.limiter, rules=[Rule(limits=[TPM], cost={"tpm": 100}, key=lambda request: key)]
    )


async def cancel_everywhere(opener: Opener, app: App) -> int:
    """Serve a request with a cancellation at each of its steps; returns how many steps there were."""
    step = 0
    while True:
        step += 1
        progress = Progress(str(step), RateLimiter(Repository(opener())))
        scope = progress.scope = Call().scope()
        driven = CancelAt(_replied(middleware(progress, app), scope), step)

        async def drive(driven: CancelAt = driven) -> None:
            await driven

        (result,) = await asyncio.gather(asyncio.create_task(drive()), return_exceptions=True)
        assert result is None or isinstance(result, asyncio.CancelledError)
        await progress.check(step)
        await progress.limiter.close()
        if not driven.hit:
            return step


async def _replied(app: Any, scope: Any) -> None:
    await call_asgi(app, Call(), scope)


async def start(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def body(send: Any, chunk: bytes = b"", *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def adjust(progress: Progress, amount: int) -> None:
    """Adjust the lease of the rule; it counts from this moment on."""
    await progress.scope[LEASES].leases[0].adjust(tpm=amount)
    progress.owe(first=amount)


async def acquire(progress: Progress, amount: int) -> None:
    """Take tokens of somebody else inside the app; they are due when that has returned."""
    await asgi.acquire(progress.scope, f"second-{progress.key}", "http", {"tpm": amount}, [TPM])
    progress.owe(second=amount)


async def test_a_plain_request(opener: Opener) -> None:
    async def app(progress: Progress, receive: Any, send: Any) -> None:
        await receive()
        await start(send)
        await body(send, b"one", more=True)
        await body(send, b"two")

    assert await cancel_everywhere(opener, app) > 6


async def test_a_request_that_is_adjusted(opener: Opener) -> None:
    async def app(progress: Progress, receive: Any, send: Any) -> None:
        await start(send)
        await adjust(progress, 7)
        await body(send, b"one", more=True)
        await adjust(progress, -50)
        await body(send)

    assert await cancel_everywhere(opener, app) > 8


async def test_an_app_that_fails(opener: Opener) -> None:
    async def app(progress: Progress, receive: Any, send: Any) -> None:
        await receive()
        await adjust(progress, 7)
        await asyncio.sleep(0)
        raise Boom

    assert await cancel_everywhere(opener, app) > 6


async def test_an_app_that_refuses(opener: Opener) -> None:
    """What goes back goes back even if the giving back is disturbed."""

    async def app(progress: Progress, receive: Any, send: Any) -> None:
        await receive()
        await adjust(progress, 7)
        await asyncio.sleep(0)
        progress.owed.clear()
        raise RateLimitExceeded([])

    assert await cancel_everywhere(opener, app) > 6


async def test_several_leases_are_settled_all(opener: Opener) -> None:
    """A cancellation in the settlement of one does not lose that of the others."""

    async def app(progress: Progress, receive: Any, send: Any) -> None:
        await acquire(progress, 30)
        await adjust(progress, 7)
        await lease_of(progress.scope).adjust(tpm=-10)
        progress.owe(second=-10)
        await start(send)
        await body(send)

    assert await cancel_everywhere(opener, app) > 10


async def test_several_leases_go_back_all(opener: Opener) -> None:
    async def app(progress: Progress, receive: Any, send: Any) -> None:
        await acquire(progress, 30)
        await asyncio.sleep(0)
        progress.owed.clear()
        raise RateLimitExceeded([])

    assert await cancel_everywhere(opener, app) > 8


async def test_a_refusal_inside_the_app(opener: Opener) -> None:
    async def refused(progress: Progress, receive: Any, send: Any) -> None:
        await acquire(progress, 1_000)
        try:
            await asgi.acquire(progress.scope, f"second-{progress.key}", "http", {"tpm": 1}, [TPM])
        except Exception:
            progress.owed.clear()
            raise

    assert await cancel_everywhere(opener, refused) > 8


async def test_what_is_adjusted_after_the_end(opener: Opener) -> None:
    """It is written by itself, as a background task does it: begun is done."""

    async def app(progress: Progress, receive: Any, send: Any) -> None:
        await start(send)
        await body(send)
        for amount in (5, -40):
            progress.owe(first=amount)
            await progress.scope[LEASES].leases[0].adjust(tpm=amount)

    assert await cancel_everywhere(opener, app) > 8


async def serve_in_scope(
    opener: Opener, app: Callable[[Progress, Any, Any, anyio.CancelScope], Awaitable[None]]
) -> None:
    """Serve inside a scope of anyio's, which cancels at every await until it is left."""
    progress = Progress("a", RateLimiter(Repository(opener())))
    progress.scope = Call().scope()
    with anyio.CancelScope() as scope:

        async def cancelling(progress: Progress, receive: Any, send: Any) -> None:
            await app(progress, receive, send, scope)

        await call_asgi(middleware(progress, cancelling), Call(), progress.scope)
    assert scope.cancelled_caught
    await progress.check(0)
    await progress.limiter.close()


@pytest.mark.parametrize("chunks", [None, 0, 1, 3])
async def test_a_scope_that_cancels_at_every_await(opener: Opener, chunks: int | None) -> None:
    async def app(progress: Progress, receive: Any, send: Any, scope: anyio.CancelScope) -> None:
        await acquire(progress, 30)
        await adjust(progress, 7)
        if chunks is not None:
            await start(send)
        for number in range(chunks or 0):
            await body(send, b"x", more=True)
            await adjust(progress, number)
        scope.cancel()
        await anyio.lowlevel.checkpoint()

    await serve_in_scope(opener, app)


async def test_a_scope_that_cancels_while_all_goes_back(opener: Opener) -> None:
    async def app(progress: Progress, receive: Any, send: Any, scope: anyio.CancelScope) -> None:
        await acquire(progress, 30)
        progress.owed.clear()
        scope.cancel()
        raise RateLimitExceeded([])

    await serve_in_scope(opener, app)


class Around(BaseHTTPMiddleware):
    """Starlette's own kind of middleware, which runs the app in a task group."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        """Only pass on."""
        response: Response = await call_next(request)
        return response


@pytest.mark.parametrize("around", ["outside", "inside", "both"])
@pytest.mark.parametrize("stays", [None, 0, 1, 2])
async def test_behind_and_before_a_middleware_with_a_task_group(opener: Opener, stays: int | None, around: str) -> None:
    """A client that leaves makes it cancel the app at every await."""

    async def streamed(scope: Any, receive: Any, send: Any) -> None:
        await adjust(progress, 7)
        await start(send)
        for _ in range(3):
            await body(send, b"x", more=True)
            await adjust(progress, 1)
        await body(send)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        progress.owe(first=100)
        await acquire(progress, 30)
        await streamed(scope, receive, send)

    progress = Progress("a", RateLimiter(Repository(opener())))
    inner: Any = Around(served) if around != "outside" else served
    limited = asgi.RateLimitMiddleware(
        inner, progress.limiter, rules=[Rule(limits=[TPM], cost={"tpm": 100}, key=lambda request: "first-a")]
    )
    outer: Any = Around(limited) if around != "inside" else limited
    progress.scope = Call().scope()
    await asyncio.wait_for(call_asgi(outer, Call(stays=stays), progress.scope), PATIENCE)
    await progress.check(0)
    await progress.limiter.close()
    assert progress.owed["second"] == 30


async def test_many_requests_cancelled_at_different_moments(opener: Opener) -> None:
    """Requests that share a write do not share a cancellation."""
    limiter = RateLimiter(Repository(opener()))
    reached: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(1)
        for _ in range(6):
            await asyncio.sleep(0)
        await start(send)
        await body(send)

    limited = asgi.RateLimitMiddleware(
        app, limiter, rules=[Rule(limits=[TPM], cost={"tpm": 1}, key=lambda request: "all")]
    )
    tasks = [asyncio.create_task(_replied(limited, Call().scope())) for _ in range(40)]
    for number, task in enumerate(tasks):
        if number % 3:
            task.cancel()
        if number % 4 == 0:
            await asyncio.sleep(0)
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
    assert all(result is None for result in results[::3])
    left = (await limiter.available("all", "http", limits=[TPM]))["tpm"]
    assert 1_000 - left == len(reached)
    await limiter.close()


async def test_a_failure_that_was_answered_is_counted(opener: Opener) -> None:
    """Whoever has seen the answer has been charged for it, wherever the request was cancelled."""
    limit = Limit.per_day("guesses", 1_000)
    rule = Rule(limits=[limit], count="failures", resource="guesses", key=lambda request: "ann")

    async def work() -> None:
        step = 0
        while True:
            step += 1
            limiter = RateLimiter(Repository(opener()))
            before = (await limiter.available("ann", "guesses", limits=[limit]))["guesses"]
            told: list[int] = []

            async def wrong(scope: Any, receive: Any, send: Any) -> None:
                await receive()
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await body(send)

            async def send(message: Any, told: list[int] = told) -> None:
                told.append(message.get("status", 0))
                await asyncio.sleep(0)

            async def receive() -> Any:
                return {"type": "http.request"}

            limited = asgi.RateLimitMiddleware(wrong, limiter, rules=[rule])
            driven = CancelAt(limited(Call().scope(), receive, send), step)

            async def drive(driven: CancelAt = driven) -> None:
                await driven

            await asyncio.gather(asyncio.create_task(drive()), return_exceptions=True)
            charged = before - (await limiter.available("ann", "guesses", limits=[limit]))["guesses"]
            assert bool(told) <= charged <= 1, f"step {step}"
            await limiter.close()
            if not driven.hit:
                assert (told, charged) == ([401, 0], 1)
                assert step > 5
                return

    await work()
