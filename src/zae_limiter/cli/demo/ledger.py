"""The log of grants, refusals and returns, per entity and limit."""

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
        """The tokens that the calls really used."""
        return self.estimated - self.refunded + self.overshot

    def at_most(self, elapsed_ms: int) -> float:
        """Return what the limit allows in this time, starting with a full bucket."""
        return self.limit.capacity + self.limit.refill_amount * elapsed_ms / (self.limit.refill_period_seconds * 1000)

    def tightest_window(self) -> Finding | None:
        """Return the window that came nearest to the limit, or None."""
        return examine(self.limit, self.log)


class Ledger:
    """The accounts of all entities. A call is entered for its key and for all above it."""

    def __init__(self) -> None:
        self.accounts = {
            (party.id, limit.name): Account(party.id, limit) for party in PARTIES for limit in party.limits
        }

    def grant(self, call: int, key_id: str, cost: Mapping[str, int], before_ms: int, after_ms: int) -> None:
        """Enter a granted call."""
        for party in chain(key_id):
            for name, tokens in cost.items():
                account = self.accounts[party.id, name]
                account.granted += 1
                account.estimated += tokens
                account.log.append(Entry(before_ms, after_ms, call, tokens))

    def settle(self, call: int, key_id: str, change: Mapping[str, int], before_ms: int, after_ms: int) -> None:
        """Enter what a call used more (positive) or less (negative) than its estimate."""
        for party in chain(key_id):
            for name, tokens in change.items():
                account = self.accounts[party.id, name]
                account.overshot += max(0, tokens)
                account.refunded += max(0, -tokens)
                account.log.append(Entry(before_ms, after_ms, call, tokens))

    def refuse(self, entity_id: str, limit_name: str) -> None:
        """Enter a refusal by a limit."""
        self.accounts[entity_id, limit_name].refused += 1
