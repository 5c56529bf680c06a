"""Path templates: ``/v1/items/{id}``, ``/static/{rest:path}``, ``/v1/*``.

A rule that limits matches every spelling of a path that an app might serve: case, doubled slashes, dot segments and
a slash at the end make no difference. A rule that exempts matches only the plain spelling: whoever spells it
otherwise is limited.
"""

from __future__ import annotations

import posixpath
import re

from ..core.errors import ValidationError

_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*(?::(path|str|int|float|uuid))?\}")


class Template:
    """One compiled template."""

    __slots__ = ("_exact", "_liberal", "text")

    def __init__(self, text: object) -> None:
        if not isinstance(text, str):
            raise ValidationError("match", text, "must be a path template such as '/v1/items/{id}', or a callable")
        if not text.startswith("/"):
            raise ValidationError("match", text, "must start with '/'")
        pattern = _pattern(text)
        self.text = text
        self._exact = re.compile(pattern, re.DOTALL)
        self._liberal = re.compile(_pattern(normalised(text)), re.DOTALL | re.IGNORECASE)

    def fits(self, path: str) -> bool:
        """Whether some spelling of ``path`` fits."""
        return self._liberal.fullmatch(normalised(path)) is not None

    def is_plainly(self, path: str) -> bool:
        """Whether ``path`` fits as it stands, with nothing in it that another reader could read otherwise."""
        return self._exact.fullmatch(path) is not None and normalised(path) == (path.rstrip("/") or "/")


def normalised(path: str) -> str:
    """One spelling for all that lead to the same place."""
    if "//" in path or "/." in path:
        path = "/" + posixpath.normpath(path).lstrip("/")
    elif not path.startswith("/"):
        path = f"/{path}"
    return path.rstrip("/") or "/"


def _pattern(text: str) -> str:
    """A template as a regular expression."""
    below = text.endswith("/*")
    text = text[:-2] if below else text
    parts: list[str] = []
    end = 0
    for found in _PLACEHOLDER.finditer(text):
        parts += (_literal(text[end : found.start()]), ".*" if found[1] == "path" else "[^/]+")
        end = found.end()
    parts += (_literal(text[end:]), "(?:/.*)?" if below else "")
    return "".join(parts)


def _literal(text: str) -> str:
    for character in "{}*":
        if character in text:
            reason = "has a stray {!r}: placeholders are {{name}} or {{name:path}}, and '/*' at the end is all below"
            raise ValidationError("match", text, reason.format(character))
    return re.escape(text)
