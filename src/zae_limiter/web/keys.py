"""Whom a request counts for: callables that make an `Identity` of a request.

Nothing to go by never means no limit: the client's address counts instead. Several lines of a header count together,
as choosing one of them would let a client choose.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..core.addresses import prefix_length
from ..core.errors import ValidationError
from .identity import Identity

if TYPE_CHECKING:
    from .request import Request

_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_AUTHORIZATION = "authorization"
_BEARER = "bearer"


def by_ip(ipv6_prefix: int = 64) -> Callable[[Request], Identity]:
    """By the client's address; IPv6 by network, since one client has a whole /64 to choose from."""
    bits = prefix_length(ipv6_prefix)

    def key(request: Request) -> Identity:
        return Identity.ip(request.origin, bits)

    return key


def by_api_key(
    header: str = "x-api-key", *, accept: Callable[[str], bool | Awaitable[bool]] | None = None
) -> Callable[[Request], Identity | Awaitable[Identity]]:
    """By the API key in a header; in ``authorization``, by the token of the scheme ``Bearer``.

    ``accept`` says whether a key is known. Without it a client gets a new bucket for every key it invents, so leave it
    out only where unknown keys do not come this far. It may be async on ASGI.
    """
    name = _field_name(header)

    def key(request: Request) -> Identity | Awaitable[Identity]:
        found = _value(request, name)
        if name == _AUTHORIZATION:
            found = _bearer(found)
        if not found:
            return _fallback(request)
        known = accept is None or accept(found)
        if inspect.isawaitable(known):
            return _once_known(known, found, request)
        return Identity.api_key(found) if known else _fallback(request)

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


async def _once_known(known: Awaitable[bool], key: str, request: Request) -> Identity:
    return Identity.api_key(key) if await known else _fallback(request)


def _value(request: Request, name: str) -> str:
    return ", ".join(filter(None, map(str.strip, request.lines(name))))


def _bearer(credentials: str) -> str:
    """The token; empty for other schemes, whose credentials may differ from request to request."""
    scheme, *rest = credentials.split(None, 1) or [""]
    if scheme.lower() == _BEARER:
        return rest[0].strip() if rest else ""
    return "" if rest else scheme


def _field_name(name: object) -> str:
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        raise ValidationError("header", name, "must be the name of a header, such as 'x-api-key'")
    return name.lower()
