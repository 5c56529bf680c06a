"""A bucket as the text that is stored: ``{"tokens":9,"lastRefill":1800000000000,"capacity":10}``.

A TypeScript worker of the same design reads what is written here, and what its ``JSON.stringify`` writes is read here.
Members that nobody here knows are ignored, as they are there: a newer worker must not switch the limiter off. So such
a worker ignores ``carry``, which is written only where it is not 0.
"""

from __future__ import annotations

import json
from typing import Any

from ..core.errors import CorruptRecordError, ValidationError
from .bucket import TokenBucket

_MEMBERS = {"tokens": "tokens", "lastRefill": "last_refill_ms", "capacity": "capacity"}
_CARRY = "carry"
_LONGEST = 256
"""Characters; a state has about a hundred, and nothing longer is worth parsing."""


class CorruptStateError(CorruptRecordError):
    """What is stored under a client's key is no bucket."""

    def __init__(self, reason: str, excerpt: str) -> None:
        super().__init__(f"no bucket: {reason}")
        self.reason = reason
        self.excerpt = excerpt

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.excerpt)


def encode(bucket: TokenBucket) -> str:
    """The text of a bucket, as ``JSON.stringify`` writes it."""
    members = {name: getattr(bucket, attribute) for name, attribute in _MEMBERS.items()}
    if bucket.carry:
        members[_CARRY] = bucket.carry
    return json.dumps(members, separators=(",", ":"))


def decode(state: object) -> TokenBucket:
    """The bucket that a text says; `CorruptStateError` if it says anything else."""
    try:
        members = json.loads(_text(state))
        if not isinstance(members, dict):
            raise ValueError("not an object")
        known = {attribute: _whole(members, name) for name, attribute in _MEMBERS.items()}
        return TokenBucket(**known, carry=_whole({_CARRY: 0, **members}, _CARRY))
    except ValidationError as error:
        raise CorruptStateError(f"{error.field} {error.reason}", _excerpt(state)) from None
    except ValueError as error:
        raise CorruptStateError(str(error), _excerpt(state)) from None


def _excerpt(state: object) -> str:
    return repr(state[:80]) if isinstance(state, str | bytes) else type(state).__name__


def _text(state: object) -> str:
    if not isinstance(state, str | bytes):
        raise ValueError(f"not a text but {type(state).__name__}")
    if len(state) > _LONGEST:
        raise ValueError(f"{len(state)} characters long")
    return state if isinstance(state, str) else state.decode()


def _whole(members: dict[str, Any], name: str) -> Any:
    """A number of JavaScript, which does not tell ``3.0`` from ``3``; what is none is left to the bucket to refuse."""
    if name not in members:
        raise ValueError(f"lacks {name}")
    value = members[name]
    return int(value) if isinstance(value, float) and value.is_integer() else value
