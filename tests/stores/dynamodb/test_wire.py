"""DynamoDB at the wire: how many calls a decision takes, what it is billed, and what a lost answer does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aws.rig import Rig, rigged
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.stores.dynamodb import access

LIMITS = [Limit.per_minute("rpm", 600), Limit.per_minute("tpm", 100_000)]
NARROW = [Limit.per_second("rpm", 10), Limit.per_minute("tpm", 1_000_000)]
COST = {"rpm": 1, "tpm": 500}


@pytest.fixture(params=[False, True], ids=["async", "blocking"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rigged(blocking=request.param) as made:
        yield made


async def take(limiter: RateLimiter, entity: str = "key", **options: Any) -> str:
    """``granted``, ``degraded``, ``refused`` or ``unavailable``."""
    try:
        async with limiter.acquire(entity, "gpt-4", COST, **options) as lease:
            return "degraded" if lease.degraded else "granted"
    except RateLimitExceeded:
        return "refused"
    except RateLimiterUnavailable:
        return "unavailable"


async def warm(rig: Rig, limits: list[Limit] = LIMITS, **options: Any) -> RateLimiter:
    """A limiter that has opened its namespace and served somebody else."""
    limiter = rig.limiter(**options)
    await limiter.set_system_defaults(limits)
    assert await take(limiter, "somebody") == "granted"
    return limiter


async def test_a_steady_acquire_is_one_write_and_no_read(rig: Rig) -> None:
    limiter = await warm(rig)
    await take(limiter)
    mark = rig.wire.mark()
    for _ in range(10):
        assert await take(limiter) == "granted"
        rig.clock.advance_ms(70)
    assert rig.wire.operations(since=mark) == ["UpdateItem"] * 10
    assert {call.connection for call in rig.wire.calls(since=mark)} == {rig.wire.calls()[-1].connection}


async def test_the_first_acquire_of_an_unknown_entity_is_a_read_and_a_write(rig: Rig) -> None:
    limiter = await warm(rig)
    mark = rig.wire.mark()
    assert await take(limiter) == "granted"
    calls = rig.wire.calls(since=mark)
    assert len(calls) <= 2
    assert sum(call.reads for call in calls) <= 1


async def drained(limiter: RateLimiter) -> None:
    while await take(limiter) == "granted":
        pass


async def wait_for(rig: Rig, limiter: RateLimiter) -> int:
    """One grant, by coming back whenever told to; the number of refusals on the way."""
    for refusals in itertools.count():
        try:
            async with limiter.acquire("key", "gpt-4", COST):
                return refusals
        except RateLimitExceeded as error:
            rig.clock.advance(error.retry_after_seconds or 0)
    raise AssertionError("a count has no end")


async def test_a_saturated_bucket_takes_one_call_per_grant(rig: Rig) -> None:
    grants = 40
    limiter = await warm(rig, NARROW)
    await drained(limiter)
    mark = rig.wire.mark()
    for _ in range(grants):
        await wait_for(rig, limiter)
    assert set(rig.wire.operations(since=mark)) == {"UpdateItem"}
    assert len(rig.wire.calls(since=mark)) <= 1.1 * grants


async def test_clients_that_share_a_saturated_bucket_never_read_it(rig: Rig) -> None:
    grants = 30
    limiters = [await warm(rig, NARROW), rig.limiter(), rig.limiter()]
    for limiter in limiters:
        await drained(limiter)
    mark = rig.wire.mark()
    refusals = sum([await wait_for(rig, limiters[turn % len(limiters)]) for turn in range(grants)])
    assert set(rig.wire.operations(since=mark)) == {"UpdateItem"}
    assert len(rig.wire.calls(since=mark)) <= 1.5 * (grants + refusals)


async def test_a_repeated_refusal_takes_no_call(rig: Rig) -> None:
    limiter = await warm(rig, NARROW)
    await drained(limiter)
    mark = rig.wire.mark()
    for _ in range(20):
        assert await take(limiter) == "refused"
    assert rig.wire.operations(since=mark) == []


async def family(limiter: RateLimiter) -> None:
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    assert await take(limiter) == "granted"


async def test_a_cascade_is_one_write_per_level_in_one_round_trip(rig: Rig) -> None:
    limiter = await warm(rig)
    await family(limiter)
    mark = rig.wire.mark()
    meeting = rig.wire.together(2, operation="UpdateItem")
    assert await take(limiter) == "granted"
    assert rig.wire.operations(since=mark) == ["UpdateItem"] * 2
    child, parent = rig.wire.calls(since=mark)
    assert meeting.met, "one waited for the other's answer"
    assert child.overlaps(parent)


async def test_a_strict_cascade_is_one_transaction(rig: Rig) -> None:
    limiter = await warm(rig)
    await family(limiter)
    mark = rig.wire.mark()
    assert await take(limiter, atomic=True) == "granted"
    assert rig.wire.operations(since=mark)[0] == "TransactWriteItems"
    assert sum(not call.reads for call in rig.wire.calls(since=mark)) == 1


async def test_acquire_and_adjust_are_two_writes(rig: Rig) -> None:
    limiter = await warm(rig)
    await take(limiter)
    mark = rig.wire.mark()
    async with limiter.acquire("key", "gpt-4", COST) as lease:
        await lease.adjust(tpm=100)
        await lease.adjust(tpm=-30)
    assert rig.wire.operations(since=mark) == ["UpdateItem"] * 2
    assert (await limiter.available("key", "gpt-4"))["tpm"] == 100_000 - 500 - 570


async def left(rig: Rig) -> dict[str, int]:
    """What an onlooker sees who has nothing in common with the others but the table."""
    return await rig.limiter().available("key", "gpt-4")


@pytest.mark.parametrize(("policy", "outcome"), [("block", "unavailable"), ("allow", "degraded")])
async def test_a_write_whose_answer_is_lost_is_charged_once_and_not_sent_again(
    rig: Rig, policy: str, outcome: str
) -> None:
    limiter = await warm(rig, on_unavailable=policy)
    await take(limiter)
    mark = rig.wire.mark()
    rig.wire.lose(operation="UpdateItem")
    assert await take(limiter) == outcome
    (call,) = rig.wire.calls(since=mark)
    assert (call.status, call.delivered) == (200, False)
    assert await left(rig) == {"rpm": 598, "tpm": 99_000}
    assert await take(limiter) == "granted", "back without help"
    assert await left(rig) == {"rpm": 597, "tpm": 98_500}


async def test_a_first_write_whose_answer_is_lost_is_charged_once(rig: Rig) -> None:
    limiter = await warm(rig)
    rig.wire.lose(operation="PutItem")
    rig.wire.lose(operation="UpdateItem")
    assert await take(limiter) == "unavailable"
    rig.wire.heal()
    assert await left(rig) == {"rpm": 599, "tpm": 99_500}


async def test_the_last_token_is_never_granted_twice_by_a_lost_answer(rig: Rig) -> None:
    limiter = await warm(rig, [Limit.per_hour("rpm", 2), Limit.per_hour("tpm", 10_000)])
    assert await take(limiter) == "granted"
    rig.wire.lose(operation="UpdateItem")
    assert await take(limiter) == "unavailable"
    assert await take(limiter) == "refused"
    assert await take(rig.limiter()) == "refused"


async def test_an_adjustment_whose_answer_is_lost_is_written_once(rig: Rig) -> None:
    limiter = await warm(rig, on_unavailable="allow")
    await take(limiter)
    mark = rig.wire.mark()
    async with limiter.acquire("key", "gpt-4", COST) as lease:
        await lease.adjust(tpm=1000)
        rig.wire.lose(operation="UpdateItem")
    assert rig.wire.operations(since=mark) == ["UpdateItem"] * 2
    assert (await left(rig))["tpm"] == 100_000 - 500 - 1500


async def test_a_transaction_whose_answer_is_lost_is_sent_again_under_the_same_token_and_charged_once(rig: Rig) -> None:
    limiter = await warm(rig)
    await family(limiter)
    mark = rig.wire.mark()
    rig.wire.lose(operation="TransactWriteItems")
    assert await take(limiter, atomic=True) == "granted"
    sent = [call for call in rig.wire.calls(since=mark) if call.operation == "TransactWriteItems"]
    assert [call.delivered for call in sent] == [False, True]
    assert sent[0].request == sent[1].request
    assert await left(rig) == {"rpm": 598, "tpm": 99_000}


async def test_a_transaction_that_is_done_stays_a_grant_if_its_images_cannot_be_read_back(rig: Rig) -> None:
    limiter = await warm(rig)
    await family(limiter)
    rig.wire.instead(500, "InternalServerError", operation="BatchGetItem", times=20)
    async with limiter.acquire("key", "gpt-4", COST, atomic=True) as lease:
        assert not lease.degraded
        await lease.adjust(tpm=+100)
    rig.wire.heal()
    for entity in ("key", "org"):
        found = (await limiter.get_status(entity, "gpt-4"))[0:2]
        taken = {row.limit_name: row.limit.capacity - row.available for row in found}
        assert taken == {name: 2 * amount + (100 if name == "tpm" else 0) for name, amount in COST.items()}


async def test_a_refused_write_counts_as_billed(rig: Rig) -> None:
    limiter, other = await warm(rig, NARROW), rig.limiter()
    assert await take(limiter) == "granted"
    await drained(other)
    before = limiter.repository.get_backend_stats()
    assert await take(limiter) == "refused"
    after = limiter.repository.get_backend_stats()
    assert after.conflicts - before.conflicts == after.write_units - before.write_units == 1


async def test_a_failure_of_the_service_is_not_tried_again_where_that_could_charge_twice(rig: Rig) -> None:
    limiter = await warm(rig)
    await take(limiter)
    mark = rig.wire.mark()
    rig.wire.instead(500, "InternalServerError", operation="UpdateItem")
    assert await take(limiter) == "unavailable"
    assert rig.wire.operations(since=mark) == ["UpdateItem"]
    assert await left(rig) == {"rpm": 599, "tpm": 99_500}


async def test_the_engine_goes_and_comes_back(rig: Rig) -> None:
    limiter = await warm(rig)
    assert await take(limiter) == "granted"
    rig.wire.down()
    assert await take(limiter) == "unavailable"
    assert await take(limiter, on_unavailable="allow") == "degraded"
    rig.wire.up()
    assert await take(limiter) == "granted"
    assert await left(rig) == {"rpm": 598, "tpm": 99_000}


def projected(index: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """What an index keeps of an item; nothing if it lacks one of the index's keys."""
    keys = {key["AttributeName"] for key in index["KeySchema"]}
    if not keys <= item.keys():
        return {}
    if index["Projection"]["ProjectionType"] == "ALL":
        return item
    kept = keys | {"PK", "SK"} | set(index["Projection"].get("NonKeyAttributes", ()))
    return {name: value for name, value in item.items() if name in kept}


def size(item: dict[str, Any]) -> int:
    """Return the bytes that an item is billed as: names, texts, and half a byte per digit with one or two on top."""
    total = 0
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        total += len(name.encode()) + (len(value) if kind == "S" else (len(str(value)) + 1) // 2 + 2)
    return total


POLICIES = [
    Limit.per_minute("rpm", 600, floors={"batch": 0.3}),
    Limit.quota("tpd", 1_000_000, every="day", tz="Europe/Berlin"),
    Limit.per_minute("tpm", 100_000, soft=True),
]


@pytest.mark.parametrize("limits", [LIMITS, POLICIES], ids=["rates", "policies"])
async def test_a_steady_acquire_is_billed_one_write_unit_table_and_indexes_together(
    rig: Rig, limits: list[Limit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "CAPACITY_DETAIL", "INDEXES")
    store = rig.dynamo(rig.clock)
    limiter = rig.limiter(store)
    await limiter.set_system_defaults(limits)
    await family(limiter)
    before = {(item["PK"]["S"], item["SK"]["S"]): item for item in rig.items()}
    mark = rig.wire.mark()
    async with limiter.acquire("org", "gpt-4", {limit.name: 1 for limit in limits}):
        pass
    (call,) = rig.wire.calls(since=mark)
    assert call.request["ReturnConsumedCapacity"] == "INDEXES"
    billed = call.answer["ConsumedCapacity"]
    assert billed["CapacityUnits"] == billed["Table"]["CapacityUnits"] == 1.0
    assert not any(index["CapacityUnits"] for index in billed.get("GlobalSecondaryIndexes", {}).values())

    described = (await store.client.call("DescribeTable", {"TableName": rig.table}))["Table"]
    after = call.answer["Attributes"]
    assert size(after) <= 1024, "a write unit is a kilobyte"
    old = before[after["PK"]["S"], after["SK"]["S"]]
    assert old != after
    for index in described["GlobalSecondaryIndexes"]:
        assert projected(index, old) == projected(index, after), f"{index['IndexName']} is written, and billed"
