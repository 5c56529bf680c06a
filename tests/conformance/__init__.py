"""What a limiter does on every store, as checks: `zae_limiter.testing.conformance` continued.

`STORE_CHECKS` are public and prove a store. `LIMITER_CHECKS` prove the limiter on stores that pass them: ours, and toys
of a screenful. Checks need no pytest: one that fails raises AssertionError.
"""

from __future__ import annotations

from tests.conformance import (
    accounts,
    credits,
    lawful,
    leases,
    levels,
    policies,
    resources,
    schedules,
    settlements,
    shards,
    slots,
    tenants,
    windows,
)
from zae_limiter.testing.conformance import STORE_CHECKS as STORE_CHECKS, Check as Check, deviating as deviating

LIMITER_CHECKS: tuple[Check, ...] = (
    *leases.CHECKS,
    *settlements.CHECKS,
    *levels.CHECKS,
    *tenants.CHECKS,
    *lawful.CHECKS,
    *accounts.CHECKS,
    *policies.CHECKS,
    *resources.CHECKS,
    *credits.CHECKS,
    *windows.CHECKS,
    *schedules.CHECKS,
    *slots.CHECKS,
)

SHARD_CHECKS: tuple[Check, ...] = shards.CHECKS
"""Those of the limiter on stores that take only so many writes of one record."""

CHECKS: tuple[Check, ...] = (*STORE_CHECKS, *LIMITER_CHECKS)
