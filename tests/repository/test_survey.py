"""Surveys: every bucket of a namespace or a resource at one instant, and which are the busiest."""

from __future__ import annotations

import pytest

from tests.conformance.shards import split
from tests.limiter.test_shards import begun, opened
from tests.support.acquiring import take
from zae_limiter import Limit, Load, RateLimiter, Survey, SyncRepository, ValidationError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness

LIMITS = [
    Limit.per_minute("rpm", 60),
    Limit.custom("tpm", capacity=2_000, refill_amount=1_000, refill_period_seconds=1),
]


async def spend(limiter: RateLimiter, entity: str, resource: str, **cost: int) -> None:
    async with limiter.acquire(entity, resource, cost, LIMITS):
        pass


def by_name(survey: Survey) -> dict[tuple[str, str, str], Load]:
    return {(load.entity_id, load.resource, load.limit_name): load for load in survey.loads}


async def test_every_bucket_of_the_namespace_or_of_a_resource(harness: Harness) -> None:
    store = harness.store()
    repo = harness.repository(store)
    await repo.register_namespace("other")
    limiter = harness.limiter(repo)
    await spend(harness.limiter(harness.repository(store, namespace="other")), "stranger", "gpt-4", rpm=1)
    await repo.create_entity("idle")
    for entity, resource, tokens in (("a", "gpt-4", 500), ("a", "gpt-4.5", 2_000), ("b", "gpt-4", 0)):
        await spend(limiter, entity, resource, rpm=6, tpm=tokens)

    survey = await repo.survey_buckets()
    found = by_name(survey)
    assert sorted({name[:2] for name in found}) == [("a", "gpt-4"), ("a", "gpt-4.5"), ("b", "gpt-4")]
    assert (survey.records, survey.complete, survey.taken_at_ms) == (3, True, harness.clock.now_ms())
    assert found["a", "gpt-4", "rpm"] == Load("a", "gpt-4", "rpm", 60, 54, 10.0, 6.0, 6_000)
    assert found["a", "gpt-4", "tpm"] == Load("a", "gpt-4", "tpm", 2_000, 1_500, 25.0, 0.5, 500_000)
    assert found["a", "gpt-4.5", "tpm"] == Load("a", "gpt-4.5", "tpm", 2_000, 0, 100.0, 2.0, 2_000_000)
    assert found["b", "gpt-4", "tpm"] == Load("b", "gpt-4", "tpm", 2_000, 2_000, 0.0, 0.0, 0)

    only = await repo.survey_buckets("gpt-4")
    assert by_name(only) == {name: load for name, load in found.items() if name[1] == "gpt-4"}
    assert await repo.survey_buckets("nothing") == Survey(harness.clock.now_ms(), 0, True, ())


async def test_it_looks_at_no_more_records_than_it_may_and_says_so(harness: Harness) -> None:
    limiter = harness.limiter()
    repo = limiter.repository
    for number in range(5):
        await spend(limiter, f"key-{number}", "gpt-4", rpm=1)
    for resource in (None, "gpt-4"):
        cut = await repo.survey_buckets(resource, max_records=3)
        assert (cut.records, cut.complete) == (3, False)
        assert [load.entity_id for load in cut.loads if load.limit_name == "rpm"] == ["key-0", "key-1", "key-2"]
        whole = await repo.survey_buckets(resource, max_records=5)
        assert (whole.records, whole.complete, len(whole.loads)) == (5, True, 10)


async def test_rates_are_what_was_consumed_between_two_surveys(harness: Harness) -> None:
    limiter = harness.limiter()
    repo = limiter.repository
    await spend(limiter, "busy", "gpt-4", rpm=1, tpm=1_000)
    await spend(limiter, "idle", "gpt-4", rpm=1)
    before = await repo.survey_buckets()
    harness.clock.advance(4)
    await spend(limiter, "busy", "gpt-4", rpm=2, tpm=1_500)
    async with limiter.acquire("new", "gpt-4", {"tpm": 300}, LIMITS) as lease:
        await lease.adjust(tpm=-100)
    after = await repo.survey_buckets()
    rates = {
        (load.entity_id, load.limit_name): load.consumed_per_second for load in after.busiest(by="rate", since=before)
    }
    assert rates == {
        ("busy", "tpm"): 375.0,
        ("new", "tpm"): 50.0,
        ("busy", "rpm"): 0.5,
        ("idle", "rpm"): 0.0,
        ("idle", "tpm"): 0.0,
        ("new", "rpm"): 0.0,
    }
    assert list(rates)[:3] == [("busy", "tpm"), ("new", "tpm"), ("busy", "rpm")]
    assert {load.consumed_per_second for load in after.busiest(since=after)} == {None}, "no time has passed"


def load(entity: str, left: int, capacity: int = 100, total: int = 0) -> Load:
    return Load(entity, "gpt-4", "rpm", capacity, left, 100.0 - 100.0 * left / capacity, 0.0, total)


def test_the_orders() -> None:
    loads = (load("b", 50), load("a", 50), load("large", 40, 10_000), load("debt", -10), load("small", 45, 60))
    survey = Survey(2_000, 5, True, loads)
    assert [each.entity_id for each in survey.busiest()] == ["debt", "large", "a", "b", "small"]
    assert [each.entity_id for each in survey.busiest(by="left")] == ["debt", "large", "small", "a", "b"]
    assert [each.entity_id for each in survey.busiest(2)] == ["debt", "large"]
    earlier = Survey(1_000, 5, True, (load("small", 45, 60, -7_000), *loads[:-1]))
    assert [each.entity_id for each in survey.busiest(2, "rate", earlier)] == ["small", "debt"]


def test_who_may_have_been_there_unseen_has_no_rate() -> None:
    survey = Survey(2_000, 1, True, (load("key", 50, total=5_000),))
    for complete, rate in ((True, 5.0), (False, None)):
        (found,) = survey.busiest(since=Survey(1_000, 0, complete, ()))
        assert found.consumed_per_second == rate


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("only", [None, 1], ids=["even", "uneven"])
def test_shards_are_one_bucket_and_half_a_bucket_is_none(blocking: bool, only: int | None) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        (limiter, *_) = await begun(harness, Limit.per_minute("rpm", 600), times=1)
        await split(limiter, only=only)
        for _ in range(30):
            async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
                pass
        repo = limiter.repository
        survey = await repo.survey_buckets()
        shards = 4 if only is None else 3
        (found,) = survey.loads
        taken = found.total_consumed_milli // 1000
        assert (survey.records, survey.complete) == (shards, True)
        assert (found.capacity, found.available) == (600, 600 - taken)
        assert taken >= 30
        for resource in (None, "gpt-4"):
            assert (await repo.survey_buckets(resource, max_records=shards)).loads == (found,)
            for fewer in range(1, shards):
                cut = await repo.survey_buckets(resource, max_records=fewer)
                assert (cut.records, cut.complete, cut.loads) == (fewer, False, ())

    harness.run(work())


@pytest.mark.parametrize(("resource", "most", "field"), [("a b", 5, "resource"), (None, 0, "max_records")])
def test_bad_input_is_refused_before_anything_is_read(resource: str | None, most: int, field: str) -> None:
    store = FaultyStore(MemoryStore())
    with pytest.raises(ValidationError) as refused:
        SyncRepository(store).survey_buckets(resource, most)
    assert refused.value.field == field
    assert not store.calls


def test_an_order_that_is_none() -> None:
    with pytest.raises(ValidationError, match="must be one of used, left, rate"):
        Survey(0, 0, True, ()).busiest(by="name")


async def test_children_and_capacity_come_in_more_than_one_page(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 100)])
    await limiter.create_entity("org")
    wanted = [f"key-{number:03}" for number in range(230)]
    for key in wanted:
        await limiter.create_entity(key, parent_id="org")
        await take(limiter, {"rpm": 1}, key)
    assert [child.id for child in await limiter.get_children("org")] == wanted
    capacity = await limiter.get_resource_capacity("gpt-4", "rpm")
    assert [each.entity_id for each in capacity.entities] == wanted
    assert (capacity.total_capacity, capacity.total_available) == (23_000, 230 * 99)
    assert capacity.utilization_pct == 1.0
