"""What no server can be made to do at will: the ASGI middleware called directly, step by step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from tests.web.apps import COST, FULL, LIMITS, RULES, named
from tests.web.servers.calls import HELLO, PER_CHUNK
from zae_limiter import RateLimiter, Store, SyncRateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, ManualClock
from zae_limiter.web import lease_of
from zae_limiter.web.asgi import RateLimitMiddleware, acquire

START = {"type": "http.response.start", "status": 200, "headers": []}


class TestLate:
    """Corrections that come when the answer is long out are written all the same."""

    @pytest.mark.parametrize("adjustments", [[120], [120, -120], [-500, 20], [10] * 5, [1000, -1200]], ids=str)
    def test_background_tasks_may_adjust(self, adjustments: list[int]) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await lease_of(scope).adjust(tpm=7)
            await send(dict(START))
            await send({"type": "http.response.body", "body": b""})
            for amount in adjustments:
                await lease_of(scope).adjust(tpm=amount)

        assert directly(app, slow) == {"rpm": 99, "tpm": 99_493 - sum(adjustments)}

    def test_a_generator_that_was_left_at_its_yield_may_adjust(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def counted() -> AsyncIterator[bytes]:
                sent = 0
                try:
                    while True:
                        yield HELLO
                        sent += 1
                finally:
                    await lease_of(scope).adjust(tpm=PER_CHUNK * sent)

            await StreamingResponse(counted())(scope, receive, send)

        async def leaves(message: Any) -> None:
            bodies.append(message)
            if len(bodies) == 5:
                raise OSError("the client has left")

        bodies: list[Any] = []
        assert directly(app, leaves, ClientDisconnect) == {"rpm": 99, "tpm": 99_500 - 3 * PER_CHUNK}


@pytest.mark.parametrize(
    "messages",
    [
        [{"type": "http.response.debug", "info": {"template": "a"}}, START, {"type": "http.response.body"}],
        [START, {"type": "http.response.pathsend", "path": "/blob.bin"}],
        [START, {"type": "http.response.zerocopysend", "file": 7, "count": 10}],
        [{"type": "http.response.push", "path": "/style.css", "headers": []}, START, {"type": "http.response.body"}],
    ],
    ids=lambda messages: messages[0 if messages[0] != START else 1]["type"],
)
def test_messages_of_other_kinds_pass(messages: list[dict[str, Any]]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await lease_of(scope).adjust(tpm=120)
        for message in messages:
            await send(dict(message))

    async def send(message: Any) -> None:
        sent.append({**message, "headers": []} if message["type"] == START["type"] else message)

    sent: list[Any] = []
    assert directly(app, send) == {"rpm": 99, "tpm": 99_380}
    assert sent == messages


def test_an_outage_leaves_the_price_alone() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if lease_of(scope).degraded:
            await lease_of(scope).adjust(tpm=120)
        await send(dict(START))
        await send({"type": "http.response.body", "body": b""})

    store = FaultyStore(MemoryStore(ManualClock()))
    guarded = RateLimitMiddleware(app, RateLimiter(store, on_unavailable="allow"), rules=RULES, key=named)
    store.inject(Fault.FAIL_BEFORE, times=5)
    asyncio.run(guarded(scope_of("direct"), silent, slow))
    store.heal()
    asyncio.run(guarded(scope_of("direct"), silent, slow))
    assert balance(store.inner, "direct") == {"rpm": 99, "tpm": 99_500}


def directly(app: Any, send: Any, error: type[Exception] | None = None) -> dict[str, int]:
    """Call the app behind the middleware without a server, and see what is left."""
    store = MemoryStore(ManualClock())
    guarded = RateLimitMiddleware(app, RateLimiter(FaultyStore(store, suspend=True)), rules=RULES, key=named)

    async def called() -> None:
        with pytest.raises(error) if error else contextlib.nullcontext():
            await guarded(scope_of("direct"), silent, send)
        await asyncio.sleep(0)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(called())
    return balance(store, "direct")


def balance(store: Store, client: str) -> dict[str, int]:
    """What is left to a client."""
    return SyncRateLimiter(store).available(client, "api", limits=LIMITS)


async def silent() -> dict[str, Any]:
    """A client that says no more."""
    return {"type": "http.request", "body": b"", "more_body": False}


def scope_of(client: str) -> dict[str, Any]:
    """What a server makes of a request."""
    headers = [(b"x-client", client.encode())]
    asgi = {"version": "3.0", "spec_version": "2.4"}
    return {"type": "http", "asgi": asgi, "method": "GET", "path": "/", "query_string": b"", "headers": headers}


class TestCancelled:
    """A task that is cancelled at its first suspension, its second, its third: the charge stays, and is settled."""

    def test_each_lease_is_settled(self) -> None:
        steps = 0
        while not asyncio.run(self.cancelled_after(steps)):
            steps += 1
        assert steps > 10

    async def cancelled_after(self, steps: int) -> bool:
        """Check the balances of one run; whether it had ended before it could be cancelled."""
        store = MemoryStore(ManualClock())
        reached: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            first = lease_of(scope)
            reached.append("one")
            second = await acquire(scope, "two", "api", COST, LIMITS)
            reached.append("two")
            await first.adjust(tpm=120)
            await second.release(tpm=120)
            reached.append("adjusted")
            await send(dict(START))
            await send({"type": "http.response.body", "body": b""})

        limiter = RateLimiter(FaultyStore(store, suspend=True))
        guarded = RateLimitMiddleware(app, limiter, rules=RULES, key=named)
        task = asyncio.create_task(guarded(scope_of("one"), silent, slow))
        for _ in range(steps):
            await asyncio.sleep(0)
        in_time = task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for client, tpm in {"one": 620, "two": 380}.items():
            taken = {"rpm": 1, "tpm": tpm if "adjusted" in reached else 500} if client in reached else {}
            expected = {name: full - taken.get(name, 0) for name, full in FULL.items()}
            assert balance(store, client) == expected, (
                f"{client}, cancelled after {steps} steps, when it had reached {reached}"
            )
        return not in_time


async def slow(message: Any) -> None:
    """A server that takes its time."""
    await asyncio.sleep(0)
