"""The attributes that clients write while they acquire: the stack's acquire policies allow these and no others."""

from __future__ import annotations

from . import keys
from .algebra import TTL
from .audit import ALERT_ATTRIBUTES
from .charging import IDENTITY
from .level import ANCHOR, CONFIG_VERSION, CREDITS, LIMIT_PREFIX, LOT_PREFIX, MADE, NEWEST, SHARDS
from .slot_table import OWNERSHIP_PREFIX, SLOTS, UNTIL_PREFIX
from .waiters import WAITER_PREFIX

_BUCKET_ATTRIBUTES = (
    *keys.bucket_indexes(keys.BucketKey("", "", "", 0)),
    *IDENTITY,
    *(SHARDS, ANCHOR, NEWEST, MADE, CONFIG_VERSION, CREDITS, SLOTS, TTL),
    *(f"{prefix}*" for prefix in (LIMIT_PREFIX, LOT_PREFIX, UNTIL_PREFIX, OWNERSHIP_PREFIX, WAITER_PREFIX)),
)
"""Without those of usage, which the aggregator counts where there are such policies."""
CLIENT_ATTRIBUTES = tuple(dict.fromkeys(("PK", "SK", *_BUCKET_ATTRIBUTES, *ALERT_ATTRIBUTES)))
"""Attributes of buckets, and of alerts that wait for the aggregator: names, and patterns for names with a limit's."""
