"""The checks of slots have teeth: every small change of how they are taken, held and freed makes one of them fail."""

from __future__ import annotations

import pytest

from tests.laws.mutants import Mutation, check_killed

AT_MOST = "slots.at_most_so_many"
TOKENS = "slots.taken_with_tokens_all_or_nothing"
NAMED = "slots.named_slots"
PROMISE = "slots.the_promised_moment"
RENEWED = "slots.renewed_while_held"
LATE = "slots.late_writes"
CALLS = "slots.calls"
CHANGED = "slots.changed_live"
FLOORS = "slots.floors_and_soft_limits"
LEVELS = "slots.hierarchies"
CLOCKS = "slots.clocks_that_are_off"
HOLD = "self._add(part.shard, dict.fromkeys(part.slots, weakref.ref(holder)), due_ms)"

MUTATIONS = [
    # Which slots are free.
    Mutation("core.slots._bound", "if most - above >= bound", "if True", CHANGED),
    Mutation("core.slots._bound", "max(0, bound)", "bound + 1", CHANGED),
    Mutation("core.slots._bound", "limit.slots - limit.floor", "limit.slots", FLOORS),
    Mutation("core.slots.Slots.find_beyond", "2 * limit.slots + _MORE_SOFT", "limit.slots", FLOORS),
    Mutation("core.slots.Slots._look", "until_ms <= now_ms", "until_ms < now_ms", PROMISE),
    Mutation("core.slots.Slots._look", "until_ms <= now_ms", "until_ms >= 0", PROMISE),
    Mutation("core.slots.Slots.count", "bisect_right(self.ends, now_ms)", "0", CLOCKS),
    # Following the writes of this process.
    Mutation("records.slot_table.SlotTable.follow", "gone.append(number)", "pass", TOKENS, "memory"),
    Mutation("records.slot_table.SlotTable.follow", "put[number] = until_ms", "pass", FLOORS, "memory"),
    # Taking.
    Mutation("records.slots.take_slots", "change.guards.append((until_attr, MISSING_OR_AT_MOST, now_ms))", "", AT_MOST),
    Mutation("records.slots.take_slots", "MISSING_OR_AT_MOST, now_ms", "MISSING_OR_AT_MOST, now_ms + 99_000", AT_MOST),
    Mutation("records.slots.take_slots", "return False", "continue", AT_MOST),
    Mutation("records.slots.take_slots", "now_ms + limit.ttl_ms", "now_ms + limit.ttl_ms + 1", PROMISE),
    Mutation("records.slots.take_slots", "min(count, len(free))", "1", NAMED),
    Mutation("limiter.engine.Engine.take", "cost if holder is None else chain.complete(cost)", "cost", TOKENS),
    # Renewing.
    Mutation("records.slots.renew_slots", "slot.renewed_until(now_ms)", "slot.until_ms", RENEWED),
    Mutation("records.slots.renew_slots", "change.guards += (slot", "_ = (slot", LATE),
    Mutation("records.slots.TakenSlot.renewed_until", "min(until_ms, self.last_ms)", "until_ms", RENEWED),
    Mutation("records.slots.TakenSlot.is_ours", "image.get(self.ownership_attr) == self.ownership_token and", "", LATE),
    Mutation("limiter.slot_leases.SlotLeases.hold", HOLD, "pass", RENEWED),
    Mutation("limiter.slot_leases.SlotLeases._find_due", "record.is_due(now_ms)", "False", RENEWED),
    Mutation(
        "limiter.slot_leases.SlotLeases._renew", "slot.until_ms, slot.counted_ms =", "_, slot.counted_ms =", RENEWED
    ),
    # Freeing.
    Mutation("records.slots.release_slots", "change.remove += slot.until_attr, slot.ownership_attr", "", TOKENS),
    Mutation("records.slots.release_slots", "change.guards += (slot", "_ = (slot", LATE),
    Mutation("limiter.slot_leases.SlotLeases.let_go", "self._places.pop(slot, None)", "None", CALLS),
    Mutation("limiter.settling.settlement_parts", "if here or slots:", "if here:", TOKENS),
    Mutation("limiter.settling.settlement_parts", "if here or slots:", "if slots and not parts:", LEVELS),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_killed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    check_killed(mutation, monkeypatch)
