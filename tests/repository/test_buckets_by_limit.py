"""Buckets limit by limit, parents by one call, and the other operations that programs of 0.17 ask a repository for."""

from __future__ import annotations

import pytest

from tests.aws.stacks import REGION, named
from tests.support.aws import engine
from zae_limiter import (
    EntityNotFoundError,
    InfrastructureNotFoundError,
    InvalidIdentifierError,
    InvalidNameError,
    Limit,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness, ManualClock

RPM, TPM = Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1000)


async def test_one_limit_of_a_bucket(harness: Harness) -> None:
    limiter = harness.limiter()
    repo = limiter.repository
    assert await repo.get_bucket("key", "gpt-4", "rpm") is None
    full = await repo.get_or_create_bucket("key", "gpt-4", RPM)
    assert (full.tokens_milli, full.capacity_milli, full.refill_amount_milli) == (10_000, 10_000, 10_000)
    assert (full.refill_period_ms, full.total_consumed_milli) == (60_000, 0)
    assert await repo.get_buckets("key") == [], "an unused bucket is not stored"
    for entity_id in ("key", "other"):
        async with limiter.acquire(entity_id, "gpt-4", {"rpm": 1, "tpm": 100}, [RPM, TPM]):
            pass
    state = await repo.get_bucket("key", "gpt-4", "tpm")
    assert state is not None
    assert (state.entity_id, state.limit_name, state.total_consumed_milli) == ("key", "tpm", 100_000)
    assert await repo.get_or_create_bucket("key", "gpt-4", TPM) == state
    assert await repo.get_bucket("key", "gpt-4", "rpd") is None
    assert await repo.get_bucket("key", "gpt-3", "rpm") is None


async def test_buckets_of_a_resource(harness: Harness) -> None:
    limiter = harness.limiter()
    for entity_id, resource in (("key-1", "gpt-4"), ("key-2", "gpt-4"), ("key-1", "gpt-3")):
        async with limiter.acquire(entity_id, resource, {"rpm": 1}, [RPM, TPM]):
            pass
    states = await limiter.repository.get_resource_buckets("gpt-4")
    whose = [("key-1", "rpm"), ("key-1", "tpm"), ("key-2", "rpm"), ("key-2", "tpm")]
    assert sorted((state.entity_id, state.limit_name) for state in states) == whose
    states = await limiter.repository.get_resource_buckets("gpt-4", "tpm")
    assert sorted(state.entity_id for state in states) == ["key-1", "key-2"]
    assert await limiter.repository.get_resource_buckets("gpt-5") == []


async def test_buckets_that_cannot_be(harness: Harness) -> None:
    repo = harness.repository()
    for work in (
        repo.get_bucket("key", "gpt-4", "wcu"),
        repo.get_bucket("key", "#", "rpm"),
        repo.get_resource_buckets("#"),
        repo.get_resource_buckets("gpt-4", "#"),
    ):
        with pytest.raises(InvalidNameError):
            await work
    with pytest.raises(InvalidIdentifierError):
        await repo.get_bucket("#", "gpt-4", "rpm")
    with pytest.raises(ValidationError):
        await repo.get_or_create_bucket("key", "gpt-4", "rpm")  # type: ignore[arg-type]  # what is tested


async def test_an_entity_gets_another_parent(harness: Harness) -> None:
    limiter = harness.limiter()
    repo = limiter.repository
    for org in ("org-1", "org-2"):
        await repo.create_entity(org)
    await repo.create_entity("key", parent_id="org-1", cascade=True)
    assert await repo.set_parent("key", "org-2", principal="ann") == 0
    assert [child.id for child in await repo.get_children(parent_id="org-2")] == ["key"]
    assert await repo.get_children("org-1") == []
    assert (await repo.get_audit_events("key"))[0].principal == "ann"
    for resource in ("gpt-3", "gpt-4"):
        async with limiter.acquire("key", resource, {"rpm": 1}, [RPM]):
            pass
    assert await limiter.set_parent("key", None) == 2
    assert (await repo.get_entity("key")).parent_id is None  # type: ignore[union-attr]  # it exists
    for entity_id, parent_id in (("nobody", "org-1"), ("key", "nobody")):
        with pytest.raises(EntityNotFoundError, match="nobody"):
            await repo.set_parent(entity_id, parent_id)


async def test_namespaces_by_the_keyword_of_earlier_versions(harness: Harness) -> None:
    repo = harness.repository()
    made = await repo.register_namespace(namespace="tenant-a")
    assert await repo.register_namespaces(namespaces=["tenant-a"]) == [made]
    assert await repo.get_namespace(namespace="tenant-a") == made
    assert (await repo.delete_namespace(namespace="tenant-a")).id == made.id


async def test_a_store_that_answers(harness: Harness) -> None:
    repo = harness.repository()
    assert await repo.ping()
    record = await repo.get_version_record()
    assert record is None or record["schema_version"] == "1.0.0"
    assert await repo.resolve_on_unavailable() == "block"
    assert await repo.get_system_limits() == []
    await repo.set_system_defaults([RPM], "allow")
    assert await repo.resolve_on_unavailable() == "allow"
    assert await repo.get_system_limits() == [RPM]


def test_how_long_an_unused_bucket_is_kept_is_told_to_the_repository() -> None:
    clock = ManualClock()
    repo = SyncRepository(MemoryStore(clock, usage_retention_days=0), bucket_ttl_multiplier=4)
    twice, longer = repo.namespace("default", bucket_ttl_multiplier=2), repo.namespace("default")
    for entity_id, limiter in {
        "as-given": SyncRateLimiter(repo),
        "twice": SyncRateLimiter(twice),
        "longer": SyncRateLimiter(longer),
        "once": SyncRateLimiter(repo, bucket_ttl_refill_multiplier=1),
    }.items():
        with limiter.acquire(entity_id, "gpt-4", {"rpm": 10}, [RPM]):
            pass
    kept = {}
    for minutes in range(6):
        kept[minutes] = {state.entity_id for state in repo.get_resource_buckets("gpt-4")}
        clock.advance_ms(60_001)
    everybody = {"as-given", "longer", "once", "twice"}
    gone = {minutes: everybody - whose for minutes, whose in kept.items()}
    assert gone == {0: set(), 1: {"once"}, 2: {"once", "twice"}, 3: {"once", "twice"}, 4: everybody, 5: everybody}
    for bad in (-1, 0.5, "7"):
        with pytest.raises(ValidationError, match="bucket_ttl_multiplier"):
            SyncRepository("memory://", bucket_ttl_multiplier=bad)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(ValidationError, match="bucket_ttl_multiplier"):
            repo.namespace("default", bucket_ttl_multiplier=bad)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_table_is_deleted_and_that_again_is_no_error(blocking: bool) -> None:
    with named() as name:
        if blocking:
            sync = SyncRepository(name, REGION, engine.endpoint())
            assert not sync.ping()
            sync.create_table()
            sync.create_entity("key")
            sync.delete_table()
            sync.delete_table()
            with pytest.raises(InfrastructureNotFoundError):
                sync.get_entity("key")
            sync.close()
            return
        async with Repository(name, REGION, engine.endpoint()) as repo:
            await repo.create_table()
            await repo.create_entity("key")
            await repo.delete_table()
            await repo.delete_table()
            assert not await repo.ping()
