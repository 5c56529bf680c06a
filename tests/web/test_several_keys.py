"""Requests with several API keys are refused, and they are not free: whoever tries keys pays for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from tests.web.drive import PEER, Call, Line, call_asgi
from tests.web.scripted import Place, Site, Start, limiter_for
from zae_limiter import Limit, RateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Rule, asgi, by_api_key, by_ip, wsgi
from zae_limiter.web.fastapi import Limited

RPM = Limit.per_day("rpm", 10)
GUESSES = Limit.per_day("guesses", 5)
IP = f"ip:{PEER}"
BY_KEY = by_api_key(accept={"right", "other"}.__contains__)
FAILURES = Rule(limits=[GUESSES], count="failures", resource="guesses", key=by_ip(), failures=(401,))


def guesses(*keys: str) -> list[Line]:
    """Header lines with these keys."""
    return [("x-api-key", key) for key in keys]


def statuses(site: Site, count: int, *keys: str) -> list[int]:
    return [site.ask(headers=guesses(*keys)).status for _ in range(count)]


def left(site: Site) -> tuple[int, int]:
    """How many requests, and how many failures, the address has left."""
    return site.left(IP, "http", RPM)["rpm"], site.left(IP, "guesses", GUESSES)["guesses"]


async def accept_none_later(key: str) -> bool:
    return False


@pytest.fixture(params=["asgi", "wsgi"])
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def open_site(mode: str, *rules: Rule, **options: Any) -> Site:
    return Site(mode, limiter_for(mode, MemoryStore(ManualClock())), rules=rules or None, **options)


def test_requests_with_several_unknown_keys_end_in_429(place: Place) -> None:
    site = place.site(Rule(limits=[RPM], key=by_api_key()))
    assert statuses(site, 13, "a", "b") == [400] * 10 + [429] * 3
    assert site.left(IP, "http", RPM) == {"rpm": 0}


def test_a_rule_for_failures_counts_several_unknown_keys(place: Place) -> None:
    """Whatever statuses it counts otherwise; and then even a right key is not looked at."""
    site = place.site(FAILURES, Rule(limits=[Limit.per_day("rpm", 1_000)], key=by_api_key()))
    assert statuses(site, 7, "a", "b") == [400] * 5 + [429] * 2
    assert statuses(site, 1, "right") == [429]


@pytest.mark.parametrize("wrong", range(2, 8))
def test_each_key_that_is_looked_up_costs(mode: str, wrong: int) -> None:
    asked: list[str] = []

    def accept(key: str) -> bool:
        asked.append(key)
        return False

    site = open_site(mode, FAILURES, limits=[RPM], key=by_api_key(accept=accept))
    assert statuses(site, 1, *map(str, range(wrong))) == [400]
    assert left(site) == (10 - len(asked), 5 - len(asked))
    assert len(asked) >= wrong


def test_keys_that_are_looked_up_cost_tokens_but_no_slots(mode: str) -> None:
    limits, asked = [RPM, Limit.concurrent("parallel", 2)], list[str]()

    def accept(key: str) -> bool:
        asked.append(key)
        return False

    site = open_site(mode, limits=limits, key=by_api_key(accept=accept))
    assert statuses(site, 3, "a", "b") == [400] * 3
    assert site.left(IP, "http", *limits) == {"rpm": 10 - len(asked), "parallel": 2}


def test_an_async_accept_is_paid_alike() -> None:
    site = open_site("asgi", FAILURES, limits=[RPM], key=by_api_key(accept=accept_none_later))
    assert statuses(site, 1, "a", "b") == [400]
    assert left(site) == (8, 3)


def test_more_keys_than_are_looked_up_cost_one_request(mode: str) -> None:
    site = open_site(mode, FAILURES, limits=[RPM], key=BY_KEY)
    assert statuses(site, 1, *map(str, range(20))) == [400]
    assert left(site) == (9, 4)


def test_several_known_keys_cost_too(mode: str) -> None:
    site = open_site(mode, FAILURES, limits=[RPM], key=BY_KEY)
    assert statuses(site, 1, "right", "other") == [400]
    requests, failures = left(site)
    assert requests < 10
    assert failures < 5


def test_one_known_key_of_several_pays_alone(mode: str) -> None:
    site = open_site(mode, FAILURES, limits=[RPM], key=BY_KEY)
    assert statuses(site, 3, "right", "wrong") == [200] * 3
    assert left(site) == (10, 5)


def test_guesses_are_failures_where_the_address_has_no_requests_left(mode: str) -> None:
    site = open_site(mode, FAILURES, limits=[Limit.per_day("rpm", 1)], key=by_api_key())
    assert statuses(site, 3, "a", "b") == [400, 429, 429]
    assert site.left(IP, "guesses", GUESSES) == {"guesses": 2}


@pytest.mark.parametrize("limits", [None, [RPM]], ids=["alone", "beside a rule for requests"])
def test_a_rule_for_failures_by_key_refuses_and_counts_several(mode: str, limits: Any) -> None:
    by_key = Rule(limits=[GUESSES], count="failures", resource="guesses", key=by_api_key())
    site = open_site(mode, by_key, limits=limits)
    assert statuses(site, 7, "a", "b") == [400] * 5 + [429] * 2
    assert left(site) == (10 if limits is None else 5, 0)


def test_a_refund_is_for_answers_of_the_app(mode: str) -> None:
    site = open_site(mode, Rule(limits=[RPM], key=by_api_key(), refund=(400,)))
    assert statuses(site, 11, "a", "b") == [400] * 10 + [429]
    assert site.ask("/", Start(400), b"no").status == 429


def test_a_middleware_around_counts_the_failure_of_the_inner_one(mode: str) -> None:
    kind: Callable[..., Any] = asgi.RateLimitMiddleware if mode == "asgi" else wsgi.RateLimitMiddleware
    inner = open_site(mode, limits=[RPM], key=BY_KEY)
    inner.app = kind(inner.app, inner.limiter, rules=[FAILURES], headers="none")
    assert statuses(inner, 1, "a", "b")[0] == 400
    assert left(inner) == ((8, 3) if mode == "asgi" else (7, 2))  # a WSGI server joins the lines: one text more


def test_a_dependency_of_a_route_charges_the_address() -> None:
    limiter = RateLimiter(MemoryStore(ManualClock()))
    app = FastAPI()
    app.add_middleware(asgi.RateLimitMiddleware, limiter=limiter, rules=[FAILURES])

    @app.get("/", dependencies=[Depends(Limited("http", limits=[RPM], key=by_api_key()))])
    async def index() -> str:
        return "served"

    def run(work: Awaitable[Any]) -> Any:
        async def done() -> Any:
            return await work

        return asyncio.run(done())

    replies = [run(call_asgi(app, Call(headers=guesses("a", "b")))) for _ in range(6)]
    assert [reply.status for reply in replies] == [400] * 5 + [429]
    assert run(limiter.available(IP, "http", limits=[RPM])) == {"rpm": 5}
