"""What servers answer: the meaning of their errors, and the shape of everything else.

An error means whether the command was carried out, whose fault it is, and what to do about it. Inside a script older
servers wrap an error into a longer text, so its code is looked for anywhere in it. Every function that reads an answer
raises `RateLimiterUnavailable` if that has another shape: a server may answer anything.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from redis import exceptions

from ...core.errors import (
    AccessDeniedError,
    ConfigurationError,
    CorruptRecordError,
    InfrastructureError,
    RateLimiterUnavailable,
)
from ..outcomes import Failure, Meaning, Remedy, Unknown
from .settings import Address


def _unavailable(reason: str, remedy: Remedy = Remedy.NONE) -> Meaning:
    return Meaning(RateLimiterUnavailable, remedy, reason)


_MEANINGS = {
    "NOSCRIPT": _unavailable("it does not know the script", Remedy.LOAD),
    "MOVED": Meaning(ConfigurationError, Remedy.FOLLOW, "it is a node of a cluster; use redis+cluster://"),
    "ASK": Meaning(ConfigurationError, Remedy.FOLLOW, "it is a node of a cluster; use redis+cluster://"),
    "READONLY": _unavailable("it is a read-only replica; name the master, or use redis+sentinel://", Remedy.LOCATE),
    "LOADING": _unavailable("it is loading its data", Remedy.LOCATE),
    "MASTERDOWN": _unavailable("it is a replica that has lost its master", Remedy.LOCATE),
    "CLUSTERDOWN": _unavailable("the cluster is down", Remedy.LOCATE),
    "TRYAGAIN": _unavailable("a slot of the cluster is being moved"),
    "OOM": _unavailable("it is out of memory (maxmemory, noeviction); nothing was changed"),
    "MISCONF": _unavailable("it cannot save to its disk and accepts no writes"),
    "NOREPLICAS": _unavailable("it has too few replicas and accepts no writes"),
    "BUSY": _unavailable("another client's script has been running for too long"),
    "UNKILLABLE": _unavailable("another client's script has been running for too long"),
    "WRONGTYPE": Meaning(
        CorruptRecordError, Remedy.NONE, "a key of this limiter holds something else; give it a ?prefix= of its own"
    ),
    "NOPERM": Meaning(
        AccessDeniedError, Remedy.NONE, "the user lacks a permission; docs/guide/stores/redis.md lists those in use"
    ),
    "NOAUTH": Meaning(AccessDeniedError, Remedy.NONE, "it requires a password; write redis://user:password@host"),
    "WRONGPASS": Meaning(AccessDeniedError, Remedy.NONE, "user or password is wrong"),
    "NOSENTINEL": Meaning(ConfigurationError, Remedy.NONE, "it is not a Sentinel; use redis://"),
    "NOCLUSTER": Meaning(ConfigurationError, Remedy.NONE, "it is not a cluster node; use redis://"),
    "UNTRUSTED": Meaning(ConfigurationError, Remedy.NONE, "its certificate is not trusted; see ?ssl_ca_certs="),
    "NODB": Meaning(ConfigurationError, Remedy.NONE, "it has no such database"),
    "NOCOMMAND": Meaning(
        InfrastructureError, Remedy.NONE, "a command is disabled there; docs/guide/stores/redis.md lists those in use"
    ),
}

_PHRASES = {
    "The user executing the script can't": "NOPERM",
    "ACL failure in script": "NOPERM",
    "Authentication required": "NOAUTH",
    "DB index is out of range": "NODB",
    "unknown command `SENTINEL`": "NOSENTINEL",
    "unknown command 'SENTINEL'": "NOSENTINEL",
    "unknown command": "NOCOMMAND",
    "cluster support disabled": "NOCLUSTER",
    "CERTIFICATE_VERIFY_FAILED": "UNTRUSTED",
}
"""Parts of messages that have no code."""

_CODES: dict[type[Exception], str] = {
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.AuthenticationError: "WRONGPASS",
    exceptions.AuthenticationWrongNumberOfArgsError: "WRONGPASS",
}
"""redis-py's classes for the codes that it strips from the text."""


def no_answer(where: str, reason: object) -> Unknown:
    """Return the error of a call to the server at ``where`` that gave no answer, in time or at all."""
    return Unknown(f"no answer from {where}" + (" in time" if isinstance(reason, TimeoutError) else f": {reason}"))


_ANY = re.compile(r"\b(" + "|".join(_MEANINGS) + r")\b")


class ErrorReply(Failure):
    """The server at ``where`` answered with an error: nothing was carried out."""

    def __init__(self, error: Exception, where: str) -> None:
        text = str(error)
        code = next((code for phrase, code in _PHRASES.items() if phrase in text), None) or _CODES.get(type(error))
        found = None if code else _ANY.search(text)
        meaning = _MEANINGS.get(found[1] if found else code or "", _unavailable("it refused the command"))
        super().__init__(meaning.error(f"Redis at {where}", text.rstrip("."), error), meaning)
        self.text = text
        self.asking = type(error) is exceptions.AskError or text.startswith("ASK ")  # MovedError is an AskError


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
