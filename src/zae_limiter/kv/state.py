"""A bucket as the text that is stored: ``{"tokens":9,"lastRefill":1800000000000,"capacity":10}``.

A TypeScript worker of the same design reads what is written here, and what its ``JSON.stringify`` writes is read here.
Both ignore unknown members, so that a newer worker does not switch the limiter off: such a worker ignores ``carry``,
which is written only if it is not 0.
"""

from __future__ import annotations

import json
from typing import Any

from ..core.errors import CorruptRecordError, ValidationError
from .bucket import TokenBucket

_MEMBERS = {"tokens": "tokens", "lastRefill": "last_refill_ms", "capacity": "capacity", "carry": "carry"}
_LONGEST = 256
"""Characters; a state has about a hundred, and nothing longer is worth parsing."""


class CorruptStateError(CorruptRecordError):
    """The record under a client's key is not a bucket; ``reason`` says why, ``excerpt`` shows its beginning."""

    _made_from = ("reason", "excerpt")

    def __init__(self, reason: str, excerpt: str) -> None:
        super().__init__(f"not a bucket: {reason}")
        self.reason = reason
        self.excerpt = excerpt


def encode(bucket: TokenBucket) -> str:
    """Return the text of a bucket, as ``JSON.stringify`` writes it."""
    members = {name: getattr(bucket, attribute) for name, attribute in _MEMBERS.items()}
    if not bucket.carry:
        del members["carry"]
    return json.dumps(members, separators=(",", ":"))


def decode(state: object) -> TokenBucket:
    """Return the bucket of a text. Raises `CorruptStateError` if it is not one."""
    excerpt = repr(state[:80]) if isinstance(state, str | bytes) else type(state).__name__
    try:
        if not isinstance(state, str | bytes):
            raise ValueError(f"not a text but {type(state).__name__}")
        if len(state) > _LONGEST:
            raise ValueError(f"{len(state)} characters long")
        members = json.loads(state if isinstance(state, str) else state.decode())
        if not isinstance(members, dict):
            raise ValueError("not an object")
        members = {"carry": 0, **members}
        return TokenBucket(**{attribute: _read_number(members, name) for name, attribute in _MEMBERS.items()})
    except ValidationError as error:
        raise CorruptStateError(f"{error.field} {error.reason}", excerpt) from None
    except ValueError as error:
        raise CorruptStateError(str(error), excerpt) from None


def _read_number(members: dict[str, Any], name: str) -> Any:
    """Return a number of JavaScript, which does not tell ``3.0`` from ``3``; the bucket refuses anything else."""
    if name not in members:
        raise ValueError(f"lacks {name}")
    value = members[name]
    return int(value) if isinstance(value, float) and value.is_integer() else value
