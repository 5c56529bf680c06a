"""The one place that calls the code under test. Where that changes, these functions change, and no golden does.

They take what a case knows (`worlds`), images and instants, and return writes of the algebra, values of the public API
or plain ones. What a charge leaves for its settlement, and the slots that it took, are handles that only come back.
"""

from __future__ import annotations

from .credits import add_credit, fill_up, free_more, prepare_filling
from .levels import NewerConfig, Planned, Receipt, Settled, Slot, key_of
from .looking import (
    describe_balances,
    describe_states,
    facts,
    find_fitting,
    full_at,
    inspect,
    merge_slots,
    refusal,
    required_expiry,
    statuses,
    wait_for,
)
from .settling import add_share, describe_charges, read_receipt, receive, settle, settle_in_place, undo
from .slots import find_lost, hold, note_renewed, release, renew
from .taking import (
    can_charge,
    charge,
    divide,
    draw_in_place,
    first_charge,
    migrate,
    plan,
    plan_across,
    plan_again,
)
from .upkeep import book, book_seen, is_open, move_anchor, split, stamp

__all__ = [
    "NewerConfig",
    "Planned",
    "Receipt",
    "Settled",
    "Slot",
    "add_credit",
    "add_share",
    "book",
    "book_seen",
    "can_charge",
    "charge",
    "describe_balances",
    "describe_charges",
    "describe_states",
    "divide",
    "draw_in_place",
    "facts",
    "fill_up",
    "find_fitting",
    "find_lost",
    "first_charge",
    "free_more",
    "full_at",
    "hold",
    "inspect",
    "is_open",
    "key_of",
    "merge_slots",
    "migrate",
    "move_anchor",
    "note_renewed",
    "plan",
    "plan_across",
    "plan_again",
    "prepare_filling",
    "read_receipt",
    "receive",
    "refusal",
    "release",
    "renew",
    "required_expiry",
    "settle",
    "settle_in_place",
    "split",
    "stamp",
    "statuses",
    "undo",
    "wait_for",
]
