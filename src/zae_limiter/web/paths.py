"""The texts by which an app could route a request, and the prefixes that it takes off a path before.

Frameworks differ in where they take a prefix off a path and in what they make of empty segments, dot segments and a
target that does not begin with a slash. So a path that is not plain is read in each of these ways, once per request.
Some frameworks do not route by the decoded path of the scope but by the path as it was sent; that is one more way to
read it, except for the frameworks that are known not to.

A server tells its prefix in the scope. What the app adds by itself is found in it, if it can be: the ``root_path``
of a FastAPI app that the middleware is around or that is mounted below it, and Django's ``FORCE_SCRIPT_NAME``. The rest
has to be given.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from ..core.errors import ValidationError

LONGEST = 8_192
"""The longest path, in characters, that is compared with templates; HTTP asks servers for about as much."""

_DEEPEST = 32
"""How many wrappers are looked through for the app of a framework."""
_DECODING = ("starlette", "fastapi", "litestar", "quart", "django")
"""The ASGI frameworks that route by the decoded path, and never by the one that was sent."""
_ODD = re.compile(r"\A(?!/)|//|/\.\.?(?:/|\Z)|\n")
"""Parts of paths that frameworks read differently. A ``$`` in the pattern of a route ignores a line feed at the end."""


class PathTooLong(ValidationError):
    """A path is longer than what is compared with templates."""

    def __init__(self, length: int) -> None:
        super().__init__("path", length, f"must not be longer than {LONGEST} characters")


class Prefix(NamedTuple):
    """A prefix that an app may take off: at the front only, or wherever it stands first.

    ``sure`` means that it is taken off if the path goes on with a slash behind it.
    """

    text: str
    anywhere: bool = False
    sure: bool = True

    def cut(self, path: str) -> Iterator[str]:
        """Yield what is left of ``path`` without the prefix, with and without its own slash at the end."""
        for text in dict.fromkeys((self.text, self.text.rstrip("/"))):
            if path.startswith(text) or (self.anywhere and text in path):
                rest = path.split(text, 1)[1]
                yield rest if rest.startswith("/") else f"/{rest}"

    def cut_plainly(self, path: str) -> str | None:
        """Return the rest of ``path`` if it is the prefix, or goes on with a slash behind it; else None."""
        rest = path.removeprefix(self.text)
        is_in_front = path.startswith(self.text) and not self.text.endswith("/") and (not rest or rest.startswith("/"))
        return (rest or "/") if is_in_front else None


class Paths(NamedTuple):
    """The texts. The app routes by ``main`` if the request is ``plain``, and else by any of them.

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
    standing = [prefix for prefix in prefixes if any(prefix.cut(path))]
    if plain and not standing:
        return Paths(path)
    rest = standing[0].cut_plainly(path) if standing else None
    main = (path if plain else normalise(path)) if rest is None else rest if plain else normalise(rest)
    if plain and rest is not None and standing[0].sure and len({prefix.text for prefix in standing}) == 1:
        return Paths(main, (path,))
    texts: dict[str, None] = {}
    for whole in (text for each in (path, *more) for text in _list_targets(each)):
        for base in (whole, *(prefixes[0].cut(whole) if prefixes else ())):
            cuts = (cut for prefix in prefixes[1:] for cut in prefix.cut(base))  # beside the server's, another may go
            texts.update(dict.fromkeys(spelt for cut in (base, *cuts) for spelt in list_spellings(cut)))
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


def list_loose(text: str) -> Iterator[str]:
    """Yield what frameworks may take ``text`` for: without and with a slash at the end, and all in lower case."""
    solid = text.rstrip("/\n")
    for spelt in dict.fromkeys((solid or "/", f"{solid}/", solid.lower() or "/", f"{solid.lower()}/")):
        if spelt != text:
            yield spelt


def _list_targets(path: str) -> tuple[str, ...]:
    """Return a path that begins with a slash; another with a slash in front, from its first one on, and parsed."""
    if path.startswith("/"):
        return (path,)
    try:
        parsed = urlparse(path).path
    except ValueError:
        parsed = path
    return f"/{path}", f"/{path.partition('/')[2]}", f"/{parsed.lstrip('/')}"


class Prefixes:
    """The prefixes of one app: those of ``given``, and those that ``app`` shows."""

    def __init__(self, given: object = None, app: object = None) -> None:
        self._app = app
        self._mounted: Sequence[tuple[str, Any]] | None = None
        """The FastAPI apps below mounts; None until the first request, as mounts may be added until then."""
        self._given = tuple(Prefix(text, anywhere=True) for text in _check_prefixes(given))
        apps = list(_unwrap_app(app))
        self._fastapi: Any = next((each for each in apps if _is_of("fastapi", each, "root_path")), None)
        self._litestar: Any = next((each for each in apps if _is_of("litestar", each, "routes")), None)
        self._is_quart = any(_is_of("quart", each) for each in apps)
        self._blacksheep: Any = next((each for each in apps if _is_of("blacksheep", each, "router")), None)
        self._decodes = any(_is_of(framework, each) for each in apps for framework in _DECODING)

    def read_environ(self, path: str, more: Sequence[str] = ()) -> Paths:
        """Return every text by which a WSGI app could route ``path``: the server has taken its own prefix off.

        ``more``: other ways to decode it.
        """
        return read_path(path or "/", self._given, more)

    def read_scope(self, scope: MutableMapping[str, Any]) -> Paths:
        """Return every text by which an ASGI app could route a request."""
        path: str = scope["path"] or "/"
        root: str = scope.get("root_path") or ""
        litestar = self._litestar or scope.get("litestar_app")
        more: list[str] = []
        if litestar is not None:
            is_routed = "route_handler" in scope  # then Litestar has replaced the path by the text it has routed by
            raw: bytes | None = scope.get("raw_path") if is_routed else None
            before = path if raw is None else unquote(raw.partition(b"?")[0].decode("utf-8", "replace"))
            routed = _tidy_path(before.split(root, 1)[-1] if root else before)
            if is_routed and path == routed:
                return read_path(path)
            more = [before] if before != path else []
            more += _find_texts_below_mounts(litestar, _tidy_path(before), routed)
        if self._is_quart and root and (path == root or not path.startswith(root)):
            more.append("/ ")  # what Quart routes by if the path is not below the prefix
        if not self._decodes and litestar is None:
            more += _list_sent(scope, path)
            if self._blacksheep is not None:
                more += _find_texts_of_tails(self._blacksheep, (path, *more), root)
        known = self._list_prefixes(root)
        paths = read_path(path, known, [*more, *self._find_mounted_texts(path, known)])
        # with a line feed at the end Starlette misplaces where a mount ends, and the app below routes by the whole path
        return paths._replace(astray=True) if path.endswith("\n") else paths

    def _find_mounted_texts(self, path: str, known: Sequence[Prefix]) -> Iterator[str]:
        """Yield the texts by which mounted apps with a prefix of their own route: the path of the mount, and the rest.

        Such an app takes its own prefix off the whole path, and if that is not in front, it takes nothing off.
        """
        if self._mounted is None:
            self._mounted = [found for each in _unwrap_app(self._app) for found in _find_mounted(each)]
        main = (known[0].cut_plainly(path) if known else None) or path
        texts = (path, *(cut for prefix in known for cut in prefix.cut(path)))
        for mount, app in self._mounted:
            own = Prefix(app.root_path or "/")
            start = mount.partition("{")[0]
            if own.text.strip("/") and any(text.startswith(start) for text in texts):
                rests = [*own.cut(path), *((path,) if own.cut_plainly(path) is None else ())]
                yield from (f"{mount}{rest}" for rest in rests if f"{mount}{rest}" != main)

    def _list_prefixes(self, root: str) -> Sequence[Prefix]:
        """Return the prefixes, the server's first. One that the app has by itself stands in place of it."""
        own = [found for found in (getattr(self._fastapi, "root_path", None), _read_script_name()) if found]
        if not (root or own):
            return self._given
        known = [Prefix(found) for found in own if found.strip("/")]
        if root.strip("/"):
            # Litestar takes it off wherever it stands first
            known.insert(0, Prefix(root, anywhere=True, sure=all(found == root for found in own)))
        return [*known, *self._given]


def _check_prefixes(given: object) -> Iterator[str]:
    if given is None:
        return
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ValidationError("prefixes", given, "must be a list; put brackets around it")
    for text in given:
        if not isinstance(text, str) or not text.startswith("/") or not text.strip("/"):
            raise ValidationError("prefixes", text, "must be a path such as '/api'")
        yield text.rstrip("/")


def _unwrap_app(app: object) -> Iterator[object]:
    """Yield an app, the object that it is a method of, and the apps inside, as middleware usually holds them."""
    for _ in range(_DEEPEST):
        if app is None:
            return
        app = getattr(app, "__self__", app)
        yield app
        app = getattr(app, "app", None)


def _is_of(framework: str, app: object, attribute: str | None = None) -> bool:
    """Return whether an app is of a framework, and has the attribute."""
    found = any(kind.__module__.partition(".")[0] == framework for kind in type(app).__mro__)
    return found and (attribute is None or hasattr(app, attribute))


def _find_mounted(app: object, mount: str = "", around: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield the FastAPI apps in the mounts of an app, and in those below, each with the path of its mount."""
    routes = getattr(app, "routes", None)
    if not isinstance(routes, list | tuple) or id(app) in around:
        return
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is not None:  # newer FastAPI keeps included routers apart
            prefix = getattr(getattr(route, "include_context", None), "prefix", "")
            yield from _find_mounted(router, f"{mount}{prefix}", around | {id(app)})
            continue
        at = f"{mount}{getattr(route, 'path', '')}".rstrip("/")
        for below in _unwrap_app(getattr(route, "app", None)):
            if _is_of("fastapi", below, "root_path"):
                yield at, below
            yield from _find_mounted(below, at, around | {id(app)})


def _read_script_name() -> str:
    """Return Django's setting, if Django is in use."""
    settings = getattr(sys.modules.get("django.conf"), "settings", None)
    name: str | None = settings.FORCE_SCRIPT_NAME if settings is not None and settings.configured else None
    return name or ""


def _tidy_path(path: str) -> str:
    """Return a path as Litestar routes it."""
    return re.sub("//+", "/", f"/{path.strip('/')}")


def _find_texts_below_mounts(litestar: Any, *paths: str) -> Iterator[str]:
    """Yield paths with a slash behind a mount: Litestar takes ``/filesx`` for ``x`` below ``/files``."""
    for route in litestar.routes:
        if getattr(getattr(route, "route_handler", None), "is_mount", False):
            mount: str = route.path
            for path in paths:
                if path.startswith(mount) and path[len(mount) :][:1] not in ("", "/"):
                    yield f"{mount}/{path[len(mount) :]}"


def _list_sent(scope: MutableMapping[str, Any], path: str) -> list[str]:
    """Return the path as it was sent, if it differs, and what is left of it without what a ``#`` begins."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return []
    sent = raw.partition(b"?")[0].decode("utf-8", "replace")
    cut = sent.partition("#")[0]
    return [text for text in dict.fromkeys((sent, cut, unquote(cut) or "/")) if text not in ("", path)]


def _find_texts_of_tails(blacksheep: Any, texts: Iterable[str], root: str) -> list[str]:
    """Return texts with a slash in front of what BlackSheep takes for a star: ``/files/*`` is for ``/filesX`` too."""
    routes = [route for every in blacksheep.router.routes.values() for route in every]
    found: list[str] = []
    for route in (*routes, *blacksheep.mount_registry.mounted_apps):
        for text in (text.removeprefix(root) for text in texts):
            matched = route.rx.match(text.encode()) if b"/*" in route.pattern else None
            if matched is not None and (tail := matched["tail"]) and not tail.startswith(b"/"):
                start = text.encode()[: matched.start("tail")]
                found += [f"{start.decode().rstrip('/')}/{tail.decode()}"]
    return [text for text in dict.fromkeys(found) if text not in texts]
