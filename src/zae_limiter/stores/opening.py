"""Store URLs: from ``scheme://...`` to a store."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..core import names
from ..core.errors import ValidationError

if TYPE_CHECKING:
    from ..clock import Clock
    from .port import Store

ENVIRONMENT = "ZAE_LIMITER_URL"
_SHARED: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()


def store_url(url_or_name: str | None, name: str | None = None) -> str:
    """The URL that the arguments of a repository mean: a URL, a DynamoDB table, the environment, or memory."""
    if url_or_name is not None and name is not None:
        raise ValidationError("name", name, f"was given besides {url_or_name!r}; give one of them")
    given = url_or_name if url_or_name is not None else name
    if given is None:
        return os.environ.get(ENVIRONMENT) or "memory://"
    if not isinstance(given, str):
        raise ValidationError("repository", given, "must be a Repository, a store URL or the name of a stack")
    return given if "://" in given else f"dynamodb://{names.stack(given)}"


def open_store(url: str, *, blocking: bool, clock: Clock | None = None) -> Store:
    """Open the store that ``url`` names, for blocking or for async code."""
    scheme, separator, _ = url.partition("://")
    opener = _OPENERS.get(scheme.lower()) if separator else None
    if opener is None:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        what = "a store that this version does not have" if scheme in _LATER else "an unknown scheme"
        raise ValidationError("url", url, f"has {what}; use one of {known}")
    return opener(url, blocking, clock)


def _open_memory(url: str, blocking: bool, clock: Clock | None) -> Store:
    from .memory import MemoryStore

    parts = _split(url)
    options = _options(url, parts, {"max_buckets": int})
    if not parts.netloc:
        return MemoryStore(clock, **options)
    shared = _SHARED.get(parts.netloc)
    if shared is None:
        shared = _SHARED.setdefault(parts.netloc, MemoryStore(clock, **options))
    return shared


def _open_sqlite(url: str, blocking: bool, clock: Clock | None) -> Store:
    from .sqlite import AsyncSqliteStore, SqliteFile, SqliteStore

    parts = _split(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or "\x00" in path:
        raise ValidationError(
            "url", url, "needs a path: sqlite:///limits.db is relative, sqlite:////var/lib/limits.db absolute"
        )
    file = SqliteFile(path, clock, **_options(url, parts, {"timeout": float}))
    return SqliteStore(file) if blocking else AsyncSqliteStore(file)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ValidationError("url", url, f"is no URL: {error}") from None


def _options(url: str, parts: SplitResult, known: dict[str, type]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for option, text in parse_qsl(parts.query, keep_blank_values=True):
        if option not in known:
            raise ValidationError("url", url, f"has the unknown option {option!r}; known: {', '.join(known)}")
        try:
            options[option] = known[option](text)
        except ValueError:
            raise ValidationError("url", url, f"option {option} must be a number, not {text!r}") from None
        if not 0 < options[option] <= 1e9:
            raise ValidationError("url", url, f"option {option} must be above 0 and finite")
    return options


_LATER = frozenset(("dynamodb", "redis", "rediss", "valkey"))

_OPENERS: dict[str, Callable[[str, bool, Clock | None], Store]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
}
