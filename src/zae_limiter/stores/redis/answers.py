"""What a server's error means: whether the command was carried out, whose fault it is, and what to do about it.

Inside a script older servers wrap an error into a longer text, so its code is looked for anywhere in it.
"""

from __future__ import annotations

import re

from redis import exceptions

from ...core.errors import (
    AccessDeniedError,
    ConfigurationError,
    CorruptRecordError,
    InfrastructureError,
    RateLimiterUnavailable,
)
from ..outcomes import Failure, Meaning, Remedy, Unknown


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


class Refusal(Failure):
    """The server at ``where`` answered with an error: nothing was carried out."""

    def __init__(self, error: Exception, where: str) -> None:
        text = str(error)
        code = next((code for phrase, code in _PHRASES.items() if phrase in text), None) or _CODES.get(type(error))
        found = None if code else _ANY.search(text)
        meaning = _MEANINGS.get(found[1] if found else code or "", _unavailable("it refused the command"))
        super().__init__(meaning.error(f"Redis at {where}", text.rstrip("."), error), meaning)
        self.text = text
        self.asking = type(error) is exceptions.AskError or text.startswith("ASK ")  # MovedError is an AskError
