"""The oldest layout: one item per limit, its fields nested in ``data`` or flat.

ENTITY#{id}      #BUCKET#{resource}#{limit}    tokens_milli, last_refill_ms, capacity_milli, burst_milli, ...
ENTITY#{id}      #LIMIT#{resource}#{limit}     capacity, burst, refill_amount, refill_period_seconds
RESOURCE#{name}  #LIMIT#{limit}                the same
SYSTEM#          #LIMIT#{limit}                the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.bucket import Rule
from ...core.limit import Limit
from .buckets import Holding
from .items import whole_number

if TYPE_CHECKING:
    from .items import Old

LAYOUT = "per-limit"


def read_holding(limit_name: str, old: Old) -> Holding:
    """Return the holding of a bucket item. A burst above the capacity becomes the capacity."""
    fields = old.fields
    capacity = whole_number(fields, "capacity_milli", 1)
    burst = whole_number(fields, "burst_milli", default=0)
    amount = whole_number(fields, "refill_amount_milli", 1)
    period = whole_number(fields, "refill_period_ms", 1)
    return Holding(
        limit_name,
        Rule(max(capacity, burst), amount, period),
        whole_number(fields, "tokens_milli"),
        whole_number(fields, "last_refill_ms"),
        whole_number(fields, "total_consumed_milli", default=0),
    )


def read_limit(limit_name: str, old: Old) -> Limit:
    """Return the limit of a limit item."""
    fields = old.fields
    capacity = whole_number(fields, "capacity", 1)
    burst = whole_number(fields, "burst", default=0)
    amount = whole_number(fields, "refill_amount", 1)
    return Limit(limit_name, max(capacity, burst), amount, whole_number(fields, "refill_period_seconds", 1))
