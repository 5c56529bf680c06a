"""What of a policy never changes between two responses, and the shape of a profile made from it.

A profile is compiled: it takes the policies of a response once and returns a `Writer`, which has only numbers left to
fill in. Responses of one rule share their policies, so writers are kept and a response costs little more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ...core.limit import Limit
    from .standing import Standing

REQUESTS = "requests"
TOKENS = "tokens"

Line: TypeAlias = tuple[str, str]


class Policy(NamedTuple):
    """One limit as its clients know it, without its balance."""

    place: int
    """Where its standing is among those of the response."""
    name: str
    limit: Limit
    unit: str
    listed: bool
    """Whether the IETF pair names it."""
    burst: str
    """The parameter that tells a capacity which is not the rate, with its semicolon; empty if they are the same."""


class Wait(NamedTuple):
    """How long a refused client is asked to stay away: ``seconds`` are ``ms``, rounded up."""

    seconds: int
    ms: int


Writer: TypeAlias = "Callable[[Sequence[Standing], int, Wait | None], list[Line]]"
"""``(standings, now_ms, wait)`` to header lines; the wait is there if and only if the request was refused."""

Profile: TypeAlias = Callable[[Sequence[Policy]], Writer]


def silent(standings: Sequence[Standing], now_ms: int, wait: Wait | None) -> list[Line]:
    """The writer that has nothing to say."""
    return []
