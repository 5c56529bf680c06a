"""An API in FastAPI behind the middleware, and what of its limits is left."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from tests.web.drive import PEER, Call, Reply, call_asgi
from zae_limiter import Limit, RateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import asgi

RPM = Limit.per_day("rpm", 2)
TPM = Limit.per_day("tpm", 1_000)
COST = {"rpm": 1, "tpm": 100}
IP = f"ip:{PEER}"


class Prompt(BaseModel):
    """A body."""

    text: str
    most: int = 5


class Api:
    """An app with the middleware, and what is left on its store."""

    def __init__(self, **options: Any) -> None:
        self.limiter = RateLimiter(MemoryStore(ManualClock()))
        self.app = FastAPI()
        self.app.add_middleware(asgi.RateLimitMiddleware, limiter=self.limiter, **options)

    def ask(self, path: str = "/chat", method: str = "POST", body: Any = None, **fields: Any) -> Reply:
        """One request with a JSON body; what the app raises fails the test."""
        sent = b"" if body is None else json.dumps(body).encode()
        headers = [("content-type", "application/json"), *fields.pop("headers", ())]
        reply = asyncio.run(call_asgi(self.app, Call(path, method, headers, body=sent, **fields)))
        if reply.error is not None:
            raise reply.error
        return reply

    def left(self, resource: str = "chat", *limits: Limit, who: str = IP) -> dict[str, int]:
        """A balance."""
        return asyncio.run(self.limiter.available(who, resource, limits=limits or (RPM, TPM)))


def check_limited(api: Api, spent: int, **fields: Any) -> None:
    """Two requests pass, the third is refused, and each that passed has cost ``spent`` tokens."""
    replies = [api.ask(**fields) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429], [reply.body for reply in replies]
    assert [(reply.header("ratelimit") or "").split(";t=")[0] for reply in replies] == [
        f'"rpm";r={r}' for r in (1, 0, 0)
    ]
    assert replies[2].problem()["violated-policies"] == ["rpm"]
    assert api.left() == {"rpm": 0, "tpm": 1_000 - 2 * spent}
