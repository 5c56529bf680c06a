"""The composite layout: all limits of a bucket, or of a config, in one item.

ENTITY#{id}      #BUCKET#{resource}     b_{limit}_tk|cp|bx|ra|rp|tc, rf
ENTITY#{id}      #CONFIG#{resource}     l_{limit}_cp|bx|ra|rp, config_version
RESOURCE#{name}  #CONFIG                the same
SYSTEM#          #CONFIG                the same, and on_unavailable
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.bucket import Rule
from ...core.limit import Limit
from ...core.names import INFRASTRUCTURE_LIMIT
from ...records.config import attribute as config_attribute
from ...records.level import ANCHOR, attribute
from .buckets import Holding
from .items import whole_number

if TYPE_CHECKING:
    from ...records.algebra import Image
    from .items import Old

LAYOUT = "composite"


def read_holdings(old: Old) -> list[Holding]:
    """Return the holding of each limit of a bucket item, without the store's own write limit."""
    fields = old.fields
    limit_names = {name[2:-3] for name in fields if name.startswith("b_") and name.endswith("_tk")}
    refilled = whole_number(fields, ANCHOR)
    return [_read_holding(fields, name, refilled) for name in sorted(limit_names - {INFRASTRUCTURE_LIMIT})]


def _read_holding(fields: Image, name: str, refilled_ms: int) -> Holding:
    capacity = whole_number(fields, attribute(name, "cp"), 1)
    burst = whole_number(fields, attribute(name, "bx"), default=0)
    amount = whole_number(fields, attribute(name, "ra"), 1)
    period = whole_number(fields, attribute(name, "rp"), 1)
    tokens = whole_number(fields, attribute(name, "tk"))
    consumed = whole_number(fields, attribute(name, "tc"), default=0)
    return Holding(name, Rule(max(capacity, burst), amount, period), tokens, refilled_ms, consumed)


def read_limits(old: Old) -> list[Limit]:
    """Return the limits of a config item."""
    fields = old.fields
    limit_names = sorted(name[2:-3] for name in fields if name.startswith("l_") and name.endswith("_cp"))
    return [_read_limit(fields, name) for name in limit_names]


def _read_limit(fields: Image, name: str) -> Limit:
    capacity = whole_number(fields, config_attribute(name, "cp"), 1)
    burst = whole_number(fields, config_attribute(name, "bx"), default=0)
    amount = whole_number(fields, config_attribute(name, "ra"), 1)
    period = whole_number(fields, config_attribute(name, "rp"), 1)
    return Limit(name, max(capacity, burst), amount, period)
