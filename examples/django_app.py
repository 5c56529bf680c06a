"""Django in one file, for WSGI and for ASGI. README.md has the commands."""

from __future__ import annotations

import json
import sys

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from zae_limiter import Limit
from zae_limiter.web import Identity, Request, Rule, lease_of
from zae_limiter.web.asgi import RateLimitMiddleware as AsgiRateLimitMiddleware
from zae_limiter.web.wsgi import RateLimitMiddleware as WsgiRateLimitMiddleware

settings.configure(
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="for this example only",
    WSGI_APPLICATION=f"{__name__}.wsgi",
)

TOKENS = {"Bearer tok-ann": "ann", "Bearer tok-bob": "bob"}
"""Who has which token. Yours are in a database."""
ESTIMATE = 50
"""Words that a summary is expected to read."""


def signed_in(request: Request) -> Identity | None:
    """The user; None, and so the address, for who is not signed in. Django's own users are known only further in."""
    user = TOKENS.get(request.header("authorization") or "")
    return Identity.user(user) if user else None


RULES = [
    Rule("/health", exempt=True),
    Rule(
        ["/summaries", "/async/summaries"],
        methods=["POST"],
        key=signed_in,
        resource="summaries",
        limits=[Limit.per_minute("rpm", 3), Limit.per_minute("words", 500)],
        cost={"rpm": 1, "words": ESTIMATE},
    ),
    Rule(key=signed_in, limits=[Limit.per_minute("rpm", 60)]),
]


def health(request: HttpRequest) -> JsonResponse:
    """For the load balancer, which asks as often as it likes."""
    return JsonResponse({"status": "ok"})


def summary(request: HttpRequest) -> JsonResponse:
    """For WSGI: the first three words; every word that had to be read is charged."""
    words = _words(request)
    lease_of(request).settle(words=len(words))
    return _summarised(words)


async def summary_async(request: HttpRequest) -> JsonResponse:
    """The same for ASGI, where a lease is awaited."""
    words = _words(request)
    await lease_of(request).settle(words=len(words))
    return _summarised(words)


def _words(request: HttpRequest) -> list[str]:
    return str(json.loads(request.body)["text"]).split()


def _summarised(words: list[str]) -> JsonResponse:
    return JsonResponse({"summary": " ".join(words[:3]), "words": len(words)})


urlpatterns = [path("health", health), path("summaries", summary), path("async/summaries", summary_async)]

# In memory every process counts by itself: with several, give "sqlite:///limits.db" or "redis://...".
wsgi = WsgiRateLimitMiddleware(get_wsgi_application(), "memory://", rules=RULES)
asgi = AsgiRateLimitMiddleware(get_asgi_application(), "memory://", rules=RULES)

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
