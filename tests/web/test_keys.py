"""Whom a request counts for: no spelling of a header leads past the bucket of the key that it carries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, cast

import pytest

from zae_limiter import ValidationError
from zae_limiter.core.addresses import Address
from zae_limiter.web import Identity, SeveralKeysError, by_api_key, by_header, by_ip, by_user
from zae_limiter.web.header_names import Mixing
from zae_limiter.web.keys import to_identity

if TYPE_CHECKING:
    from zae_limiter.web import Request

SECRET = "sk-live-4f9a3b"

ADDRESS = IPv4Address("203.0.113.7")
HOME = Identity.ip(ADDRESS)


@dataclass
class Visitor:
    """What keys see of a request."""

    headers: dict[str, list[str]]
    user: str | None
    client: Address | None

    @property
    def origin(self) -> str | None:
        return None if self.client is None else str(self.client)

    def lines(self, name: str) -> list[str]:
        return self.headers.get(name.lower(), [])

    def mixing(self, name: str) -> Mixing:
        return Mixing.NONE


def visit(
    headers: dict[str, list[str]] | None = None, user: str | None = None, client: Address | None = ADDRESS
) -> Request:
    return cast("Request", Visitor(headers or {}, user, client))


KEYS: dict[str, Callable[[Request], Identity | Awaitable[Identity]]] = {
    "ip": by_ip(),
    "api-key": by_api_key(),
    "authorization": by_api_key("Authorization"),
    "header": by_header("X-Tenant"),
    "user": by_user(),
}
NOTHING = {
    "absent": visit(),
    "empty": visit({"x-api-key": [""], "authorization": [""], "x-tenant": [""]}, user=""),
    "blank": visit({"x-api-key": [" "], "authorization": [" "], "x-tenant": ["\t"]}),
    "several-empty": visit({"x-api-key": ["", " "], "authorization": ["", ""], "x-tenant": ["", ""]}),
    "no-lines": visit({"x-api-key": [], "authorization": [], "x-tenant": []}),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("request_", NOTHING.values(), ids=NOTHING)
def test_nothing_to_go_by_means_the_address(
    key: Callable[[Request], Identity | Awaitable[Identity]], request_: Request
) -> None:
    assert key(request_) == HOME


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_nobody_knows_the_address_either(key: Callable[[Request], Identity | Awaitable[Identity]]) -> None:
    assert key(visit(client=None)) == Identity("ip", "unknown")


def test_by_ip_counts_networks() -> None:
    one, other = (visit(client=IPv6Address(text)) for text in ("2001:db8:0:1::1", "2001:db8:0:2::1"))
    assert by_ip()(one) == Identity("ip", "2001:db8:0:1::/64")
    assert by_ip()(one) != by_ip()(other)
    assert by_ip(56)(one) == by_ip(56)(other) == Identity("ip", "2001:db8::/56")
    assert by_ip(128)(one) == Identity("ip", "2001:db8:0:1::1")


@pytest.mark.parametrize(
    ("header", "lines", "key"),
    [
        ("x-api-key", ["k"], "k"),
        ("X-API-Key", [" k "], "k"),
        ("x-api-key", ["Bearer k"], "k"),
        ("x-api-key", ["k", ""], "k"),
        ("x-api-key", ["k", " k"], "k"),
        ("x-api-key", ["k,k, k"], "k"),
        ("x-api-key", ["Bearer"], None),
        ("authorization", ["Bearer k"], "k"),
        ("Authorization", ["bEARER   k "], "k"),
        ("authorization", ["Bearer\tk"], "k"),
        ("authorization", ["k"], "k"),
        ("authorization", ["Bearer k", "bearer  k"], "k"),
        ("authorization", ["Bearer k,Bearer k"], "k"),
        ("authorization", ["Basic abc", "Bearer k"], "k"),
        ("authorization", ["Basic abc, Bearer k"], "k"),
        ("authorization", ["Bearer"], None),
        ("authorization", ["bearer "], None),
        ("authorization", ["Basic abc"], None),
        ("authorization", ["Digest nonce=1"], None),
        ("authorization", ["Digest user=a, nonce=1, k"], None),
        ("authorization", ["Basic abc", "Digest nonce=1, nc=2"], None),
    ],
)
def test_by_api_key(header: str, lines: list[str], key: str | None) -> None:
    expected = HOME if key is None else Identity.api_key(key)
    assert by_api_key(header)(visit({header.lower(): lines})) == expected


def test_invented_keys_win_no_bucket() -> None:
    asked: list[str] = []

    def accept(key: str) -> bool:
        asked.append(key)
        return key == SECRET

    key = by_api_key("authorization", accept=accept)
    assert key(visit({"authorization": [f"Bearer {SECRET}"]})) == Identity.api_key(SECRET)
    assert key(visit({"authorization": ["Bearer invented"]})) == HOME
    assert key(visit({"authorization": [f"Bearer {SECRET}", f"Bearer {SECRET}"]})) == Identity.api_key(SECRET)
    assert key(visit()) == HOME
    assert asked == [SECRET, "invented", SECRET]


SEVERAL: dict[str, list[str]] = {
    "lines": ["Bearer k", "Bearer l"],
    "parts": ["Bearer k, Bearer l"],
    "part without a scheme": ["Bearer k, l"],
    "words": ["Bearer k l"],
    "without a scheme": ["k", "l"],
    "three": ["Bearer k", "Basic abc", "Bearer l", "Bearer k"],
}
KNOWS: dict[str, Callable[[str], bool] | None] = {
    "nobody asked": None,
    "none": lambda key: False,
    "first": lambda key: key == "k",
    "last": lambda key: key == "l",
    "both": lambda key: key in ("k", "l"),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("on_several", ["refuse", "address"])
@pytest.mark.parametrize("knows", KNOWS)
@pytest.mark.parametrize("kind", SEVERAL)
def test_of_several_keys_the_known_one_is_charged(kind: str, knows: str, on_several: str, is_async: bool) -> None:
    accept = KNOWS[knows]

    async def accept_later(key: str) -> bool:
        assert accept is not None
        return accept(key)

    asked = accept_later if is_async and accept is not None else accept
    key = by_api_key("authorization", accept=asked, on_several=on_several)

    async def identity() -> Identity:
        found = key(visit({"authorization": SEVERAL[kind]}))
        return found if isinstance(found, Identity) else await found

    if knows in ("first", "last"):
        assert asyncio.run(identity()) == Identity.api_key("k" if knows == "first" else "l")
    elif knows == "both" or on_several == "refuse":
        with pytest.raises(SeveralKeysError) as raised:
            asyncio.run(identity())
        assert "k" not in str(raised.value).replace("keys", "")
    else:
        assert asyncio.run(identity()) == HOME


def test_a_key_may_come_in_one_of_several_headers() -> None:
    key = by_api_key(["x-api-key", "Authorization"], accept={"k", "l"}.__contains__)
    assert key(visit({"x-api-key": ["k"]})) == Identity.api_key("k")
    assert key(visit({"authorization": ["Bearer l"]})) == Identity.api_key("l")
    assert key(visit({"x-api-key": ["k"], "authorization": ["Bearer k"]})) == Identity.api_key("k")
    assert key(visit({"x-api-key": ["k"], "authorization": ["Basic abc"]})) == Identity.api_key("k")
    assert key(visit({"x-api-key": ["wrong"], "authorization": ["Bearer l"]})) == Identity.api_key("l")
    with pytest.raises(SeveralKeysError):
        key(visit({"x-api-key": ["k"], "authorization": ["Bearer l"]}))


@pytest.mark.parametrize(
    "line", ["Token k", "Basic k", "basic  abc k", "Basic k abc", "Digest a=1, b=2, Foo k", "Foo abc, Basic k"]
)
def test_a_key_of_another_scheme_is_charged_if_it_is_known(line: str) -> None:
    """Some apps do not look at the scheme. Else such credentials are no keys, however many they are."""
    known = by_api_key("authorization", accept={"k"}.__contains__)
    assert known(visit({"authorization": [line]})) == Identity.api_key("k")
    assert by_api_key("authorization", accept={"l"}.__contains__)(visit({"authorization": [line]})) == HOME
    assert by_api_key("authorization")(visit({"authorization": [line]})) == HOME


def test_digests_are_asked_about_a_few_times_only() -> None:
    asked: list[str] = []

    def accept(key: str) -> bool:
        asked.append(key)
        return False

    line = "Digest " + ", ".join(f"part{number}={number}" for number in range(12))
    assert by_api_key("authorization", accept=accept)(visit({"authorization": [line]})) == HOME
    assert asked == ["part0=0", "part0=0,", "part11=11"]
    with pytest.raises(SeveralKeysError):
        by_api_key("authorization", accept=accept)(visit({"authorization": [f"Foo {number}" for number in range(9)]}))


def test_a_key_under_a_name_with_underscores_is_a_key() -> None:
    """Some frameworks make no difference."""
    key = by_api_key(accept={"k"}.__contains__)
    assert key(visit({"x_api_key": ["k"]})) == Identity.api_key("k")
    assert key(visit({"x-api-key": ["wrong"], "x_api_key": ["k"]})) == Identity.api_key("k")


def test_a_key_with_separators_is_charged_if_it_is_known() -> None:
    assert by_api_key(accept={"k, l"}.__contains__)(visit({"x-api-key": [" k, l"]})) == Identity.api_key("k, l")


@pytest.mark.parametrize("on_several", ["refuse", "address"])
@pytest.mark.parametrize("lines", [[str(n) for n in range(8)] + ["k"], [",".join(map(str, range(9)))]])
def test_too_many_keys_are_refused_and_not_looked_up(lines: list[str], on_several: str) -> None:
    """Else the one that the app reads could be the one that was not looked at."""
    asked: list[str] = []

    def accept(key: str) -> bool:
        asked.append(key)
        return key == "k"

    with pytest.raises(SeveralKeysError):
        by_api_key(accept=accept, on_several=on_several)(visit({"x-api-key": lines}))
    assert asked == []


@pytest.mark.parametrize("value", ["", "400", None, True])
def test_what_several_keys_mean_is_refuse_or_address(value: Any) -> None:
    with pytest.raises(ValidationError, match="must be 'refuse' or 'address'") as caught:
        by_api_key(on_several=value)
    assert caught.value.field == "on_several"


@pytest.mark.parametrize("names", [[], (), ["x-api-key", "x key"]])
def test_every_header_of_several_has_a_name(names: Any) -> None:
    with pytest.raises(ValidationError, match="the name of a header"):
        by_api_key(names)


async def test_accept_may_be_async() -> None:
    async def accept(key: str) -> bool:
        return key == SECRET

    async def found(sent: str) -> Identity:
        pending = by_api_key(accept=accept)(visit({"x-api-key": [sent]}))
        assert not isinstance(pending, Identity)
        return await pending

    assert await found(SECRET) == Identity.api_key(SECRET)
    assert await found("invented") == HOME


def test_by_header_counts_all_lines() -> None:
    key = by_header("X-Tenant")
    assert key(visit({"x-tenant": ["acme"]})) == Identity.header("x-tenant", "acme")
    assert key(visit({"x-tenant": [" Acme "]})) == Identity.header("x-tenant", "Acme")
    assert key(visit({"x-tenant": ["acme", "evil"]})) == Identity.header("x-tenant", "acme, evil")
    assert key(visit({"x-tenant": ["CN=ann,OU=x,OU=x"]})) == Identity.header("x-tenant", "CN=ann,OU=x,OU=x")
    for lines in (["acme", " acme"], ["acme,acme"], ["acme, acme", "acme"]):
        assert key(visit({"x-tenant": lines})) == Identity.header("x-tenant", "acme")
    assert key(visit({"x-tenant": ["203.0.113.7"]})) != HOME


def test_by_user_counts_users() -> None:
    assert by_user()(visit(user="42")) == Identity.user("42")
    assert by_user()(visit(user="203.0.113.7")) != HOME


@pytest.mark.parametrize("name", ["", "x tenant", "x:tenant", "x-tenant\n", "é", None, 5], ids=repr)
@pytest.mark.parametrize("key", [by_header, by_api_key])
def test_a_header_has_a_name(key: Callable[[Any], object], name: object) -> None:
    with pytest.raises(ValidationError, match="the name of a header") as caught:
        key(name)
    assert caught.value.field == "header"


@pytest.mark.parametrize("prefix", [0, 129, True, None, "64"], ids=repr)
def test_by_ip_refuses_impossible_prefixes(prefix: Any) -> None:
    with pytest.raises(ValidationError, match="1 to 128"):
        by_ip(prefix)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Identity.user("42"), Identity.user("42")),
        ("org-7", Identity.entity("org-7")),
        ("ip:203.0.113.7", Identity.entity("ip:203.0.113.7")),
        (None, HOME),
        ("", HOME),
    ],
    ids=repr,
)
def test_what_a_callable_may_return(result: object, expected: Identity) -> None:
    assert to_identity(result, visit()) == expected


@pytest.mark.parametrize(
    "result", [42, 0, False, SECRET.encode(), b"", ["org-7"], object()], ids=lambda v: type(v).__name__
)
def test_what_a_callable_must_not_return(result: object) -> None:
    with pytest.raises(ValidationError, match="an entity id as text") as caught:
        to_identity(result, visit())
    assert caught.value.field == "key"
    assert SECRET not in str(caught.value)
