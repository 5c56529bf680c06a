"""Marks of waiters in a bucket: what counts, who goes first, and what is left of them."""

from __future__ import annotations

from typing import Any

import pytest

from zae_limiter.records.algebra import PRESENT, Key, Write
from zae_limiter.records.waiters import MARK_MS, PATIENCE_MS, Waiter, find_waiters, leave_mark, pass_on, sum_ahead

KEY = Key("bucket", "#STATE")
NOW = 1_800_000_000_000


def marked(**waiters: Any) -> dict[str, Any]:
    """Return an image with marks; a waiter is what it wants of ``rpm`` and since when it waits, by seconds ago."""
    alert_levels = {
        f"w_{line}": waiter if isinstance(waiter, str) else waiting(*waiter).encode()
        for line, waiter in waiters.items()
    }
    return {"rf": 0, **alert_levels}


def waiting(wants: int, ago: float, left_ms: int = MARK_MS) -> Waiter:
    return Waiter(NOW - round(ago * 1000), NOW + left_ms, {"rpm": wants})


def test_a_mark_is_read_as_it_was_written() -> None:
    assert list(find_waiters(marked(a=(5, 2)), NOW)) == [waiting(5, 2)]


def test_marks_that_are_over_or_damaged_or_its_own_do_not_count() -> None:
    image = marked(old=(1, 2, 0), mine=(2, 2), bad="{", worse="[1,2]", worst='["x",2,{}]', good=(3, 2))
    assert [waiter.cost for waiter in find_waiters(image, NOW, "w_mine")] == [{"rpm": 3}]
    assert list(find_waiters(None, NOW)) == []


def test_tokens_go_to_the_waiter_that_came_first() -> None:
    image = marked(early=(1, 3), same=(2, 2), late=(4, 1))
    assert sum_ahead(image, "w_mine", NOW - 2_000, NOW, ()) == {"rpm": 1}


@pytest.mark.parametrize(("theirs", "mine", "yields"), [(1.6, 1, True), (1.4, 1, False), (0.4, 0, False)])
def test_a_slot_changes_hands_only_for_a_waiter_that_has_waited_much_longer(
    theirs: float, mine: float, yields: bool
) -> None:
    ahead = sum_ahead(marked(a=(1, theirs)), "w_mine", NOW - round(mine * 1000), NOW, {"rpm"})
    assert ahead == ({"rpm": 1} if yields else {})
    assert PATIENCE_MS == 500


def test_a_new_mark_removes_those_that_nobody_renews() -> None:
    image = marked(gone=(1, 60, -10_001), recent=(1, 5, -9_999), bad="{")
    waiter = waiting(2, 1)
    expected = Write(KEY, (PRESENT,), {"w_mine": waiter.encode()}, remove=("w_gone", "w_bad"), seen=image)
    assert leave_mark(KEY, image, "w_mine", waiter, NOW) == expected


def test_the_write_that_serves_a_waiter_hands_its_mark_on() -> None:
    write, waiter = Write(KEY, (), {"at": 1}, remove=("x",)), waiting(2, 1)
    assert pass_on(write, "w_mine", None).remove == ("x", "w_mine")
    assert pass_on(write, "w_mine", waiter).put == {"at": 1, "w_mine": waiter.encode()}
