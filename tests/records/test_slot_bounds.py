"""Slots that have expired above those that can be taken: whoever takes removes them, and no late renewal helps."""

from __future__ import annotations

import pytest

from zae_limiter import Limit
from zae_limiter.core.change import Change
from zae_limiter.records import keys
from zae_limiter.records.algebra import Image
from zae_limiter.records.level import BucketLimits, slot_limits_for, token_limits_for
from zae_limiter.records.slot_table import SlotTable
from zae_limiter.records.slots import SeenSlots, SlotRequest, shapes_for, take_slots

NOW = 1_800_000_000_000
KEY = keys.bucket("ns", "key", "gpt-4")


@pytest.mark.parametrize(
    ("live", "expired", "removed"),
    [
        ({2}, {1}, {1}),  # lowered to two of which one is above: only slot 0 can be taken
        ({2}, {1, 3}, {1, 3}),
        (set(), {1}, set()),  # nothing above: slot 1 is fought over by its number
        (set(), {4}, {4}),
    ],
)
def test_what_is_counted_as_free_cannot_come_back(live: set[int], expired: set[int], removed: set[int]) -> None:
    limits = (Limit.concurrent("parallel", 2),)
    level = BucketLimits(
        KEY, "ns", "key", "gpt-4", limits, token_limits_for(limits), slot_limits=slot_limits_for(limits)
    )
    image: Image = shapes_for(level, {}) | {"at": NOW}
    slots = dict.fromkeys(live, NOW + 9_000) | dict.fromkeys(expired, NOW)
    image |= {f"s_parallel_{number}": until_ms for number, until_ms in slots.items()}
    image |= {f"f_parallel_{number}": f"{NOW:x}.0" for number in slots}
    change, requests = Change(), [SlotRequest({"parallel": 1_000}, salt="1")]
    assert take_slots(level, SeenSlots(image, SlotTable.parse(image), NOW), change, requests)
    taken = {attr for attr in change.put if attr.startswith("s_")}
    assert taken <= {"s_parallel_0", "s_parallel_1"}
    expected = {f"{kind}_parallel_{number}" for number in removed for kind in "sf"} - change.put.keys()
    assert {*change.remove} == expected
    for number in removed:
        assert change.equals[f"s_parallel_{number}"] == NOW
