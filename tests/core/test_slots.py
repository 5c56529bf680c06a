"""Slots that are kept up with changes say the same as a scan of them all would."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st

from zae_limiter.core.slots import SlotLimit, Slots

LIMITS = st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from([(0, 1), (0, 2), (1, 2)])).map(
    lambda each: SlotLimit("jobs", each[0], 1_000, 0, each[1], False, *each[2])
)
STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 9), st.integers(1, 12), max_size=3),
        st.lists(st.integers(0, 9), max_size=2),
        st.integers(0, 12),
        LIMITS,
    ),
    max_size=6,
)


class Scan:
    """The rules of slots, by looking at all of them each time."""

    def __init__(self, untils: Mapping[int, int], limit: SlotLimit, now_ms: int) -> None:
        self.taken = {number for number, until_ms in untils.items() if until_ms > now_ms}
        self.untils, self.limit, self.now_ms = untils, limit, now_ms
        most = bound = limit.slots - limit.floor
        while True:
            above = sum(number // limit.shards >= bound for number in self.taken)
            if most - above >= bound:
                break
            bound = most - above
        self.bound = max(0, bound)

    def numbers(self, bound: int) -> list[int]:
        first, step = self.limit.shards - 1 - self.limit.shard, self.limit.shards
        return [number for number in range(first, first + bound * step, step) if number not in self.taken]

    @property
    def expired_above(self) -> list[int]:
        expired = [number for number, until_ms in self.untils.items() if until_ms <= self.now_ms]
        return sorted(number for number in expired if number // self.limit.shards >= self.bound)


@settings(max_examples=500)
@given(first=st.dictionaries(st.integers(0, 9), st.integers(1, 12), max_size=6), steps=STEPS)
def test_kept_up_slots_are_what_a_scan_finds(
    first: dict[int, int], steps: list[tuple[dict[int, int], list[int], int, SlotLimit]]
) -> None:
    slots, model = Slots(first), dict(first)
    for put, gone, now_ms, limit in steps:
        gone = [number for number in gone if number not in put]
        before, slots = slots, slots.change(put, gone)
        older, model = model, {number: until for number, until in {**model, **put}.items() if number not in gone}
        for each, untils in ((slots, model), (before, older)):
            scan = Scan(untils, limit, now_ms)
            assert each.count(now_ms) == len(scan.taken)
            assert each.find_free(limit, now_ms) == (scan.numbers(scan.bound), scan.expired_above)
            beyond = [n for n in scan.numbers(2 * limit.slots + 16) if n not in scan.numbers(scan.bound)]
            assert each.find_beyond(limit, now_ms) == beyond
            assert each.count(now_ms) == len(scan.taken)
            assert each.ends == sorted(untils.values())


def test_choosing_a_slot_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers are looked at once; changes, other instants and other floors need no further look."""
    looks, first_numbers = [], SlotLimit.first_numbers

    def noting(self: SlotLimit, bound: int) -> range:
        looks.append(bound)
        return first_numbers(self, bound)

    monkeypatch.setattr(SlotLimit, "first_numbers", noting)
    limit = SlotLimit("jobs", 1_000, 60_000)
    slots = Slots({number: 50_000 + number for number in range(999)})
    for turn in range(50):
        slots = slots.change({999: 61_000 + turn}, [])
        assert slots.find_free(limit, 1_000 + turn) == ([], [])
        slots = slots.change({}, [999])
        assert slots.find_free(limit, 1_000 + turn) == ([999], [])
        assert slots.find_free(limit._replace(floor=10), 1_000 + turn) == ([], [])
        assert slots.count(1_000 + turn) == 999
    assert looks == [1_000]
