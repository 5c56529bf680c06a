"""Which rules pay for a request whose path can be read in more than one way."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Host, Mount, Router

from tests.web import path_apps
from tests.web.drive import PEER, Call, call_asgi
from tests.web.scripted import SERVE, Site, adjust, limiter_for
from zae_limiter import Limit, RateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Request, Rule, asgi
from zae_limiter.web.paths import Paths, Prefix, Prefixes, read_path

RPM = Limit.per_day("rpm", 10)
IP = f"ip:{PEER}"


def charged(path: str, *rules: Rule, root: str = "", mode: str = "asgi", **options: Any) -> set[str]:
    """The resources that one request pays for, each of them once."""
    site = Site(mode, limiter_for(mode, MemoryStore(ManualClock())), rules=rules, **options)
    assert site.ask(path, root=root).status == 200
    spent = {rule.resource_name: 10 - site.left(IP, rule.resource_name, RPM)["rpm"] for rule in rules}
    assert set(spent.values()) <= {0, 1}
    return {name for name, amount in spent.items() if amount}


def rule(match: Any, resource: str, **options: Any) -> Rule:
    return Rule(match, limits=[RPM], resource=resource, **options)


CHAT, NAME, REST = rule("/v1/chat", "chat"), rule("/v1/{name}", "name"), rule(None, "rest")
FILES = rule("/files/{rest:path}", "files")
HEALTH = Rule("/health", exempt=True, resource="health")


def reached_and_charged(build: Any, path: str, root: str = "") -> tuple[list[str], int]:
    """The handlers that an app has called for a path, and what the rule of the chat route was charged."""
    served: list[str] = []
    limiter = RateLimiter(MemoryStore(ManualClock()))
    asyncio.run(call_asgi(build(limiter, served), Call(path, root=root)))
    left = asyncio.run(limiter.available(IP, "chat", limits=[path_apps.PLENTY]))
    return served, path_apps.PLENTY.capacity - left["rpm"]


def test_a_prefix_of_a_fastapi_app_hides_no_path() -> None:
    assert reached_and_charged(path_apps.fastapi_outside, "/api/v1/chat") == (["chat"], 1)
    assert reached_and_charged(path_apps.fastapi_outside, "/v1/chat") == (["chat"], 1)


def test_a_prefix_of_a_fastapi_app_is_found_behind_other_middleware() -> None:
    def build(limiter: Any, served: list[str]) -> Any:
        inside = path_apps.fastapi_outside(limiter, served).app
        return asgi.RateLimitMiddleware(CORSMiddleware(inside), limiter, rules=path_apps.RULES)

    assert reached_and_charged(build, "/api/v1/chat") == (["chat"], 1)


def mounted_at_the_root(app: FastAPI) -> Any:
    return Starlette(routes=[Mount("/", app)])


def mounted_in_fastapi(app: FastAPI) -> Any:
    outer = FastAPI()
    outer.mount("", app)
    return outer


def mounted_twice(app: FastAPI) -> Any:
    return Starlette(routes=[Host("{any}", Router([Mount("/", mounted_in_fastapi(app))]))])


def mounted_behind_middleware(app: FastAPI) -> Any:
    return Starlette(routes=[Mount("/", CORSMiddleware(app))])


MOUNTED = (mounted_at_the_root, mounted_in_fastapi, mounted_twice, mounted_behind_middleware)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("mount", MOUNTED)
def test_a_prefix_of_a_mounted_fastapi_app_hides_no_path(mount: Any, inside: bool) -> None:
    def build(limiter: Any, served: list[str]) -> Any:
        outer = mount(path_apps.fastapi_outside(limiter, served).app)
        if not inside:
            return asgi.RateLimitMiddleware(outer, limiter, rules=path_apps.RULES)
        outer.add_middleware(asgi.RateLimitMiddleware, limiter=limiter, rules=path_apps.RULES)
        return outer

    served, spent = reached_and_charged(build, "/api/v1/chat")
    assert (served, spent) == (["chat"], 1)


def test_a_prefix_of_an_app_mounted_later_hides_no_path() -> None:
    def build(limiter: Any, served: list[str]) -> Any:
        outer = Starlette()
        app = asgi.RateLimitMiddleware(outer, limiter, rules=path_apps.RULES)
        outer.mount("/", path_apps.fastapi_outside(limiter, served).app)
        return app

    assert reached_and_charged(build, "/api/v1/chat") == (["chat"], 1)


@pytest.mark.parametrize("root", ["/m/api", "/m"])
def test_what_is_mounted_below_a_path_pays_below_that_path(root: str) -> None:
    build = functools.partial(path_apps.fastapi_mounted, where="/m", root=root)
    assert reached_and_charged(build, f"{root}/v1/chat") == (["chat"], 1)


def test_a_prefix_of_an_app_mounted_in_an_included_router_hides_no_path() -> None:
    def build(limiter: Any, served: list[str]) -> Any:
        router = APIRouter()
        router.mount("/m", path_apps.fastapi_outside(limiter, served, root="/v0/m/api").app)
        outer = FastAPI()
        outer.include_router(router, prefix="/v0")
        return asgi.RateLimitMiddleware(outer, limiter, rules=path_apps.find_rules(prefix="/v0/m"))

    served, spent = reached_and_charged(build, "/v0/m/api/v1/chat")
    assert spent == len(served)  # older versions of FastAPI drop the mount


def test_a_mount_that_has_its_own_path_as_a_prefix_is_read_plainly() -> None:
    """Else nothing below it could be exempt."""
    app = path_apps.fastapi_mounted(RateLimiter(MemoryStore(ManualClock())), [], where="/m", root="/m").app
    assert Prefixes(None, app).read_scope({"path": "/m/health"}) == Paths("/m/health")
    assert Prefixes(None, app).read_scope({"path": "/m/health", "root_path": "/t"}) == Paths("/m/health")


def test_an_app_that_is_mounted_in_itself_is_walked_once() -> None:
    app = FastAPI()
    app.mount("/again", app)
    assert Prefixes(None, app).read_scope({"path": "/again/v1/chat"}) == Paths("/again/v1/chat")


def test_a_prefix_that_cannot_be_seen_can_be_given() -> None:
    assert reached_and_charged(path_apps.fastapi_hidden, "/api/v1/chat") == (["chat"], 1)


async def test_a_script_name_of_django_hides_no_path() -> None:
    served: list[str] = []
    limiter = RateLimiter(MemoryStore(ManualClock()))
    app = path_apps.django_asgi(limiter, served)
    with path_apps.script_name("/api"):
        await call_asgi(app, Call("/api/v1/chat"))
    assert served == ["chat"]
    assert await limiter.available(IP, "chat", limits=[path_apps.PLENTY]) == {"rpm": 10**9 - 1}


@pytest.mark.parametrize("path", ["/x/api/v1/chat", "/health/api/v1/chat", "/apiv1/chat", "/v1/models/api/v1/chat"])
def test_a_prefix_that_litestar_takes_off_inside_a_path_hides_nothing(path: str) -> None:
    assert reached_and_charged(path_apps.litestar_outside, path, root="/api") == (["chat"], 1)


def test_a_segment_of_line_feeds_is_a_segment() -> None:
    for path in ("/v1/\n", "/v1/\n\n", "/v1/\n/", "/v1/a\nb"):
        assert "name" in charged(path, NAME), path
        assert "name" in charged(path, NAME, mode="wsgi"), path
        assert charged(path, CHAT, mode="wsgi") == set(), path


def test_a_line_feed_at_the_end_may_be_nothing_or_part_of_the_segment() -> None:
    assert charged("/v1/chat\n", CHAT, NAME, REST, mode="wsgi") == {"chat", "name"}
    assert charged("/v1/chat\n", CHAT, REST, mode="wsgi") == {"chat", "rest"}


def test_a_line_feed_at_the_end_is_paid_by_every_rule_where_mounts_may_be() -> None:
    assert charged("/items/7\n", CHAT, NAME, HEALTH, REST) == {"chat", "name", "rest"}


def test_a_line_feed_leads_past_no_mount() -> None:
    """The rule is for the path below the mount, and the app that is mounted there serves the path above it."""
    from functools import partial

    build = partial(path_apps.starlette_mounted_inside, where="/{tenant}")
    assert reached_and_charged(build, "/v1/chat\n") == (["chat"], 1)


def test_a_line_feed_below_a_mount_hides_nothing() -> None:
    """Starlette misplaces the end of the mount then, and the app inside routes by the whole path."""
    from functools import partial

    build = partial(path_apps.starlette_mounted, where="/{tenant}")
    assert reached_and_charged(build, "/v1/chat\n") == (["chat"], 1)


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat", {"chat"}),
        ("/v1/models", {"name"}),
        ("/v1/Models", {"name"}),
        ("/elsewhere", {"rest"}),
        ("/Elsewhere", {"rest"}),
        ("/files/a/b", {"files"}),
        ("/files/.hidden", {"files"}),
    ],
)
def test_a_plain_request_is_paid_once(path: str, expected: set[str], mode: str) -> None:
    assert charged(path, CHAT, NAME, FILES, REST, mode=mode) == expected


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/CHAT", {"chat", "name"}),
        ("/V1/chat", {"chat", "rest"}),
        ("/v1/chat/", {"chat", "rest"}),
        ("/v1//chat", {"chat", "rest"}),
        ("/files/../v1/chat", {"chat", "files"}),
        ("/v1/chat/../models", {"name", "rest"}),
        ("/files//x", {"files", "rest"}),
    ],
)
def test_no_spelling_trades_one_limit_for_another(path: str, expected: set[str], mode: str) -> None:
    """Every rule pays whose handler some framework would call."""
    assert expected <= charged(path, CHAT, NAME, FILES, REST, mode=mode)


def test_slashes_in_front_may_be_one_while_those_at_the_end_stay() -> None:
    """Flask and Quart route ``//files/raw//`` as ``/files/raw//``."""
    raw = rule("/files/{rest:path}/raw", "raw")
    assert charged("//files/a/raw//", raw, FILES) == {"raw", "files"}


def test_a_typed_placeholder_leaves_what_it_may_not_be_to_the_next_rule_too() -> None:
    numbers, names = rule("/items/{n:int}", "numbers"), rule("/items/{name}", "names")
    assert charged("/items/7", numbers, names) == {"numbers"}
    assert charged("/items/x", numbers, names) == {"numbers", "names"}
    assert charged(f"/items/{'7' * 5_000}", numbers, names) == {"numbers", "names"}


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_the_lease_of_a_request_that_several_rules_pay_for_is_that_of_the_first_one(mode: str) -> None:
    site = Site(mode, limiter_for(mode, MemoryStore(ManualClock())), rules=[CHAT, NAME, REST])
    site.ask("/v1/CHAT", adjust(rpm=5), *SERVE)
    assert [site.left(IP, name, RPM)["rpm"] for name in ("chat", "name", "rest")] == [4, 9, 10]


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_a_refusal_by_one_of_several_rules_gives_the_others_back(mode: str) -> None:
    once = Rule("/v1/chat", limits=[Limit.per_day("rpm", 1)], resource="chat")
    site = Site(mode, limiter_for(mode, MemoryStore(ManualClock())), rules=[once, REST])
    assert [site.ask("/v1/chat/").status for _ in range(3)] == [200, 429, 429]
    assert site.left(IP, "rest", RPM) == {"rpm": 9}


@pytest.mark.parametrize("awaited", [False, True])
def test_a_callable_is_asked_once_and_in_its_turn(awaited: bool) -> None:
    asked: list[str] = []

    async def soon(answer: bool) -> bool:
        return answer

    def beta(request: Request) -> Any:
        asked.append(request.path)
        return soon(True) if awaited else True

    assert charged("/v1/chat", CHAT, rule(beta, "beta"), REST) == {"chat"}
    assert not asked
    assert charged("/v1/CHAT", CHAT, rule(beta, "beta"), NAME, REST) == {"chat", "beta"}
    assert asked == ["/v1/CHAT"]


def test_below_the_prefix_of_the_server_only_the_route_path_pays() -> None:
    assert charged("/api/v1/chat", CHAT, NAME, REST, root="/api") == {"chat"}
    assert charged("/api/elsewhere", CHAT, REST, root="/api") == {"rest"}
    assert charged("/api/health", HEALTH, REST, root="/api") == set()


def test_below_a_prefix_a_rule_for_the_whole_path_pays_too() -> None:
    whole = rule("/api/*", "whole")
    assert charged("/api/v1/chat", CHAT, whole, REST, root="/api") == {"chat", "whole"}
    assert charged("/api/v1/chat", whole, CHAT, REST, root="/api") == {"chat", "whole"}
    assert charged("/api/x", whole, CHAT, REST, prefixes=["/api"]) == {"whole", "rest"}


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_what_follows_a_given_prefix_is_compared_with_rules(mode: str) -> None:
    options: dict[str, Any] = {"mode": mode, "prefixes": ["/api/", "/old/api"]}
    for path in ("/api/v1/chat", "/old/api/v1/chat", "/v1/chat"):
        assert "chat" in charged(path, CHAT, REST, **options)
    assert charged("/api/v1/chat", CHAT, REST, **options) == {"chat"}
    assert charged("/api/health", HEALTH, REST, **options) == set()
    assert charged("/apihealth", HEALTH, REST, **options) == {"rest"}
    assert charged("/x/api/health", HEALTH, REST, **options) == {"rest"}


def test_a_callable_sees_the_path_below_a_prefix() -> None:
    first = {"/api/v1/chat": "/v1/chat", "/api//v1": "/v1", "/apikeys": "/apikeys", "/x/api/v1": "/x/api/v1"}
    for path, main in first.items():
        seen: list[str] = []

        def match(request: Request, seen: list[str] = seen) -> bool:
            seen.append(request.path)
            return True

        charged(path, rule(match, "seen"), root="/api")
        assert seen[0] == main


def test_an_own_prefix_stands_in_place_of_the_server_s() -> None:
    """So nobody knows by what the app routes what is below the server's."""
    server, own = Prefix("/t", anywhere=True, sure=False), Prefix("/api")
    assert read_path("/api/v1", [server, own]) == Paths("/v1", ("/api/v1",))
    assert read_path("/t/v1", [server, own]) == Paths("/v1", ("/t/v1",), plain=False)


def test_a_path_without_prefixes_is_read_as_it_stands() -> None:
    for path in ("/", "/v1/chat", "/v1/chat/", "/a.b/.c", "/%2e%2e/x", "/caf\u00e9", "/a;b", "/a\r"):
        assert read_path(path) == Paths(path)
        assert read_path(path, [Prefix("/nowhere", anywhere=True)]) == Paths(path)
