"""Path templates: ``/v1/items/{id}``, ``/static/{rest:path}``, ``/v1/*``.

A template matches a text in two ways. Exactly: as it is written, which is what an exemption needs. Loosely: in any
case, with a slash or a line feed more or less at the end, and with every placeholder as wide as some framework has it.
What a template matches exactly, every framework takes for it; it is matched loosely too, unless the template has empty
or dot segments itself.

Every pattern is matched in time that grows with the length of the text only. In Python's engine that takes two things:
what follows a wildcard is searched for once (an atomic group keeps the first place), and a wildcard that crosses
slashes begins and ends at a slash.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..core.errors import ValidationError
from .paths import normalise

_HEX = "[0-9a-fA-F]"
_UUID = f"{_HEX}{{8}}-?{_HEX}{{4}}-?{_HEX}{{4}}-?{_HEX}{{4}}-?{_HEX}{{12}}"


class _Wildcard(NamedTuple):
    """A wildcard inside a segment, as a pattern that takes as much as it can and as one that takes as little."""

    long: str
    short: str


_SOME = _Wildcard("[^/]+", "[^/]+?")
_ANY = _Wildcard("[^/]*", "[^/]*?")
_TYPES = {
    None: _SOME,
    "str": _SOME,
    "int": _Wildcard("[0-9]{1,4000}", "[0-9]{1,4000}?"),  # Python reads no longer ones
    "float": _Wildcard(r"[0-9]+(?:\.[0-9]+)?", r"[0-9]+?(?:\.[0-9]+?)??"),
    "uuid": _Wildcard(_UUID, _UUID),
}
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*(?::(path|str|int|float|uuid))?\}")
_PATH = "path"
"""The type of a placeholder that crosses slashes."""

_Segment = list["str | _Wildcard"]
"""Literal texts and wildcards between two slashes."""


class _Gap(_Wildcard):
    """A wildcard for whole segments."""

    __slots__ = ()


_SEGMENTS = _Gap("(?:/.*)?", "(?:/.*?)??")
"""Any number of segments of any kind."""
_FILLED = _Gap("/[^/].*", "/[^/].*?")
"""At least one segment, the first of which is not empty."""


class Template:
    """One compiled template."""

    __slots__ = ("_exact", "_loose", "text")

    def __init__(self, text: object) -> None:
        if not isinstance(text, str):
            raise ValidationError("match", text, "must be a path template such as '/v1/items/{id}', or a callable")
        if not text.startswith("/"):
            raise ValidationError("match", text, "must start with '/'")
        literal = _PLACEHOLDER.sub("", text.removesuffix("/*"))
        for character in "{}*":
            if character in literal:
                reason = "placeholders are {name} or {name:path}, and '/*' at the end is all below"
                raise ValidationError("match", text, f"has a stray {character!r}: {reason}")
        self.text = text
        self._exact = re.compile(_make_pattern(text, loose=False), re.DOTALL)
        self._loose = re.compile(_make_pattern(normalise(text), loose=True), re.DOTALL | re.IGNORECASE)

    def matches_exactly(self, text: str) -> bool:
        """Return whether ``text`` is what the template says, to the letter."""
        return self._exact.fullmatch(text) is not None

    def matches_loosely(self, text: str) -> bool:
        """Return whether some framework could take ``text`` for what the template says."""
        return self._loose.fullmatch(text) is not None


def _make_pattern(text: str, *, loose: bool) -> str:
    """Return a template as a regular expression."""
    body, below = (text[:-2], True) if text.endswith("/*") else (text, False)
    segments = body.split("/")[1:]
    if loose and segments and _is_path(segments[-1]):
        segments, below = segments[:-1], True
    ways: list[list[_Segment | _Gap]] = [[]]
    for segment in segments:
        ways = [[*way, *more] for way in ways for more in _list_ways(segment, loose=loose)]
    end = r"(?=/|\n?\Z)" if loose else r"(?=/|\Z)"
    tail = "(?:/.*)?" if below else r"/?\n?" if loose else ""
    return "|".join(_join_way(way, end) + tail for way in ways)


def _is_path(segment: str) -> bool:
    found = _PLACEHOLDER.fullmatch(segment)
    return found is not None and found[1] == _PATH


def _list_ways(segment: str, *, loose: bool) -> list[list[_Segment | _Gap]]:
    """Return the ways in which one segment of a template can stand in a path.

    Beside other text a placeholder for a path stays inside the segment, or ends it, with any segments between its
    beginning and its end.
    """
    if _is_path(segment):
        return [[_SEGMENTS if loose else _FILLED]]
    ways: list[tuple[list[_Segment | _Gap], _Segment]] = [([], [])]  # of each what is done, and the last segment
    for number, text in enumerate(_PLACEHOLDER.split(segment)):
        is_placeholder = number % 2 == 1
        if is_placeholder and text == _PATH:
            ways = [(done, [*last, _ANY]) for done, last in ways]
            ways += [([*done, last, _SEGMENTS], [_ANY]) for done, last in ways]
        elif is_placeholder or text:
            part = text if not is_placeholder else _SOME if loose else _TYPES[text]
            ways = [(done, [*last, part]) for done, last in ways]
    return [[*done, last] for done, last in ways]


def _join_way(way: list[_Segment | _Gap], end: str) -> str:
    """Return segments and gaps as one pattern; what follows a gap is taken at the first place where it stands."""
    pattern, run, gap = "", "", None
    for piece in way:
        if isinstance(piece, _Gap):
            pattern += run if gap is None else f"(?>{gap.short}{run}{end})"
            run, gap = "", piece
        else:
            run += "/" + _make_segment_pattern(piece)
    return pattern + (run if gap is None else f"{gap.long}{run}")


def _make_segment_pattern(parts: _Segment) -> str:
    """Return a segment as a pattern: a wildcard with another one behind it takes as little as it can."""
    wildcards = [number for number, part in enumerate(parts) if isinstance(part, _Wildcard)]
    pattern = ""
    for number, part in enumerate(parts):
        if isinstance(part, _Wildcard):
            pattern += part.long if number == wildcards[-1] else f"(?>{part.short}"
        else:
            pattern += re.escape(part)
        following = number + 1
        if following in wildcards and wildcards[0] < following:
            pattern += ")"
    return pattern
