"""What a client is told whose request is not served: problem details that name policies and never an entity.

The members ``error`` and ``message`` are in every body, for people; programs go by ``type``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.bucket import MILLI
from .fields import Fields
from .fields.standing import distinct, tightest, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .fields import Standing

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
COST_ABOVE_CAPACITY = "urn:problem-type:zae-limiter:cost-above-capacity"
SEVERAL_KEYS = "urn:problem-type:zae-limiter:several-keys"

_compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response, ready to be sent by any server."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def refused(standings: Sequence[Standing], now_ms: int, fields: Fields, retry_in_ms: int = 0) -> Answer:
    """429: not yet. Says when to come again, the same in the header and in the body.

    ``retry_in_ms`` is the wait of the refusal as a whole, which may come from a level that is not in ``standings``.
    """
    known = distinct(standings)
    violated = [standing for standing in known if standing.violated]
    wait_ms = fields.wait(max(retry_in_ms, *(standing.retry_in_ms or 0 for standing in known), 0))
    retry_after = whole_seconds(wait_ms)
    members: dict[str, Any] = {
        "type": QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": [standing.name for standing in violated],
        "error": "Rate Limit Exceeded",
        "message": "Too many requests. Please try again later.",
        "retryAfter": retry_after,
    }
    if violated:
        longest = tightest(violated)
        members |= {"limit": longest.limit.capacity, "remaining": longest.remaining}
    members |= {"resetTime": now_ms + wait_ms, "limits": [_told(standing) for standing in known]}
    lines = fields.lines(known, now_ms, retry_after, wait_ms)
    return _problem(members, [("Retry-After", str(retry_after)), *lines])


def too_large(name: str | None, capacity: int | None, requested: int) -> Answer:
    """413: never, so there is no ``Retry-After``. A limit that clients are not told of has no name and no capacity."""
    bound = ", more than a limit ever holds" if name is None else f" of {name}, which never holds more than {capacity}"
    message = f"The request needs {requested}{bound}. Waiting does not help: send a smaller request."
    members: dict[str, Any] = {
        "type": COST_ABOVE_CAPACITY,
        "title": "Request costs more than its limit can ever hold",
        "status": 413,
        "detail": message,
        "violated-policies": [] if name is None else [name],
        "error": "Cost Above Capacity",
        "message": message,
    }
    if name is not None:
        members["limit"] = capacity
    return _problem(members | {"requested": requested}, [])


def several_keys() -> Answer:
    """400: nobody can say whose tokens the request takes. It says nothing of the keys."""
    message = "The request carries several API keys. Send one."
    members: dict[str, Any] = {
        "type": SEVERAL_KEYS,
        "title": "Request carries several API keys",
        "status": 400,
        "detail": message,
        "error": "Several API Keys",
        "message": message,
    }
    return _problem(members, [])


def too_long(longest: int) -> Answer:
    """414: the path is longer than what is compared with rules."""
    message = f"The path of the request has more than {longest} characters. Send a shorter one."
    members = {
        "type": "about:blank",
        "title": "URI Too Long",
        "status": 414,
        "detail": message,
        "error": "URI Too Long",
        "message": message,
    }
    return _problem(members, [])


def unavailable(retry_after_s: int = 5, fields: Fields | None = None) -> Answer:
    """503: nobody knows, as the limiter cannot be asked. It is no refusal and says nothing of any limit."""
    told = fields or Fields("none")
    retry_after = told.retry_after(retry_after_s * MILLI)
    message = "The rate limiter cannot be asked at the moment. Please try again later."
    members = {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": message,
        "error": "Service Unavailable",
        "message": message,
        "retryAfter": retry_after,
    }
    lines = told.lines((), 0, retry_after)  # no standing, so no instant either
    return _problem(members, [("Retry-After", str(retry_after)), *lines])


def _told(standing: Standing) -> dict[str, Any]:
    retry = standing.retry_in_ms
    return {
        "name": standing.name,
        "limit": standing.limit.capacity,
        "remaining": standing.remaining,
        "retry_after": 0 if retry is None else whole_seconds(retry),
    }


def _problem(members: dict[str, Any], lines: list[tuple[str, str]]) -> Answer:
    body = _compact(members).encode("ascii")
    headers = (
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        *lines,
    )
    return Answer(members["status"], headers, body)
