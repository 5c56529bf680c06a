"""Rules: bad ones are refused when they are made, the first that matches decides, and each says who pays how much."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.web.drive import PEER
from tests.web.scripted import Site, limiter_for
from zae_limiter import Limit, RateLimiter, SyncRateLimiter, ValidationError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Request, Rule

RPM = Limit.per_day("rpm", 10)
TPM = Limit.per_day("tpm", 1_000)
OTHER = Limit.per_day("rpm", 5)
IP = f"ip:{PEER}"
Opener = Callable[..., Site]


async def soon(value: Any) -> Any:
    """A value that is there only when it is awaited."""
    return value


async def never(status: int) -> bool:
    return False


BAD_RULES: dict[str, tuple[dict[str, Any], str, object, str]] = {
    "match, number": ({"match": 5}, "match", 5, "path template"),
    "match, bytes": ({"match": b"/v1"}, "match", b"/v1", "path template"),
    "match, number in a list": ({"match": ["/v1", 5]}, "match", 5, "path template"),
    "match, empty list": ({"match": []}, "match", [], "leave it out"),
    "match, no slash": ({"match": "v1"}, "match", "v1", "start with '/'"),
    "match, stray": ({"match": ["/v1", "/v2/*/x"]}, "match", "/v2/*/x", "stray '*'"),
    "methods, text": ({"methods": "GET"}, "methods", "GET", "brackets"),
    "methods, bytes": ({"methods": b"GET"}, "methods", b"GET", "list"),
    "methods, number": ({"methods": 5}, "methods", 5, "list"),
    "methods, number in a list": ({"methods": ["GET", 5]}, "methods", 5, "'POST'"),
    "methods, empty text": ({"methods": [""]}, "methods", "", "'POST'"),
    "methods, empty list": ({"methods": []}, "methods", [], "leave it out"),
    "key, text": ({"key": "x-api-key"}, "key", "x-api-key", "by_header"),
    "key, number": ({"key": 5}, "key", 5, "callable"),
    "resource, number": ({"resource": 5}, "resource", 5, "string"),
    "resource, empty": ({"resource": ""}, "resource", "", "empty"),
    "resource, bad character": ({"resource": "a#b"}, "resource", "a#b", "letters"),
    "limits, none": ({"limits": []}, "limits", [], "at least one"),
    "limits, single": ({"limits": RPM}, "limits", RPM, "brackets"),
    "limits, text": ({"limits": ["rpm"]}, "limits", "rpm", "must be a Limit"),
    "limits, twice": ({"limits": [RPM, OTHER]}, "limits", "rpm", "twice"),
    "cost, negative": ({"cost": -1}, "cost", -1, "between"),
    "cost, bool": ({"cost": True}, "cost", True, "whole number"),
    "cost, fraction": ({"cost": 1.5}, "cost", 1.5, "whole number"),
    "cost, text": ({"cost": "1"}, "cost", "1", "whole number"),
    "cost, nothing": ({"cost": None}, "cost", None, "whole number"),
    "cost, negative amount": ({"cost": {"rpm": -1}}, "cost['rpm']", -1, "between"),
    "cost, fraction of an amount": ({"cost": {"rpm": 0.5}}, "cost['rpm']", 0.5, "whole number"),
    "cost, bad name": ({"cost": {"r#m": 1}}, "cost", "r#m", "letters"),
    "cost, number for a name": ({"cost": {5: 1}}, "cost", 5, "string"),
    "cost, too much": ({"cost": 10**13}, "cost", 10**13, "between"),
    "exempt, text": ({"exempt": "no"}, "exempt", "no", "True or False"),
    "refund, number": ({"refund": 502}, "refund", 502, "(502, 503)"),
    "refund, text": ({"refund": "502"}, "refund", "502", "(502, 503)"),
    "refund, nothing": ({"refund": None}, "refund", None, "(502, 503)"),
    "refund, text in a list": ({"refund": ["502"]}, "refund", "502", "whole number"),
    "refund, no status": ({"refund": [1]}, "refund", 1, "between 100 and 599"),
    "refund, async": ({"refund": never}, "refund", never, "not be async"),
}

BAD_OPTIONS: dict[str, tuple[dict[str, Any], str, object, str]] = {
    "rules, single": ({"rules": Rule(limits=[RPM])}, "rules", Rule(limits=[RPM]), "brackets"),
    "rules, text": ({"rules": ["/v1"]}, "rules", "/v1", "must be a Rule"),
    "rules, number": ({"rules": 5}, "rules", 5, "list"),
    "limits, single": ({"limits": RPM}, "limits", RPM, "brackets"),
    "key, text": ({"limits": [RPM], "key": "x-api-key"}, "key", "x-api-key", "by_header"),
    "respond, text": ({"limits": [RPM], "respond": "no"}, "respond", "no", "callable"),
    "headers, unknown": ({"limits": [RPM], "headers": "draft-3"}, "profiles", "draft-3", "ietf"),
    "prefixes, text": ({"limits": [RPM], "prefixes": "/api"}, "prefixes", "/api", "brackets"),
    "prefixes, number": ({"limits": [RPM], "prefixes": 5}, "prefixes", 5, "list"),
    "prefixes, no slash": ({"limits": [RPM], "prefixes": ["api"]}, "prefixes", "api", "'/api'"),
    "prefixes, nothing": ({"limits": [RPM], "prefixes": ["/"]}, "prefixes", "/", "'/api'"),
    "prefixes, bytes": ({"limits": [RPM], "prefixes": [b"/api"]}, "prefixes", b"/api", "'/api'"),
    "proxies, text": ({"limits": [RPM], "proxies": "10.0.0.1"}, "trusted", "10.0.0.1", "brackets"),
}


@pytest.fixture(params=["asgi", "wsgi"])
def opened(request: pytest.FixtureRequest) -> Opener:
    """A site with the given options, on a store of its own."""

    def site(*rules: Rule, **options: Any) -> Site:
        limiter = limiter_for(request.param, MemoryStore(ManualClock()))
        return Site(request.param, limiter, rules=rules or None, **options)

    return site


@pytest.mark.parametrize("case", BAD_RULES)
def test_a_bad_rule_is_refused_when_it_is_made(case: str) -> None:
    arguments, field, value, fix = BAD_RULES[case]
    with pytest.raises(ValidationError) as raised:
        Rule(**arguments)
    assert raised.value.field == field
    assert raised.value.value == value
    assert fix in raised.value.reason


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_refused_when_the_app_is_wrapped(opened: Opener, case: str) -> None:
    arguments, field, value, fix = BAD_OPTIONS[case]
    with pytest.raises(ValidationError) as raised:
        opened(**arguments) if "rules" not in arguments else Site("asgi", RateLimiter("memory://"), **arguments)
    assert (raised.value.field, raised.value.value) == (field, value)
    assert fix in raised.value.reason


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
@pytest.mark.parametrize("kind", ["none", "number", "of the other mode"])
def test_a_limiter_that_is_none_is_refused(mode: str, kind: str) -> None:
    other: Any = SyncRateLimiter("memory://") if mode == "asgi" else RateLimiter("memory://")
    limiter = {"none": None, "number": 5, "of the other mode": other}[kind]
    with pytest.raises(ValidationError, match=r"must be a (Sync)?RateLimiter or a store URL") as raised:
        Site(mode, limiter, limits=[RPM])
    assert raised.value.field == "limiter"


def test_texts_that_can_be_read_once_are_kept(opened: Opener) -> None:
    """A rule that had lost its templates or its methods would be for nothing."""
    once: dict[str, Any] = {"match": iter(["/a", "/b"]), "methods": iter(["POST"]), "limits": iter([RPM])}
    site = opened(Rule(**once))
    site.ask("/b", method="POST")
    assert site.left(IP, "http:post/a", RPM) == {"rpm": 9}


NAMED = {
    "/v1/items/{id}": "http/v1/items/id",
    "/files/{rest:path}": "http/files/rest",
    "/v1/*": "http/v1",
    "/": "http/",
    "/a b/ü": "http/a-b:9f3a35f7",
    "/é": "http:e6899f85",
}


@pytest.mark.parametrize("template", NAMED)
def test_a_resource_is_named_after_the_template(template: str) -> None:
    assert Rule(template, limits=[RPM]).resource_name == NAMED[template]


def test_methods_are_part_of_the_name() -> None:
    assert Rule("/login", methods=["POST"]).resource_name == "http:post/login"
    assert Rule("/login", methods=["put", "GET"], count="failures").resource_name == "failures:get-put/login"


APART: dict[str, tuple[Rule, Rule]] = {
    "methods": (Rule("/a", methods=["GET"], limits=[RPM]), Rule("/a", methods=["POST"], limits=[RPM])),
    "method and all": (Rule("/a", methods=["GET"], limits=[RPM]), Rule("/a", limits=[RPM])),
    "other alphabets": (Rule("/é", limits=[RPM]), Rule(limits=[RPM])),
    "two of them": (Rule("/é", limits=[RPM]), Rule("/ü", limits=[RPM])),
    "the root": (Rule("/", limits=[RPM]), Rule(limits=[RPM])),
    "long": (Rule("/" + "x" * 300, limits=[RPM]), Rule("/" + "x" * 301, limits=[RPM])),
    "a space": (Rule("/a b", limits=[RPM]), Rule("/a-b", limits=[RPM])),
}


@pytest.mark.parametrize("pair", APART)
def test_different_rules_do_not_share_tokens_by_default(opened: Opener, pair: str) -> None:
    first, second = APART[pair]
    assert first.resource_name != second.resource_name
    opened(first, second)


ALIKE: dict[str, tuple[Rule, Rule]] = {
    "a star": (Rule("/v1", limits=[RPM]), Rule("/v1/*", limits=[RPM])),
    "a placeholder": (Rule("/{id}", limits=[RPM]), Rule("/id", limits=[RPM])),
    "the first of several": (Rule(["/a", "/b"], limits=[RPM]), Rule(["/a", "/c"], limits=[RPM])),
    "callables": (Rule(lambda request: False, limits=[RPM]), Rule(lambda request: True, limits=[RPM])),
    "stored": (Rule(lambda request: False), Rule()),
}


@pytest.mark.parametrize("pair", ALIKE)
def test_rules_that_would_share_tokens_by_accident_are_refused(opened: Opener, pair: str) -> None:
    with pytest.raises(ValidationError, match="resource="):
        opened(*ALIKE[pair])


def test_rules_share_tokens_where_that_is_said(opened: Opener) -> None:
    opened(Rule("/v1", limits=[RPM], resource="api"), Rule("/v1/*", limits=[RPM], resource="api"))
    opened(Rule("/v1", limits=[RPM], resource="http/v1"), Rule("/v1/*", limits=[RPM]))
    opened(Rule("/health", exempt=True), Rule("/health/*", exempt=True), Rule(limits=[RPM]))


@pytest.mark.parametrize("template", [*NAMED, "/" + "x" * 500, "/{a}/#?", "/..", "/{a:path}-{b}", "/ünïcödé/7"])
def test_every_template_makes_a_resource_that_can_be_stored(opened: Opener, template: str) -> None:
    site = opened(Rule([template, "/*"], limits=[RPM]))
    assert site.ask("/x").status == 200
    assert site.left(IP, Rule(template).resource_name, RPM) == {"rpm": 9}


def test_the_first_rule_that_matches_decides(opened: Opener) -> None:
    site = opened(
        Rule("/v1/chat", methods=["POST"], limits=[RPM], resource="chat"),
        Rule("/v1/*", limits=[RPM], resource="v1"),
        Rule(["/a", "/b"], limits=[RPM], resource="letters"),
        limits=[RPM],
    )
    calls = [("/v1/chat", "POST"), ("/v1/chat", "GET"), ("/v1/x", "PUT"), ("/a", "GET"), ("/b", "GET"), ("/c", "GET")]
    for path, method in calls:
        assert site.ask(path, method=method).status == 200
    left = {name: site.left(IP, name, RPM)["rpm"] for name in ("chat", "v1", "letters", "http")}
    assert left == {"chat": 9, "v1": 8, "letters": 8, "http": 9}


def test_limits_alone_are_for_everything(opened: Opener) -> None:
    site = opened(limits=[RPM])
    for path in ("/", "/a/b", "/%", "/\u00fc"):
        assert site.ask(path).status == 200
    assert site.left(IP, "http", RPM) == {"rpm": 6}


def test_what_no_rule_is_for_is_not_limited(opened: Opener) -> None:
    site = opened(Rule("/v1/*", limits=[RPM]))
    reply = site.ask("/v2")
    assert (reply.status, reply.header("ratelimit")) == (200, None)


@pytest.mark.parametrize(
    ("methods", "method", "limited"),
    [
        (["GET"], "GET", True),
        (["GET"], "HEAD", True),
        (["HEAD"], "GET", False),
        (["HEAD"], "HEAD", True),
        (["POST"], "HEAD", False),
        (["get", "Post"], "POST", True),
        (("PUT", "PATCH"), "PATCH", True),
        ({"DELETE"}, "GET", False),
        (None, "OPTIONS", True),
    ],
)
def test_methods(opened: Opener, methods: Any, method: str, limited: bool) -> None:
    site = opened(Rule("/v1", methods=methods, limits=[RPM]))
    assert (site.ask("/v1", method=method).header("ratelimit") is not None) == limited


def test_a_method_counts_however_it_is_written() -> None:
    """Flask, Quart and Django serve ``post`` as ``POST``, and not every server refuses it."""
    site = Site("asgi", RateLimiter("memory://"), rules=[Rule(methods=["POST"], limits=[RPM])])
    assert site.ask("/", method="post").header("ratelimit") is not None


def test_a_callable_can_match(opened: Opener) -> None:
    seen: list[tuple[str, str, str | None]] = []

    def beta(request: Request) -> bool:
        seen.append((request.method, request.path, request.header("x-beta")))
        return request.header("x-beta") == "1"

    site = opened(Rule(beta, limits=[RPM], resource="beta"))
    assert site.ask("/x", headers=[("x-beta", "1")]).header("ratelimit") == '"rpm";r=9;t=8640'
    assert site.ask("/y", method="PUT").header("ratelimit") is None
    assert seen == [("GET", "/x", "1"), ("PUT", "/y", None), ("PUT", "/y/", None)]


def test_a_callable_that_matches_and_is_async_is_awaited(opened: Opener) -> None:
    def beta(request: Request) -> Any:
        return soon(request.path == "/x")

    site = opened(Rule(beta, limits=[RPM], resource="beta"))
    assert site.ask("/y").header("ratelimit") is None
    assert site.ask("/x").header("ratelimit") is not None


def test_an_exempt_path_costs_nothing(opened: Opener) -> None:
    site = opened(Rule("/health", exempt=True), Rule("/static/*", methods=["GET"], exempt=True), limits=[RPM])
    for path in ("/health", "/static/app.js", "/static"):
        reply = site.ask(path)
        assert (reply.status, reply.header("ratelimit")) == (200, None)
    assert site.left(IP, "http", RPM) == {"rpm": 10}
    for path, method in [("/health/", "GET"), ("/HEALTH", "GET"), ("/static/../v1", "GET"), ("/static/x", "POST")]:
        assert site.ask(path, method=method).header("ratelimit") is not None
    assert site.left(IP, "http", RPM) == {"rpm": 6}


def test_an_exemption_can_be_computed(opened: Opener) -> None:
    site = opened(Rule(lambda request: request.header("x-probe") == "1", exempt=True), limits=[RPM])
    assert site.ask(headers=[("x-probe", "1")]).header("ratelimit") is None
    assert site.ask().header("ratelimit") is not None


TWINS: dict[str, tuple[list[Rule], list[Limit] | None]] = {
    "named alike": ([Rule("/a", limits=[RPM], resource="r"), Rule("/b", limits=[OTHER], resource="r")], None),
    "made alike": ([Rule("/a", limits=[RPM]), Rule("/a/*", limits=[OTHER])], None),
    "more limits": ([Rule("/a", limits=[RPM], resource="r"), Rule("/b", limits=[RPM, TPM], resource="r")], None),
    "the rest": ([Rule(["/*"], limits=[RPM])], [OTHER]),
    "the rest, named": ([Rule("/a", limits=[RPM], resource="http")], [OTHER]),
}


@pytest.mark.parametrize("case", TWINS)
def test_two_rules_cannot_give_one_resource_different_limits(opened: Opener, case: str) -> None:
    rules, limits = TWINS[case]
    with pytest.raises(ValidationError, match=re.escape("name one with resource=")) as raised:
        opened(*rules, limits=limits)
    assert raised.value.field == "resource"
    assert raised.value.value == rules[0].resource_name


def test_two_rules_can_share_a_resource(opened: Opener) -> None:
    site = opened(
        Rule("/a", limits=[RPM, TPM], resource="r"),
        Rule("/b", limits=[TPM, RPM], resource="r", cost={"tpm": 10}),
        Rule("/c", exempt=True, resource="r", limits=[OTHER]),
        Rule("/d", limits=[OTHER], resource=lambda request: "s"),
    )
    for path in ("/a", "/b", "/c", "/d"):
        assert site.ask(path).status == 200
    assert site.left(IP, "r", RPM, TPM) == {"rpm": 9, "tpm": 990}


def test_a_mounted_app_goes_by_the_path_below_its_mount() -> None:
    site = Site("asgi", RateLimiter("memory://"), rules=[Rule("/chat", limits=[RPM])])
    for path, root, limited in [
        ("/api/chat", "/api", True),
        ("/chat", "/api", True),
        ("/api/chat", "", False),
        ("/apichat", "/api", True),  # Litestar and Quart serve it
        ("/chat", "/c", True),  # Starlette serves it
        ("/api/api/chat", "/api", False),
    ]:
        assert (site.ask(path, root=root).header("ratelimit") is not None) == limited, (path, root)


def test_no_exemption_hangs_on_where_a_mount_ends() -> None:
    site = Site("asgi", RateLimiter("memory://"), rules=[Rule("/chat", exempt=True)], limits=[RPM])
    for path, root, limited in [("/api/chat", "/api", False), ("/apichat", "/api", True), ("/chat", "/c", True)]:
        assert (site.ask(path, root=root).header("ratelimit") is not None) == limited, (path, root)


def test_a_request_shows_what_it_is(opened: Opener) -> None:
    seen: list[Request] = []

    def key(request: Request) -> Awaitable[str] | str:
        seen.append(request)
        return "somebody"

    site = opened(limits=[RPM], key=key)
    headers = [("X-Tag", "a"), ("x-tag", "b"), ("X-Empty", "")]
    site.ask("/caf\u00e9/\u2615", method="PATCH", headers=headers, user="u1")
    (request,) = seen
    assert (request.method, request.path, request.peer, request.user) == ("PATCH", "/caf\u00e9/\u2615", PEER, "u1")
    assert str(request.client) == PEER
    assert [part.strip() for part in ",".join(request.lines("x-TAG")).split(",")] == ["a", "b"]
    assert request.header("X-Tag") in ("a, b", "a,b")
    assert (request.lines("x-empty"), request.header("x-empty")) == ([""], "")
    assert (request.lines("x-absent"), request.header("x-absent")) == ([], None)
    assert isinstance(request.raw, dict)
