"""What counts as public when the types are checked, and what is said of a type that is not complete."""

from __future__ import annotations

from importlib import import_module, resources
from typing import Any

import pytest
from tools.public_types import documented, incomplete, is_public

MODULES = {"zae_limiter", "zae_limiter.kv", "zae_limiter.kv.bucket", "zae_limiter.web", "zae_limiter.web.asgi"}
SHOWN = {"zae_limiter.kv", "zae_limiter.web.asgi.Middleware"}


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("zae_limiter.RateLimiter", True),
        ("zae_limiter.RateLimiter.acquire", True),
        ("zae_limiter.kv.TokenBucket", True),
        ("zae_limiter.kv.TokenBucket.take", True),
        ("zae_limiter.kv.bucket.TokenBucket", False),
        ("zae_limiter.web.asgi.Middleware", True),
        ("zae_limiter.web.asgi.Middleware.__init__", True),
        ("zae_limiter.web.asgi.MiddlewareOfOurs", False),
        ("zae_limiter.web.Rule", False),
    ],
)
def test_public_is_what_the_package_exports_and_what_the_reference_shows(name: str, public: bool) -> None:
    assert is_public(name, SHOWN, MODULES) is public


def test_what_the_reference_shows_exists() -> None:
    for optional in ("fastapi", "opentelemetry"):
        pytest.importorskip(optional)
    shown = documented()
    assert "zae_limiter.limiter.limiter.RateLimiter" in shown
    for name in shown:
        module, _, last = name.rpartition(".")
        assert hasattr(import_module(module), last) or import_module(name)


def symbol(name: str, *messages: str, known: bool = False, other: str = "") -> dict[str, Any]:
    found = [{"file": "lease.py", "range": {"start": {"line": 7}}, "message": message} for message in messages]
    return {"name": name, "isTypeKnown": known, "alternateNames": [other] if other else [], "diagnostics": found}


def test_only_what_is_missing_in_public_types_is_told() -> None:
    symbols = [
        symbol("zae_limiter.Limit", known=True),
        symbol("zae_limiter.Lease"),
        symbol("zae_limiter.web.asgi.Channel.left", "missing annotation"),
        symbol("zae_limiter.kv.bucket.TokenBucket", "missing\n  annotation", other="zae_limiter.kv.TokenBucket"),
    ]
    report = {"typeCompleteness": {"modules": [{"name": name} for name in MODULES], "symbols": symbols}}
    assert list(incomplete(report, SHOWN)) == [
        "zae_limiter.Lease: its type is not known",
        "lease.py:8: zae_limiter.kv.bucket.TokenBucket: missing annotation",
    ]


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("zae_limiter").joinpath("py.typed").is_file()
