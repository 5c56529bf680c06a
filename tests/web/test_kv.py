"""Middleware on the key-value limiter."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from tests.kv.binding import Namespace
from tests.web.drive import PEER, Call, Reply, call_asgi, call_wsgi
from zae_limiter import Limit, ValidationError
from zae_limiter.kv import ClientIdentity, DictRepository, EnforceRateLimit, RateLimitPolicy, SyncEnforceRateLimit
from zae_limiter.testing import ManualClock
from zae_limiter.web import asgi, wsgi
from zae_limiter.web.kv import AsgiKVMiddleware, WsgiKVMiddleware, create_rate_limit_middleware

POLICY = RateLimitPolicy.create(2)
WORKERS = "cf-connecting-ip"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


def hello_too(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


class Site:
    """One app behind the middleware, in either mode."""

    def __init__(self, mode: str, policy: RateLimitPolicy = POLICY, **options: Any) -> None:
        self.clock = ManualClock()
        self.states = DictRepository(clock=self.clock)
        self._mode = mode
        if mode == "asgi":
            inner = options.pop("inner", hello)
            enforce = options.pop("enforce", EnforceRateLimit(self.states, policy, self.clock))
            self._app: Any = AsgiKVMiddleware(inner, enforce, **options)
        else:
            inner = options.pop("inner", hello_too)
            enforce = options.pop("enforce", SyncEnforceRateLimit(self.states, policy, self.clock))
            self._app = WsgiKVMiddleware(inner, enforce, **options)

    def ask(self, **fields: Any) -> Reply:
        call = Call("/", **fields)
        return asyncio.run(call_asgi(self._app, call)) if self._mode == "asgi" else call_wsgi(self._app, call)


@pytest.fixture(params=["asgi", "wsgi"])
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_an_address_has_so_many_requests_a_minute(mode: str) -> None:
    site = Site(mode)
    replies = [site.ask() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert [reply.header("ratelimit") for reply in replies] == [
        f'"rpm";r={r};t={t}' for r, t in ((1, 30), (0, 60), (0, 30))
    ]
    told = replies[2].problem()
    assert (told["error"], told["retryAfter"], told["limit"], told["remaining"]) == ("Rate Limit Exceeded", 30, 2, 0)
    assert told["resetTime"] == site.clock.now_ms() + 30_000
    assert replies[2].header("retry-after") == "30"
    site.clock.advance(29.999)
    assert site.ask().status == 429
    site.clock.advance(0.001)
    assert site.ask().status == 200


def test_the_state_is_under_the_key_of_the_address(mode: str) -> None:
    site = Site(mode)
    site.ask()
    found = asyncio.run(site.states.get(ClientIdentity.from_ip(PEER).kv_key))
    assert found is not None
    assert found.tokens == 1


def test_a_header_is_believed_from_a_trusted_peer_only(mode: str) -> None:
    for proxies, statuses in ((None, [200, 200, 429]), ([PEER], [200, 200, 200])):
        site = Site(mode, proxies=proxies)
        asked = [site.ask(headers=[("x-forwarded-for", f"203.0.113.{n}")]).status for n in range(3)]
        assert asked == statuses


def test_a_refusal_of_a_head_has_no_body(mode: str) -> None:
    site = Site(mode)
    replies = [site.ask(method="HEAD") for _ in range(3)]
    assert (replies[2].status, replies[2].body) == (429, b"")


def test_fields_are_sent_once_around_another_middleware(mode: str) -> None:
    limits = [Limit.per_minute("rpm", 100)]
    inner: Any = asgi.RateLimitMiddleware(hello, "memory://", limits=limits)
    if mode == "wsgi":
        inner = wsgi.RateLimitMiddleware(hello_too, "memory://", limits=limits)
    reply = Site(mode, inner=inner).ask()
    assert reply.lines("ratelimit-policy") == ['"rpm";q=100;w=60']
    assert len(reply.lines("ratelimit")) == 1


def test_the_wrong_use_case_is_refused_at_once() -> None:
    with pytest.raises(ValidationError, match="must be of type EnforceRateLimit"):
        AsgiKVMiddleware(hello, SyncEnforceRateLimit(DictRepository()))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValidationError, match="must be of type SyncEnforceRateLimit"):
        WsgiKVMiddleware(hello_too, EnforceRateLimit(DictRepository()))  # type: ignore[arg-type]  # what is tested


def test_the_limit_that_a_client_is_told_is_that_of_the_result(mode: str) -> None:
    """The capacity: what ``remaining`` counts down from, whatever the rate."""
    site = Site(mode, policy=RateLimitPolicy.create(2, 4))
    replies = [site.ask() for _ in range(5)]
    told = replies[4].problem()
    refusal = SyncEnforceRateLimit(site.states, RateLimitPolicy.create(2, 4), site.clock).check(PEER)
    assert (told["limit"], told["remaining"]) == (refusal.limit, refusal.tokens_remaining) == (4, 0)
    assert replies[4].header("ratelimit-policy") == '"rpm";q=2;w=60;zae-burst=4'


@pytest.mark.parametrize("peer", [None, PEER], ids=["no peer", "a peer"])
def test_the_header_of_the_platform_tells_clients_apart(peer: str | None, mode: str) -> None:
    site = Site(mode, client_header=WORKERS)
    for client in ("203.0.113.1", "203.0.113.2"):
        statuses = [site.ask(peer=peer, headers=[(WORKERS, client)]).status for _ in range(3)]
        assert statuses == [200, 200, 429]


def test_without_an_address_all_share_one_bucket_and_the_setting_is_logged(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(mode)
    statuses = [site.ask(peer=None, headers=[(WORKERS, f"203.0.113.{n}")]).status for n in range(3)]
    assert statuses == [200, 200, 429]
    (record,) = caplog.records
    assert "cf-connecting-ip" in record.getMessage()


def test_a_client_header_that_cannot_be(mode: str) -> None:
    with pytest.raises(ValidationError, match="cannot be combined with proxies"):
        Site(mode, client_header=WORKERS, proxies=1)
    with pytest.raises(ValidationError, match="header = 'x-client': must be one of"):
        Site(mode, client_header="x-client")


def test_a_use_case_for_each_request(mode: str) -> None:
    """A store that arrives with the request is the one that is used for it."""
    clock, stores = ManualClock(), {"/a": DictRepository(), "/b": DictRepository()}
    kind = EnforceRateLimit if mode == "asgi" else SyncEnforceRateLimit

    def opened(raw: Any) -> Any:
        return kind(stores[raw["zae.store"]], POLICY, clock)

    site = Site(mode, enforce=opened)
    for name in stores:
        assert [site.ask(extra={"zae.store": name}).status for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("found", [None, "an error"])
def test_a_use_case_that_cannot_be_opened_lets_through(
    found: str | None, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    def opened(raw: Any) -> Any:
        if found:
            raise OSError(found)

    reply = Site(mode, enforce=opened).ask()
    assert (reply.status, reply.body, reply.lines("ratelimit")) == (200, b"hello", [])
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["operation"]) == ("WARNING", "opening")
    assert PEER not in record.getMessage()


class Worker:
    """What calls an app inside of a Worker: scopes have ``env`` and no ``client``."""

    def __init__(self, app: Any) -> None:
        self.env = SimpleNamespace(RATE_LIMIT_KV=Namespace())
        self._app = app

    def fetch(self, client: str) -> int:
        call = Call("/", headers=[(WORKERS, client)], extra={"env": self.env})
        scope = call.scope()
        del scope["client"]
        return asyncio.run(call_asgi(self._app, call, scope)).status


@pytest.mark.parametrize("given", ["its name", "a function"])
def test_one_call_for_a_worker_whose_binding_arrives_per_request(given: str) -> None:
    kv: Any = "RATE_LIMIT_KV" if given == "its name" else lambda scope: scope["env"].RATE_LIMIT_KV
    worker = Worker(create_rate_limit_middleware(kv, RateLimitPolicy.create(1))(hello))
    assert [worker.fetch("203.0.113.1"), worker.fetch("203.0.113.1"), worker.fetch("203.0.113.2")] == [200, 429, 200]
    first, worker.env.RATE_LIMIT_KV = worker.env.RATE_LIMIT_KV, Namespace()
    assert worker.fetch("203.0.113.1") == 200
    assert len(first.values) == 2
    assert len(worker.env.RATE_LIMIT_KV.values) == 1


def test_one_call_for_a_worker_with_the_standard_policy() -> None:
    namespace = Namespace()
    worker = Worker(create_rate_limit_middleware(namespace)(hello))
    assert worker.fetch("203.0.113.1") == 200
    ((key, text, options),) = namespace.puts
    assert key == ClientIdentity.from_ip("203.0.113.1").kv_key
    assert json.loads(text)["tokens"] == 9
    assert options == {"expirationTtl": 300}


def test_one_call_is_a_middleware_for_frameworks() -> None:
    app = FastAPI()
    app.add_middleware(create_rate_limit_middleware("RATE_LIMIT_KV", RateLimitPolicy.create(1)))
    worker = Worker(app)
    assert [worker.fetch("203.0.113.1") for _ in range(2)] == [404, 429]


def test_a_missing_binding_lets_through_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(create_rate_limit_middleware("RATE_LIMITS")(hello))
    assert worker.fetch("203.0.113.1") == 200
    assert "RATE_LIMITS" in caplog.text


def test_what_cannot_work_is_refused_when_the_middleware_is_made() -> None:
    with pytest.raises(ValidationError, match=r"ttl_seconds = 300.*at least 360"):
        create_rate_limit_middleware("RATE_LIMIT_KV", RateLimitPolicy.create(1, 6))
    with pytest.raises(ValidationError, match="ttl_seconds = 59"):
        create_rate_limit_middleware("RATE_LIMIT_KV", ttl_seconds=59)
    with pytest.raises(ValidationError, match="binding = 'DictRepository': must be the binding of a KV namespace"):
        create_rate_limit_middleware(DictRepository())
    with pytest.raises(ValidationError, match="binding = 'NoneType'"):
        create_rate_limit_middleware(None)
    with pytest.raises(ValidationError, match="header = 'x-client'"):
        create_rate_limit_middleware("RATE_LIMIT_KV", client_header="x-client")(hello)


def test_a_worker_takes_no_concurrency_limit() -> None:
    with pytest.raises(ValidationError, match="is a concurrency limit"):
        create_rate_limit_middleware("KV", Limit.concurrent("parallel", 5))  # type: ignore[arg-type]  # the point
