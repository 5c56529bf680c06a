"""The slots of a bucket that were kept up with its writes are those that its image shows."""

from __future__ import annotations

from hypothesis import given, strategies as st

from zae_limiter.core.slots import SlotLimit
from zae_limiter.records.algebra import Image, Key, Write, apply_write
from zae_limiter.records.slot_table import NO_TABLE, SlotTable
from zae_limiter.repository.last_seen import LastSeen

KEY = Key("ns/BUCKET#key#gpt-4#0", "#STATE")
NOW = 1_000_000
EMPTY: Image = {"sl": 1, "rf": 1, "b_a_tl": 1_000, "b_a_tn": 0}
SLOT = st.tuples(st.sampled_from(["a", "b_1"]), st.integers(0, 3))
WRITES = st.builds(
    lambda taken, freed, other: Write(
        KEY,
        put={
            attr: value
            for (name, number), (until, ttl) in taken.items()
            for attr, value in ((f"s_{name}_{number}", until), (f"f_{name}_{number}", f"{NOW:x}.1-ab-{ttl:x}"))
        }
        | other,
        add={"b_a_tn": 1},
        remove=tuple(f"{kind}_{name}_{number}" for name, number in freed - taken.keys() for kind in "sf"),
    ),
    st.dictionaries(SLOT, st.tuples(st.integers(NOW - 2_000, NOW + 9_000), st.sampled_from([500, 3_000])), max_size=3),
    st.sets(SLOT, max_size=2),
    st.sampled_from([{}, {"at": 5}]),
)


def told(table: SlotTable, image: Image, now_ms: int) -> object:
    """Everything that a table says."""
    limit = SlotLimit("a", 3, 1_000)
    found = {
        name: (slots.untils, slots.count(now_ms), slots.find_free(limit, now_ms))
        for name, slots in table.shorten(image, now_ms).limits.items()
        if slots.untils
    }
    return found, table.find_ahead(image, now_ms)


@given(writes=st.lists(WRITES, max_size=5), now_ms=st.integers(NOW - 5_000, NOW + 9_000))
def test_a_table_that_follows_its_image_says_what_the_image_says(writes: list[Write], now_ms: int) -> None:
    image, table = EMPTY, SlotTable.parse(EMPTY)
    for write in writes:
        after = apply_write(image, write)
        assert after is not None
        before, older = told(table, image, now_ms), table
        table, image, last = table.follow(after, (*write.put, *write.remove)), after, image
        assert told(table, image, now_ms) == told(SlotTable.parse(image), image, now_ms)
        assert told(older, last, now_ms) == before


def test_a_bucket_without_slots_has_no_table_of_its_own() -> None:
    plain = {"rf": 1, "b_a_tk": 1}
    seen = LastSeen()
    seen.show(plain, NOW)
    assert SlotTable.parse(plain) is SlotTable.parse(None) is seen.slots_of(plain) is NO_TABLE
    assert seen._slots is LastSeen()._slots


def test_what_was_last_seen_is_read_once_and_then_followed() -> None:
    seen = LastSeen()
    seen.show(EMPTY, NOW)
    assert seen.slots_of(EMPTY) is seen.slots_of(EMPTY)
    write = Write(KEY, put={"s_a_1": NOW + 1, "f_a_1": f"{NOW:x}.1-ab-1"}, seen=EMPTY)
    after = apply_write(EMPTY, write)
    assert after is not None
    more = {**after, "s_a_2": NOW + 1, "f_a_2": f"{NOW:x}.2-ab-1"}
    for shown, planned, numbers in (
        (after, write, {1}),
        (more, None, {1, 2}),  # others may have written as well
        (more, write._replace(seen=dict(EMPTY)), {1, 2}),  # it was planned from another image
        (more, write, {1}),  # the write alone is looked at
    ):
        seen.show(EMPTY, NOW)
        seen.show(shown, NOW, write=planned)
        table = seen.slots_of(shown)
        assert table.of("a").untils == dict.fromkeys(numbers, NOW + 1)
        assert seen.slots_of(shown) is table
    assert seen.slots_of(EMPTY).of("a").untils == {}, "an older image is read again"
