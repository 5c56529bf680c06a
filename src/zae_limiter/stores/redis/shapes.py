"""The shape of what servers answer, checked where it is read: a server may answer anything.

Every function raises `RateLimiterUnavailable` if the answer has another shape.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from ...core.errors import RateLimiterUnavailable
from .settings import Address

Ranges: TypeAlias = list[tuple[int, int, Address]]

_HOST = re.compile(r"[A-Za-z0-9._:%-]{0,255}")
_PORT = re.compile(r"[0-9]{1,5}")
_TIME = re.compile(r"([0-9]{1,11}) ([0-9]{1,6})")
_POLICY = re.compile(rb"^maxmemory_policy:([a-z-]{1,40})\r?$", re.MULTILINE)
_SLOTS = 16_384


def unreadable(wanted: str, told: object) -> RateLimiterUnavailable:
    """Return the error for something else that a server told instead of what was ``wanted``."""
    return RateLimiterUnavailable(f"Redis: the answer cannot be read: {told!r:.60} is not {wanted}.")


def read_address(told: object, asked: str = "") -> Address:
    """Return an address that a server named as a list; an empty host is that of the server itself."""
    if not isinstance(told, list) or len(told) < 2:
        raise unreadable("an address", told)
    host, port = (each.decode("latin-1") if isinstance(each, bytes) else each for each in told[:2])
    return _make_address("" if host is None else host, str(port), asked)


def read_redirection(text: str, asked: str) -> Address:
    """Return the address at the end of ``MOVED 1234 host:port`` or ``ASK 1234 host:port``."""
    host, colon, port = text.rpartition(" ")[2].rpartition(":")
    return _make_address(host if colon else None, port, asked)


def _make_address(host: object, port: str, asked: str) -> Address:
    known = isinstance(host, str) and _HOST.fullmatch(host) and _PORT.fullmatch(port) and 0 < int(port) < 65_536
    if not known or not (host or asked):
        raise unreadable("an address", (host, port))
    return Address(str(host) or asked, int(port))


def read_slots(told: object, asked: str) -> Ranges:
    """Return the ranges of slots that a node of a cluster named, in order, each with its master."""
    if not isinstance(told, list):
        raise unreadable("a list of slots", told)
    return sorted(_read_range(each, asked) for each in told)


def _read_range(told: object, asked: str) -> tuple[int, int, Address]:
    match told:
        case [int(first), int(last), node, *_] if 0 <= first <= last < _SLOTS:
            return first, last, read_address(node, asked)
    raise unreadable("a range of slots", told)


def read_entries(told: object) -> list[bytes]:
    """Return the members of a set that a server listed."""
    if not isinstance(told, list) or not all(isinstance(each, bytes) for each in told):
        raise unreadable("a list of members", told)
    return told


def read_eviction_policy(told: object) -> str | None:
    """Return what a server does when its memory is full, by its answer to ``INFO memory``; None if it does not say."""
    found = _POLICY.search(told) if isinstance(told, bytes) else None
    return None if found is None else found[1].decode()


def read_time_ms(told: str) -> int:
    """Return the server's time, which it told in seconds and microseconds, in milliseconds."""
    found = _TIME.fullmatch(told)
    if found is None:
        raise unreadable("a time", told)
    return int(found[1]) * 1000 + int(found[2]) // 1000
