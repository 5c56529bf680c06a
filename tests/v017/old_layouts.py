"""The same limiter in every old layout, and what users must see of it after an upgrade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.v017 import old_tables
from tests.v017.old_tables import NOW, OTHER, Item, OldTable, Pool
from zae_limiter import BucketState, Limit, OnUnavailable
from zae_limiter.core.production import Rule
from zae_limiter.records import keys
from zae_limiter.records.algebra import Key
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRepository
from zae_limiter.v017.upgrade.runner import MoveReport, Runner

SECOND = 1000
SLOW = (7_000, 86_400_000)
"""A rate that no millisecond divides."""


def pool(
    limit: str, tokens: int, ago: int, capacity: int, rate: tuple[int, int], burst: int = 0, used: int = 0
) -> Pool:
    return Pool(limit, tokens, NOW - ago, capacity, *rate, burst, used)


POOLS = {
    ("key-1", "gpt-4"): [
        pool("rpm", 59_000, 10 * SECOND, 60_000, (60_000, 60_000), used=1_000),
        pool("tpm", -1_500_000, 3_333, 10_000_000, (10_000_000, 60_000), burst=15_000_000, used=11_500_000),
    ],
    ("key-1", "gpt-4-turbo"): [pool("rpm", 60_000, 0, 60_000, (60_000, 60_000))],
    ("key-2", "gpt-4"): [
        pool("rpm", 0, 7_777, 60_000, (100_000, 60_000)),
        pool("rpd", 3_333, 12_345, 100_000, SLOW, used=96_667),
    ],
    ("team", "gpt-4"): [pool("tpm", 14_000_000, 1, 10_000_000, (10_000_000, 60_000), burst=15_000_000)],
}
"""Debt, full, in the middle of a refill, above the capacity by burst, refilled at different instants."""


def at_once() -> dict[tuple[str, str], list[Pool]]:
    """The same where all limits of a bucket are refilled together."""
    return {whose: [each._replace(refilled=pools[0].refilled) for each in pools] for whose, pools in POOLS.items()}


LIMITS = {"rpm": (60, 60, 60, 60), "tpm": (10_000, 15_000, 10_000, 60)}
STORED = [Limit("rpm", 60, 60, 60), Limit("tpm", 15_000, 10_000, 60)]


def entities(prefix: str = "", nested: bool = False) -> list[Item]:
    return [
        old_tables.entity("key-2", parent_id="team", cascade=True, prefix=prefix, nested=nested),
        old_tables.entity(
            "key-1", name="Key One", parent_id="team", metadata={"tier": 2, "tags": ["a"]}, prefix=prefix, nested=nested
        ),
        old_tables.entity("team", name="Team", prefix=prefix, nested=nested),
    ]


def history(prefix: str = "", nested: bool = False) -> list[Item]:
    return [
        old_tables.event(
            "key-1", "01HQ000000000000000000000A", principal="eve", resource="gpt-4",
            details={"limits": [{"name": "rpm", "capacity": 60}]}, prefix=prefix, nested=nested,
        ),
        old_tables.event("$SYSTEM", "2024-02-01T00:00:00.000Z", prefix=prefix, nested=nested),
        old_tables.usage("key-1", "gpt-4", "hourly", "2024-03-01T12:00:00Z", prefix, rpm=3, tpm=4_500, total_events=3),
        old_tables.usage(
            "key-1", "gpt-4", "daily", "2024-03-02T00:00:00Z", prefix, tpm=17, total_events=1, ttl=NOW // 1000 + 9
        ),
    ]  # fmt: skip


def per_limit(nested: bool) -> list[Item]:
    buckets = [
        old_tables.per_limit_bucket(*whose, each, nested=nested) for whose, pools in POOLS.items() for each in pools
    ]
    levels = {"ENTITY#key-1": ("gpt-4", "_default_"), "RESOURCE#gpt-4": ("",), "SYSTEM#": ("",)}
    configs = [
        old_tables.per_limit_config(pk, name, numbers, resource, nested=nested and bool(resource))
        for pk, resources in levels.items()
        for resource in resources
        for name, numbers in LIMITS.items()
    ]
    policy = Item(Key("SYSTEM#", "#CONFIG"), {"on_unavailable": "allow"})
    return [*entities(nested=nested), *history(nested=nested), *buckets, *configs, policy, old_tables.version("0.5.0")]


def composite(prefix: str = "") -> list[Item]:
    buckets = [old_tables.composite_bucket(*whose, pools, prefix=prefix) for whose, pools in at_once().items()]
    configs = [
        old_tables.composite_config(
            f"{prefix}ENTITY#key-1", f"#CONFIG#{resource}", LIMITS, resource=resource, entity_id="key-1"
        )
        for resource in ("gpt-4", "_default_")
    ]
    configs += [
        old_tables.composite_config(f"{prefix}RESOURCE#gpt-4", "#CONFIG", LIMITS, resource="gpt-4"),
        old_tables.composite_config(f"{prefix}SYSTEM#", "#CONFIG", LIMITS, on_unavailable="allow"),
    ]
    lists = [Item(Key(f"{prefix}SYSTEM#", "#ENTITY_CONFIG_RESOURCES"), {"gpt-4": 1, "_default_": 1})]
    return [*entities(prefix), *history(prefix), *buckets, *configs, *lists, old_tables.version(prefix=prefix)]


def namespaced() -> list[Item]:
    return [*composite(f"{OTHER}/"), *old_tables.registered()]


def newest() -> list[Item]:
    others = [item for item in composite(f"{OTHER}/") if not item.key.sk.startswith("#BUCKET#")]
    buckets = [
        old_tables.sharded_bucket(*whose, [each._replace(capacity=each.rule.capacity) for each in pools])
        for whose, pools in at_once().items()
    ]
    return [*others, *buckets, *old_tables.registered()]


LAYOUTS: dict[str, Callable[[], list[Item]]] = {
    "nested": lambda: per_limit(nested=True),
    "per limit": lambda: per_limit(nested=False),
    "composite": composite,
    "namespaced": namespaced,
    "newest": newest,
}


def fill(table: OldTable, items: Sequence[Item]) -> None:
    """Old items; the list of resources is a set, as other clients keep it."""
    table.put(*items)
    prefix = next((f"{OTHER}/" for item in items if item.key.pk.startswith(OTHER)), "")
    if any(item.key.sk == "#ENTITY_CONFIG_RESOURCES" for item in items):
        pk, sk = {"S": f"{prefix}SYSTEM#"}, {"S": "#RESOURCES"}
        table.put_raw({"PK": pk, "SK": sk, "resources": {"SS": ["gpt-4"]}})


def upgrade(table: OldTable, **options: Any) -> MoveReport:
    return run(Runner(table.store(), **options).run())


def old_pools(items: Sequence[Item]) -> dict[tuple[str, str], list[Pool]]:
    """What the items hold: composite buckets have one refill."""
    if any(item.key.sk.count("#") == 3 and "#BUCKET#" in item.key.sk for item in items):
        return POOLS
    return at_once()


async def check_balances(repo: BlockingRepository, expected: dict[tuple[str, str], list[Pool]]) -> None:
    for (entity_id, resource), pools in expected.items():
        found = {state.limit_name: state for state in await repo.get_buckets(entity_id, resource)}
        assert found.keys() == {each.limit for each in pools}
        anchor = max(each.refilled for each in pools)
        for each in pools:
            check_balance(found[each.limit], each, anchor)


def check_balance(state: BucketState, old: Pool, anchor: int) -> None:
    rule = Rule(state.capacity_milli, state.refill_amount_milli, state.refill_period_ms)
    assert rule == old.rule
    assert state.total_consumed_milli == old.consumed
    assert state.last_refill_ms == anchor
    for later in (0, 1, 999, 12_345, 60_000, 3_600_000, 10**10):
        ours = rule.level(state.tokens_milli, state.last_refill_ms, anchor + later)
        assert abs(ours - old.level(anchor + later)) <= (1 if later else 0), (later, old)


async def check_everything(table: OldTable, items: Sequence[Item]) -> None:
    """Everything that the old items said, as this version's users see it."""
    repo = BlockingRepository(table.store())
    await check_balances(repo, old_pools(items))
    assert await repo.get_limits("key-1", "gpt-4") == STORED
    assert await repo.get_limits("key-1") == STORED
    assert await repo.get_resource_defaults("gpt-4") == STORED
    assert await repo.get_system_defaults() == (STORED, OnUnavailable.ALLOW)
    assert await repo.list_resources_with_defaults() == ["gpt-4"]
    assert await repo.list_resources_with_entity_configs() == ["_default_", "gpt-4"]
    assert await repo.list_entities_with_custom_limits("gpt-4") == (["key-1"], None)
    ns = await repo._backend.ns(repo._backend.deadline())
    wanted = [keys.resources(ns), keys.entity_config_resources(ns)]
    lists = await repo._backend.read(wanted, repo._backend.deadline())
    counted = [{name: count for name, count in (each or {}).items() if name.startswith("r_")} for each in lists]
    assert counted == [{"r_gpt-4": 1}, {"r_gpt-4": 1, "r__default_": 1}]
    await check_entities(repo)
    await check_history(repo)


async def check_entities(repo: BlockingRepository) -> None:
    one, two, team = [await repo.get_entity(name) for name in ("key-1", "key-2", "team")]
    assert one is not None
    assert two is not None
    assert team is not None
    assert (one.name, one.parent_id, one.cascade, one.metadata) == (
        "Key One",
        "team",
        False,
        {"tier": 2, "tags": ["a"]},
    )
    assert (two.name, two.parent_id, two.cascade, two.metadata) == ("key-2", "team", True, {})
    assert (team.name, team.parent_id) == ("Team", None)
    assert {each.created_at for each in (one, two, team)} == {"2024-03-01T12:00:00Z"}
    assert [each.id for each in await repo.get_children("team")] == ["key-1", "key-2"]
    deadline = repo._backend.deadline()
    image = (await repo._backend.read([keys.meta(await repo._backend.ns(deadline), "team")], deadline))[0]
    assert image is not None
    assert image["children"] == 2


async def check_history(repo: BlockingRepository) -> None:
    (first,) = await repo.get_audit_events("key-1")
    assert (first.event_id, first.action, first.principal, first.resource) == (
        "01HQ000000000000000000000A", "limits_set", "eve", "gpt-4",
    )  # fmt: skip
    assert first.details == {"limits": [{"name": "rpm", "capacity": 60}]}
    (second,) = await repo.get_audit_events("$SYSTEM")
    assert (second.timestamp, second.principal, second.details) == ("2024-03-01T12:00:00Z", None, {})
    for query in ({"entity_id": "key-1"}, {"resource": "gpt-4"}):
        found, _ = await repo.get_usage_snapshots(**query)  # type: ignore[arg-type]  # one of two texts
        by_type = {each.window_type: each for each in found}
        assert by_type.keys() == {"hourly", "daily"}
        assert (dict(by_type["hourly"].counters), by_type["hourly"].total_events) == ({"rpm": 3, "tpm": 4_500}, 3)
        assert (dict(by_type["daily"].counters), by_type["daily"].total_events) == ({"tpm": 17}, 1)
        assert by_type["hourly"].window_start == "2024-03-01T12:00:00Z"
