"""Path templates: ``/v1/items/{id}``, ``/static/{rest:path}``, ``/v1/*``.

A rule that limits matches every spelling of a path that an app might serve: case, doubled slashes, dot segments, a
slash or a line feed at the end and the absolute form make no difference. A rule that exempts matches only the plain
spelling: whoever spells it otherwise is limited.
"""

from __future__ import annotations

import re
from urllib.parse import urlparse

from ..core.errors import ValidationError

_HEX = "[0-9a-fA-F]"
_TYPES = {
    None: "[^/]+",
    "str": "[^/]+",
    "int": "[0-9]+",
    "float": r"[0-9]+(?:\.[0-9]+)?",
    "uuid": f"{_HEX}{{8}}-?{_HEX}{{4}}-?{_HEX}{{4}}-?{_HEX}{{4}}-?{_HEX}{{12}}",
    "path": ".*",
}
"""What a placeholder stands for in the plain spelling; for a limit every type is as wide as ``str``."""
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*(?::(path|str|int|float|uuid))?\}")
_REST = re.compile(rf"/(?:\*|{_PLACEHOLDER.pattern})\Z")


class Template:
    """One compiled template."""

    __slots__ = ("_exact", "_liberal", "text")

    def __init__(self, text: object) -> None:
        if not isinstance(text, str):
            raise ValidationError("match", text, "must be a path template such as '/v1/items/{id}', or a callable")
        if not text.startswith("/"):
            raise ValidationError("match", text, "must start with '/'")
        self.text = text
        self._exact = re.compile(_pattern(text, liberal=False), re.DOTALL)
        self._liberal = re.compile(_pattern(normalised(text), liberal=True), re.DOTALL | re.IGNORECASE)

    def fits(self, path: str) -> bool:
        """Whether some spelling of ``path`` fits."""
        return any(self._liberal.fullmatch(spelling) for spelling in _spellings(path))

    def is_plainly(self, path: str) -> bool:
        """Whether ``path`` fits as it stands, with nothing in it that another reader could read otherwise."""
        return self._exact.fullmatch(path) is not None and normalised(path) == (path.removesuffix("/") or "/")


def normalised(path: str) -> str:
    """One spelling for all that lead to the same place."""
    return _spellings(path)[-1]


def _spellings(path: str) -> tuple[str, ...]:
    """How a path can be read: as it stands, without empty segments, and with dot segments resolved as well."""
    if not path.startswith("/"):
        path = f"/{_target(path)}"
    if "\n" in path:  # a ``$`` in the pattern of a route lets one pass at the end
        path = path.replace("\n", "")
    if not ("//" in path or "/." in path or path.endswith("/")):
        return (path,)
    solid = [segment for segment in path.split("/") if segment]
    resolved: list[str] = []
    for segment in solid:
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    return path, f"/{'/'.join(solid)}", f"/{'/'.join(resolved)}"


def _target(text: str) -> str:
    """The path of a request target that is not just a path, as the absolute form ``http://host/path`` is not."""
    try:
        return urlparse(text).path
    except ValueError:
        return text


def _pattern(text: str, *, liberal: bool) -> str:
    """A template as a regular expression."""
    rest = _REST.search(text)
    below = rest is not None and (rest[0] == "/*" or (liberal and rest[1] == "path"))
    body = text[: rest.start()] if rest is not None and below else text
    parts: list[str] = []
    end = 0
    for found in _PLACEHOLDER.finditer(body):
        wanted = found[1] if not liberal or found[1] == "path" else None
        parts += (_literal(text, body[end : found.start()]), _TYPES[wanted])
        end = found.end()
    parts += (_literal(text, body[end:]), "(?:/.*)?" if below else "")
    return "".join(parts)


def _literal(template: str, text: str) -> str:
    for character in "{}*":
        if character in text:
            reason = "has a stray {!r}: placeholders are {{name}} or {{name:path}}, and '/*' at the end is all below"
            raise ValidationError("match", template, reason.format(character))
    return re.escape(text)
