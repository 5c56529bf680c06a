"""Keys: callables that return whose tokens a request takes, as an `Identity`.

A request without a key is never without a limit: the client's address counts instead. Several lines of a header count
together, as choosing one of them would let a client choose; equal ones count once.

An app may read a header in several ways: the first line, the last, all lines joined with commas, the word after the
scheme. A client must not choose a bucket by sending a header that the app and the limiter read differently, so every
key that an app could find is looked at.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..core.addresses import prefix_length
from ..core.errors import ValidationError, ZAELimiterError
from .identity import Identity

if TYPE_CHECKING:
    from .request import Request

MOST_KEYS = 8
"""A request with more keys than this is refused: each may be a query to a database."""
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BEARER = "bearer"
_SEPARATORS = re.compile(r"[,\s]+")

Accept: TypeAlias = Callable[[str], bool | Awaitable[bool]]


class SeveralKeysError(ZAELimiterError):
    """A request carries several API keys, so nobody can say whose tokens it takes; the middleware answers 400.

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
    if on_several not in ("refuse", "address"):
        raise ValidationError("on_several", on_several, "must be 'refuse' or 'address'")

    def key(request: Request) -> Identity | Awaitable[Identity]:
        found = _FoundKeys()
        for name in names:  # some frameworks read ``x_api_key`` as ``x-api-key``, so both count
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
            words = set(found.words)  # a key holds no comma and no space: it is known where all words are the same one
            return choose([*words] if len(words) == 1 else [])
        return _ask_each(iter(asked), [], accept, choose)

    return key


def by_header(name: str) -> Callable[[Request], Identity]:
    """Return a key by the value of the header ``name``: one that clients cannot choose, such as a gateway sets."""
    lower = _check_field_name(name)

    def key(request: Request) -> Identity:
        joined = ", ".join(dict.fromkeys(filter(None, map(str.strip, request.lines(lower)))))
        parts = {part.strip() for part in joined.split(",")}
        value = parts.pop() if len(parts) == 1 else joined  # one that is there several times, and alone, counts once
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


def _check_field_name(name: object) -> str:
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        raise ValidationError("header", name, "must be the name of a header, such as 'x-api-key'")
    return name.lower()


class _FoundKeys:
    """The keys in some header lines: ``texts`` are whole values, ``words`` what stands in them between separators.

    ``foreign`` are words of other schemes, which are keys only if somebody knows them: some apps do not look at the
    scheme.
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
