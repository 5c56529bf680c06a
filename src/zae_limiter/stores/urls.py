"""Parse store URLs; no error shows their secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..core.errors import ValidationError
from ..core.validation import is_clear, show_url


class Days(int):
    """A number of days, 0 for none."""


class FileMode(int):
    """Permissions of a file, written in octal: 0600 lets only its owner read and write it."""

    def __new__(cls, text: str) -> FileMode:
        """Read them. Raise ValueError if these are none, or the owner could not use the file."""
        mode = super().__new__(cls, text, 8)
        if not text.isdecimal() or mode & 0o600 != 0o600 or mode > 0o777:
            raise ValueError(text)
        return mode


USAGE: dict[str, type] = {"usage_retention_days": Days}
"""The option of every store whose writes keep usage."""

_MOST_DAYS = 36_500


def url_error(url: str, reason: str) -> ValidationError:
    """Return the error that says what is wrong with a URL, which it shows by scheme and host."""
    return ValidationError("url", show_url(url), reason)


def quote_part(url: str, part: str) -> str:
    """Return a part of a URL for display, hidden if it may belong to a password that lacks its escapes."""
    return repr(part) if is_clear(url) else "***"


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raise `ValidationError` if it is not one."""
    try:
        return urlsplit(url)
    except ValueError:  # whose message may quote a password
        raise url_error(url, "is not a URL") from None


def parse_options(url: str, parts: SplitResult, known: Mapping[str, type]) -> dict[str, Any]:
    """Return the query options of a URL, converted to their types; numbers must be above 0."""
    options: dict[str, Any] = {}
    for option, text in parse_qsl(parts.query, keep_blank_values=True):
        if option not in known:
            raise url_error(url, f"has the unknown option {quote_part(url, option)}; known: {', '.join(known)}")
        kind = known[option]
        try:
            value = options[option] = kind(text)
        except ValueError:
            wanted = "permissions such as 0600 or 0660" if kind is FileMode else "a number"
            raise url_error(url, f"option {option} must be {wanted}, not {quote_part(url, text)}") from None
        if kind is str and not value:
            raise url_error(url, f"option {option} is empty")
        if kind is Days and not 0 <= value <= _MOST_DAYS:
            raise url_error(url, f"option {option} must be between 0 (none) and {_MOST_DAYS} days")
        if kind in (int, float) and not 0 < value <= 1e9:
            raise url_error(url, f"option {option} must be above 0 and finite")
    return options
