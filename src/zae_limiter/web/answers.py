"""Answers to requests that are not served: problem details that name policies and never an entity.

The members ``error`` and ``message`` are in every body, for people; programs go by ``type``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

from ..core.production import MILLI
from .fields import Fields
from .profiles import LimitView, Line, choose_tightest, merge_names

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
COST_ABOVE_CAPACITY = "urn:problem-type:zae-limiter:cost-above-capacity"
SEVERAL_KEYS = "urn:problem-type:zae-limiter:several-keys"
DISABLED = "urn:problem-type:zae-limiter:disabled"

_CONTENT_TYPE = ("Content-Type", "application/problem+json")
_NO_STORE = ("Cache-Control", "no-store")
_REFUSAL_START = (
    f'{{"type":"{QUOTA_EXCEEDED}","title":"Request cannot be satisfied as assigned quota has been exceeded",'
    '"status":429,"violated-policies":['
)
_REFUSAL_MIDDLE = '],"error":"Rate Limit Exceeded","message":"Too many requests. Please try again later.","retryAfter":'
_AT_LATEST = '"at_latest":true,'
"""The member that says that it may fit earlier than ``retryAfter``: when one of the calls in flight is done."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response, ready to be sent by any server: its ``status``, its ``headers`` and its ``body``."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def quota_exceeded(
    views: Sequence[LimitView], now_ms: int, fields: Fields, retry_in_ms: int = 0, hidden: Sequence[str] = ()
) -> Answer:
    """Return the 429: not yet. It says when to come again, the same in the header and in the body.

    ``retry_in_ms`` is the wait of the refusal as a whole, which may come from a level that is not in ``views``.
    ``hidden``: the names of limits that refused there. Where slots decide when that is, the body says that it is the
    latest moment.
    """
    views = merge_names(views)
    names, limits, violated = [], [], []
    for view in views:
        name, limit, remaining, _, retry, in_flight = view
        quoted, entry = _start_entry(name, limit.capacity)
        seconds = 0
        if retry is not None:
            names.append(quoted)
            violated.append(view)
            seconds = -(-retry // MILLI) if retry > 0 else 1  # as `round_up_seconds`
        held = "" if in_flight is None else f',"in_flight":{in_flight}'
        limits.append(f'{entry}{remaining},"retry_after":{seconds}{held}}}')
    members = ""
    if violated:
        _, limit, remaining, _, retry, in_flight = choose_tightest(violated)
        members = f'"limit":{limit.capacity},"remaining":{remaining},'
        if in_flight is not None and (retry or 0) >= retry_in_ms:
            members += _AT_LATEST
        retry_in_ms = max(retry_in_ms, retry or 0)
    names += map(encode_basestring_ascii, hidden)
    wait_ms = fields.wait(retry_in_ms)
    retry_after = -(-wait_ms // MILLI)
    body = (
        f"{_REFUSAL_START}{','.join(names)}{_REFUSAL_MIDDLE}{retry_after},{members}"
        f'"resetTime":{now_ms + wait_ms},"limits":[{",".join(limits)}]}}'
    ).encode("ascii")
    lines = fields.lines(views, now_ms, retry_after, wait_ms)
    length, wait = ("Content-Length", str(len(body))), ("Retry-After", str(retry_after))
    return Answer(429, (_CONTENT_TYPE, length, _NO_STORE, wait, *lines), body)


@lru_cache(1024)
def _start_entry(name: str, capacity: int) -> tuple[str, str]:
    """Return the name of a policy in JSON, and its entry in the list of limits up to what remains."""
    quoted = encode_basestring_ascii(name)
    return quoted, f'{{"name":{quoted},"limit":{capacity},"remaining":'


def cost_above_capacity(name: str | None, capacity: int | None, requested: int) -> Answer:
    """Return the 413: never, so there is no ``Retry-After``.

    ``name`` and ``capacity`` are of the limit that is too small; None if clients are not told them. Without a name
    the capacity is not told either.
    """
    capacity = None if name is None else capacity
    most = "the maximum" if capacity is None else f"the maximum {capacity}"
    cost = f"{requested}, above {most}" if name is None else f"{requested} {name}, above {most}"
    message = f"The request costs {cost}; retrying will not help. Send a smaller request."
    title = "Request costs more than its limit can ever hold"
    members = {"violated-policies": [] if name is None else [name], "limit": capacity, "requested": requested}
    return _make_answer(413, "Cost Above Capacity", message, type=COST_ABOVE_CAPACITY, title=title, **members)


def several_keys() -> Answer:
    """Return the 400: it is ambiguous whose tokens the request takes. It says nothing of the keys."""
    message, title = "The request carries several API keys. Send one.", "Request carries several API keys"
    return _make_answer(400, "Several API Keys", message, type=SEVERAL_KEYS, title=title)


def disabled() -> Answer:
    """Return the 403: requests are switched off, so there is no ``Retry-After``. It says nothing of whom."""
    message, title = "Requests of this kind are disabled. Ask whoever runs the service.", "Requests are disabled"
    return _make_answer(403, "Disabled", message, type=DISABLED, title=title)


def path_too_long(longest: int) -> Answer:
    """Return the 414: the path is longer than what is compared with rules."""
    message = f"The path of the request has more than {longest} characters. Send a shorter one."
    return _make_answer(414, "URI Too Long", message)


def unavailable(retry_after_s: int = 5, fields: Fields | None = None) -> Answer:
    """Return the 503: the store did not answer. It is no refusal and says nothing of any limit."""
    fields = fields or Fields("none")
    retry_after = fields.retry_after(retry_after_s * MILLI)
    message = "Rate limiting is temporarily unavailable. Please try again later."
    lines = fields.lines((), 0, retry_after)  # no limit is told, so no instant either
    wait = ("Retry-After", str(retry_after))
    return _make_answer(503, "Service Unavailable", message, wait, *lines, retryAfter=retry_after)


def _make_answer(status: int, error: str, message: str, *lines: Line, **members: Any) -> Answer:
    """Return problem details as an answer; ``members`` are more of them, or instead, and not sent if None."""
    problem = {"type": "about:blank", "title": error, "status": status, "detail": message, "violated-policies": None}
    problem |= {"error": error, "message": message, **members}
    told = {name: value for name, value in problem.items() if value is not None}
    body = json.dumps(told, separators=(",", ":")).encode("ascii")
    return Answer(status, (_CONTENT_TYPE, ("Content-Length", str(len(body))), _NO_STORE, *lines), body)
