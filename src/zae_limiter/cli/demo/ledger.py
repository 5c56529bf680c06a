"""The log of what was granted, refused and given back, per entity and limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .oracle import Entry, Finding, examine
from .scenario import PARTIES, chain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...core.limit import Limit


@dataclass(slots=True)
class Account:
    """One limit of one entity."""

    entity_id: str
    limit: Limit
    log: list[Entry] = field(default_factory=list)
    granted: int = 0
    refused: int = 0
    estimated: int = 0
    refunded: int = 0
    overshot: int = 0

    @property
    def used(self) -> int:
        """What the calls really used."""
        return self.estimated - self.refunded + self.overshot

    def at_most(self, elapsed_ms: int) -> float:
        """What the limit allows in so much time, beginning with a full bucket."""
        return self.limit.capacity + self.limit.refill_amount * elapsed_ms / (self.limit.refill_period_seconds * 1000)

    def finding(self) -> Finding | None:
        """What the oracle says."""
        return examine(self.limit, self.log)


class Ledger:
    """The accounts of everybody; a call is written into those of its key and of all above it."""

    def __init__(self) -> None:
        self.accounts = {
            (party.id, limit.name): Account(party.id, limit) for party in PARTIES for limit in party.limits
        }

    def grant(self, call: int, key_id: str, cost: Mapping[str, int], before_ms: int, after_ms: int) -> None:
        """A call was let through."""
        for party in chain(key_id):
            for name, tokens in cost.items():
                account = self.accounts[party.id, name]
                account.granted += 1
                account.estimated += tokens
                account.log.append(Entry(before_ms, after_ms, call, tokens))

    def settle(self, call: int, key_id: str, change: Mapping[str, int], before_ms: int, after_ms: int) -> None:
        """A call used more (positive) or less (negative) than its estimate."""
        for party in chain(key_id):
            for name, tokens in change.items():
                account = self.accounts[party.id, name]
                account.overshot += max(0, tokens)
                account.refunded += max(0, -tokens)
                account.log.append(Entry(before_ms, after_ms, call, tokens))

    def refuse(self, entity_id: str, limit_name: str) -> None:
        """A limit said no."""
        self.accounts[entity_id, limit_name].refused += 1
