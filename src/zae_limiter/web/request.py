"""`Request`: a request as rules, keys and costs see it, the same on ASGI and WSGI. It never touches the body."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any

from ..core.addresses import Address, parse
from .header_names import Mixing, find_mixing, read_lines
from .paths import Paths, Prefixes
from .proxies import Proxies

_UNKNOWN = "?"
"""An origin that is not computed yet; no server calls a peer so."""
_NO_PREFIXES = Prefixes()


@lru_cache(256)
def encode_name(name: str) -> bytes:
    """Return the name of a header as ASGI has it."""
    return name.lower().encode("latin-1")


class Request(ABC):
    """One request: ``raw`` is the ASGI scope or the WSGI environment it was made from."""

    _origin: str | None = _UNKNOWN
    has_shown_path = False
    """Whether `path` was read."""

    def __init__(
        self,
        raw: MutableMapping[str, Any],
        proxies: Proxies,
        prefixes: Prefixes = _NO_PREFIXES,
        paths: Paths | None = None,
    ) -> None:
        self.raw: MutableMapping[str, Any] = raw
        self.proxies: Proxies = proxies
        self._prefixes = prefixes
        self._paths = paths

    @property
    @abstractmethod
    def method(self) -> str:
        """In upper case: some frameworks serve ``post`` as well."""

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The other end of the socket as the server gave it; None for a unix socket."""

    @property
    def path(self) -> str:
        """The route path, decoded, without the prefix that the app is mounted under.

        Where frameworks read a path differently it is normalised: without empty segments, dot segments resolved.
        """
        self.has_shown_path = True
        return self.paths.main

    def respell(self, path: str) -> Request:
        """Return this request as if it had come with ``path``."""
        return type(self)(self.raw, self.proxies, self._prefixes, Paths(path))

    @property
    def paths(self) -> Paths:
        """`path`, and every other text by which the app could route the request; read once."""
        if self._paths is None:
            self._paths = self._read_paths()
        return self._paths

    @property
    @abstractmethod
    def full_path(self) -> str:
        """The path as the server gave it, decoded."""

    @abstractmethod
    def _read_paths(self) -> Paths: ...

    @abstractmethod
    def lines(self, name: str) -> list[str]:
        """Return the values of the header ``name``, one per header line, in the order in which they came."""

    def header(self, name: str) -> str | None:
        """Return the value of the header ``name``, its lines joined with commas; None if there is none."""
        lines = self.lines(name)
        return ", ".join(lines) if lines else None

    def mixing(self, name: str) -> Mixing:
        """Return how far `lines` may hold values that were sent under a name like ``name``, with underscores in it."""
        return Mixing.NONE

    @property
    @abstractmethod
    def user(self) -> str | None:
        """The name of the user that the app has authenticated; None if there is none."""

    @property
    def origin(self) -> str | None:
        """The origin as text: the peer, or what the trusted proxies say."""
        if self._origin is _UNKNOWN:
            self._origin = self.proxies.origin(self.peer, self.lines, self.mixing)
        return self._origin

    @property
    def client(self) -> Address | None:
        """The address of the client, by what the trusted proxies say; None if it is unknown."""
        origin = self.origin
        return parse(origin) if origin else None


class AsgiRequest(Request):
    """A request from an ASGI scope."""

    @property
    def method(self) -> str:
        return str(self.raw.get("method", "GET")).upper()

    @property
    def peer(self) -> str | None:
        peer = self.raw.get("client")
        return peer[0] if peer else None

    @property
    def full_path(self) -> str:
        return str(self.raw["path"])

    def _read_paths(self) -> Paths:
        return self._prefixes.read_scope(self.raw)

    def lines(self, name: str) -> list[str]:
        wanted = encode_name(name)
        return [value.decode("latin-1") for found, value in self.raw.get("headers", ()) if found == wanted]

    @property
    def user(self) -> str | None:
        """The user in the scope, as authentication middleware leaves it there."""
        user = self.raw.get("user")
        if user is None or isinstance(user, str):
            return user or None
        if getattr(user, "is_authenticated", True) is not True:
            return None
        for name in ("identity", "pk", "id", "username", "display_name"):
            with contextlib.suppress(NotImplementedError):  # what Starlette's base class of users raises
                found = getattr(user, name, None)
                if found not in (None, ""):
                    return str(found)
        return None


class WsgiRequest(Request):
    """A request from a WSGI environment."""

    @property
    def method(self) -> str:
        return str(self.raw["REQUEST_METHOD"]).upper()

    @property
    def peer(self) -> str | None:
        return self.raw.get("REMOTE_ADDR") or None

    @property
    def full_path(self) -> str:
        path: str = self.raw.get("PATH_INFO", "")
        return path if path.isascii() else path.encode("latin-1", "replace").decode("utf-8", "replace")

    def _read_paths(self) -> Paths:
        """Read a path that is not UTF-8 in each way in which apps decode it: some drop the bytes that are wrong."""
        path: str = self.raw.get("PATH_INFO", "")
        decoded = self.full_path
        if path.isascii() or "\ufffd" not in decoded:
            return self._prefixes.read_environ(decoded)
        return self._prefixes.read_environ(decoded, (path.encode("latin-1", "ignore").decode("utf-8", "ignore"), path))

    def lines(self, name: str) -> list[str]:
        """Return the values of the header ``name``, in one line unless the server shows the lines."""
        return read_lines(self.raw, name.lower())

    def mixing(self, name: str) -> Mixing:
        return Mixing.NONE if "-" not in name or self.proxies.drops_underscores else find_mixing(self.raw)

    @property
    def user(self) -> str | None:
        """The user that the server or the app has authenticated."""
        return self.raw.get("REMOTE_USER") or None
