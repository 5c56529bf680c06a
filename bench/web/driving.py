"""Apps driven without a server: what is left is the app and its limiter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from wsgiref.util import setup_testing_defaults

from flask import Flask
from starlette.applications import Starlette
from starlette.types import Message

from bench.timing import in_turn, quietest
from bench.web import asgi_apps, wsgi_apps

CALLS, TURNS = 100, 60


def in_process(kind: str, limit: int) -> dict[str, float]:
    """Microseconds of CPU per request, by app."""
    with asyncio.Runner() as runner:
        if kind == "asgi":
            sides = {name: _asgi(build(limit), runner) for name, build in asgi_apps.APPS.items()}
        else:
            sides = {name: _wsgi(build(limit)) for name, build in wsgi_apps.APPS.items()}
        return {name: quietest(rounds) for name, rounds in in_turn(sides, CALLS, TURNS).items()}


def _asgi(app: Starlette, runner: asyncio.Runner) -> Callable[[int], int]:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        _check(message.get("status", 200))

    async def requests(calls: int) -> int:
        for _ in range(calls):
            await app(_scope(), receive, send)
        return calls

    return lambda calls: runner.run(requests(calls))


def _scope() -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50_000),
        "scheme": "http",
        "method": "GET",
        "root_path": "",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"*/*"), (b"x-real-ip", b"8.8.8.8")],
        "state": {},
    }


def _wsgi(app: Flask) -> Callable[[int], int]:
    template: dict[str, Any] = {"REMOTE_ADDR": "127.0.0.1", "HTTP_ACCEPT": "*/*", "HTTP_X_REAL_IP": "8.8.8.8"}
    setup_testing_defaults(template)

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        _check(int(status[:3]))
        return len

    def requests(calls: int) -> int:
        for _ in range(calls):
            body = app(template.copy(), start_response)
            for _ in body:
                pass
            if hasattr(body, "close"):
                body.close()
        return calls

    return requests


def _check(status: int) -> None:
    if status != 200:
        raise RuntimeError(f"answered {status}: the limit is not to be reached here")
