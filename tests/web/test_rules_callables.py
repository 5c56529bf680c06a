"""Rules whose ``match`` is a callable: no spelling of a path leads past one that compares ``request.path``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.scripted import Site
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.web import Request, Rule

RPM = Limit.per_day("rpm", 10)
IP = "ip:192.0.2.1"


def open_site(mode: str, *rules: Rule) -> Site:
    limiter: Any = RateLimiter("memory://") if mode == "asgi" else SyncRateLimiter("memory://")
    return Site(mode, limiter, rules=[*rules, Rule(limits=[RPM], resource="rest")])


def spent(site: Site, resource: str) -> int:
    return 10 - site.left(IP, resource, RPM)["rpm"]


def is_chat(request: Request) -> bool:
    return request.path == "/v1/chat"


async def is_chat_later(request: Request) -> bool:
    return request.path == "/v1/chat"


CHAT = Rule(is_chat, limits=[RPM], resource="chat")
SPELLINGS = ["//v1//chat", "/v1/chat/", "/v1/./chat", "/x/../v1/chat", "/V1/Chat", "/v1/chat//"]


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_leads_past_a_callable(mode: str, path: str) -> None:
    site = open_site(mode, CHAT)
    site.ask(path)
    assert (spent(site, "chat"), spent(site, "rest")) == (1, 1)


@pytest.mark.parametrize("path", SPELLINGS)
def test_nor_past_an_async_one(path: str) -> None:
    site = open_site("asgi", Rule(is_chat_later, limits=[RPM], resource="chat"))
    site.ask(path)
    assert spent(site, "chat") == 1


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_a_plain_path_is_charged_by_one_rule(mode: str) -> None:
    site = open_site(mode, CHAT)
    site.ask("/v1/chat")
    site.ask("/elsewhere")
    assert (spent(site, "chat"), spent(site, "rest")) == (1, 1)


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
@pytest.mark.parametrize("path", ["/public/../v1/chat", "/public//x", "//public/x", "/PUBLIC/x"])
def test_a_callable_exempts_plain_paths_only(mode: str, path: str) -> None:
    site = open_site(mode, Rule(lambda request: request.path.startswith("/public/"), exempt=True))
    site.ask("/public/x")
    assert spent(site, "rest") == 0
    site.ask(path)
    assert spent(site, "rest") == 1


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_one_that_does_not_look_at_the_path_is_asked_once(mode: str) -> None:
    asked: list[str] = []

    def is_batch(request: Request) -> bool:
        asked.append(request.method)
        return request.header("x-batch") is not None

    site = open_site(mode, Rule(is_batch, limits=[RPM], resource="batch"))
    site.ask("//x//y/", headers=[("x-batch", "1")])
    assert (asked, spent(site, "batch"), spent(site, "rest")) == (["GET"], 1, 0)


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_resources_and_costs_see_one_path_for_all_spellings(mode: str) -> None:
    site = open_site(mode, Rule(resource=lambda request: f"r{request.path}", limits=[RPM]))
    for path in ("/v1/chat", "//v1//chat", "/x/../v1/./chat"):
        site.ask(path)
    assert spent(site, "r/v1/chat") == 3
