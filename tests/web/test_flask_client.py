"""Flask's test client never closes a body: what a request has used is settled all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, Response, request
from flask.testing import FlaskClient

from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Rule, lease_of
from zae_limiter.web.wsgi import RateLimitMiddleware

TPM = Limit.per_day("tpm", 1_000)


class Client:
    """A client of an app whose requests are estimated at 100, and what the app has charged."""

    def __init__(self, rule: Rule | None = None) -> None:
        self.limiter = SyncRateLimiter(MemoryStore(ManualClock()))
        self.app = Flask(__name__)
        rules = [rule or Rule(limits=[TPM], cost={"tpm": 100}, key=lambda request: "ann", resource="chat")]
        self.app.wsgi_app = RateLimitMiddleware(self.app.wsgi_app, self.limiter, rules=rules)  # type: ignore[method-assign]  # Flask's own way

    @property
    def flask(self) -> FlaskClient:
        """The client of Flask's."""
        return self.app.test_client()

    def spent(self) -> int:
        """What was charged so far."""
        return 1_000 - self.limiter.available("ann", "chat", limits=[TPM])["tpm"]


def text() -> Any:
    return "hello"


def json() -> Any:
    return {"hello": "world"}


def empty() -> Any:
    return "", 204


def error() -> Any:
    return "no", 404


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("answer", [text, json, empty, error], ids=lambda answer: answer.__name__)
def test_a_whole_answer_is_settled_when_the_client_has_it(answer: Any, method: str) -> None:
    client = Client()

    @client.app.route("/")
    def index() -> Any:
        lease_of(request).adjust(tpm=7)
        return answer()

    held = client.flask.open("/", method=method)  # kept, so that nothing closes it
    assert client.spent() == 107
    assert held.status_code in (200, 204, 404)


def test_a_stream_is_settled_when_it_was_read() -> None:
    client = Client()

    @client.app.route("/")
    def index() -> Any:
        lease = lease_of(request)

        def chunks() -> Iterator[bytes]:
            for _ in range(3):
                lease.adjust(tpm=1)
                yield b"chunk"

        return Response(chunks())

    held = client.flask.get("/")
    assert client.spent() == 100
    assert held.data == b"chunk" * 3
    assert client.spent() == 103


def test_what_is_adjusted_while_the_body_is_closed_is_charged_too() -> None:
    client = Client()

    @client.app.route("/")
    def index() -> Any:
        lease = lease_of(request)
        lease.adjust(tpm=1)
        response = Response("hello")
        response.call_on_close(lambda: lease.adjust(tpm=2))
        return response

    held = client.flask.get("/")
    assert client.spent() == 101
    held.close()
    assert client.spent() == 103


def test_a_refund_is_settled_with_the_answer() -> None:
    rule = Rule(limits=[TPM], cost={"tpm": 100}, key=lambda request: "ann", resource="chat", refund=(404,))
    client = Client(rule)
    held = client.flask.get("/nowhere")
    assert (held.status_code, client.spent()) == (404, 0)
