"""Prefixes: what an app takes off a path before it routes, so that rules are compared with what is left too.

A server says so in the scope. What the app adds by itself is found in it, where it can be: the ``root_path`` of a
FastAPI app that the middleware is around, and Django's ``FORCE_SCRIPT_NAME``. The rest has to be given.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..core.errors import ValidationError
from .paths import Paths, Prefix, read_path

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

_DEEPEST = 32
"""How many wrappers are looked through for the app of a framework."""


class Prefixes:
    """What one app takes off."""

    def __init__(self, given: object = None, app: object = None) -> None:
        self._given = tuple(Prefix(text, anywhere=True) for text in _checked(given))
        self._fastapi: Any = None
        self._litestar: Any = None
        self._is_quart = False
        for each in _unwrapped(app):
            frameworks = {kind.__module__.partition(".")[0] for kind in type(each).__mro__}
            if "fastapi" in frameworks and hasattr(each, "root_path"):
                self._fastapi = self._fastapi or each
            if "litestar" in frameworks and hasattr(each, "routes"):
                self._litestar = self._litestar or each
            self._is_quart = self._is_quart or "quart" in frameworks

    def read_environ(self, path: str) -> Paths:
        """Every text by which a WSGI app could route ``path``: the server has taken its own prefix off."""
        return read_path(path or "/", self._given)

    def read_scope(self, scope: MutableMapping[str, Any]) -> Paths:
        """Every text by which an ASGI app could route a request."""
        path: str = scope["path"] or "/"
        root: str = scope.get("root_path") or ""
        litestar = self._litestar or scope.get("litestar_app")
        more: list[str] = []
        if litestar is not None:
            before = _path_before_routing(scope, path)
            routed = _tidied(before.split(root, 1)[-1] if root else before)
            if "route_handler" in scope and path == routed:  # it has been routed, by just this text
                return read_path(path)
            more = [before] if before != path else []
            more += _texts_below_mounts(litestar, _tidied(before), routed)
        if self._is_quart and root and (path == root or not path.startswith(root)):
            more.append("/ ")  # what Quart routes by where the path is not below the prefix
        paths = read_path(path, self._known(root), more)
        # with a line feed at the end Starlette misplaces where a mount ends, and the app below routes by the whole path
        return paths._replace(astray=True) if path.endswith("\n") else paths

    def _known(self, root: str) -> Sequence[Prefix]:
        """The prefixes, the server's first. One that the app has by itself stands in place of it."""
        own = [found for found in (getattr(self._fastapi, "root_path", None), _script_name()) if found]
        if not (root or own):
            return self._given
        known = [Prefix(found) for found in own if found.strip("/")]
        if root.strip("/"):
            # Litestar takes it off wherever it stands first
            known.insert(0, Prefix(root, anywhere=True, sure=all(found == root for found in own)))
        return [*known, *self._given]


def _checked(given: object) -> Iterator[str]:
    if given is None:
        return
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ValidationError("prefixes", given, "must be a list; put brackets around it")
    for text in given:
        if not isinstance(text, str) or not text.startswith("/") or not text.strip("/"):
            raise ValidationError("prefixes", text, "must be a path such as '/api'")
        yield text.rstrip("/")


def _unwrapped(app: object) -> Iterator[object]:
    """An app, the object that it is a method of, and what is inside as middleware usually holds it."""
    for _ in range(_DEEPEST):
        if app is None:
            return
        app = getattr(app, "__self__", app)
        yield app
        app = getattr(app, "app", None)


def _script_name() -> str:
    """Django's setting, if Django is in use."""
    module = sys.modules.get("django.conf")
    if module is None or not module.settings.configured:
        return ""
    name: str = module.settings.FORCE_SCRIPT_NAME or ""
    return name


def _path_before_routing(scope: MutableMapping[str, Any], path: str) -> str:
    """The path of the request, which Litestar replaces in the scope by what it has routed by."""
    raw: bytes | None = scope.get("raw_path") if "route_handler" in scope else None
    return path if raw is None else unquote(raw.partition(b"?")[0].decode("utf-8", "replace"))


def _tidied(path: str) -> str:
    """A path as Litestar routes it."""
    return re.sub("//+", "/", f"/{path.strip('/')}")


def _texts_below_mounts(litestar: Any, *paths: str) -> Iterator[str]:
    """Paths with a slash behind a mount: Litestar takes ``/filesx`` for ``x`` below ``/files``."""
    for route in litestar.routes:
        if getattr(getattr(route, "route_handler", None), "is_mount", False):
            mount: str = route.path
            for path in paths:
                if path.startswith(mount) and path[len(mount) :][:1] not in ("", "/"):
                    yield f"{mount}/{path[len(mount) :]}"
