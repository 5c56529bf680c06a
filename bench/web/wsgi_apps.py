"""One small Flask app, bare and behind each limiter: so many requests an hour, by address, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

from bench.web.asgi_apps import PROXIES
from zae_limiter import Limit
from zae_limiter.web.wsgi import RateLimitMiddleware

Build: TypeAlias = Callable[[int], Flask]


def hello() -> dict[str, str]:
    """All that the app does."""
    return {"hello": "world"}


def bare(limit: int) -> Flask:
    """Without a limiter."""
    app = Flask(__name__)
    app.add_url_rule("/", view_func=hello)
    return app


def ours(headers: str) -> Build:
    """Two lines, as in the README."""

    def build(limit: int) -> Flask:
        app = bare(limit)
        limits = [Limit.per_hour("rph", limit)]
        guarded = RateLimitMiddleware(app.wsgi_app, "memory://", limits=limits, headers=headers, proxies=PROXIES)
        app.wsgi_app = guarded  # type: ignore[method-assign]  # how Flask documents middleware
        return app

    return build


def flask_limiter(headers: bool) -> Build:
    """Its quick start, with a default limit for all routes."""

    def build(limit: int) -> Flask:
        app = bare(limit)
        Limiter(
            get_remote_address,
            app=app,
            default_limits=[f"{limit} per hour"],
            storage_uri="memory://",
            headers_enabled=headers,
        )
        return app

    return build


APPS: dict[str, Build] = {
    "bare": bare,
    "zae-limiter": ours("ietf"),
    "zae-limiter, no headers": ours("none"),
    "flask-limiter, headers": flask_limiter(True),
    "flask-limiter": flask_limiter(False),
}
"""By name; a rival writes no headers unless its name says so."""
