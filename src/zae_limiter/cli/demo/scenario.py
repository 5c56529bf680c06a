"""The scenario of the demo: an organisation, two projects, four API keys, and their traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.limit import Limit

if TYPE_CHECKING:
    from ...sync import SyncRateLimiter

RESOURCE = "gpt-4"
ESTIMATE = 400
"""Tokens charged for a call before anybody knows what it uses."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The calls of one key: a rate, all the time or in bursts of ``on`` every ``cycle`` seconds."""

    calls_per_second: float
    on: float = 1.0
    cycle: float = 1.0


@dataclass(frozen=True, slots=True)
class Party:
    """One entity of the demo."""

    id: str
    label: str
    """Its id and its place in the tree."""
    parent_id: str | None
    limits: tuple[Limit, Limit]
    traffic: Traffic | None = None


def _limits(rpm: int, calls: int, tpm: int, tokens: int) -> tuple[Limit, Limit]:
    return Limit.per_minute("rpm", rpm, burst=calls), Limit.per_minute("tpm", tpm, burst=tokens)


_KEY = _limits(120, 6, 48_000, 2_500)
_PROJECT = _limits(200, 10, 78_000, 4_000)

PARTIES: tuple[Party, ...] = (
    Party("acme", "acme", None, _limits(360, 14, 120_000, 6_000)),
    Party("chat", "├ chat", "acme", _PROJECT),
    Party("web", "│ ├ web", "chat", _KEY, Traffic(1.8)),
    Party("mobile", "│ └ mobile", "chat", _KEY, Traffic(1.1)),
    Party("batch", "└ batch", "acme", _PROJECT),
    Party("etl", "  ├ etl", "batch", _KEY, Traffic(7.0, on=1.2, cycle=4.0)),
    Party("evals", "  └ evals", "batch", _KEY, Traffic(1.0)),
)
"""Parents come before their children, siblings together: the order of the tree."""

BY_ID = {party.id: party for party in PARTIES}
KEYS = tuple(party for party in PARTIES if party.traffic is not None)


def chain(key_id: str) -> tuple[Party, ...]:
    """Return who is charged for a call of a key: itself and all above it."""
    found = [BY_ID[key_id]]
    while found[-1].parent_id is not None:
        found.append(BY_ID[found[-1].parent_id])
    return tuple(found)


def install(limiter: SyncRateLimiter) -> None:
    """Create all entities. Keys use the limits of the resource; those above have their own."""
    limiter.set_resource_defaults(RESOURCE, _KEY, principal="demo")
    for party in PARTIES:
        limiter.create_entity(party.id, None, party.parent_id, party.parent_id is not None, None, "demo")
        if party.traffic is None:
            limiter.set_limits(party.id, party.limits, RESOURCE, principal="demo")
