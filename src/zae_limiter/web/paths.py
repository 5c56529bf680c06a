"""The texts by which an app could route a request.

Frameworks differ in where they take a prefix off a path and in what they make of empty segments, dot segments and a
target that does not begin with a slash. So a path that is not plain is read in each of these ways, once per request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlparse

from ..core.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST = 8_192
"""The longest path, in characters, that is compared with templates; HTTP asks servers for about as much."""

_ODD = re.compile(r"\A(?!/)|//|/\.\.?(?:/|\Z)|\n")
"""Parts of paths that frameworks read differently. A ``$`` in the pattern of a route ignores a line feed at the end."""


class PathTooLong(ValidationError):
    """A path is longer than what is compared with templates."""

    def __init__(self, length: int) -> None:
        super().__init__("path", length, f"must not be longer than {LONGEST} characters")


class Prefix(NamedTuple):
    """A prefix that an app may take off: at the front only, or wherever it stands first.

    ``sure`` means that it is taken off where the path goes on with a slash behind it.
    """

    text: str
    anywhere: bool = False
    sure: bool = True

    def is_in(self, path: str) -> bool:
        """Return whether it stands in ``path`` where an app may take it off."""
        text = self.text.rstrip("/")
        return text in path if self.anywhere else path.startswith(text)

    def cut(self, path: str) -> Iterator[str]:
        """Yield what is left of ``path`` without the prefix, with and without its own slash at the end."""
        for text in dict.fromkeys((self.text, self.text.rstrip("/"))):
            if path.startswith(text) or (self.anywhere and text in path):
                rest = path.split(text, 1)[1]
                yield rest if rest.startswith("/") else f"/{rest}"

    def is_plainly_in_front(self, path: str) -> bool:
        """Return whether ``path`` is the prefix, or goes on with a slash behind it."""
        text = self.text
        return not text.endswith("/") and (path == text or path.startswith(f"{text}/"))


class Paths(NamedTuple):
    """The texts. The app routes by ``main`` where the request is ``plain``, and else by any of them.

    An app may route a request that is ``astray`` by something else: no text tells which rule is for it.
    """

    main: str
    others: tuple[str, ...] = ()
    plain: bool = True
    astray: bool = False


def read_path(path: str, prefixes: Sequence[Prefix] = (), more: Sequence[str] = ()) -> Paths:
    """Return every text by which an app could route ``path``.

    ``prefixes``: what the app may take off, the server's prefix first. ``more``: further texts that it may route by.
    """
    plain = not more and is_plain(path)
    standing = [prefix for prefix in prefixes if prefix.is_in(path)] if prefixes else ()
    if plain and not standing:
        return Paths(path)
    front = standing[0] if standing and standing[0].is_plainly_in_front(path) else None
    if front is not None:
        main = path[len(front.text) :] or "/"
        if plain and front.sure and all(other.text == front.text for other in standing):
            return Paths(main, (path,))
    else:
        main = _list_targets(path)[-1]
    whole = [text for each in (path, *more) for text in _list_targets(each)]
    texts = dict.fromkeys(
        spelt for text in whole for cut in _cut_prefixes(text, prefixes) for spelt in list_spellings(cut)
    )
    return Paths(main, tuple(text for text in texts if text != main), plain=False)


def is_plain(path: str) -> bool:
    """Return whether all frameworks read ``path`` alike, apart from prefixes."""
    if path.startswith("/") and not ("//" in path or "/." in path or "\n" in path):
        return True
    return _ODD.search(path) is None


def normalise(path: str) -> str:
    """Return one spelling for all that lead to the same place."""
    return list_spellings(_list_targets(path)[-1])[-1]


def list_spellings(path: str) -> tuple[str, ...]:
    """Return a path as it is, with one slash in front, without empty segments, and with dot segments resolved."""
    if not ("//" in path or "/." in path or path.endswith("/")):
        return (path,)
    solid = [segment for segment in path.split("/") if segment]
    resolved: list[str] = []
    for segment in solid:
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    return path, f"/{path.lstrip('/')}", f"/{'/'.join(solid)}", f"/{'/'.join(resolved)}"


def _list_targets(path: str) -> tuple[str, ...]:
    """Return a path that begins with a slash; another with a slash in front, from its first one on, and parsed."""
    if path.startswith("/"):
        return (path,)
    return f"/{path}", f"/{path.partition('/')[2]}", f"/{_parse_target(path).lstrip('/')}"


def _parse_target(text: str) -> str:
    """Return the path of a request target that is not just a path, such as ``http://host/path``."""
    try:
        return urlparse(text).path
    except ValueError:
        return text


def _cut_prefixes(path: str, prefixes: Sequence[Prefix]) -> Iterator[str]:
    """Yield the path as it is and without each prefix; where the server's prefix is off, another may go too."""
    bases = [path, *(prefixes[0].cut(path) if prefixes else ())]
    for base in bases:
        yield base
        for prefix in prefixes[1:]:
            yield from prefix.cut(base)
