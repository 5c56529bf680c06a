"""DynamoDB at its borders: tenants, crafted names, wrong clocks, long lists, missing tables and denied access."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aws.rig import REGION, Rig, rigged
from zae_limiter import (
    AccessDeniedError,
    InfrastructureNotFoundError,
    InvalidIdentifierError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRepository,
)
from zae_limiter.testing import ManualClock

RPM = [Limit.per_hour("rpm", 100)]


@pytest.fixture(params=[False, True], ids=["async", "blocking"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rigged(blocking=request.param) as made:
        yield made


async def take(limiter: RateLimiter, entity: str = "key", amount: int = 1, **options: Any) -> bool:
    try:
        async with limiter.acquire(entity, "gpt-4", {"rpm": amount}, **options):
            return True
    except RateLimitExceeded:
        return False


# Tenants


def tenant(rig: Rig, name: str) -> RateLimiter:
    return rig.limiter(rig.repository(namespace=name))


async def test_two_namespaces_see_nothing_of_each_other(rig: Rig) -> None:
    await rig.repository().register_namespaces(["red", "blue"])
    red, blue = tenant(rig, "red"), tenant(rig, "blue")
    await red.set_system_defaults(RPM)
    await red.create_entity("org", name="Red")
    await red.create_entity("key", parent_id="org")
    await red.set_limits("key", RPM, "gpt-4")
    assert await take(red, amount=100)
    assert not await take(red)

    assert await blue.get_entity("key") is None
    assert await blue.get_children("org") == []
    assert await blue.get_limits("key", "gpt-4") == []
    assert await blue.get_buckets("key") == []
    assert (await blue.get_system_defaults())[0] == []
    assert (await blue.list_entities_with_custom_limits("gpt-4"))[0] == []
    assert (await blue.get_resource_capacity("gpt-4", "rpm")).entities == ()
    assert await blue.get_audit_events("key") == []
    assert await blue.list_resources_with_entity_configs() == []

    mark = rig.wire.mark()
    await blue.create_entity("key")
    assert await take(blue, amount=100, limits=RPM), "a balance of its own"
    await blue.delete_entity("key")
    assert await red.get_entity("key") is not None
    assert not await take(red)

    ids = {name: (await red.repository.get_namespace(name)).id for name in ("red", "blue")}
    for call in rig.wire.calls(since=mark):
        if call.request.get("Key", {}).get("PK", {}).get("S", "").startswith(ids["blue"]):
            assert ids["red"] not in str(call.request), "not even by mistake"


def touched(rig: Rig, mark: int) -> set[str]:
    """The partition keys that were written since a mark."""
    found: set[str] = set()
    for call in rig.wire.calls(since=mark):
        wishes = [next(iter(each.values())) for each in call.request.get("TransactItems", ())] or [call.request]
        if not call.reads:
            found |= {(wish.get("Key") or wish["Item"])["PK"]["S"] for wish in wishes}
    return found


@pytest.mark.parametrize(
    "entity",
    ["../", "../../SYSTEM", "{}", "{0}", "🚀", "a/ENTITY", "_/SYSTEM", ":v", "a b", "%23", "'", '"', "a" * 256],
)
async def test_a_crafted_id_reaches_no_key_but_its_own(rig: Rig, entity: str) -> None:
    limiter = rig.limiter()
    await limiter.set_system_defaults(RPM)
    ns = (await limiter.repository.get_namespace("default")).id
    before = {item["PK"]["S"]: item for item in rig.items()}
    mark = rig.wire.mark()
    assert await take(limiter, entity, 40)
    assert touched(rig, mark) == {f"{ns}/BUCKET#{entity}#gpt-4#0"}
    await limiter.create_entity(entity)
    assert (await limiter.get_entity(entity)) is not None
    assert (await limiter.available(entity, "gpt-4"))["rpm"] == 60
    after = {item["PK"]["S"]: item for item in rig.items()}
    changed = {key for key in after if after[key] != before.get(key)}
    own = {f"{ns}/BUCKET#{entity}#gpt-4#0", f"{ns}/ENTITY#{entity}", f"{ns}/AUDIT#{entity}"}
    assert changed == own


@pytest.mark.parametrize("entity", ["a#b", "#", "a" * 1024, "", "a\x00b", "\ud800", "$SYSTEM"])
async def test_an_id_that_could_reach_another_key_is_refused_before_any_call(rig: Rig, entity: str) -> None:
    limiter = rig.limiter()
    await limiter.set_system_defaults(RPM)
    mark = rig.wire.mark()
    with pytest.raises(InvalidIdentifierError):
        await take(limiter, entity)
    with pytest.raises(InvalidIdentifierError):
        await limiter.create_entity(entity)
    assert rig.wire.operations(since=mark) == []


# Names of limits


@pytest.mark.parametrize(
    "name", ["ttl", "resource", "total_events", "PK", "SK", "rf", "GSI1PK", "entity_id", "a.b", "a-b", "tk", "size"]
)
async def test_a_limit_may_be_called_like_an_attribute(rig: Rig, name: str) -> None:
    limits = [Limit.per_hour(name, 100), *RPM]
    limiter = rig.limiter()
    await limiter.set_limits("key", limits, "gpt-4")
    for other in (limiter, rig.limiter()):
        async with other.acquire("key", "gpt-4", {name: 10, "rpm": 1}) as lease:
            await lease.adjust(**{name: 5})
    assert await limiter.available("key", "gpt-4") == {name: 70, "rpm": 98}
    assert set(await rig.limiter().get_limits("key", "gpt-4")) == set(limits)
    assert {status.limit_name for status in await limiter.get_status("key", "gpt-4")} == {name, "rpm"}
    assert (await limiter.get_entity("key")) is None, "limits alone make no entity"
    assert (await limiter.get_resource_capacity("gpt-4", name)).total_available == 70


# Clocks


@pytest.mark.parametrize("seconds", [60, -60, 3600])
async def test_a_host_whose_clock_is_wrong_decides_like_everybody_else(
    rig: Rig, seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [Limit.per_minute("rpm", 60)]
    true = ManualClock(int(time.time()) * 1000)
    rig.wire.date = lambda: true.now_ms() / 1000
    wrong = ManualClock(true.now_ms() + seconds * 1000)

    def advance(by: float) -> None:
        true.advance(by)
        wrong.advance(by)

    honest, off = (rig.limiter(rig.dynamo(None, host_clock=clock)) for clock in (true, wrong))
    await honest.set_system_defaults(limits)
    assert await take(honest, amount=60)
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        assert not await take(off, amount=2), "it mints nothing"
    assert any("clock" in record.getMessage() for record in caplog.records), "and is told"
    assert abs(off.repository.clock_skew_ms - seconds * 1000) <= 1000
    advance(10)
    assert await take(honest, amount=8), "it starves nobody"
    advance(10)
    assert await take(off, amount=8), "nor itself"
    assert not await take(off, amount=5)
    assert not await take(honest, amount=5)


# Long lists


async def test_lists_that_take_several_pages_come_whole(rig: Rig) -> None:
    number = 12
    limiter = rig.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("org")
    names = [f"key-{each:02d}" for each in range(number)]
    for name in names:
        await limiter.create_entity(name, parent_id="org")
        assert await take(limiter, name)
    rig.wire.page = 5
    mark = rig.wire.mark()
    assert [child.id for child in await limiter.get_children("org")] == names
    assert rig.wire.operations(since=mark).count("Query") >= 3, "a page was not all of it"
    capacity = await limiter.get_resource_capacity("gpt-4", "rpm")
    assert sorted(each.entity_id for each in capacity.entities) == names
    assert capacity.total_available == 99 * number


# Nothing is provisioned by accident


async def test_opening_a_mistyped_name_creates_nothing(rig: Rig) -> None:
    kind: Any = SyncRepository if rig.blocking else Repository
    opened = kind("my-tpyo", region=REGION, endpoint_url=rig.wire.url)
    repository = getattr(opened, "_inner", opened)
    limiter = rig.limiter(repository)
    mark = rig.wire.mark()
    for attempt in (repository.ensure_infrastructure, lambda: take(limiter, limits=RPM, on_unavailable="allow")):
        with pytest.raises(InfrastructureNotFoundError, match="my-tpyo"):
            await attempt()
    await repository.close()
    assert not {"CreateTable", "CreateStack"} & set(rig.wire.operations(since=mark))
    assert all(call.status == 400 for call in rig.wire.calls(since=mark))


# Denied access

DENIALS = ["AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"]


@pytest.mark.parametrize("policy", ["allow", "block"])
@pytest.mark.parametrize("code", DENIALS)
async def test_denied_access_admits_nobody_in_silence(rig: Rig, policy: str, code: str) -> None:
    limiter = rig.limiter(on_unavailable=policy)
    await limiter.set_system_defaults(RPM)
    assert await take(limiter)
    rig.wire.instead(400, code, operation="UpdateItem", times=10)
    with pytest.raises(AccessDeniedError):
        await take(limiter)
    rig.wire.heal()
    assert await take(limiter)
    assert (await limiter.available("key", "gpt-4"))["rpm"] == 98


async def test_a_body_that_runs_unlimited_knows_it(rig: Rig) -> None:
    limiter = rig.limiter(on_unavailable="allow")
    await limiter.set_system_defaults(RPM)
    assert await take(limiter)
    rig.wire.instead(503, "ServiceUnavailable", times=50)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        assert lease.degraded
    rig.wire.heal()
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        assert not lease.degraded
