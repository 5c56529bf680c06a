"""The converters by themselves: old items in, guarded writes out, nothing asked."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.support.charges import charge
from tests.v017 import old_tables
from tests.v017.old_layouts import LAYOUTS
from tests.v017.old_tables import NOW, OTHER, Item, Pool
from zae_limiter import Limit
from zae_limiter.records import bucket, keys
from zae_limiter.records.algebra import Image, Key, Write, apply_write, holds
from zae_limiter.records.config import decode as decode_config
from zae_limiter.records.level import BucketLimits, token_limits_for
from zae_limiter.v017.upgrade.buckets import merge_shards
from zae_limiter.v017.upgrade.moves import (
    Move,
    Old,
    RejectedRecord,
    merge_writes,
    plan_move,
    split_batches,
    unchanged_guards,
)
from zae_limiter.v017.upgrade.partition import Partition, PartitionKey
from zae_limiter_aggregator.consumption import measure_change
from zae_limiter_aggregator.stream import StreamChange

NS = "ns-1"
COUNTS = st.integers(1, 10**12)


def convert(*items: Item, now_ms: int = NOW) -> list[Move]:
    """The moves of one partition; nothing may be refused."""
    place = PartitionKey.of(items[0].key.pk)
    assert place is not None
    olds = [Old(*item) for item in items]
    found = Partition(place, place.namespace_id or NS, olds, now_ms).plan()
    moves = [each for each in found if isinstance(each, Move)]
    assert len(moves) == len(found), found
    return moves


def carried_out(items: list[Item], now_ms: int = NOW) -> dict[Key, Image]:
    """A store in memory after all moves, partition by partition, each guard checked."""
    table = {item.key: item.image for item in items}
    for pk in dict.fromkeys(item.key.pk for item in items):
        here = [Item(key, image) for key, image in table.items() if key.pk == pk]
        for move in convert(*here, now_ms=now_ms):
            for write in move.writes:
                assert holds(table.get(write.key), write.guards), write
            for write in move.writes:
                image = apply_write(table.get(write.key), write)
                table.pop(write.key, None)
                if image is not None:
                    table[write.key] = image
    return table


pools = st.builds(
    Pool,
    st.sampled_from(["rpm", "tpm", "a.b_c-d", "x_tk", "ttl"]),
    st.integers(-(10**12), 10**12),
    st.integers(NOW - 10**9, NOW),
    COUNTS,
    COUNTS,
    st.integers(1, 10**9),
    st.sampled_from([0, 10**6, 10**12]),
    COUNTS,
)
instants = st.integers(0, 10**10)


@given(st.lists(pools, min_size=1, max_size=4, unique_by=lambda pool: pool.limit), instants, st.booleans())
def test_a_bucket_of_items_per_limit_keeps_every_balance(held: list[Pool], later: int, nested: bool) -> None:
    items = [old_tables.per_limit_bucket("key", "gpt-4", each, nested=nested) for each in held]
    table = carried_out(items)
    key = keys.bucket(NS, "key", "gpt-4")
    assert table.keys() == {key}
    check(key, table[key], held, later)


@given(st.lists(pools, min_size=1, max_size=4, unique_by=lambda pool: pool.limit), instants)
def test_a_composite_bucket_keeps_every_balance(held: list[Pool], later: int) -> None:
    merge_writes = [each._replace(refilled=held[0].refilled) for each in held]
    table = carried_out([old_tables.composite_bucket("key", "gpt-4", merge_writes)])
    key = keys.bucket(NS, "key", "gpt-4")
    assert table.keys() == {key}
    check(key, table[key], merge_writes, later)


def check(key: Key, image: Image, held: list[Pool], later: int) -> None:
    bucket.inspect(key, image)
    anchor = max(each.refilled for each in held)
    states = {state.limit_name: state for state in bucket.states([(key, image)], NOW)}
    assert states.keys() == {each.limit for each in held}
    for each in held:
        state = states[each.limit]
        assert state.total_consumed_milli == each.consumed
        assert state.tokens_milli == each.level(anchor)
        ours = each.rule.level(state.tokens_milli, state.last_refill_ms, anchor + later)
        assert abs(ours - each.level(anchor + later)) <= 1


@given(st.lists(pools, min_size=1, max_size=3, unique_by=lambda pool: pool.limit))
def test_nothing_is_left_to_do_then(held: list[Pool]) -> None:
    items = [
        *(old_tables.per_limit_bucket("key", "gpt-4", each, nested=True) for each in held),
        old_tables.entity("key", nested=True, name="n"),
        old_tables.usage("key", "gpt-4", "hourly", "2024-03-01T12:00:00Z", rpm=1),
        old_tables.composite_config("ENTITY#key", "#CONFIG#gpt-4", {"rpm": (1, 2, 3, 4)}),
    ]
    table = carried_out(items)
    again = [Item(key, image) for key, image in table.items()]
    assert carried_out(again) == table


@pytest.mark.parametrize("name", ["nested", "per limit", "composite", "namespaced"])
def test_no_layout_is_lost_in_memory_either(name: str) -> None:
    items = LAYOUTS[name]()
    table = carried_out([item for item in items if item.key.pk != "_/SYSTEM#"])
    ns = OTHER if name == "namespaced" else NS
    assert {key.pk.partition("/")[0] for key in table if key.sk != "#VERSION"} == {ns}
    assert decode_config(Key("", ""), table[keys.system_config(ns)]).limits is not None
    assert len([key for key in table if key.sk == "#STATE"]) == 4


def test_usage_counts_what_is_consumed_after_the_upgrade_and_nothing_before() -> None:
    held = Pool("rpm", 20_000, NOW, 60_000, 60_000, 60_000, consumed=40_000)
    table = carried_out([old_tables.per_limit_bucket("key", "gpt-4", held, nested=True)])
    ((key, image),) = table.items()
    assert measure_change(StreamChange(key, "1", NOW, None, image, False)) == {}
    limits = (Limit("rpm", 60, 60, 60),)
    key = keys.bucket(NS, "key", "gpt-4")
    bucket = BucketLimits(key, NS, "key", "gpt-4", limits, token_limits_for(limits), "system", 5, partition_writes=1000)
    before = image
    for number in range(3):
        write = charge(bucket, before, {"rpm": 3_000}, NOW + number)
        assert write is not None
        after = apply_write(before, write)
        assert after is not None
        assert measure_change(StreamChange(key, "2", NOW, before, after, False)) == {"rpm": 3_000}
        before = after


def test_shards_that_are_put_together_have_consumed_nothing_by_that() -> None:
    part = Pool("rpm", 20_000, NOW, 60_000, 60_000, 60_000, consumed=7_000)
    parts = [part._replace(refilled=NOW - 1 + shard) for shard in (0, 1)]
    items = [old_tables.sharded_bucket("key", "gpt-4", [each], shard, 2) for shard, each in enumerate(parts)]
    move = merge_shards({shard: Old(*item) for shard, item in enumerate(items)}, NOW)
    assert move is not None
    before, (first, gone) = items[0].image, move.writes
    after = apply_write(before, first)
    assert after is not None
    assert (after["b_rpm_tc"], gone.delete, gone.key) == (14_000, True, items[1].key)
    assert measure_change(StreamChange(first.key, "1", NOW, before, after, False)) == {}


REFUSALS: list[tuple[str, Item, str]] = [
    ("id", old_tables.entity("a#b"), "must not contain '#'"),
    ("parent", old_tables.entity("a", parent_id="b#c"), "parent_id"),
    ("resource", old_tables.composite_bucket("a", "1x", [Pool("rpm", 1, 1, 1, 1, 1)]), "must start with a letter"),
    ("limit", old_tables.composite_bucket("a", "x", [Pool("r pm", 1, 1, 1, 1, 1)]), "must start with a letter"),
    ("rate", old_tables.composite_bucket("a", "x", [Pool("rpm", 1, 1, 1, 0, 1)]), "b_rpm_ra is 0, less than 1"),
    ("no limit", Item(Key("ENTITY#a", "#BUCKET#x"), {"rf": 1}), "it holds no limit"),
    ("no refill", Item(Key("ENTITY#a", "#BUCKET#x"), {"b_rpm_tk": 1}), "rf is None"),
    ("text", Item(Key("ENTITY#a", "#BUCKET#x#rpm"), {"capacity_milli": "1"}), "not a whole number"),
    ("config", Item(Key("ENTITY#a", "#CONFIG#x"), {"l_rpm_cp": 5}), "l_rpm_ra is None"),
    ("policy", Item(Key("SYSTEM#", "#CONFIG"), {"on_unavailable": "shrug"}), "shrug"),
    ("window", old_tables.usage("a", "x", "weekly", "2024-03-01T12:00:00Z"), "window is 'weekly'"),
    ("counter", old_tables.usage("a", "x", "hourly", "2024-03-01T12:00:00Z")._replace(
        image={"window": "hourly", "rpm": 0.5}), "rpm is 0.5"),
    ("start", old_tables.usage("a", "x", "hourly", "noon"), "noon"),
    ("subject", old_tables.event("a#b", "01H"), "must not contain '#'"),
    ("unknown", Item(Key("ENTITY#a", "#LOCK"), {}), "not a record of any known layout"),
    ("place", Item(Key("BUCKET#a#b#0", "#STATE"), {}), "not a record of any known layout"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "reason"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_what_cannot_be_is_refused_with_its_reason(item: Item, reason: str) -> None:
    place = PartitionKey.of(item.key.pk)
    assert place is not None
    (found,) = Partition(place, NS, [Old(*item)], NOW).plan()
    assert isinstance(found, RejectedRecord)
    assert found.key == item.key
    assert reason in found.reason


def test_events_stay_in_their_order_beside_those_of_today() -> None:
    items = [
        old_tables.event("key", "01HQ000000000000000000000A"),
        old_tables.event("key", "2024-02-01T00:00:00.500Z", timestamp="2024-02-01T00:00:00.500Z"),
    ]
    found = sorted(key.sk for key in carried_out(items))
    assert found == ["#AUDIT#01HQ000000000000000000000A", "#AUDIT#1706745600500-2024-02-01T00:00:00.500Z"]
    assert max(found) < keys.sk_audit("1800000000000-0")


def test_a_move_guards_what_changes_with_every_write_and_skips_what_does_not_compare() -> None:
    image = {"rf": 5, "list": [1], "half": 0.5, "none": None, "map": {"a": 1, "b": None}, "odd": {"a": [1]}}
    move = plan_move("bucket", [Old(Key("a", "b"), image)], Key("c", "d"), {}, NOW)
    assert move is not None
    _, gone = move.writes
    assert {(attr, value) for attr, _, value in gone.guards if attr != "map"} == {("rf", 5)}
    assert ("map", "=", {"a": 1, "b": None}) in gone.guards
    many = {f"x{number}": number for number in range(200)} | {"b_z_tk": 1, "b_z_tc": 2, "rf": 3}
    guards = unchanged_guards(many)
    assert {attr for attr, _, _ in guards[:3]} == {"b_z_tk", "b_z_tc", "rf"}
    assert len(guards) < 100


def a_move(number: int, *counted: str) -> Move:
    old = Old(Key(f"old{number}", ""), {"a": 1})
    made = plan_move(
        "x",
        [old],
        Key(f"new{number}", ""),
        {"b": number},
        NOW,
        [Write(Key(each, ""), (), {}, {"n": 1}) for each in counted],
    )
    assert made is not None
    return made


def test_commits_are_full_but_not_too_full_and_count_once() -> None:
    moves = [a_move(number, "list") for number in range(120)]
    found = list(split_batches(moves))
    assert [move for batch in found for move in batch] == moves
    for batch in found:
        writes = merge_writes(batch)
        assert len(writes) <= 100
        assert len({write.key for write in writes}) == len(writes)
        (counted,) = [write for write in writes if write.add]
        assert counted.add == {"n": len(batch)}
    assert len(found) == 3


def test_a_record_that_is_changed_twice_goes_into_two_commits() -> None:
    first, second = a_move(1), a_move(2, "new1")
    assert [len(batch) for batch in split_batches([first, second])] == [1, 1]
    assert [len(batch) for batch in split_batches([first, first])] == [1, 1]


@pytest.mark.parametrize("pk", ["", "x", "GROUP#a", "a/b/ENTITY#c", "a#b/ENTITY#c"])
def test_other_keys_are_nobodys(pk: str) -> None:
    assert PartitionKey.of(pk) is None


def test_the_parts_of_a_key() -> None:
    assert PartitionKey.of("ENTITY#a/b") == (None, "ENTITY", "a/b")
    assert PartitionKey.of("n-1/ENTITY#a/ENTITY#b") == ("n-1", "ENTITY", "a/ENTITY#b")
    assert PartitionKey.of("SYSTEM#") == (None, "SYSTEM", "")
