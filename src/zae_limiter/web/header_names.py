"""Which names the headers of a WSGI request had.

A WSGI environment has ``HTTP_X_FORWARDED_FOR`` for ``X-Forwarded-For`` and for ``X_Forwarded_For``. Proxies write the
first only, and most of them pass on the second as the client has sent it. Some servers drop names with underscores, and
some show the names beside the environment. The others join the values of both names, or keep the last one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any


class Mixing(Enum):
    """How a server may mix headers of other names into one: not at all, as further values, or in place of its value."""

    NONE = "none"
    JOINED = "joined"
    REPLACED = "replaced"


_DROPPING = {"gevent": 1, "gunicorn": 22, "waitress": 0, "werkzeug": 3}
"""The servers that drop names with underscores, and since which major version."""
_KEEPING_LAST = ("tornado.wsgi", "twisted.web.wsgi")
"""The modules of servers that keep the last value of both names."""
_SOFTWARE = re.compile(r"([a-z]+)(?:/(\d+))?")


def read_lines(environ: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of the header ``name``, in lower case: its own lines if the server shows names, else one text.

    A value that no server makes of the lines was set by something between the server and us, and stays as it is.
    """
    upper = _to_key(name)
    value: str | None = environ.get(upper if upper in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{upper}")
    if value is None:
        return []
    named = [(found.lower(), line) for found, line in _list_named(environ) or () if _to_key(found) == upper]
    if not named:
        return [value]
    last = named[-1][0]
    made = [line for _, line in named], [line for found, line in named if found == last]
    return [line for found, line in named if found == name] if value in map(",".join, made) else [value]


def _to_key(name: str) -> str:
    return name.upper().replace("-", "_")


def find_mixing(environ: Mapping[str, Any]) -> Mixing:
    """Return what may be mixed into the value of a header whose name has hyphens."""
    software = str(environ.get("SERVER_SOFTWARE", ""))
    if _list_named(environ) is not None or "mod_wsgi.version" in environ or _drops_underscores(software):
        return Mixing.NONE
    # Only cheroot has this key; the others leave nothing in the environment, but their modules are loaded.
    keeps_last = "ACTUAL_SERVER_PROTOCOL" in environ or any(name in sys.modules for name in _KEEPING_LAST)
    return Mixing.REPLACED if keeps_last else Mixing.JOINED


def _list_named(environ: Mapping[str, Any]) -> Iterable[tuple[str, str]] | None:
    """Return the header lines under their names if the server shows them beside the environment; else None."""
    scope = environ.get("asgi.scope")  # a2wsgi
    if isinstance(scope, Mapping):
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope.get("headers", ())]
    request = environ.get("aiohttp.request")  # aiohttp-wsgi
    lines: Iterable[tuple[str, str]] | None = environ.get("headers_raw") if request is None else request.headers.items()
    return lines  # headers_raw is eventlet's


@lru_cache(64)
def _drops_underscores(software: str) -> bool:
    found = _SOFTWARE.match(software.lower())
    return found is not None and found[1] in _DROPPING and int(found[2] or 0) >= _DROPPING[found[1]]
