"""The examples, used as their documentation says; the gateway over a socket, its balances to the token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from examples import flask_app
from examples.gateway.accounts import KEYS
from examples.gateway.app import create_app
from examples.gateway.model import Model, echo
from starlette.requests import ClientDisconnect

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.redis.server import Server
from tests.support.waiting import eventually
from tests.web.servers.asgi import uvicorn
from tests.web.servers.client import Connection, Response, Truncated
from tests.web.sessions import replay, running, steps
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Identity, Rule
from zae_limiter.web.asgi import RateLimitMiddleware

ANN, BOB, EVE = KEYS
"""Two keys of one project, and one of another."""
FULL = {"rpm": (3, 5, 6), "tpm": (1_000, 2_000, 4_000)}
"""What each limit holds, from the key up to the organisation."""
PROMPT = "Hello dear gateway"
USED = 3 + 3


class ModelError(Exception):
    """The model is out of order."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway, its clock, and a limiter on the same data."""

    port: int
    clock: ManualClock
    ledger: SyncRateLimiter

    def request(self, connection: Connection, key: str, prompt: str = PROMPT, **options: object) -> None:
        """Send a chat."""
        chat = {"model": "small", "messages": [{"role": "user", "content": prompt}], **options}
        headers = [("Authorization", f"Bearer {key}"), ("Content-Type", "application/json")]
        connection.request("POST", "/v1/chat/completions", "test", headers=headers, body=json.dumps(chat).encode())

    def chat(self, key: str, prompt: str = PROMPT, **options: object) -> Response:
        """Send a chat, and read the answer to its end."""
        with Connection(self.port) as connection:
            self.request(connection, key, prompt, **options)
            return connection.response()

    def used(self, key: str) -> dict[str, tuple[int, ...]]:
        """What has been taken at each level, from the key up."""
        rows = self.ledger.get_status(Identity.api_key(key).entity_id, "small")
        return {name: tuple(row.capacity - row.available for row in rows if row.limit_name == name) for name in FULL}


@contextlib.contextmanager
def opened(model: Model = echo) -> Iterator[Gateway]:
    """A gateway on a store of its own."""
    clock = ManualClock()
    store = MemoryStore(clock)
    with uvicorn(create_app(RateLimiter(store), model)) as port, SyncRateLimiter(store) as ledger:
        eventually(lambda: ledger.get_entity(Identity.api_key(EVE).entity_id) is not None, True)
        yield Gateway(port, clock, ledger)


def everywhere(tokens: int, requests: int = 1) -> dict[str, tuple[int, ...]]:
    """Requests that have used so many tokens."""
    return {"rpm": (requests,) * 3, "tpm": (tokens,) * 3}


def test_each_level_refuses_when_it_is_empty() -> None:
    """Three requests of a key, five of a project, six of the organisation; a refusal takes nothing at any level."""
    with opened() as gateway:
        for key, granted, violated, requests in (
            (ANN, 3, "rpm", (3, 3, 3)),
            (BOB, 2, "project.rpm", (2, 5, 5)),
            (EVE, 1, "organisation.rpm", (1, 1, 6)),
        ):
            assert [gateway.chat(key).status for _ in range(granted)] == [200] * granted
            used = {"rpm": requests, "tpm": tuple(count * USED for count in requests)}
            eventually(partial(gateway.used, key), used)
            refused = gateway.chat(key)
            assert (refused.status, refused.json()["violated-policies"]) == (429, [violated])
            assert gateway.used(key) == used


def test_a_refusal_says_when_to_come_again() -> None:
    with opened() as gateway:
        for _ in range(3):
            gateway.chat(ANN)
        refused = gateway.chat(ANN)
        assert refused.header("content-type") == "application/problem+json"
        assert refused.header("retry-after") == "20"
        assert refused.header("retry-after-ms") == "20000"
        assert refused.header("x-ratelimit-remaining-requests") == "0"
        assert (refused.header("ratelimit") or "").startswith('"rpm";r=0;t=20, "project.rpm";r=2;')
        assert refused.json()["retryAfter"] == 20
        for secret in (ANN, Identity.api_key(ANN).entity_id, "acme"):
            assert secret not in f"{refused.headers} {refused.json()}"
        gateway.clock.advance_ms(19_999)
        assert gateway.chat(ANN).status == 429
        gateway.clock.advance_ms(1)
        assert gateway.chat(ANN).status == 200


def test_a_stream_that_is_read_to_its_end_costs_what_was_produced() -> None:
    with opened() as gateway:
        answer = gateway.chat(ANN, stream=True)
        events = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
        assert events[-1] == "[DONE]"
        assert [json.loads(event)["choices"][0]["delta"]["content"] for event in events[:-1]] == [
            f"{word} " for word in PROMPT.split()
        ]
        eventually(lambda: gateway.used(ANN), everywhere(USED))


@pytest.mark.parametrize("leave", [Connection.close, Connection.reset], ids=["close", "reset"])
@pytest.mark.parametrize("produced", [0, 1, 3])
def test_a_stream_that_is_broken_off_costs_what_was_produced(produced: int, leave: Any) -> None:
    async def stuck(prompt: str, max_tokens: int) -> AsyncIterator[str]:
        for _ in range(produced):
            yield "word "
        await asyncio.Event().wait()

    with opened(stuck) as gateway:
        connection = Connection(gateway.port)
        gateway.request(connection, ANN, stream=True)
        assert connection.head().status == 200
        seen = b""
        while seen.count(b"\n\n") < produced:
            seen += connection.piece()
        assert gateway.used(ANN) == everywhere(len(PROMPT) // 4 + 200)
        leave(connection)
        eventually(lambda: gateway.used(ANN), everywhere(3 + produced))


async def test_a_stream_that_cannot_be_sent_costs_what_was_produced() -> None:
    """Here the framework drops the generators, so nothing may depend on their end."""
    store = MemoryStore(ManualClock())
    body = {"model": "small", "messages": [{"role": "user", "content": "a b c d e"}], "stream": True}
    headers = [(b"authorization", f"Bearer {ANN}".encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
        "path": "/v1/chat/completions", "query_string": b"", "headers": headers, "client": ("192.0.2.1", 1),
    }  # fmt: skip
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            if len(sent) == 2:
                raise OSError("nobody there")

    app = create_app(RateLimiter(store))
    async with app.router.lifespan_context(app):
        with pytest.raises(ClientDisconnect):
            await app(scope, receive, send)
        rows = await app.state.limiter.get_status(Identity.api_key(ANN).entity_id, "small")
        assert [row.capacity - row.available for row in rows if row.limit_name == "tpm"] == [5 + 2] * 3


def test_a_model_that_fails_costs_what_it_has_produced() -> None:
    async def broken(prompt: str, max_tokens: int) -> AsyncIterator[str]:
        yield "word "
        raise ModelError

    with opened(broken) as gateway:
        assert gateway.chat(ANN).status == 500
        eventually(lambda: gateway.used(ANN), everywhere(3 + 1))
        with pytest.raises(Truncated):
            gateway.chat(ANN, stream=True)
        eventually(lambda: gateway.used(ANN), everywhere(2 * (3 + 1), requests=2))


def test_what_was_used_beyond_the_estimate_becomes_debt() -> None:
    async def instant(prompt: str, max_tokens: int) -> AsyncIterator[str]:
        for _ in range(max_tokens):
            yield "word "

    with opened(instant) as gateway:
        prompt = "a " * 900  # 900 tokens that look like 450
        assert gateway.chat(ANN, prompt, max_tokens=200).status == 200
        eventually(lambda: gateway.used(ANN), everywhere(900 + 200))
        refused = gateway.chat(ANN, "a", max_tokens=1)
        assert (refused.status, refused.json()["violated-policies"]) == (429, ["tpm"])
        assert refused.header("x-ratelimit-remaining-tokens") == "0"
        assert gateway.chat(BOB, "a", max_tokens=1).status == 200


def test_wrong_keys_are_limited_by_address_and_take_nothing_from_anybody() -> None:
    with opened() as gateway:
        assert [gateway.chat("sk-wrong").status for _ in range(6)] == [401] * 5 + [429]
        assert gateway.chat(ANN).status == 429  # a right key would tell who guesses that it is right
        gateway.clock.advance(12)
        assert gateway.chat(ANN).status == 200
        eventually(lambda: gateway.used(ANN), everywhere(USED))


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_valid_keys_are_served_however_many_come_at_once_and_wrong_ones_become_debt(store: str) -> None:
    """They all come from one address, which has five guesses."""
    keys = [f"sk-office-{number}" for number in range(30)]
    wide = [Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 100_000)]
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}

    async def serve(url: str) -> None:
        app = create_app(RateLimiter(url))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://t") as client,
        ):
            limiter: RateLimiter = app.state.limiter
            for who in ("acme", "search"):
                await limiter.set_limits(who, wide)
            for key in keys:
                await limiter.create_entity(Identity.api_key(key).entity_id, parent_id="search", cascade=True)

            async def chat(key: str) -> int:
                headers = {"Authorization": f"Bearer {key}"}
                return (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code

            assert await asyncio.gather(*map(chat, keys)) == [200] * 30
            wrong = Counter(await asyncio.gather(*(chat(f"{key}-wrong") for key in keys)))
            assert wrong.keys() <= {401, 429}
            assert wrong[401] >= 5
            left = await limiter.available("ip:127.0.0.1", "guesses", limits=[Limit.per_minute("guesses", 5)])
            assert 0 <= left["guesses"] - (5 - wrong[401]) <= 2  # by a clock that runs, one comes back in 12 s
            assert await chat(keys[0]) == 429

    with contextlib.ExitStack() as stack:
        await serve(stack.enter_context(Server()).url if store == "redis" else "memory://")


def test_limits_are_changed_while_the_gateway_runs() -> None:
    """What another process has stored counts when the gateway looks again."""
    with opened() as gateway:
        assert gateway.chat(ANN).status == 200
        gateway.ledger.set_limits("acme", [Limit.per_minute("rpm", 1), Limit.per_minute("tpm", 4_000)])
        gateway.clock.advance(60)
        assert gateway.chat(ANN).status == 200
        refused = gateway.chat(ANN)
        assert (refused.status, refused.json()["violated-policies"]) == (429, ["organisation.rpm"])


@pytest.mark.parametrize(("token", "mime", "status"), [("ann", "application/json", 400), ("bob", "text/plain", 415)])
def test_malformed_requests_are_limited_in_flask(token: str, mime: str, status: int) -> None:
    client = flask_app.app.test_client()
    headers = {"Authorization": f"Bearer tok-{token}", "Content-Type": mime}
    statuses = [client.post("/summaries", data="{", headers=headers).status_code for _ in range(6)]
    assert statuses == [status] * 3 + [429] * 3


def test_right_passwords_cost_nothing_in_flask_and_wrong_ones_are_limited() -> None:
    client = flask_app.app.test_client()

    def login(password: str) -> int:
        return client.post("/login", data={"password": password}).status_code

    assert [login(flask_app.PASSWORD) for _ in range(5)] == [200] * 5
    assert [login("guessed") for _ in range(4)] == [401] * 3 + [429]
    assert login(flask_app.PASSWORD) == 429


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="the sessions are typed with curl")
EXAMPLES = ["gateway", "flask", "django-wsgi", "django-asgi"]
PROFILES = ["ietf", "ietf-07", "x-ratelimit", "openai"]


def fenced(page: str, language: str) -> list[str]:
    """The blocks of a language on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@needs_curl
@pytest.mark.parametrize("text", fenced("examples/README.md", "shell-session"), ids=EXAMPLES)
def test_an_example_starts_with_one_command_and_does_what_is_shown(text: str, tmp_path: Path) -> None:
    (command, _), *session = steps(text)
    documented = int(re.findall(r"\b8\d{3}\b", command)[0])
    port = free_port()
    with running(command.replace(str(documented), str(port)), port, tmp_path / "server.log"):
        replay(session, documented, port)


@needs_curl
def test_the_session_of_the_documentation() -> None:
    """Its numbers are those of a clock that stands still."""
    typed = [step for text in fenced("docs/guide/web/gateway.md", "shell-session") for step in steps(text)]
    assert typed.pop(0) == ("python -m examples.gateway --port 8000", [])
    with opened() as gateway:
        replay(typed, 8000, gateway.port)


@pytest.mark.parametrize("text", fenced("docs/guide/web/answers.md", "http"), ids=PROFILES)
async def test_the_fields_of_the_documentation(text: str) -> None:
    title, *lines = text.splitlines()
    limits = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000, burst=15_000)]
    rule = Rule(limits=limits, cost={"rpm": 1, "tpm": 500})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def told() -> list[tuple[bytes, bytes]]:
        limiter = RateLimiter(MemoryStore(ManualClock()))
        limited = RateLimitMiddleware(app, limiter, rules=[rule], headers=title.removeprefix("# "))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://test") as client:
            return (await client.get("/")).headers.raw

    found = [f"{name.decode()}: {value.decode()}" for name, value in await told()]
    assert found == [f"{name.lower()}:{value}" for name, _, value in (line.partition(":") for line in lines)]
