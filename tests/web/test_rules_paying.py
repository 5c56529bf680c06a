"""Rules say who pays, how much and for what; nothing that a client sends makes an error of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.web.drive import PEER
from tests.web.scripted import Site, Start, limiter_for
from zae_limiter import Limit, ValidationError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Identity, Rule, by_api_key, by_header, by_user

RPM = Limit.per_day("rpm", 10)
TPM = Limit.per_day("tpm", 1_000)
IP = f"ip:{PEER}"
Opener = Callable[..., Site]


async def soon(value: Any) -> Any:
    """A value that is there only when it is awaited."""
    return value


@pytest.fixture(params=["asgi", "wsgi"])
def opened(request: pytest.FixtureRequest) -> Opener:
    """A site with the given options, on a store of its own."""

    def site(*rules: Rule, **options: Any) -> Site:
        limiter = limiter_for(request.param, MemoryStore(ManualClock()))
        return Site(request.param, limiter, rules=rules or None, **options)

    return site


KEYS: dict[str, tuple[Any, str]] = {
    "header": (by_header("x-tenant"), "header:x-tenant:t1"),
    "api key": (by_api_key("x-key"), Identity.api_key("k1").entity_id),
    "user": (by_user(), "user:u1"),
    "text": (lambda request: "team-7", "team-7"),
    "identity": (lambda request: Identity.user("u2"), "user:u2"),
    "async text": (lambda request: soon("team-8"), "team-8"),
    "async identity": (lambda request: soon(Identity.user("u3")), "user:u3"),
    "nothing": (lambda request: None, IP),
    "empty text": (lambda request: "", IP),
    "async nothing": (lambda request: soon(None), IP),
    "absent": (None, IP),
    "header that is not there": (by_header("x-other"), IP),
}


@pytest.mark.parametrize("place", ["rule", "middleware"])
@pytest.mark.parametrize("kind", KEYS)
def test_the_key_says_who_pays(opened: Opener, kind: str, place: str) -> None:
    key, entity_id = KEYS[kind]
    site = opened(Rule(limits=[RPM], key=key)) if place == "rule" else opened(limits=[RPM], key=key)
    site.ask(headers=[("x-tenant", "t1"), ("x-key", "k1")], user="u1")
    assert site.left(entity_id, "http", RPM) == {"rpm": 9}


def test_the_key_of_a_rule_goes_before_that_of_the_middleware(opened: Opener) -> None:
    site = opened(
        Rule("/a", limits=[RPM], resource="r", key=lambda request: "mine"),
        Rule("/b", limits=[RPM], resource="r"),
        key=lambda request: "everybody's",
    )
    for path in ("/a", "/b", "/b"):
        site.ask(path)
    assert [site.left(who, "r", RPM)["rpm"] for who in ("mine", "everybody's")] == [9, 8]


def test_several_keys_are_answered_with_400_and_charged_to_the_address(opened: Opener) -> None:
    site = opened(Rule(limits=[RPM], key=by_api_key("x-key")))
    headers = [("x-key", "secret-1"), ("x-key", "secret-2")]
    reply = site.ask(headers=headers)
    assert (reply.status, reply.problem()["error"]) == (400, "Several API Keys")
    assert reply.header("retry-after") is None
    assert "secret" not in reply.told()
    assert site.left(IP, "http", RPM) == {"rpm": 9}
    site = opened(Rule(limits=[RPM], key=by_api_key("x-key", on_several="address")))
    assert site.ask(headers=headers).status == 200
    assert site.left(IP, "http", RPM) == {"rpm": 9}


HOSTILE = {
    "hash": "a#b",
    "hashes": "###",
    "NUL": "a\0b",
    "control": "\x1b[31m\r\n",
    "space": " ",
    "mebibyte": "x" * 2**20,
    "mebibyte of hashes": "#" * 2**20,
    "surrogate": "\ud800",
    "line separator": "a\u2028b",
    "emoji": "🦆" * 256,
    "reserved": "$SYSTEM",
    "reserved kind": "$RESOURCE:x",
    "looks like an address": "ip:10.0.0.1",
    "percent": "%23",
    "braces": "{a}{b}",
    "path": "../../etc/passwd",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_key_of_a_client_makes_an_error(opened: Opener, kind: str) -> None:
    site = opened(limits=[RPM], key=lambda request: HOSTILE[kind])
    replies = [site.ask() for _ in range(11)]
    assert [reply.status for reply in replies] == [200] * 10 + [429]
    assert not any(HOSTILE[kind] in reply.told() for reply in replies if not HOSTILE[kind].isspace())


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if HOSTILE[kind].isprintable() and HOSTILE[kind].isascii()])
@pytest.mark.parametrize(
    "key", [by_header("x-tenant"), by_api_key("x-tenant"), by_user()], ids=["header", "key", "user"]
)
def test_no_header_of_a_client_makes_an_error(opened: Opener, kind: str, key: Any) -> None:
    site = opened(limits=[RPM], key=key)
    assert site.ask(headers=[("x-tenant", HOSTILE[kind])], user=HOSTILE[kind]).status == 200


@pytest.mark.parametrize("made", [5, b"key", ["key"], object])
def test_a_key_that_is_no_text_is_a_mistake_of_the_app(opened: Opener, made: Any) -> None:
    site = opened(limits=[RPM], key=lambda request: made)
    with pytest.raises(ValidationError, match=r"must return an Identity, an entity id as text, or None") as raised:
        site.ask()
    assert raised.value.field == "key"


COSTS: dict[str, tuple[Any, dict[str, int]]] = {
    "number": (2, {"rpm": 8, "tpm": 1_000}),
    "nothing": (0, {"rpm": 10, "tpm": 1_000}),
    "amounts": ({"rpm": 1, "tpm": 500}, {"rpm": 9, "tpm": 500}),
    "tokens only": ({"tpm": 7}, {"rpm": 10, "tpm": 993}),
    "no amounts": ({}, {"rpm": 10, "tpm": 1_000}),
    "callable": (lambda request: 3, {"rpm": 7, "tpm": 1_000}),
    "callable, amounts": (lambda request: {"tpm": int(request.header("x-tokens") or 0)}, {"rpm": 10, "tpm": 958}),
    "async callable": (lambda request: soon({"rpm": 4}), {"rpm": 6, "tpm": 1_000}),
}


@pytest.mark.parametrize("kind", COSTS)
def test_the_cost(opened: Opener, kind: str) -> None:
    cost, left = COSTS[kind]
    site = opened(Rule(limits=[RPM, TPM], cost=cost))
    site.ask(headers=[("x-tokens", "42")])
    assert site.left(IP, "http", RPM, TPM) == left


def test_a_number_counts_for_every_limit_of_requests(opened: Opener) -> None:
    limits = [Limit.per_day("rpm", 10), Limit.per_day("rpd", 100), Limit.per_day("burst", 20), TPM]
    site = opened(limits=limits)
    site.ask()
    assert site.left(IP, "http", *limits) == {"rpm": 9, "rpd": 99, "burst": 19, "tpm": 1_000}


def test_a_number_counts_for_tokens_where_nothing_else_is_limited(opened: Opener) -> None:
    site = opened(Rule(limits=[TPM], cost=5))
    site.ask()
    assert site.left(IP, "http", TPM) == {"tpm": 995}


@pytest.mark.parametrize("made", [-1, 1.5, None, True, "1", {"rpm": -1}, {"r#m": 1}])
@pytest.mark.parametrize("wrap", [lambda made: made, soon], ids=["sync", "async"])
def test_a_callable_that_returns_no_cost_is_a_mistake_of_the_app(opened: Opener, made: Any, wrap: Any) -> None:
    site = opened(Rule(limits=[RPM], cost=lambda request: wrap(made)))
    with pytest.raises(ValidationError) as raised:
        site.ask()
    assert raised.value.field.startswith("cost")
    assert site.left(IP, "http", RPM) == {"rpm": 10}


@pytest.mark.parametrize("wrap", [lambda made: made, soon], ids=["sync", "async"])
def test_the_resource_can_be_computed(opened: Opener, wrap: Callable[[str], Any]) -> None:
    site = opened(Rule(limits=[RPM], resource=lambda request: wrap(f"models/{request.path[1:]}")))
    for path in ("/gpt-4", "/gpt-4", "/o3"):
        site.ask(path)
    assert [site.left(IP, f"models/{name}", RPM)["rpm"] for name in ("gpt-4", "o3")] == [8, 9]


def test_stored_limits_go_from_the_general_to_the_particular(opened: Opener) -> None:
    site = opened(Rule("/chat", resource="chat"), key=by_header("x-tenant"))
    limiter: Any = site.limiter

    def policy(tenant: str) -> str | None:
        return site.ask("/chat", headers=[("x-tenant", tenant)]).header("ratelimit-policy")

    site.do(limiter.set_system_defaults([Limit.per_minute("rpm", 10)]))
    assert policy("a") == '"rpm";q=10;w=60'
    site.do(limiter.set_resource_defaults("chat", [Limit.per_minute("rpm", 20)]))
    assert policy("b") == '"rpm";q=20;w=60'
    site.do(limiter.set_limits("header:x-tenant:c", [Limit.per_minute("rpm", 30)]))
    site.do(limiter.set_limits("header:x-tenant:c", [Limit.per_minute("rpm", 40)], "chat"))
    assert policy("c") == '"rpm";q=40;w=60'
    site.do(limiter.delete_limits("header:x-tenant:c", "chat"))
    assert policy("c") == '"rpm";q=30;w=60'


def test_stored_limits_can_change_while_requests_come(opened: Opener) -> None:
    site = opened(Rule(resource="chat"))
    site.do(site.limiter.set_system_defaults([Limit.per_day("rpm", 10)]))
    assert site.ask().header("ratelimit") == '"rpm";r=9;t=8640'
    site.do(site.limiter.set_limits(IP, [Limit.per_day("rpm", 4)]))
    assert site.ask().header("ratelimit") == '"rpm";r=3;t=21600'
    assert [site.ask().status for _ in range(4)] == [200, 200, 200, 429]


def test_limits_that_are_stored_nowhere_are_a_mistake_that_says_what_to_do(opened: Opener) -> None:
    site = opened(Rule(resource="chat"))
    with pytest.raises(ValidationError, match="store system, resource or entity limits"):
        site.ask()


REFUNDS: list[tuple[Any, int, bool]] = [
    ((502, 503), 502, True),
    ((502, 503), 500, False),
    ([404], 404, True),
    (range(500, 600), 599, True),
    (lambda status: status >= 400, 401, True),
    (lambda status: status >= 400, 200, False),
    ((), 500, False),
]


@pytest.mark.parametrize(("refund", "status", "refunded"), REFUNDS)
def test_some_answers_cost_nothing(opened: Opener, refund: Any, status: int, refunded: bool) -> None:
    site = opened(Rule(limits=[RPM, TPM], cost={"rpm": 1, "tpm": 100}, refund=refund))
    reply = site.ask("/", Start(status), b"body")
    assert (reply.status, reply.body) == (status, b"body")
    assert site.left(IP, "http", RPM, TPM) == ({"rpm": 10, "tpm": 1_000} if refunded else {"rpm": 9, "tpm": 900})
