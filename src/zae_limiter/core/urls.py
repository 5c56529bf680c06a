"""Show URLs in errors without anything that may be secret in them."""

from __future__ import annotations

import re

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.%-]*)(?::[0-9]+)?"
_CLEAR = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#]*@)?({_HOST}(?:,{_HOST})*)(?:[/?#][^@]*)?")
"""A URL that can be read in one way only: behind its host there is no ``@``, which could end an unescaped password."""
_PLAIN = re.compile(r"[^:/@=]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_clear(url: str) -> bool:
    """Return whether a URL can be read in one way only, so that its host, path and options are no part of a secret."""
    return _CLEAR.fullmatch(url) is not None


def is_plain(name: str) -> bool:
    """Return whether a text is not even meant as a URL."""
    return _PLAIN.fullmatch(name) is not None


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
