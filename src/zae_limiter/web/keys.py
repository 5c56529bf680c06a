"""Whose tokens a request takes: keys are callables that return it as an `Identity`, which has an entity id.

An id says of which kind it is, and different identities have different ids, whatever texts they are made of: no user
can be named so that it shares the bucket of an address. What cannot stand in an id is percent-encoded, what is too
long is hashed; ``~`` marks a hash and is therefore encoded elsewhere.

A request without a key is never without a limit: the client's address counts instead. Several lines of a header count
together, as choosing one of them would let a client choose; equal ones count once.

An app may read a header in several ways: the first line, the last, all lines joined with commas, the word after the
scheme. A client must not choose a bucket by sending a header that the app and the limiter read differently, so every
key that an app could find is looked at.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TypeAlias
from urllib.parse import quote

from ..core import names
from ..core.addresses import LONGEST as LONGEST_ADDRESS, Address, network, parse, prefix_length
from ..core.errors import InvalidIdentifierError, ValidationError, ZAELimiterError
from .header_names import Mixing
from .request import Request

MOST_KEYS = 8
"""A request with more keys than this is refused: each may be a query to a database."""
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BEARER = "bearer"
_SEPARATORS = re.compile(r"[,\s]+")
_KINDS = ("ip", "key", "header", "user")
_ENTITY = "entity"
_OTHER = "other"
_TAGS = tuple(f"{tag}:" for tag in (*_KINDS, _OTHER))
assert names.ADDRESS_TAG in _TAGS
_LONGEST_ID = 200
_KEY_DIGITS = 32
_CACHE_SIZE = 4096
_PART = "/@+=,;!*()[]|"
"""The characters that stay as they are, beside letters, digits and ``_.-``, in a part that a colon ends."""
_LAST = f":{_PART}"

Accept: TypeAlias = Callable[[str], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of the tokens that a request takes.

    ``kind``: ``ip``, ``key``, ``header``, ``user``, ``entity``, or one of yours. ``value``: who it is of that kind.
    ``entity_id``: the entity id made from both.

    >>> Identity.ip("[2001:db8:0:1::5]:443").entity_id
    'ip:2001:db8:0:1::/64'
    >>> Identity.user("a#b").entity_id, Identity.entity("org-7").entity_id
    ('user:a%23b', 'org-7')
    """

    kind: str
    value: str
    entity_id: str = field(init=False, repr=False, compare=False)
    """Valid for every ``kind`` and ``value``, and a different one for each."""

    def __post_init__(self) -> None:
        made = _make_entity_id(_check_text("kind", self.kind), _check_text("value", self.value))
        object.__setattr__(self, "entity_id", made)

    @classmethod
    def ip(cls, address: Address | str | None, ipv6_prefix: int = 64) -> Identity:
        """Return a client by its address, IPv6 by network of ``ipv6_prefix`` bits; all without one are the same."""
        too_long = isinstance(address, str) and len(address) > LONGEST_ADDRESS
        return _identify_address(None if too_long else address, ipv6_prefix)

    @classmethod
    def api_key(cls, key: str) -> Identity:
        """Return the holder of an API key; only a hash of ``key`` is kept."""
        return cls("key", _hash(_check_text("key", key))[:_KEY_DIGITS])

    @classmethod
    def header(cls, name: str, value: str) -> Identity:
        """Return the sender of ``value`` in the header ``name``, in any case."""
        return cls("header", f"{_escape(_check_text('name', name).lower(), _PART)}:{_check_text('value', value)}")

    @classmethod
    def user(cls, user_id: str | int) -> Identity:
        """Return an authenticated user."""
        return cls("user", str(user_id) if isinstance(user_id, int) else user_id)

    @classmethod
    def entity(cls, entity_id: str) -> Identity:
        """Return an entity by its id, which stays as it is unless it is invalid or looks like one of another kind."""
        return cls(_ENTITY, entity_id)


class SeveralKeysError(ZAELimiterError):
    """A request carries several API keys, so it is ambiguous whose tokens it takes; the middleware answers 400.

    The client's address is charged for it, once for each of the ``looked_up`` keys that ``accept`` was asked about.
    """

    def __init__(self, looked_up: int = 0) -> None:
        super().__init__("The request carries several API keys.")
        self.looked_up = looked_up


def by_ip(ipv6_prefix: int = 64) -> Callable[[Request], Identity]:
    """Return a key by the client's address.

    ``ipv6_prefix``: IPv6 addresses count by network of this length, since one client has a whole /64 to choose from.
    """
    bits = prefix_length(ipv6_prefix)
    return lambda request: Identity.ip(request.origin, bits)


def by_api_key(
    header: str | Sequence[str] = "x-api-key", *, accept: Accept | None = None, on_several: str = "refuse"
) -> Callable[[Request], Identity | Awaitable[Identity]]:
    """Return a key by the API key in a header.

    ``header``: the name of the header, or several; in ``authorization`` the key is the token of the scheme ``Bearer``.
    ``accept``: tells whether a key is known; it may be async on ASGI. Without it a client gets a new bucket for every
    key it invents, so leave it out only where unknown keys do not come this far.

    The same key sent twice is one key. Of several keys the one that ``accept`` knows is charged. Where it knows none,
    or there is no ``accept``, ``on_several`` decides: ``"refuse"`` answers 400, ``"address"`` charges the client's
    address. Several known keys, and more than eight keys, are always refused. A refused request is charged to the
    client's address, once for each key that ``accept`` was asked about, and is a failure if failures are counted.
    """
    headers = [_check_field_name(name) for name in (header if isinstance(header, list | tuple) else (header,))]
    if not headers:
        raise ValidationError("header", header, "must be the name of a header, such as 'x-api-key', or several")
    if on_several not in ("refuse", "address"):
        raise ValidationError("on_several", on_several, "must be 'refuse' or 'address'")

    def key(request: Request) -> Identity | Awaitable[Identity]:
        found = _FoundKeys()
        for name in headers:  # some frameworks read ``x_api_key`` as ``x-api-key``, so both count
            both = dict.fromkeys((name, name.replace("-", "_")))
            found.add(name, [line for each in both for line in request.lines(each)])
        keys = list(dict.fromkeys((*found.texts, *found.words)))
        asked = keys if accept is None else list(dict.fromkeys((*keys, *found.foreign)))
        if len(asked) > MOST_KEYS:
            raise SeveralKeysError

        def choose(known: Sequence[str]) -> Identity:
            if len(known) == 1:
                return Identity.api_key(known[0])
            if len(known) > 1 or (len(keys) > 1 and on_several == "refuse"):
                raise SeveralKeysError(0 if accept is None else len(asked))
            return _fallback(request)

        if accept is None:
            words = set(found.words)  # a key holds no comma and no space: it is known if all words are the same one
            return choose([*words] if len(words) == 1 else [])
        return _ask_each(iter(asked), [], accept, choose)

    return key


def by_header(name: str) -> Callable[[Request], Identity]:
    """Return a key by the value of the header ``name``: one that clients cannot choose, such as a gateway sets.

    Where a WSGI server may have mixed a header of a similar name into it (``x_tenant`` into ``x-tenant``), several
    values count for the client's address; on cheroot, which keeps the last one only, any value does. See
    `Proxies.drops_underscores`.
    """
    lower = _check_field_name(name)

    def key(request: Request) -> Identity:
        joined = ", ".join(dict.fromkeys(filter(None, map(str.strip, request.lines(lower)))))
        parts = {part.strip() for part in joined.split(",")}
        mixing = request.mixing(lower)
        if mixing is Mixing.REPLACED or (mixing is Mixing.JOINED and len(parts) > 1):
            return _fallback(request)
        value = parts.pop() if len(parts) == 1 else joined  # one that is there several times, and alone, counts once
        return Identity.header(lower, value) if value else _fallback(request)

    return key


def by_user() -> Callable[[Request], Identity]:
    """Return a key by the authenticated user."""
    return lambda request: Identity.user(user) if (user := request.user) else _fallback(request)


def to_identity(value: object, request: Request) -> Identity:
    """Return what a key has returned as an `Identity`: a text is an entity id, None the client's address."""
    if isinstance(value, Identity):
        return value
    if value is None or value == "":
        return _fallback(request)
    if isinstance(value, str):
        return Identity.entity(value)
    # the error shows the type only: the value may be a secret
    raise ValidationError("key", type(value), "must return an Identity, an entity id as text, or None; use str()")


_fallback = by_ip()


def _ask_each(
    keys: Iterator[str], known: list[str], accept: Accept, then: Callable[[Sequence[str]], Identity]
) -> Identity | Awaitable[Identity]:
    """Ask ``accept`` about every key, and return what ``then`` makes of those that it knows."""

    async def go_on(answer: Awaitable[bool], key: str) -> Identity:
        if await answer:
            known.append(key)
        made = _ask_each(keys, known, accept, then)
        return made if isinstance(made, Identity) else await made

    for key in keys:
        accepted = accept(key)
        if inspect.isawaitable(accepted):
            return go_on(accepted, key)
        if accepted:
            known.append(key)
    return then(known)


def _check_field_name(name: object) -> str:
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        raise ValidationError("header", name, "must be the name of a header, such as 'x-api-key'")
    return name.lower()


class _FoundKeys:
    """The keys in some header lines: ``texts`` are whole values, ``words`` what stands in them between separators.

    ``foreign`` are words of other schemes, which are keys only if ``accept`` knows them: some apps ignore the scheme.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.words: list[str] = []
        self.foreign: list[str] = []

    def add(self, header: str, lines: Iterable[str]) -> None:
        """Add what may be a key in the lines of a header.

        In ``authorization`` a token belongs to the scheme Bearer or to none. Credentials of other schemes are no keys:
        they may differ from request to request.
        """
        stripped = [*map(str.strip, lines)]
        if header != "authorization":
            self.texts += filter(None, stripped)
            self.words += [word for text in stripped for word in _split_words(text)]
            return
        different = list(dict.fromkeys(stripped))
        joined = [",".join(different)] if len(different) > 1 else []  # some frameworks join them
        for line in (*different, *joined):
            scheme, *rest = line.split(None, 1) or [_BEARER]
            if scheme.lower() == _BEARER or not rest:
                self.texts += [text.strip() for text in rest] if scheme.lower() == _BEARER else [scheme]
                self.words += _split_words(line)
                continue
            self.words += _find_bearer_words(line)
            # what an app takes for the token if it ignores the scheme
            parts = [words for words in map(str.split, line.split(",")) if len(words) > 1]
            self.foreign += dict.fromkeys(word for words in (*parts, line.split()) for word in (words[1], words[-1]))


def _split_words(text: str) -> list[str]:
    """Return the words between separators, without the name of the scheme."""
    return [word for word in _SEPARATORS.split(text) if word and word.lower() != _BEARER]


def _find_bearer_words(line: str) -> list[str]:
    """Return the words of a line of another scheme that stand after Bearer or, at its beginning, after no scheme."""
    found: list[str] = []
    ours = True
    for part in line.split(","):
        words = part.split()
        if len(words) > 1 or (words and words[0].lower() == _BEARER):
            ours = words[0].lower() == _BEARER
            words = words[1:]
        if ours:
            found += words
    return found


@lru_cache(_CACHE_SIZE)
def _identify_address(address: Address | str | None, ipv6_prefix: int) -> Identity:
    known = parse(address) if isinstance(address, str) else address
    return Identity("ip", "unknown" if known is None else network(known, ipv6_prefix))


def _make_entity_id(kind: str, value: str) -> str:
    if kind == _ENTITY:
        with contextlib.suppress(InvalidIdentifierError):
            if not names.entity_id(value).startswith(_TAGS):
                return value
    tag = kind if kind in _KINDS else _OTHER
    if len(kind) + len(value) <= _LONGEST_ID:
        # without a colon for an entity, after kind and colon for a kind that has no tag
        start = "" if kind in (*_KINDS, _ENTITY) else f"{_escape(kind, _PART)}:"
        made = f"{tag}:{start}{_escape(value, _PART if kind == _ENTITY else _LAST)}"
        if len(made) <= _LONGEST_ID:
            return made
    return f"{tag}:~{_hash(f'{len(kind)}:{kind}{value}')}"


def _escape(text: str, plain: str) -> str:
    return quote(text, plain, errors="surrogatepass").replace("~", "%7E")


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str):  # the error shows the type only: the value may be a secret
        raise ValidationError(name, type(value), "must be a string; decode bytes, or use str()")
    return value
