"""Slots of requests without a server: when they are freed to the step, and what rules take of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse

from tests.runtime.test_cancellation import CancelAt
from tests.web.drive import Call, call_asgi, call_wsgi
from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, Store, SyncRateLimiter, ValidationError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import FaultyStore, ManualClock
from zae_limiter.web import MessageLimit, Rule, asgi, wsgi
from zae_limiter.web.fastapi import Limited

TWO = Limit.concurrent("parallel", 2)
RPM = Limit.per_day("rpm", 100)
LIMITS = [TWO, RPM]
ROUTE = Limited("http", limits=LIMITS, max_wait=5)
START = {"type": "http.response.start", "status": 200, "headers": []}


class Bench:
    """A store, and how many slots of ``ann`` are taken in it."""

    def __init__(self) -> None:
        self.store = MemoryStore(ManualClock())
        self.ledger = SyncRateLimiter(self.store)
        self.limiter = RateLimiter(FaultyStore(self.store, suspend=True))

    def left(self) -> dict[str, int]:
        return self.ledger.available("ann", "http", limits=LIMITS)

    def in_flight(self) -> int:
        return 2 - self.left()["parallel"]

    def rule(self, **options: Any) -> Rule:
        return Rule(**{"limits": LIMITS, "resource": "http", "key": lambda request: "ann", **options})

    def asgi(self, app: Any, **options: Any) -> asgi.RateLimitMiddleware:
        return asgi.RateLimitMiddleware(app, self.limiter, rules=[self.rule(**options)])

    def wsgi(self, app: Any, **options: Any) -> wsgi.RateLimitMiddleware:
        return wsgi.RateLimitMiddleware(app, self.ledger, rules=[self.rule(**options)])


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An app that says little."""
    await send(START)
    await send({"type": "http.response.body", "body": b"hello"})


ENDS: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "plain": ([{"type": "http.response.body", "body": b"all"}], [1, 0]),
    "stream": (
        [
            {"type": "http.response.body", "body": b"some", "more_body": True},
            {"type": "http.response.body", "body": b"more", "more_body": True},
            {"type": "http.response.body", "body": b""},
        ],
        [1, 1, 1, 0],
    ),
    "file": ([{"type": "http.response.pathsend", "path": "/a"}], [1, 1]),
    "nothing": ([], [1]),
}


@pytest.mark.parametrize(("messages", "expected"), ENDS.values(), ids=ENDS)
async def test_a_slot_is_free_before_the_last_piece_of_a_body_is_sent(
    bench: Bench, messages: list[dict[str, Any]], expected: list[int]
) -> None:
    """Whoever has the whole answer can ask again at once. A file is one piece, so its slot is held while it is sent."""
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in [START, *messages]:
            await send(message)

    async def send(message: Any) -> None:
        seen.append(bench.in_flight())

    await bench.asgi(app)(Call().scope(), None, send)  # type: ignore[arg-type]  # nobody receives
    assert seen == expected
    assert bench.in_flight() == 0


@pytest.mark.parametrize(
    ("headers", "expected"), [((), [1, 1, 1]), ([("Content-Length", "3")], [1, 1, 0])], ids=["chunked", "sized"]
)
@pytest.mark.parametrize("reads", [0, 1, 3])
def test_a_wsgi_body_frees_its_slot_with_its_end(bench: Bench, headers: Any, expected: list[int], reads: int) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", list(headers))
        yield from (b"a", b"b", b"c")

    body = iter(bench.wsgi(app)(Call().environ(), lambda *_: None))
    seen = []
    for _ in range(reads):
        next(body)
        seen.append(bench.in_flight())
    assert seen == expected[:reads]
    if reads == 3:
        assert next(body, None) is None
        assert bench.in_flight() == 0
    body.close()  # type: ignore[attr-defined]  # the middleware's body has it
    assert bench.in_flight() == 0


@pytest.mark.parametrize("cost", [0, 1, 3])
async def test_a_number_counts_for_rates_and_a_request_takes_one_slot(bench: Bench, cost: int) -> None:
    seen = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(bench.left())
        await answer(scope, receive, send)

    reply = await call_asgi(bench.asgi(app, cost=cost), Call())
    assert (reply.status, seen) == (200, {"parallel": 1, "rpm": 100 - cost})
    assert bench.left() == {"parallel": 2, "rpm": 100 - cost}


def test_slots_alone_are_a_limit(bench: Bench) -> None:
    seen = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(bench.in_flight())
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]

    assert call_wsgi(bench.wsgi(app, limits=[TWO]), Call()).status == 200
    assert (seen, bench.in_flight()) == ([1], 0)


@pytest.mark.parametrize("status", [200, 503])
async def test_a_refund_frees_the_slot_too(bench: Bench, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "status": status})
        await send({"type": "http.response.body"})

    assert (await call_asgi(bench.asgi(app, refund=(503,)), Call())).status == status
    assert bench.left() == {"parallel": 2, "rpm": 100 - (status == 200)}


async def test_a_refusal_inside_of_the_app_frees_the_slot(bench: Bench) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asgi.acquire(scope, "ann", "http", {}, LIMITS)
        assert bench.in_flight() == 2
        await asgi.acquire(scope, "ann", "http", {}, LIMITS)

    reply = await call_asgi(bench.asgi(app), Call())
    assert (reply.status, reply.problem()["at_latest"]) == (429, True)
    assert bench.left() == {"parallel": 2, "rpm": 100}


async def test_failures_hold_no_slot(bench: Bench) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(bench.in_flight())
        await send({**START, "status": 401})
        await send({"type": "http.response.body"})

    assert (await call_asgi(bench.asgi(app, count="failures"), Call())).status == 401
    assert (seen, bench.left()) == ([0], {"parallel": 2, "rpm": 99})


async def test_what_is_taken_after_the_request_is_over_is_not_held(bench: Bench) -> None:
    """Nobody would free it."""
    scope = Call().scope()
    await call_asgi(bench.asgi(answer), Call(), scope)
    lease = await asgi.acquire(scope, "ann", "http", {"rpm": 1}, LIMITS)
    assert (lease.is_open, bench.left()) == (False, {"parallel": 2, "rpm": 98})


async def test_a_route_of_fastapi_holds_its_slot_while_it_streams(bench: Bench) -> None:
    app = FastAPI()
    app.add_middleware(asgi.RateLimitMiddleware, limiter=bench.limiter, key=lambda request: "ann")

    @app.get("/")
    async def stream(lease: Annotated[Lease, Depends(ROUTE)]) -> StreamingResponse:
        async def pieces() -> AsyncIterator[str]:
            for _ in range(3):
                yield str(bench.in_flight())

        return StreamingResponse(pieces())

    reply = await call_asgi(app, Call())
    assert (reply.body, bench.in_flight()) == (b"111", 0)


@pytest.fixture(params=["memory", "independent", "sqlite"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Clients of one store that suspends around each call."""
    clock = ManualClock()
    if request.param == "sqlite":
        return lambda: FaultyStore(open_store(f"sqlite:///{tmp_path}/l.db", blocking=False, clock=clock), suspend=True)
    shared = MemoryStore(clock)
    return lambda: FaultyStore(shared, suspend=True, free_atomic_commit=request.param == "memory")


async def stream(scope: Any, receive: Any, send: Any) -> None:
    await asgi.acquire(scope, "bob", "http", {"rpm": 1}, LIMITS)
    await send(START)
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await send({"type": "http.response.body"})


async def fail(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    raise KeyError("broken")


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    await asgi.acquire(scope, "bob", "http", {"rpm": 1}, LIMITS)
    raise RateLimitExceeded([])


@pytest.mark.parametrize("app", [answer, stream, fail, refuse])
async def test_cancelled_at_any_await_no_slot_stays(opener: Callable[[], Store], app: Any) -> None:
    step, hit = 0, True
    while hit:
        step += 1
        limiter = RateLimiter(opener())
        rule = Rule(limits=LIMITS, resource="http", key=lambda request: "ann")
        served = call_asgi(asgi.RateLimitMiddleware(app, limiter, rules=[rule]), Call())
        driven = CancelAt(_ignore_result(served), step)

        async def drive(driven: CancelAt = driven) -> None:
            await driven

        (result,) = await asyncio.gather(asyncio.create_task(drive()), return_exceptions=True)
        assert result is None or isinstance(result, asyncio.CancelledError)
        for who in ("ann", "bob"):
            assert (await limiter.available(who, "http", limits=LIMITS))["parallel"] == 2, f"step {step}, {who}"
        await limiter.close()
        hit = driven.hit
    assert step > 6


async def _ignore_result(work: Any) -> None:
    await work


def test_a_message_holds_no_slot() -> None:
    with pytest.raises(ValidationError, match="a message holds no slot"):
        MessageLimit("memory://", limits=[TWO])


@pytest.mark.parametrize(
    ("options", "named"), [({"max_wait": -1}, "max_wait"), ({"max_wait": 5, "count": "failures"}, "max_wait")]
)
def test_how_long_a_request_may_wait_is_checked(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Rule(limits=LIMITS, **options)


def test_rules_that_disagree_about_slots_are_told_apart() -> None:
    rules = [Rule(limits=[TWO], resource="http"), Rule(limits=[Limit.concurrent("parallel", 3)], resource="http")]
    with pytest.raises(ValidationError, match="parallel 2 at once by one rule and parallel 3 at once by another"):
        asgi.RateLimitMiddleware(answer, "memory://", rules=rules)
