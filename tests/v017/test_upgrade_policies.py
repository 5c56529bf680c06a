"""Quotas, soft limits, switches and cascade policies as version 0.17 stores them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from tests.v017.old_tables import NOW, OTHER, Item
from tests.v017.test_upgrade_layouts import carried_out, convert
from zae_limiter import CorruptRecordError, Limit, ScheduleEntry
from zae_limiter.core.cron import parse_cron
from zae_limiter.core.production import Rule
from zae_limiter.core.values import Access
from zae_limiter.records import config, keys, once
from zae_limiter.records.algebra import Image, Key, apply_write
from zae_limiter.records.bucket import inspect, stored_rule
from zae_limiter.v017.limits_file import find_edges, merge_crons
from zae_limiter.v017.upgrade.buckets import merge_shards
from zae_limiter.v017.upgrade.moves import Old, RejectedRecord
from zae_limiter.v017.upgrade.partition import PRESENT, Partition, PartitionKey
from zae_limiter.v017.upgrade.policies import convert_credit, is_present_config

RESOURCE = Key(f"{OTHER}/RESOURCE#gpt-4", "#CONFIG")
INDEX = {"GSI4PK": OTHER, "GSI4SK": RESOURCE.pk}
QUOTA = {"l_tpd_cp": 100, "l_tpd_ra": 0, "l_tpd_rp": 1, "l_tpd_rsched": "1m0h0", "sched_tz": "Europe/Berlin"}
DAILY = Limit.quota("tpd", 100, cron="0 0 * * *", tz="Europe/Berlin")
NIGHT = ScheduleEntry("* 0-5 * * *", scale=2)


def stored(**fields: Any) -> Item:
    return Item(RESOURCE, {"resource": "gpt-4", "config_version": 3, **INDEX, **fields})


def upgraded(item: Item) -> config.Config:
    return config.decode(RESOURCE, carried_out([item])[RESOURCE])


def refused(item: Item) -> str:
    place = PartitionKey.of(item.key.pk)
    assert place is not None
    (found,) = Partition(place, OTHER, [Old(*item)], NOW).plan()
    assert isinstance(found, RejectedRecord)
    return found.reason


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        (QUOTA, DAILY),
        ({**QUOTA, "l_tpd_soft": True}, Limit.quota("tpd", 100, cron="0 0 * * *", tz="Europe/Berlin", soft=True)),
        ({**QUOTA, "l_tpd_rsched": "1m*h9"}, Limit.quota("tpd", 100, cron="0 9 * * *", tz="Europe/Berlin")),
        (
            {**QUOTA, "l_tpd_rsched": "1m30h0D1M1;m30h0D1M7"},
            Limit.quota("tpd", 100, cron="30 0 1 1,7 *", tz="Europe/Berlin"),
        ),
        (
            {**QUOTA, "l_tpd_sched": "1h9-17c7;m0s333"},
            DAILY.with_schedule(
                [
                    ScheduleEntry("* 9-17 * * *", "Europe/Berlin", capacity=7),
                    ScheduleEntry("0 * * * *", "Europe/Berlin", scale=0.333),
                ]
            ),
        ),
        (
            {"l_x_cp": 9, "l_x_ra": 6, "l_x_rp": 60, "l_x_sched": "1h9c8a7p6", "sched_tz": "UTC"},
            Limit("x", 9, 6, 60).with_schedule(
                [ScheduleEntry("* 9 * * *", capacity=8, refill_amount=7, refill_period_seconds=6)]
            ),
        ),
        ({"l_r_s_cp": 9, "l_r_s_ra": 6, "l_r_s_rp": 60, "l_r_s_soft": True}, Limit("r_s", 9, 6, 60, soft=True)),
    ],
)
def test_limits_keep_their_meaning(fields: Image, limit: Limit) -> None:
    found = upgraded(stored(**fields))
    assert (found.limits, found.version) == ((limit,), 3)


@pytest.mark.parametrize(
    ("disabled", "access"), [(True, Access.DISABLED), (False, Access.ENABLED), ("bypass", Access.BYPASSED)]
)
@pytest.mark.parametrize("cascade", [None, True, False])
def test_switches_and_cascade_policies_keep_their_meaning(disabled: object, access: Access, cascade: bool) -> None:
    item = Item(RESOURCE, {"resource": "gpt-4", "disabled": disabled, "cascade": cascade, **INDEX})
    assert upgraded(item) == (None, None, 1, access, cascade, 0, {})
    assert "disabled" not in carried_out([item])[RESOURCE]


def test_what_counts_resources_counts_those_with_limits_alone() -> None:
    """In any order: the counters are added to, not replaced."""
    registry = Item(keys.resources(OTHER), {"resources": ["gpt-4", "gpt-5"], "GSI4PK": OTHER})
    configs = [
        Item(RESOURCE, {"resource": "gpt-4", "cascade": True, **INDEX}),
        Item(Key(f"{OTHER}/RESOURCE#gpt-5", "#CONFIG"), {"resource": "gpt-5", "config_version": 1, **QUOTA}),
    ]
    for items in ([registry, *configs], [*configs, registry]):
        found = carried_out(items)[registry.key]
        assert {name: count for name, count in found.items() if name[:2] == "r_"} == {"r_gpt-4": 0, "r_gpt-5": 1}
        assert "resources" not in found


def test_records_of_the_present_layout_are_left_alone() -> None:
    """Those attributes too that are not known to older versions."""
    floors = Limit.per_minute("rpm", 5, soft=True, floors={"batch": 0.5}, alerts=(0.8,)).with_schedule([NIGHT])
    image = {"resource": "gpt-4", **INDEX, "config_version": 1, **config.encode((DAILY, floors)), "later": 1}
    assert convert(Item(RESOURCE, image)) == []
    assert config.decode(RESOURCE, image).limits == (floors, DAILY)
    assert "it has l_rpm_zz" in refused(Item(RESOURCE, image | {"l_rpm_zz": "later"}))


@pytest.mark.parametrize(
    "fields",
    [
        {"w_r_cp": 5, "w_r_ra": 0, "w_r_rp": 1, "w_r_rsa": 60},
        *({attr: True} for attr in ("disabled", "sched_tz", "data")),
        *({**config.encode((DAILY,)), f"l_tpd_{field}": 1} for field in ("bx", "rsched", "rsa", "sched", "soft", "zz")),
        {"l_x": 1},
    ],
)
def test_a_config_of_another_layout_never_counts_as_unlimited(fields: Image) -> None:
    """Whatever an upgrade refuses and leaves under a key of the present layout cannot be read."""
    image = dict(stored(**fields).image)
    with pytest.raises(CorruptRecordError, match=r"an upgrade has left it.*Set or delete these limits again"):
        config.decode(RESOURCE, image)
    assert not is_present_config(image, OTHER)
    write = config.replace(RESOURCE, image, config.Config((DAILY,), changed_ms=7), {})
    anew = {name: value for name, value in {**image, **write.put}.items() if name not in write.remove}
    assert config.decode(RESOURCE, anew) == ((DAILY,), None, 4, None, None, 7, {})


@pytest.mark.parametrize("switch", [{"disabled": True}, {"access": "disabled", "l_x_cp": 0}])
def test_what_is_switched_off_stays_so_when_limits_are_set_anew(switch: Image) -> None:
    assert config.decode_or_damaged(RESOURCE, stored(**switch).image).access is Access.DISABLED
    assert config.decode_or_damaged(RESOURCE, stored(disabled="bypass").image).access is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({**QUOTA, "l_tpd_rsched": "2m0"}, "unknown format"),
        ({**QUOTA, "l_tpd_rsched": "1q0"}, "cannot be read"),
        ({**QUOTA, "l_tpd_rsched": "1m0h0;m30h5"}, "no single cron expression: 0 0 * * *; 30 5 * * *"),
        ({**QUOTA, "l_tpd_rsched": "1m0;m0h5"}, "no single cron expression"),
        ({**QUOTA, "l_tpd_rsched": "1"}, "begins to match"),
        ({**QUOTA, "sched_tz": "Mars/Base"}, "Mars/Base"),
        ({**QUOTA, "l_tpd_new": 1}, "l_tpd_new"),
        ({"l_tpd_cp": 100, "l_tpd_ra": 0, "l_tpd_rp": 1, "sched_tz": "UTC"}, "l_tpd_ra is 0"),
        ({"w_r_cp": 5, "w_r_ra": 0, "w_r_rp": 1, "w_r_rsa": 11 * 366 * 86_400}, "reset_after"),
        ({**QUOTA, "l_tpd_sched": "1h9c7a3"}, "can only change the capacity of a quota"),
        ({**QUOTA, "l_tpd_sched": "1h9c7p3"}, "can only change the capacity of a quota"),
        ({"l_x_cp": 10**13, "l_x_ra": 1, "l_x_rp": 1}, "capacity = 10000000000000"),
        ({"l_x_cp": 5, "l_x_ra": 1, "l_x_rp": 11 * 366 * 86_400}, "refill_period_seconds"),
        ({"l_x_cp": 10**11, "l_x_ra": 1, "l_x_rp": 1, "l_x_sched": "1h9s100000"}, "capacity = 10000000000000"),
        ({"disabled": "off"}, "disabled is 'off'"),
        ({"disabled": True, "cascade": "yes"}, "cascade is 'yes'"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(fields: Image, reason: str) -> None:
    assert reason in refused(stored(**fields))


def bucket(tokens: int, refilled: datetime, shard: int = 0, count: int = 1, **more: Any) -> Old:
    fields = {"tk": tokens * 1000, "cp": 100_000, "ra": 0, "rp": 1000, "tc": 5_000, "gc": 1}
    image: Image = {f"b_tpd_{field}": value for field, value in fields.items()}
    image |= {"b_rpm_tk": 1000, "b_rpm_cp": 1000, "b_rpm_ra": 1000, "b_rpm_rp": 1000, "b_rpm_rsched": "-"}
    image |= {"rsched": "1m0h0", "sched_tz": "Europe/Berlin", "rf": int(refilled.timestamp() * 1000), **more}
    whose = {"entity_id": "key", "resource": "gpt-4", "cascade": False, "shard_count": count}
    return Old(keys.bucket(OTHER, "key", "gpt-4", shard), image | whose)


def left(*shards: Old, now: datetime) -> int:
    """What is left of the quota after the upgrade."""
    now_ms = int(now.timestamp() * 1000)
    move = merge_shards(dict(enumerate(shards)), now_ms)
    assert move is not None
    image = {**shards[0].image, **move.writes[0].put}
    for attr in move.writes[0].remove:
        del image[attr]
    rule = stored_rule(image, "tpd")
    assert rule is not None
    assert rule.calendar == DAILY.calendar
    assert stored_rule(image, "rpm") == (1000, 1000, 1000, 0, None)
    return rule.level(image["b_tpd_tk"], image["rf"], now_ms) // 1000


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NEXT = datetime(2026, 6, 1, 22, tzinfo=UTC)
"""Midnight in Berlin."""


def test_a_quota_keeps_what_is_left_of_its_window_and_is_full_in_the_next() -> None:
    assert left(bucket(30, NOON), now=NOON) == 30
    assert left(bucket(-30, NOON), now=NOON) == -30
    assert left(bucket(30, NOON), now=NEXT) == 100
    assert left(bucket(-30, NOON), now=NEXT) == 100, "the version that wrote it forgives debt at the border"


def test_a_split_quota_has_what_its_shards_have() -> None:
    assert left(bucket(30, NOON, count=2), now=NOON) == 30, "the other shard has not been given anything"
    assert left(bucket(17, NOON, count=2), bucket(47, NOON, 1, 2), now=NOON) == 64
    assert left(bucket(17, NOON, count=2), bucket(47, NEXT, 1, 2), now=NEXT) == 97
    assert left(bucket(17, NOON, count=2), bucket(47, NOON, 1, 2), now=NEXT) == 100


def test_slots_that_are_taken_stay_taken() -> None:
    """A client of 0.17 has stated limits in a bucket of the present layout, in which calls are in flight."""
    own = {"cv": 3, "mk": 1, "sl": 1, "b_jobs_cp": 5_000, "b_jobs_tl": 60_000, "b_jobs_pk": 1}
    first = {"b_jobs_tn": 2, "b_jobs_tc": 30, "s_jobs_1": 7, "f_jobs_1": "5.ab.w1"}
    second = {"b_jobs_tn": 3, "b_jobs_tc": 40, "s_jobs_0": 9, "f_jobs_0": "6.cd"}
    shards = [bucket(30, NOON, number, 2, **own, **part) for number, part in enumerate((first, second))]
    move = merge_shards(dict(enumerate(shards)), int(NOON.timestamp() * 1000))
    assert move is not None
    image = apply_write(shards[0].image, move.writes[0])
    assert image is not None
    inspect(move.writes[0].key, image)
    assert {attr: image[attr] for attr in image if attr[:2] in ("s_", "f_")} == {
        "s_jobs_1": 7,
        "f_jobs_1": "5.ab.w1",
        "s_jobs_0": 9,
        "f_jobs_0": "6.cd",
    }
    assert [image[f"b_jobs_{field}"] for field in ("cp", "tl", "tn", "tc")] == [5_000, 60_000, 5, 70]


def test_tokens_beyond_a_quota_are_not_dropped() -> None:
    move = merge_shards({0: bucket(120, NOON)}, int(NOON.timestamp() * 1000))
    assert move is not None
    image = move.writes[0].put
    assert (image["b_tpd_tk"], image["lots"]) == (100_000, 1)
    assert image[f"lot_tpd_{int(NEXT.timestamp() * 1000)}"] == 20_000, "they end with the window"
    assert left(bucket(120, NOON), now=NEXT) == 100
    with pytest.raises(ValueError, match="rpm holds 1 tokens beyond its capacity"):
        convert_credit("rpm", Rule(1, 1, 1), 1000, NOW)


def test_an_idempotency_key_is_not_dropped_while_it_counts() -> None:
    key = Key(f"{OTHER}/BUCKET#key#gpt-4#0", "#OP#paid-1")
    image = {"operation": "top_up", "ttl": NOW // 1000 + 60, "amounts": {"tpd": 5}, "shards": 1}
    ((kept, found),) = carried_out([Item(key, image)]).items()
    assert kept == once.key_of(OTHER, "key", "paid-1")
    asked = {"action": "bucket_topped_up", "resource": "gpt-4"}
    assert once.decode(found) == (asked, {"shards": 1, "amounts": {"tpd": 5}}, {})
    assert found["ttl"] == image["ttl"]
    assert carried_out([Item(key, image | {"ttl": NOW // 1000 - 60})]) == {}
    assert "operation is 'shrug'" in refused(Item(key, image | {"operation": "shrug"}))


MINUTES = st.sampled_from(["*", "0", "*/15", "30-59", "0-20", "5/10", "1,2,3-5,*/20", "0-59"])
HOURS = st.sampled_from(["*", "0", "9", "9-17", "22-23", "0-11", "*/2", "0,23"])


@given(MINUTES, HOURS)
def test_an_expression_fires_when_another_begins_to_match(minutes: str, hours: str) -> None:
    cron = f"{minutes} {hours} * * *"
    matching = set(parse_cron(cron).minutes)
    try:
        found = find_edges(cron)
    except ValueError:
        assume({0, 1439} <= matching)
        return
    assert set(parse_cron(found).minutes) == {each for each in matching if each - 1 not in matching}


@given(st.lists(st.sampled_from(["0 0 1 1 *", "0 0 1 7 *", "0 0 1 4 *"]), min_size=1, max_size=4))
def test_merged_expressions_fire_whenever_one_of_them_does(crons: list[str]) -> None:
    merged = parse_cron(merge_crons(crons))
    day = datetime(2026, 1, 1, tzinfo=UTC).date()
    for month in range(1, 13):
        here = day.replace(month=month)
        assert merged.matches_day(here) == any(parse_cron(cron).matches_day(here) for cron in crons)


def test_every_kind_of_record_of_the_present_layout_is_known() -> None:
    found = {name: value for name, value in vars(keys).items() if isinstance(value, str) and value.startswith("#")}
    assert found
    assert [name for name, value in found.items() if not value.startswith(PRESENT)] == []


def test_a_record_of_an_unknown_kind_is_named() -> None:
    assert "not a record of any known layout" in refused(Item(Key(f"{OTHER}/RESOURCE#gpt-4", "#LATER"), {"a": 1}))


def test_notes_of_the_provisioner_are_deleted_and_counted() -> None:
    pk = f"{OTHER}/SYSTEM#"
    notes = [Item(Key(pk, "#PROVISIONER"), {"managed_system": True})]
    notes.append(Item(Key(pk, "#PROVISIONER#PENDING#soft#resource#gpt-4"), {"owners": {}}))
    assert [move.kind for move in convert(*notes)] == ["note on a limits file"] * 2
    assert carried_out(notes) == {}
