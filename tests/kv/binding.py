"""The binding of a KV namespace as Pyodide presents it to Python.

Calling a JavaScript function gives a promise, which can be awaited once; keyword arguments become an object that is its
last argument; ``null`` arrives as None or, in newer versions, as an object that is false; an error is an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any


class JsNull:
    """``pyodide.ffi.jsnull``."""

    def __bool__(self) -> bool:
        return False


class JsException(Exception):
    """What a rejected promise raises."""


class Promise:
    """Awaitable, but no coroutine; it is settled by the event loop."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value = value
        self._error = error

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        if self._error is not None:
            raise self._error
        return self._value


class Namespace:
    """A binding with one value per key."""

    def __init__(self, null: Any = None) -> None:
        self.null = null
        self.values: dict[str, Any] = {}
        self.puts: list[tuple[str, str, dict[str, Any]]] = []
        self.error: Exception | None = None

    def get(self, key: str) -> Promise:
        return Promise(self.values.get(key, self.null), self.error)

    def put(self, key: str, value: str, **options: Any) -> Promise:
        self.puts.append((key, value, options))
        self.values[key] = value
        return Promise(self.null, self.error)
