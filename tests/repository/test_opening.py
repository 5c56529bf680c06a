"""Opening: URLs, the environment, the builder, and what happens when the arguments make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zae_limiter import (
    InvalidNameError,
    Limit,
    NamespaceNotFoundError,
    RateLimiter,
    Repository,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness, ManualClock

RPM = [Limit.per_minute("rpm", 100)]
NAMES: list[Any] = ["", "x" * 129, "a#b", "a b", "-a", "_a", "a\n", "é", None, 5, b"gpt"]
DOORS = [Repository, SyncRepository, RateLimiter, SyncRateLimiter]


def test_nothing_given_means_the_environment_and_then_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ZAE_LIMITER_URL", raising=False)
    assert SyncRepository().capabilities.name == "memory"
    assert Repository().capabilities.name == "memory"
    monkeypatch.setenv("ZAE_LIMITER_URL", "")
    assert SyncRepository().capabilities.name == "memory"
    path = tmp_path / "limits.db"
    monkeypatch.setenv("ZAE_LIMITER_URL", f"sqlite:///{path}")
    with SyncRateLimiter() as limiter, limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=RPM) as lease:
        assert lease.available == {"rpm": 99}
    assert path.exists()
    assert SyncRepository("memory://").capabilities.name == "memory", "what is given goes first"
    monkeypatch.setenv("ZAE_LIMITER_URL", "ftp://host")
    with pytest.raises(ValidationError, match="ftp://host"):
        SyncRepository()


def test_relative_and_absolute_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in (
        ("sqlite:///here.db", tmp_path / "here.db"),
        (f"sqlite:///{tmp_path}/there.db", tmp_path / "there.db"),
        ("sqlite:///with%20space.db?timeout=2.5", tmp_path / "with space.db"),
        ("SQLITE:///shout.db", tmp_path / "shout.db"),
    ):
        with SyncRepository(url) as repo:
            repo.register_namespace("prod")
        assert path.exists(), url


def test_opening_touches_nothing_until_it_is_used(tmp_path: Path) -> None:
    SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db").close()
    SyncRateLimiter(f"sqlite:///{tmp_path}/missing/limits.db").close()
    assert list(tmp_path.iterdir()) == []


def test_memory_stores_are_apart_unless_they_have_a_name() -> None:
    alone, other = SyncRepository("memory://"), SyncRepository("memory://")
    alone.create_entity("key")
    assert other.get_entity("key") is None
    one, two = SyncRepository("memory://shared-by-test"), SyncRepository("memory://shared-by-test")
    one.create_entity("key")
    assert two.get_entity("key") is not None
    one.close()
    assert two.get_entity("key") is not None


@pytest.mark.parametrize("doors", [(Repository, RateLimiter), (SyncRepository, SyncRateLimiter)])
def test_a_limiter_opens_what_a_repository_opens(doors: tuple[Any, Any]) -> None:
    make_repository, make_limiter = doors
    repository = make_repository("memory://")
    for target in (repository, "memory://", MemoryStore(), None):
        make_limiter(target)
    for field in ("name", "region", "endpoint_url"):
        with pytest.raises(ValidationError) as caught:
            make_limiter(repository, **{field: "x"})
        assert caught.value.field == field


async def test_closing_twice_is_fine(harness: Harness) -> None:
    async with harness.limiter() as limiter:
        await limiter.set_system_defaults(RPM)
    await limiter.close()
    async with harness.repository() as repo:
        await repo.ensure_infrastructure()
    await repo.close()


def test_the_builder_says_the_same_and_registers_its_namespace() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    repo = SyncRepository.builder().url(store).namespace("prod").config_cache_ttl(5).clock(clock).build()
    assert repo.namespace == "prod"
    assert repo.get_cache_stats().ttl_seconds == 5
    assert [space.name for space in repo.list_namespaces()] == ["prod"]
    repo.create_entity("key")
    with pytest.raises(NamespaceNotFoundError, match="'dev'"):
        SyncRepository(store, namespace="dev").get_entity("key")
    again = SyncRepository.builder().url(store).namespace("prod").build()
    assert again.get_entity("key") is not None, "an existing namespace is used as it is"
    with pytest.raises(ValidationError):
        SyncRepository.builder().url("memory://").region("us-east-1").build()
    with pytest.raises(InvalidNameError):
        SyncRepository.builder().name("not a stack").endpoint_url("http://x").stack_options(StackOptions()).build()


async def test_the_async_builder(harness: Harness) -> None:
    if harness.blocking:
        return
    repo = await Repository.builder().url(harness.store()).namespace("prod").build()
    assert [space.name for space in await repo.list_namespaces()] == ["prod"]


async def test_status_tells_what_is_open(harness: Harness) -> None:
    repo = harness.repository()
    status = await repo.status()
    assert status.available
    assert status.backend == repo.capabilities.name
    assert status.namespace == "default"
    assert status.schema_version == "1.0.0"
    assert status.latency_ms is not None
    assert status.latency_ms > 0
    assert await harness.limiter(repo).is_available()


@pytest.mark.parametrize("make", [Repository, SyncRepository])
def test_names_given_at_opening(make: Any) -> None:
    for bad in NAMES:
        with pytest.raises(InvalidNameError):
            make("memory://", namespace=bad)
    for bad in ("", "1st", "a_b", "a.b", "x" * 56, "a b", "é"):
        with pytest.raises(InvalidNameError):
            make(name=bad)


@pytest.mark.parametrize("make", [RateLimiter, SyncRateLimiter])
@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *(("on_unavailable", bad) for bad in ("maybe", "", 5)),
        *(("bucket_ttl_refill_multiplier", bad) for bad in (-1, 0.5, float("nan"), float("inf"), True, "7")),
        *(("refusal_ttl", bad) for bad in (-1, float("nan"), float("inf"), "1")),
        *(("timeout", bad) for bad in (0, -1, float("nan"), "1")),
    ],
)
def test_arguments_of_a_limiter(make: Any, field: str, bad: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        make("memory://", **{field: bad})
    assert caught.value.field == field
    assert caught.value.value is bad


@pytest.mark.parametrize("make", [Repository, SyncRepository])
@pytest.mark.parametrize("field", ["config_cache_ttl", "timeout"])
@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "60"])
def test_arguments_of_a_repository(make: Any, field: str, bad: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        make("memory://", **{field: bad})
    assert caught.value.field == field


BAD_URLS = [
    ("ftp://host", "unknown scheme"),
    ("mysql://host/db", "unknown scheme"),
    ("://", "unknown scheme"),
    ("memory://[", ""),
    ("memory://?max_bucket=5", "max_buckets"),
    ("memory://?max_buckets=many", "must be a number"),
    ("memory://?max_buckets=0", "above 0"),
    ("memory://?usage_retention_days=-1", "between 0 (none) and 36500 days"),
    ("sqlite:///a.db?usage_retention_days=36501", "between 0 (none) and 36500 days"),
    ("redis://localhost?usage_retention_days=1.5", "must be a number"),
    ("dynamodb://table?usage_retention_days=9", "unknown option"),
    ("memory://?max_buckets=1.5", "must be a number"),
    ("sqlite://", "needs a path"),
    ("sqlite:///", "needs a path"),
    ("sqlite://limits.db", "needs a path"),
    ("sqlite:///limits.db?time=5", "timeout"),
    ("sqlite:///limits.db?timeout=soon", "must be a number"),
    ("sqlite:///limits.db?timeout=-1", "above 0"),
    ("sqlite:///limits.db?timeout=nan", ""),
    ("sqlite:///limits.db?timeout=inf", ""),
    ("sqlite:///a%00b.db", ""),
]


@pytest.mark.parametrize(("url", "word"), BAD_URLS)
def test_urls_that_mean_nothing(url: str, word: str) -> None:
    for make in DOORS:
        with pytest.raises(ValidationError) as caught:
            make(url)
        assert caught.value.field == "url"
        assert word in caught.value.reason


@pytest.mark.parametrize("make", DOORS)
def test_options_that_do_not_fit_a_url(make: Any) -> None:
    stray: dict[str, Any] = {"region": "us-east-1", "endpoint_url": "http://x", "stack_options": StackOptions()}
    for field, value in stray.items():
        for url in ("memory://", "sqlite:///limits.db"):
            with pytest.raises(ValidationError) as caught:
                make(url, **{field: value})
            assert caught.value.field == field
            assert "DynamoDB" in caught.value.reason
    for given in ("memory://", "my-app"):
        with pytest.raises(ValidationError):
            make(given, name="my-app")


@pytest.mark.parametrize("make", DOORS)
def test_options_that_do_not_fit_a_store(make: Any) -> None:
    for field in ("name", "region", "endpoint_url"):
        with pytest.raises(ValidationError) as caught:
            make(MemoryStore(), **{field: "x"})
        assert caught.value.field == field


@pytest.mark.parametrize("make", DOORS)
@pytest.mark.parametrize("thing", [5, b"memory://", object(), []], ids=["int", "bytes", "object", "list"])
def test_a_thing_that_cannot_be_opened(make: Any, thing: object) -> None:
    with pytest.raises(ValidationError):
        make(thing)


def test_a_blocking_limiter_on_an_async_repository_and_the_reverse() -> None:
    with pytest.raises(ValidationError):
        SyncRateLimiter(Repository("memory://"))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValidationError):
        RateLimiter(SyncRepository("memory://"))  # type: ignore[arg-type]  # what is tested
