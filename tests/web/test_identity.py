"""Whom a request counts for: different identities never share an entity, and nothing to go by is never no limit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given, strategies as st

from zae_limiter import ValidationError
from zae_limiter.core import names
from zae_limiter.web import Identity

if TYPE_CHECKING:
    pass

KINDS = ("ip", "key", "header", "user")
MIB = 2**20
SECRET = "sk-live-0123456789"

AWKWARD = st.text("abip:~%#/{}$ \x00\x7f\u2028\ud800é😀", max_size=40)
WORDS = st.sampled_from(["", "ip", "key", "other", "entity", "$SYSTEM", "$RESOURCE:x", "ip:1", "other:~00", "a" * 190])
TEXTS = st.text() | AWKWARD | WORDS | st.text(st.characters(), min_size=190, max_size=300)
ANY_KIND = st.sampled_from((*KINDS, "entity", "other", "team")) | TEXTS


@pytest.mark.parametrize(
    ("identity", "entity_id"),
    [
        (Identity.ip("203.0.113.7"), "ip:203.0.113.7"),
        (Identity.ip("203.0.113.7:443"), "ip:203.0.113.7"),
        (Identity.ip("::ffff:203.0.113.7"), "ip:203.0.113.7"),
        (Identity.ip(IPv4Address("203.0.113.7")), "ip:203.0.113.7"),
        (Identity.ip(IPv6Address("2001:db8:0:1::5")), "ip:2001:db8:0:1::/64"),
        (Identity.ip("[2001:db8:0:1::5]:443", 128), "ip:2001:db8:0:1::5"),
        (Identity.ip("2001:db8:0:1ff::5", 56), "ip:2001:db8:0:100::/56"),
        (Identity.ip("unknown"), "ip:unknown"),
        (Identity.ip(""), "ip:unknown"),
        (Identity.ip(None), "ip:unknown"),
        (Identity.api_key("abc"), "key:ba7816bf8f01cfea414140de5dae2223"),
        (Identity.header("X-Tenant", "acme"), "header:x-tenant:acme"),
        (Identity.header("x-tenant", "a:b"), "header:x-tenant:a:b"),
        (Identity.header("x-tenant", ""), "header:x-tenant:"),
        (Identity.user("42"), "user:42"),
        (Identity.user(42), "user:42"),
        (Identity.user("a@b.c"), "user:a@b.c"),
        (Identity.user("127.0.0.1"), "user:127.0.0.1"),
        (Identity.user("a#b%~"), "user:a%23b%25%7E"),
        (Identity.user("\x00{}\ud800é"), "user:%00%7B%7D%ED%A0%80%C3%A9"),
        (Identity.user("../x y"), "user:../x%20y"),
        (Identity.entity("org-7"), "org-7"),
        (Identity.entity("team:7"), "team:7"),
        (Identity.entity("é{} ~%"), "é{} ~%"),
        (Identity.entity("ip:203.0.113.7"), "other:ip%3A203.0.113.7"),
        (Identity.entity("key:"), "other:key%3A"),
        (Identity.entity("header:x"), "other:header%3Ax"),
        (Identity.entity("user:42"), "other:user%3A42"),
        (Identity.entity("other:x"), "other:other%3Ax"),
        (Identity.entity("a#b"), "other:a%23b"),
        (Identity.entity("$SYSTEM"), "other:%24SYSTEM"),
        (Identity.entity("$NAMESPACE:x"), "other:%24NAMESPACE%3Ax"),
        (Identity.entity(""), "other:"),
        (Identity("team", "7"), "other:team:7"),
        (Identity("a:b", "c"), "other:a%3Ab:c"),
    ],
    ids=lambda value: None if isinstance(value, Identity) else value,
)
def test_ids_say_of_which_kind_they_are(identity: Identity, entity_id: str) -> None:
    assert identity.entity_id == entity_id == names.entity_id(entity_id)


def origin(entity_id: str) -> tuple[str, str]:
    """Kind and value from an id that is not hashed."""
    tag, colon, body = entity_id.partition(":")
    if tag in KINDS and colon:
        return tag, plain(body)
    if tag == "other" and colon:
        kind, colon, value = body.partition(":")
        return (plain(kind), plain(value)) if colon else ("entity", plain(body))
    return "entity", entity_id


def plain(text: str) -> str:
    return unquote(text, errors="surrogatepass")


def is_hashed(identity: Identity) -> bool:
    return identity.entity_id.partition(":")[2].startswith("~") and identity.entity_id != identity.value


@given(ANY_KIND, TEXTS)
@example("user", "~")
@example("entity", "ip:~")
@example("other", "")
def test_every_identity_has_a_valid_id_that_tells_it_apart(kind: str, value: str) -> None:
    identity = Identity(kind, value)
    assert names.entity_id(identity.entity_id) == identity.entity_id
    if is_hashed(identity):
        assert len(kind) + len(value) > 15  # a character takes 12 at most
    else:
        assert origin(identity.entity_id) == (kind, value)


@given(ANY_KIND, TEXTS, ANY_KIND, TEXTS)
def test_no_two_share_an_id(kind: str, value: str, other_kind: str, other_value: str) -> None:
    one, other = Identity(kind, value), Identity(other_kind, other_value)
    assert (one == other) == (one.entity_id == other.entity_id)
    namesake = Identity.entity(one.entity_id)
    assert (one == namesake) == (one.entity_id == namesake.entity_id)


@given(ANY_KIND, st.text(min_size=1), st.text(min_size=201, max_size=300), st.integers(0, 200))
def test_long_ones_are_told_apart_too(kind: str, more: str, value: str, cut: int) -> None:
    assume(kind != "entity")
    spellings = {(kind, value), (kind, value + more), (kind, more + value), (kind + value[:cut], value[cut:])}
    assert len({Identity(*each).entity_id for each in spellings}) == len(spellings)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
@example("a:b", "c", "a", "b:c")
@example("a%3Ab", "c", "a:b", "c")
def test_no_two_headers_share_an_id(name: str, value: str, other_name: str, other_value: str) -> None:
    one, other = Identity.header(name, value), Identity.header(other_name, other_value)
    same = (name.lower(), value) == (other_name.lower(), other_value)
    assert same == (one.entity_id == other.entity_id)


@pytest.mark.parametrize("kind", [*KINDS, "entity", "team", "k" * MIB], ids=lambda kind: kind[:9])
def test_a_mebibyte_is_hashed(kind: str) -> None:
    texts = ("a" * MIB, "a" * (MIB - 1) + "b", "\ud800" * MIB, "\udfff" * MIB, "?" * MIB, "#" * MIB)
    ids = {Identity(kind, text).entity_id for text in texts}
    assert len(ids) == len(texts)
    tag = kind if kind in KINDS else "other"
    for entity_id in ids:
        assert entity_id.startswith(f"{tag}:~")
        assert len(entity_id) == len(tag) + 2 + 64
        assert Identity(tag, entity_id.partition(":")[2]).entity_id not in ids


def test_ids_of_valid_entities_are_kept_up_to_their_full_length() -> None:
    assert Identity.entity("x" * 256).entity_id == "x" * 256
    assert Identity.entity("x" * 257).entity_id.startswith("other:~")
    assert Identity.user("x" * 195).entity_id == "user:" + "x" * 195
    assert Identity.user("x" * 196).entity_id.startswith("user:~")


def test_an_api_key_is_never_shown() -> None:
    identity = Identity.api_key(SECRET)
    for shown in (repr(identity), str(identity), identity.value, identity.entity_id, str(pickle.dumps(identity))):
        assert SECRET not in shown
    assert identity != Identity.api_key(SECRET + "0")
    assert len(identity.value) == 32
    with pytest.raises(ValidationError) as caught:
        Identity.api_key(SECRET.encode())  # type: ignore[arg-type]  # what is tested
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: Identity("ip", cast("Any", None)), "value"),
        (lambda: Identity(cast("Any", 5), "x"), "kind"),
        (lambda: Identity.user(cast("Any", b"x")), "value"),
        (lambda: Identity.header(cast("Any", None), "x"), "name"),
        (lambda: Identity.header("x", cast("Any", 5)), "value"),
        (lambda: Identity.entity(cast("Any", 5)), "value"),
        (lambda: Identity.ip("2001:db8::1", 0), "ipv6_prefix"),
        (lambda: Identity.ip("203.0.113.7", 129), "ipv6_prefix"),
    ],
)
def test_what_is_no_text_is_refused(make: Callable[[], Identity], wrong: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert caught.value.field == wrong


def test_an_identity_is_a_value() -> None:
    identity = Identity.user("42")
    assert identity == Identity("user", "42")
    assert hash(identity) == hash(Identity("user", "42"))
    assert repr(identity) == "Identity(kind='user', value='42')"
    assert pickle.loads(pickle.dumps(identity)).entity_id == "user:42"
    with pytest.raises(FrozenInstanceError):
        identity.value = "43"  # type: ignore[misc]  # what is tested
