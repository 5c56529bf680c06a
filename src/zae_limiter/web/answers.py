"""Answers to requests that are not served: problem details that name policies and never an entity.

The members ``error`` and ``message`` are in every body, for people; programs go by ``type``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING

from ..core.bucket import MILLI
from .fields import Fields
from .profiles import choose_tightest, merge_names, round_up_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .profiles import LimitView, Line

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
COST_ABOVE_CAPACITY = "urn:problem-type:zae-limiter:cost-above-capacity"
SEVERAL_KEYS = "urn:problem-type:zae-limiter:several-keys"

_CONTENT_TYPE = ("Content-Type", "application/problem+json")
_NO_STORE = ("Cache-Control", "no-store")
_REFUSAL_START = (
    f'{{"type":"{QUOTA_EXCEEDED}","title":"Request cannot be satisfied as assigned quota has been exceeded",'
    '"status":429,"violated-policies":['
)
_REFUSAL_MIDDLE = '],"error":"Rate Limit Exceeded","message":"Too many requests. Please try again later.","retryAfter":'

_quote = lru_cache(1024)(encode_basestring_ascii)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response, ready to be sent by any server: its ``status``, its ``headers`` and its ``body``."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def quota_exceeded(views: Sequence[LimitView], now_ms: int, fields: Fields, retry_in_ms: int = 0) -> Answer:
    """Return the 429: not yet. It says when to come again, the same in the header and in the body.

    ``retry_in_ms`` is the wait of the refusal as a whole, which may come from a level that is not in ``views``.
    """
    views = merge_names(views)
    names, limits, violated = [], [], []
    for view in views:
        name, limit, remaining, _, retry = view
        quoted, seconds = _quote(name), 0
        if retry is not None:
            names.append(quoted)
            violated.append(view)
            seconds = round_up_seconds(retry)
        limits.append(f'{{"name":{quoted},"limit":{limit.capacity},"remaining":{remaining},"retry_after":{seconds}}}')
    members = ""
    if violated:
        longest = choose_tightest(violated)
        retry_in_ms = max(retry_in_ms, longest.retry_in_ms or 0)
        members = f'"limit":{longest.limit.capacity},"remaining":{longest.remaining},'
    wait_ms = fields.wait(retry_in_ms)
    retry_after = round_up_seconds(wait_ms)
    body = (
        f"{_REFUSAL_START}{','.join(names)}{_REFUSAL_MIDDLE}{retry_after},{members}"
        f'"resetTime":{now_ms + wait_ms},"limits":[{",".join(limits)}]}}'
    )
    lines = fields.lines(views, now_ms, retry_after, wait_ms)
    return _make_answer(429, body, ("Retry-After", str(retry_after)), *lines)


def cost_above_capacity(name: str | None, capacity: int | None, requested: int) -> Answer:
    """Return the 413: never, so there is no ``Retry-After``.

    ``name`` and ``capacity`` are of the limit that is too small; None where clients are not told of it.
    """
    cost = f"{requested}, above the maximum" if name is None else f"{requested} {name}, above the maximum {capacity}"
    message = f"The request costs {cost}; retrying will not help. Send a smaller request."
    title = "Request costs more than its limit can ever hold"
    problem = _describe_problem(413, title, message, COST_ABOVE_CAPACITY)
    limit = {} if name is None else {"limit": capacity}
    problem |= {"violated-policies": [] if name is None else [name], "error": "Cost Above Capacity", "message": message}
    return _make_answer(413, problem | limit | {"requested": requested})


def several_keys() -> Answer:
    """Return the 400: nobody can say whose tokens the request takes. It says nothing of the keys."""
    message = "The request carries several API keys. Send one."
    problem = _describe_problem(400, "Request carries several API keys", message, SEVERAL_KEYS)
    return _make_answer(400, problem | {"error": "Several API Keys", "message": message})


def path_too_long(longest: int) -> Answer:
    """Return the 414: the path is longer than what is compared with rules."""
    message = f"The path of the request has more than {longest} characters. Send a shorter one."
    problem = _describe_problem(414, "URI Too Long", message)
    return _make_answer(414, problem | {"error": "URI Too Long", "message": message})


def unavailable(retry_after_s: int = 5, fields: Fields | None = None) -> Answer:
    """Return the 503: the store did not answer. It is no refusal and says nothing of any limit."""
    fields = fields or Fields("none")
    retry_after = fields.retry_after(retry_after_s * MILLI)
    message = "Rate limiting is temporarily unavailable. Please try again later."
    problem = _describe_problem(503, "Service Unavailable", message)
    problem |= {"error": "Service Unavailable", "message": message, "retryAfter": retry_after}
    lines = fields.lines((), 0, retry_after)  # no limit is told, so no instant either
    return _make_answer(503, problem, ("Retry-After", str(retry_after)), *lines)


def _describe_problem(status: int, title: str, message: str, kind: str = "about:blank") -> dict[str, object]:
    return {"type": kind, "title": title, "status": status, "detail": message}


def _make_answer(status: int, body: str | dict[str, object], *lines: Line) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
    data = text.encode("ascii")
    return Answer(status, (_CONTENT_TYPE, ("Content-Length", str(len(data))), _NO_STORE, *lines), data)
