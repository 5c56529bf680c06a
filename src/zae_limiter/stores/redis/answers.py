"""What a server's error means: whether the command was carried out, whose fault it is, and what to do about it.

Inside a script older servers wrap an error into a longer text, so its code is looked for anywhere in it.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from redis import exceptions

from ...core.errors import AccessDeniedError, CorruptRecordError, InfrastructureError, RateLimiterUnavailable


class Remedy(enum.Enum):
    """What the caller can do so that the command is carried out after all."""

    NONE = enum.auto()
    LOAD = enum.auto()
    """Send the whole script."""
    FOLLOW = enum.auto()
    """Ask the node that the answer names."""
    LOCATE = enum.auto()
    """Find out anew where the data are: this node is not the one, or not ready."""


class Meaning(NamedTuple):
    """What an error code says."""

    remedy: Remedy
    kind: type[InfrastructureError] = RateLimiterUnavailable
    reason: str = ""


_MEANINGS = {
    "NOSCRIPT": Meaning(Remedy.LOAD, reason="it does not know our script"),
    "MOVED": Meaning(Remedy.FOLLOW, InfrastructureError, "it is a node of a cluster; use redis+cluster://"),
    "ASK": Meaning(Remedy.FOLLOW, InfrastructureError, "it is a node of a cluster; use redis+cluster://"),
    "READONLY": Meaning(Remedy.LOCATE, reason="it is a read-only replica; name the master, or use redis+sentinel://"),
    "LOADING": Meaning(Remedy.LOCATE, reason="it is loading its data"),
    "MASTERDOWN": Meaning(Remedy.LOCATE, reason="it is a replica that has lost its master"),
    "CLUSTERDOWN": Meaning(Remedy.LOCATE, reason="the cluster is down"),
    "TRYAGAIN": Meaning(Remedy.NONE, reason="a slot of the cluster is being moved"),
    "OOM": Meaning(Remedy.NONE, reason="it is out of memory (maxmemory, noeviction); nothing was changed"),
    "MISCONF": Meaning(Remedy.NONE, reason="it cannot save to its disk and takes no writes"),
    "NOREPLICAS": Meaning(Remedy.NONE, reason="it has too few replicas and takes no writes"),
    "BUSY": Meaning(Remedy.NONE, reason="a script of somebody else's has been running for too long"),
    "UNKILLABLE": Meaning(Remedy.NONE, reason="a script of somebody else's has been running for too long"),
    "WRONGTYPE": Meaning(
        Remedy.NONE, CorruptRecordError, "a key of ours holds something else; give this limiter a ?prefix= of its own"
    ),
    "NOPERM": Meaning(
        Remedy.NONE, AccessDeniedError, "the user lacks a permission; docs/guide/stores/redis.md lists those in use"
    ),
    "NOAUTH": Meaning(Remedy.NONE, AccessDeniedError, "it wants a password; write redis://user:password@host"),
    "WRONGPASS": Meaning(Remedy.NONE, AccessDeniedError, "user and password do not fit"),
    "NOSENTINEL": Meaning(Remedy.NONE, InfrastructureError, "it is no sentinel; use redis://"),
    "NOCLUSTER": Meaning(Remedy.NONE, InfrastructureError, "it is no node of a cluster; use redis://"),
    "UNTRUSTED": Meaning(Remedy.NONE, InfrastructureError, "its certificate is not trusted; see ?ssl_ca_certs="),
    "NODB": Meaning(Remedy.NONE, InfrastructureError, "it has no such database"),
    "NOCOMMAND": Meaning(
        Remedy.NONE, InfrastructureError, "a command is disabled there; docs/guide/stores/redis.md lists those in use"
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
"""Texts that come without a code of their own."""

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

_ANY = re.compile(r"\b(" + "|".join(_MEANINGS) + r")\b")
_OTHER = Meaning(Remedy.NONE, reason="it refused the command")


class Refusal(Exception):
    """The server answered with an error: nothing was carried out."""

    def __init__(self, meaning: Meaning, error: Exception, where: str) -> None:
        super().__init__(str(error))
        self.remedy = meaning.remedy
        self.target = str(error).rpartition(" ")[2]
        self.asking = type(error) is exceptions.AskError or str(error).startswith("ASK ")  # MovedError is an AskError
        message = f"Redis at {where}: {meaning.reason} ({str(error).rstrip('.')})."
        kind = meaning.kind
        self.error = kind(message, error) if kind is RateLimiterUnavailable else kind(message)


def refusal(error: Exception, where: str) -> Refusal:
    """What an error answer of the server at ``where`` means."""
    text = str(error)
    code = next((code for phrase, code in _PHRASES.items() if phrase in text), None) or _CODES.get(type(error))
    if code is None:
        found = _ANY.search(text)
        code = found[1] if found else ""
    return Refusal(_MEANINGS.get(code, _OTHER), error, where)
