"""Store URLs: taking them apart, and showing them without their secrets."""

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
    """A number of days; 0 is none at all."""


USAGE: dict[str, type] = {"usage_retention_days": Days}
"""The option of every store whose writes keep usage."""

_MOST_DAYS = 36_500


def masked(url: str) -> str:
    """A URL as it may be shown to anybody.

    >>> masked("redis://me:secret@host/0?sentinel_password=x&timeout=1")
    'redis://me:***@host/0?sentinel_password=***&timeout=1'

    Also one whose password lacks its escapes:

    >>> masked("redis://me:sec/ret@host")
    'redis://me:***@host'
    """
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1:***@", url))


def visible(part: str, shown: str) -> str:
    """A part of a URL as it may be shown beside the masked URL: not if it was masked there."""
    return repr(part) if part in shown else "***"


def split(url: str) -> SplitResult:
    """The parts of a URL."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ValidationError("url", masked(url), f"is no URL: {error}") from None


def options_of(url: str, parts: SplitResult, known: Mapping[str, type]) -> dict[str, Any]:
    """The options after the question mark, each of its type; numbers are above 0."""
    options: dict[str, Any] = {}
    for option, text in parse_qsl(parts.query, keep_blank_values=True):
        if option not in known:
            shown = masked(url)
            reason = f"has the unknown option {visible(option, shown)}; known: {', '.join(known)}"
            raise ValidationError("url", shown.partition("?")[0], reason)
        options[option] = _option(url, option, text, known[option])
    return options


def _option(url: str, option: str, text: str, kind: type) -> Any:
    if kind is str:
        if not text:
            raise ValidationError("url", masked(url), f"option {option} is empty")
        return text
    try:
        value = kind(text)
    except ValueError:
        raise ValidationError("url", masked(url), f"option {option} must be a number, not {text!r}") from None
    if kind is Days and not 0 <= value <= _MOST_DAYS:
        raise ValidationError("url", masked(url), f"option {option} must be 0, for none, to {_MOST_DAYS} days")
    if kind is not Days and not 0 < value <= 1e9:
        raise ValidationError("url", masked(url), f"option {option} must be above 0 and finite")
    return value
