"""Whom a request counts for: callables that make an `Identity` of a request.

Nothing to go by never means no limit: the client's address counts instead. Several lines of a header count together,
as choosing one of them would let a client choose; equal ones count once.
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
    """By the client's address; IPv6 by network, since one client has a whole /64 to choose from."""
    bits = prefix_length(ipv6_prefix)

    def key(request: Request) -> Identity:
        return Identity.ip(request.origin, bits)

    return key


def by_api_key(
    header: str | Sequence[str] = "x-api-key", *, accept: Accept | None = None, on_several: str = "refuse"
) -> Callable[[Request], Identity | Awaitable[Identity]]:
    """By the API key in a header, or in one of several; in ``authorization``, by the token of the scheme ``Bearer``.

    ``accept`` says whether a key is known. Without it a client gets a new bucket for every key it invents, so leave it
    out only where unknown keys do not come this far. It may be async on ASGI.

    The same key sent twice is one key. Of several keys the one that ``accept`` knows is charged. Where it knows none,
    or there is no ``accept``, ``on_several`` decides: ``"refuse"`` answers 400, ``"address"`` charges the client's
    address. Several known keys, and more than eight keys, are always refused. A refused request is charged to the
    client's address, once for each key that ``accept`` was asked about, and is a failure where failures are counted.
    """
    names = [_field_name(name) for name in (header if isinstance(header, list | tuple) else (header,))]
    if not names:
        raise ValidationError("header", header, "must be the name of a header, such as 'x-api-key', or several")
    if on_several not in _ON_SEVERAL:
        raise ValidationError("on_several", on_several, "must be 'refuse' or 'address'")

    def key(request: Request) -> Identity | Awaitable[Identity]:
        found = _find(request, names)
        keys = found.distinct
        asked = keys if accept is None else list(dict.fromkeys((*keys, *found.foreign)))
        if len(asked) > MOST_KEYS:
            raise SeveralKeysError

        def charged(known: Sequence[str]) -> Identity:
            if len(known) == 1:
                return Identity.api_key(known[0])
            if len(known) > 1 or (len(keys) > 1 and on_several == "refuse"):
                raise SeveralKeysError(0 if accept is None else len(asked))
            return _fallback(request)

        if accept is None:
            only = found.only
            return charged([] if only is None else [only])
        return _once_asked(iter(asked), [], accept, charged)

    return key


def by_header(name: str) -> Callable[[Request], Identity]:
    """By the value of a header that clients cannot choose, such as one that a gateway sets."""
    lower = _field_name(name)

    def key(request: Request) -> Identity:
        found = _value(request, lower)
        return Identity.header(lower, found) if found else _fallback(request)

    return key


def by_user() -> Callable[[Request], Identity]:
    """By the authenticated user."""

    def key(request: Request) -> Identity:
        user = request.user
        return Identity.user(user) if user else _fallback(request)

    return key


def identified(result: object, request: Request) -> Identity:
    """What a key callable has returned as an `Identity`: a text is an entity id, nothing is the client's address."""
    if isinstance(result, Identity):
        return result
    if result is None or result == "":
        return _fallback(request)
    if isinstance(result, str):
        return Identity.entity(result)
    # the error shows the type only: the value may be a secret
    raise ValidationError("key", type(result), "must return an Identity, an entity id as text, or None; use str()")


_fallback = by_ip()


def _find(request: Request, names: Sequence[str]) -> FoundKeys:
    """What may be a key in the headers of these names."""
    first, *others = (_find_in(request, name) for name in names)
    if not others:
        return first
    texts, words, foreign = ([key for found in (first, *others) for key in found[place]] for place in range(3))
    return FoundKeys(texts, words, foreign)


def _find_in(request: Request, name: str) -> FoundKeys:
    """Some frameworks read ``x_api_key`` as ``x-api-key``, so both are looked at."""
    lines = request.lines(name)
    if "-" in name:
        lines = [*lines, *request.lines(name.replace("-", "_"))]
    return find_bearer_tokens(lines) if name == _AUTHORIZATION else find_keys(lines)


def _once_asked(
    keys: Iterator[str], known: list[str], accept: Accept, then: Callable[[Sequence[str]], Identity]
) -> Identity | Awaitable[Identity]:
    """Ask ``accept`` about every key, and hand those that it knows to ``then``."""
    for key in keys:
        accepted = accept(key)
        if inspect.isawaitable(accepted):
            return _once_answered(accepted, key, keys, known, accept, then)
        if accepted:
            known.append(key)
    return then(known)


async def _once_answered(
    answer: Awaitable[bool],
    key: str,
    others: Iterator[str],
    known: list[str],
    accept: Accept,
    then: Callable[[Sequence[str]], Identity],
) -> Identity:
    if await answer:
        known.append(key)
    made = _once_asked(others, known, accept, then)
    return made if isinstance(made, Identity) else await made


def _value(request: Request, name: str) -> str:
    """The lines of a header as one text; what is there several times, and nothing else, counts once."""
    joined = ", ".join(dict.fromkeys(filter(None, map(str.strip, request.lines(name)))))
    parts = {part.strip() for part in joined.split(",")}
    return parts.pop() if len(parts) == 1 else joined


def _field_name(name: object) -> str:
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        raise ValidationError("header", name, "must be the name of a header, such as 'x-api-key'")
    return name.lower()
