"""Parse store URLs, and mask their secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..core.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOGIN = re.compile(r"(?<=://)([^/?#:]*):.*@", re.DOTALL)
_SECRET = re.compile(r"((?:password|secret|token)[^=&]*=)[^&#]*", re.IGNORECASE)


class Days(int):
    """A number of days, 0 for none."""


USAGE: dict[str, type] = {"usage_retention_days": Days}
"""The option of every store whose writes keep usage."""

_MOST_DAYS = 36_500


def mask_url(url: str) -> str:
    """Return a URL without its secrets.

    >>> mask_url("redis://me:secret@host/0?sentinel_password=x&timeout=1")
    'redis://me:***@host/0?sentinel_password=***&timeout=1'

    Also one whose password lacks its escapes:

    >>> mask_url("redis://me:sec/ret@host")
    'redis://me:***@host'
    """
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1:***@", url))


def url_error(url: str, reason: str) -> ValidationError:
    """Return the error that says what is wrong with a URL, without its secrets."""
    return ValidationError("url", mask_url(url), reason)


def mask_part(part: str, shown: str) -> str:
    """Return a part of a URL for display, masked if it was masked in ``shown``."""
    return repr(part) if part in shown else "***"


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raise `ValidationError` if it is not one."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise url_error(url, f"is not a URL: {error}") from None


def parse_options(url: str, parts: SplitResult, known: Mapping[str, type]) -> dict[str, Any]:
    """Return the query options of a URL, converted to their types; numbers must be above 0."""
    options: dict[str, Any] = {}
    for option, text in parse_qsl(parts.query, keep_blank_values=True):
        if option not in known:
            shown = mask_url(url)
            reason = f"has the unknown option {mask_part(option, shown)}; known: {', '.join(known)}"
            raise ValidationError("url", shown.partition("?")[0], reason)
        kind = known[option]
        try:
            value = options[option] = kind(text)
        except ValueError:
            raise url_error(url, f"option {option} must be a number, not {text!r}") from None
        if kind is str and not value:
            raise url_error(url, f"option {option} is empty")
        if kind is Days and not 0 <= value <= _MOST_DAYS:
            raise url_error(url, f"option {option} must be between 0 (none) and {_MOST_DAYS} days")
        if kind in (int, float) and not 0 < value <= 1e9:
            raise url_error(url, f"option {option} must be above 0 and finite")
    return options
