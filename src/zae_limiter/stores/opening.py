"""Open the store that a URL names."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import unquote

from ..clock import Clock
from ..core import names
from ..core.errors import InvalidNameError, ValidationError
from ..core.validation import show_url
from .port import Store
from .redis.settings import SCHEMES, parse
from .urls import USAGE, FileMode, parse_options, split_url, url_error

ENVIRONMENT = "ZAE_LIMITER_URL"
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_DYNAMODB_OPTIONS = {
    "region": str,
    "endpoint_url": str,
    "profile": str,
    "timeout": float,
    "connect_timeout": float,
    "max_connections": int,
}
_SHARED: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()


def store_url(url_or_name: str | None, name: str | None = None) -> str:
    """Return the URL for the arguments of a repository: a URL, a stack name, the environment, or memory."""
    if url_or_name is not None and name is not None:
        raise ValidationError(
            "name", show_url(name), f"cannot be combined with {show_url(url_or_name)!r}; pass one of them"
        )
    given = url_or_name if url_or_name is not None else name
    if given is None:
        return os.environ.get(ENVIRONMENT) or "memory://"
    if not isinstance(given, str):
        raise ValidationError("repository", show_url(given), "must be a Repository, a store URL or the name of a stack")
    return given if "://" in given else f"dynamodb://{_stack_name(given)}"


def _stack_name(given: str) -> str:
    """Check the name of a stack. Raise `ValidationError` with the URL of a table that has a name no stack can have."""
    try:
        return names.stack(given)
    except InvalidNameError as error:
        if not _TABLE.fullmatch(given):
            raise
        advice = f"a table of this name that has no stack is opened as 'dynamodb://{given}'"
        raise InvalidNameError(error.field, given, f"{error.reason}; {advice}") from None


def open_store(
    url: str, *, blocking: bool, clock: Clock | None = None, region: str | None = None, endpoint_url: str | None = None
) -> Store:
    """Open the store that ``url`` names. Raise `ValidationError` for an invalid URL.

    Args:
        url: The URL; its scheme names the kind of store.
        blocking: Whether the store is for blocking code or for an event loop.
        clock: This process's clock.
        region: The AWS region, for DynamoDB.
        endpoint_url: The AWS endpoint, for DynamoDB.
    """
    scheme, separator, _ = url.partition("://")
    match scheme.lower() if separator else None:
        case "memory":
            return _open_memory(url, clock)
        case "sqlite":
            return _open_sqlite(url, blocking, clock)
        case "dynamodb":
            return _open_dynamodb(url, blocking, clock, {"region": region, "endpoint_url": endpoint_url})
        case name if name in SCHEMES:
            return _open_redis(url, blocking, clock)
    known = ", ".join(f"{name}://" for name in ("memory", "sqlite", "dynamodb", *SCHEMES))
    raise url_error(url, f"has an unknown scheme; use one of {known}")


def _open_memory(url: str, clock: Clock | None) -> Store:
    from .memory import MemoryStore

    parts = split_url(url)
    options = parse_options(url, parts, {"max_buckets": int, **USAGE})
    if not parts.netloc:
        return MemoryStore(clock, **options)
    shared = _SHARED.get(parts.netloc)
    if shared is None:
        shared = _SHARED.setdefault(parts.netloc, MemoryStore(clock, **options))
    return shared


def _open_sqlite(url: str, blocking: bool, clock: Clock | None) -> Store:
    from .sqlite import AsyncSqliteStore, SqliteStore

    parts = split_url(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or "\x00" in path:
        raise url_error(url, "needs a path: sqlite:///limits.db is relative, sqlite:////var/lib/limits.db absolute")
    kind = SqliteStore if blocking else AsyncSqliteStore
    return kind(path, clock, **parse_options(url, parts, {"timeout": float, "file_mode": FileMode, **USAGE}))


def _open_dynamodb(url: str, blocking: bool, clock: Clock | None, aws: Mapping[str, str | None]) -> Store:
    """Open a DynamoDB table. Makes no call; ``clock`` is the host's clock, corrected by DynamoDB's."""
    parts = split_url(url)
    if not _TABLE.fullmatch(parts.netloc) or parts.path not in ("", "/") or parts.fragment:
        raise url_error(url, "needs a table: dynamodb://my-app, of 3 to 255 letters, digits, '_', '.' and '-'")
    options = parse_options(url, parts, _DYNAMODB_OPTIONS)
    for name, value in aws.items():
        if value is not None and options.setdefault(name, value) != value:
            other = show_url(options[name])
            raise ValidationError(
                name, show_url(value), f"contradicts {other!r} in {show_url(url)!r}; pass one of them"
            )
    _check_installed(url, "botocore", "dynamodb")
    from .dynamodb.client import open_client
    from .dynamodb.settings import check_endpoint, check_region
    from .dynamodb.store import DynamoStore

    if "region" in options:
        check_region(options["region"])
    if "endpoint_url" in options:
        check_endpoint(options["endpoint_url"])
    return DynamoStore(open_client(parts.netloc, blocking=blocking, host_clock=clock, **options))


def _open_redis(url: str, blocking: bool, clock: Clock | None) -> Store:
    """Open a Redis store. Does not connect; ``clock`` is the host's clock, corrected by the server's."""
    settings = parse(url)
    _check_installed(url, "redis", "redis")
    from .redis.store import open_redis

    return open_redis(settings, blocking=blocking, host_clock=clock)


def _check_installed(url: str, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise url_error(url, f'needs packages that are not installed: pip install "zae-limiter[{extra}]"')
