"""The gateway. A call takes 1 of ``rpm`` and an estimate of ``tpm``, and is charged what the model has produced."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from zae_limiter import Lease, Limit, RateLimiter
from zae_limiter.web import Fields, Rule
from zae_limiter.web.asgi import RateLimitMiddleware, acquire

from . import model as models
from .accounts import entity_of, seed

LEVELS = ("key", "project", "organisation")
ModelName = Literal["small", "large"]
"""A name that clients could invent would be a fresh bucket for each invention."""

GUESSES = Rule(resource="guesses", limits=[Limit.per_minute("guesses", 5)], count="failures", failures=(401,))
"""Wrong keys are counted by address, and never against anybody's key.

A key is looked up only if the address has a guess left, so who has guessed too often learns nothing more, not even from
a right key. A right key takes no guess, not even while it is looked up.
"""


class Message(BaseModel):
    """One turn of a conversation."""

    role: str
    content: str


class Chat(BaseModel):
    """What a client asks for."""

    model: ModelName
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=4_000)] = 200
    stream: bool = False


def create_app(limiter: RateLimiter | None = None, model: models.Model = models.echo) -> FastAPI:
    """The gateway on a limiter; without one, on the store that $ZAE_LIMITER_URL names, else memory."""
    opened = limiter or RateLimiter()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened:
            await seed(opened)
            yield

    app = FastAPI(title="Gateway", lifespan=lifespan)
    app.state.limiter, app.state.model = opened, model
    headers = Fields(("ietf", "openai"), levels=("", *LEVELS[1:]), show_parents=True)
    app.add_middleware(RateLimitMiddleware, limiter=opened, rules=[GUESSES], headers=headers)
    app.get("/v1/limits")(limits)
    app.post("/v1/chat/completions")(chat)
    return app


async def authenticated(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))],
) -> str:
    """The entity of the key that a request carries."""
    entity_id = await entity_of(request.app.state.limiter, credentials.credentials) if credentials else None
    if entity_id is None:
        raise HTTPException(401, "Unknown API key.", {"WWW-Authenticate": "Bearer"})
    return entity_id


Caller = Annotated[str, Depends(authenticated)]


async def limits(request: Request, caller: Caller, model: ModelName = "small") -> list[dict[str, Any]]:
    """Where a key stands, up to its organisation."""
    rows = await request.app.state.limiter.get_status(caller, model)
    entities = list(dict.fromkeys(row.entity_id for row in rows))
    return [
        {
            "level": LEVELS[entities.index(row.entity_id)],
            "name": row.limit_name,
            "limit": row.capacity,
            "remaining": row.available,
        }
        for row in rows
    ]


async def chat(request: Request, caller: Caller, body: Chat) -> Response:
    """Complete a chat. Until the first token is made, the prompt is all that has been used."""
    prompt = "\n".join(message.content for message in body.messages)
    estimate = models.estimate(prompt, body.max_tokens)
    lease = await acquire(request, caller, body.model, {"rpm": 1, "tpm": estimate})
    await lease.settle(tpm=models.count(prompt))
    tokens = metered(lease, request.app.state.model(prompt, body.max_tokens))
    if body.stream:
        return StreamingResponse(events(body.model, tokens), media_type="text/event-stream")
    made = [token async for token in tokens]
    return JSONResponse(completion(body.model, models.count(prompt), made))


async def metered(lease: Lease, tokens: AsyncIterator[str]) -> AsyncIterator[str]:
    """Each token is charged as it is made, so a client who leaves has paid for what there was, and no more.

    An adjustment is only noted; what was noted by the end of the response is written once.
    """
    async for token in tokens:
        await lease.adjust(tpm=1)
        yield token


async def events(model: str, tokens: AsyncIterator[str]) -> AsyncIterator[str]:
    """The tokens as server-sent events."""
    async for token in tokens:
        chunk = {"object": "chat.completion.chunk", "model": model, "choices": [{"delta": {"content": token}}]}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def completion(model: str, prompt_tokens: int, made: list[str]) -> dict[str, Any]:
    """The tokens as one answer."""
    message = {"role": "assistant", "content": "".join(made).strip()}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(made), "total_tokens": prompt_tokens + len(made)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}
