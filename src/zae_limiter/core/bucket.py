"""Names that are moving to other modules of the core."""

from __future__ import annotations

from .balances import (
    Balance as Balance,
    SlotBalance as SlotBalance,
    balance as balance,
    debit as debit,
    wait_ms as wait_ms,
)
from .production import FOR_EVER as FOR_EVER, MILLI as MILLI, Rule as Rule
from .tokens import NEVER_USED as NEVER_USED, HeldTokens as HeldTokens, Tokens as ShardBalance

ShardBalance = ShardBalance


def produced(instant_ms: int, rule: Rule) -> int:
    """Return the millitokens that the rate has made by ``instant_ms``."""
    return rule.produced(instant_ms)


def between(rule: Rule, start_ms: int, end_ms: int) -> int:
    """Return the millitokens that the rate makes from one instant to another."""
    return rule.produced_between(start_ms, end_ms)


def level(rule: Rule, tokens_milli: int, anchor_ms: int, now_ms: int) -> int:
    """Return the balance at ``now_ms``; negative means debt."""
    return rule.level(tokens_milli, anchor_ms, now_ms)


def first_instant(rule: Rule, tokens_milli: int, anchor_ms: int, cost_milli: int) -> int:
    """Return the first instant at which ``cost_milli`` fits, exact to the millisecond."""
    return rule.fits_at(tokens_milli, anchor_ms, cost_milli)
