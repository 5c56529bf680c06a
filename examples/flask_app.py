"""Flask, with a limit for who signs in and limits per user. README.md has the commands."""

from __future__ import annotations

from flask import Flask, request

from zae_limiter import Limit
from zae_limiter.web import Identity, Request, Rule, lease_of
from zae_limiter.web.wsgi import RateLimitMiddleware

TOKENS = {"Bearer tok-ann": "ann", "Bearer tok-bob": "bob"}
"""Who has which token. Yours are in a database."""
PASSWORD = "for this example only"
ESTIMATE = 50
"""Words that a summary is expected to read."""


def signed_in(request: Request) -> Identity | None:
    """The user; None, and so the address, for who is not signed in."""
    user = TOKENS.get(request.header("authorization") or "")
    return Identity.user(user) if user else None


RULES = [
    Rule("/health", exempt=True),
    # by address, as nobody is signed in yet; a right password costs nothing
    Rule("/login", methods=["POST"], limits=[Limit.per_minute("attempts", 3)], count="failures", failures=(401,)),
    Rule(
        "/summaries",
        methods=["POST"],
        key=signed_in,
        limits=[Limit.per_minute("rpm", 3), Limit.per_minute("words", 500)],
        cost={"rpm": 1, "words": ESTIMATE},
    ),
    Rule(key=signed_in, limits=[Limit.per_minute("rpm", 60)]),
]

app = Flask(__name__)
# In memory every process counts by itself: with several, give "sqlite:///limits.db" or "redis://...".
app.wsgi_app = RateLimitMiddleware(app.wsgi_app, "memory://", rules=RULES)  # type: ignore[method-assign]  # Flask's own way


@app.get("/")
def index() -> dict[str, str]:
    """Something for everybody."""
    return {"hello": "world"}


@app.get("/health")
def health() -> dict[str, str]:
    """For the load balancer, which asks as often as it likes."""
    return {"status": "ok"}


@app.post("/login")
def login() -> tuple[dict[str, str], int]:
    """Whoever has guessed wrong too often is refused before this, also with the right password."""
    if request.form.get("password") == PASSWORD:
        return {"hello": "ann"}, 200
    return {"error": "wrong password"}, 401


@app.post("/summaries")
def summary() -> dict[str, object]:
    """The first three words; every word that had to be read is charged."""
    words = str(request.get_json()["text"]).split()
    lease_of(request).settle(words=len(words))
    return {"summary": " ".join(words[:3]), "words": len(words)}
