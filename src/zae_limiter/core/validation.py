"""The root of all errors, and those of invalid input; checks of numbers; URLs without the secrets in them."""

from __future__ import annotations

import enum
import re
from operator import index
from typing import Any, ClassVar

MAX_AMOUNT = 10**12
"""Most tokens a limit may hold or refill: in millitokens still far below 2^53."""

MAX_PERIOD_SECONDS = 10 * 366 * 86_400
"""Longest refill period: ten years."""

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.%-]*)(?::[0-9]+)?"
_CLEAR = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#]*@)?({_HOST}(?:,{_HOST})*)(?:[/?#][^@]*)?")
"""A URL that can be read in one way only: behind its host there is no ``@``, which could end an unescaped password."""
_NO_URL = re.compile(r"[^:/@=]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Unset(enum.Enum):
    """Marks an argument that was not passed, where None has a meaning of its own."""

    UNSET = enum.auto()


UNSET = Unset.UNSET


class ZAELimiterError(Exception):
    """The base class of every error that this package raises on purpose."""

    _made_from: ClassVar[tuple[str, ...]] = ()
    """The attributes that the constructor takes, in its order, of an error whose text is made of them."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        if not self._made_from:
            return super().__reduce__()
        return type(self), tuple([getattr(self, name) for name in self._made_from])


class MissingCronsim(ZAELimiterError):
    """A cron expression has to be read, and the package that does it is not installed."""


class ValidationError(ZAELimiterError, ValueError):
    """Invalid input, found before any call to the store: the ``field``, its ``value`` and the ``reason``.

    A value that may hold credentials, such as a store URL in the wrong place, is reduced to its scheme and host.
    """

    _made_from = ("field", "value", "reason")
    _secret: ClassVar[re.Pattern[str]] = re.compile(r"://.*[@=]|password=", re.DOTALL | re.IGNORECASE)

    def __init__(self, field: str, value: object, reason: str) -> None:
        if isinstance(value, str) and self._secret.search(value):
            value = show_url(value)
        shown = repr(value)
        if len(shown) > 80:
            shown = f"{shown[:60]}... ({len(shown)} characters)"
        super().__init__(f"{field} = {shown}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class InvalidIdentifierError(ValidationError):
    """An invalid entity id."""


class InvalidNameError(ValidationError):
    """An invalid name of a resource, limit, namespace or stack."""

    _secret = re.compile(r"://|@|=")


def whole(field: str, value: object, least: int, most: int, unit: str = "") -> int:
    """Return ``value`` as a plain int, or raise a `ValidationError` that names ``field``.

    Whatever has ``__index__`` is a whole number, integers of numpy too; floats, texts and booleans are not. ``unit`` is
    what it counts, for the message.
    """
    number = value if type(value) is int else as_int(value)
    if number is None:
        counted = f" of {unit}" if unit else ""
        raise ValidationError(field, value, f"must be a whole number{counted}, not {type(value).__name__}")
    if not least <= number <= most:
        raise ValidationError(field, value, f"must be between {least} and {most}")
    return number


def as_int(value: object) -> int | None:
    """Return a whole number as a plain int, None for what is not one.

    >>> as_int(3), as_int(3.0), as_int(True), as_int("3")
    (3, None, None, None)
    """
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return int(index(value))  # type: ignore[arg-type]  # what the except is for
    except TypeError:
        return None


def flag(field: str, value: object) -> bool:
    """Return a switch. Raise `ValidationError` unless it is True or False."""
    if not isinstance(value, bool):
        raise ValidationError(field, value, "must be True or False")
    return value


def seconds(field: str, value: object, *, zero: bool) -> float:
    """Return a duration in seconds.

    Raise `ValidationError` unless it is finite and above 0, or 0 if ``zero`` allows it.
    """
    number = value if isinstance(value, float) else as_int(value)
    if number is None:
        raise ValidationError(field, value, f"must be a number of seconds, not {type(value).__name__}")
    if not 0 <= number <= MAX_PERIOD_SECONDS or (number == 0 and not zero):
        raise ValidationError(field, value, f"must be {'0 or more' if zero else 'above 0'} and finite, in seconds")
    return number


def is_clear(url: str) -> bool:
    """Return whether a URL can be read in one way only, so that its host, path and options are no part of a secret."""
    return _CLEAR.fullmatch(url) is not None


def is_plain(name: str) -> bool:
    """Return whether a text is not even meant as a URL."""
    return _NO_URL.fullmatch(name) is not None


def show_url(url: object) -> str:
    """Return the scheme and host of a URL, and a plain name as it is. Dots stand for what may be secret or is unclear.

    >>> show_url("redis://me:secret@host:6379/0?sentinel_password=x")
    'redis://host:6379'
    >>> show_url("redis://me:sec/ret@host"), show_url("me:secret@host"), show_url("host?password=secret")
    ('redis://...', '...', '...')
    """
    if not isinstance(url, str):
        return type(url).__name__
    if is_plain(url):
        return url
    clear, scheme = _CLEAR.fullmatch(url), _SCHEME.match(url)
    return clear[1] + clear[2] if clear else f"{scheme[0] if scheme else ''}..."
