"""Keys: callables that return whose tokens a request takes, as an `Identity`.

A request without a key is never without a limit: the client's address counts instead. Several lines of a header count
together, as choosing one of them would let a client choose; equal ones count once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..core.addresses import prefix_length
from ..core.errors import ValidationError
from .credentials import MOST_KEYS, FoundKeys, SeveralKeysError, find_bearer_tokens, find_keys
from .identity import Identity

if TYPE_CHECKING:
    from .request import Request

_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_AUTHORIZATION = "authorization"
_ON_SEVERAL = ("refuse", "address")

Accept: TypeAlias = Callable[[str], bool | Awaitable[bool]]


def by_ip(ipv6_prefix: int = 64) -> Callable[[Request], Identity]:
    """Return a key by the client's address.

    ``ipv6_prefix``: IPv6 addresses count by network of this length, since one client has a whole /64 to choose from.
    """
    bits = prefix_length(ipv6_prefix)

    def key(request: Request) -> Identity:
        return Identity.ip(request.origin, bits)

    return key


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
    client's address, once for each key that ``accept`` was asked about, and is a failure where failures are counted.
    """
    names = [_check_field_name(name) for name in (header if isinstance(header, list | tuple) else (header,))]
    if not names:
        raise ValidationError("header", header, "must be the name of a header, such as 'x-api-key', or several")
    if on_several not in _ON_SEVERAL:
        raise ValidationError("on_several", on_several, "must be 'refuse' or 'address'")

    def key(request: Request) -> Identity | Awaitable[Identity]:
        found = _find_keys(request, names)
        keys = found.distinct
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
            only = found.only
            return choose([] if only is None else [only])
        return _ask_each(iter(asked), [], accept, choose)

    return key


def by_header(name: str) -> Callable[[Request], Identity]:
    """Return a key by the value of the header ``name``: one that clients cannot choose, such as a gateway sets."""
    lower = _check_field_name(name)

    def key(request: Request) -> Identity:
        value = _join_lines(request, lower)
        return Identity.header(lower, value) if value else _fallback(request)

    return key


def by_user() -> Callable[[Request], Identity]:
    """Return a key by the authenticated user."""

    def key(request: Request) -> Identity:
        user = request.user
        return Identity.user(user) if user else _fallback(request)

    return key


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


def _find_keys(request: Request, names: Sequence[str]) -> FoundKeys:
    """Return what may be a key in the headers of these names."""
    first, *others = (_find_in(request, name) for name in names)
    if not others:
        return first
    texts, words, foreign = ([key for found in (first, *others) for key in found[place]] for place in range(3))
    return FoundKeys(texts, words, foreign)


def _find_in(request: Request, name: str) -> FoundKeys:
    """Return what may be a key in one header; some frameworks read ``x_api_key`` as ``x-api-key``, so both count."""
    lines = request.lines(name)
    if "-" in name:
        lines = [*lines, *request.lines(name.replace("-", "_"))]
    return find_bearer_tokens(lines) if name == _AUTHORIZATION else find_keys(lines)


def _ask_each(
    keys: Iterator[str], known: list[str], accept: Accept, then: Callable[[Sequence[str]], Identity]
) -> Identity | Awaitable[Identity]:
    """Ask ``accept`` about every key, and return what ``then`` makes of those that it knows."""
    for key in keys:
        accepted = accept(key)
        if inspect.isawaitable(accepted):
            return _ask_later(accepted, key, keys, known, accept, then)
        if accepted:
            known.append(key)
    return then(known)


async def _ask_later(
    answer: Awaitable[bool],
    key: str,
    others: Iterator[str],
    known: list[str],
    accept: Accept,
    then: Callable[[Sequence[str]], Identity],
) -> Identity:
    if await answer:
        known.append(key)
    made = _ask_each(others, known, accept, then)
    return made if isinstance(made, Identity) else await made


def _join_lines(request: Request, name: str) -> str:
    """Return the lines of a header as one text; a value that is there several times, and alone, counts once."""
    joined = ", ".join(dict.fromkeys(filter(None, map(str.strip, request.lines(name)))))
    parts = {part.strip() for part in joined.split(",")}
    return parts.pop() if len(parts) == 1 else joined


def _check_field_name(name: object) -> str:
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        raise ValidationError("header", name, "must be the name of a header, such as 'x-api-key'")
    return name.lower()
