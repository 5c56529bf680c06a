"""Arguments that make no sense are refused before anything is asked of the store."""

from __future__ import annotations

from typing import Any

import pytest

from zae_limiter import (
    AuditEvent,
    BucketState,
    Limit,
    RateLimiter,
    Repository,
    StackManager,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
    SyncStackManager,
    ValidationError,
)

NOWHERE: dict[str, Any] = {"region": "us-east-1", "endpoint_url": "http://127.0.0.1:9"}
"""Nobody listens there: a call would be another error."""


@pytest.fixture
def limiter() -> SyncRateLimiter:
    return SyncRateLimiter("my-app", **NOWHERE)


@pytest.mark.parametrize("make", [RateLimiter, SyncRateLimiter, Repository, SyncRepository])
@pytest.mark.parametrize("bad", ["x", "", 0, {}, True])
def test_options_of_a_stack_that_are_none(make: Any, bad: Any) -> None:
    with pytest.raises(ValidationError, match="StackOptions") as caught:
        make(name="my-app", **NOWHERE, stack_options=bad)
    assert caught.value.field == "stack_options"


@pytest.mark.parametrize("bad", ["x", "", 0, {}, True])
async def test_options_of_a_stack_wherever_they_are_given(bad: Any) -> None:
    blocking = SyncRepository("my-app", **NOWHERE)
    for call in (
        lambda: SyncRepository.builder().stack_options(bad),
        lambda: SyncRepository.open(stack="my-app", **NOWHERE, stack_options=bad),
        lambda: blocking.create_stack(bad),
        lambda: SyncStackManager("my-app", **NOWHERE).create_stack(bad),
    ):
        with pytest.raises(ValidationError, match="StackOptions"):
            call()
    with pytest.raises(ValidationError, match="StackOptions"):
        await Repository("my-app", **NOWHERE).create_stack(bad)
    with pytest.raises(ValidationError, match="StackOptions"):
        await StackManager("my-app", **NOWHERE).create_stack(bad)


@pytest.mark.parametrize("bad", [None, 5, {}, {"a": 1}, "abc", b"abc", object()])
def test_namespaces_that_are_no_list_of_names(limiter: SyncRateLimiter, bad: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        limiter.repository.register_namespaces(bad)
    assert caught.value.field == "namespaces"


@pytest.mark.parametrize("bad", ["x", "", float("nan"), -1, 0, None, True, []])
def test_a_time_that_is_none(limiter: SyncRateLimiter, bad: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        limiter.is_available(timeout=bad)
    assert caught.value.field == "timeout"


@pytest.mark.parametrize("bad", ["", None, 5])
def test_ids_that_nothing_has(limiter: SyncRateLimiter, bad: Any) -> None:
    repository = limiter.repository
    for call in (repository.recover_namespace, repository.purge_namespace):
        with pytest.raises(ValidationError) as caught:
            call(bad)
        assert caught.value.field == "namespace_id"
    with pytest.raises(ValidationError, match="start_event_id"):
        repository.get_audit_events("key", start_event_id=bad or "")


@pytest.mark.parametrize("bad", [None, "", "yes", 0, 1, [], float("nan")])
def test_switches_are_true_or_false(bad: Any) -> None:
    with pytest.raises(ValidationError, match="speculative_writes"):
        SyncRateLimiter("memory://", speculative_writes=bad)
    with pytest.raises(ValidationError, match="auto_update"):
        SyncRepository.open(url="memory://", auto_update=bad)
    with pytest.raises(ValidationError, match="auto_update"):
        SyncRepository.builder().auto_update(bad)


def test_setters_of_a_builder() -> None:
    for bad in ("x", 5, object()):
        with pytest.raises(ValidationError, match="clock"):
            SyncRepository.builder().url("memory://").clock(bad).build()  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValidationError, match="on_unavailable"):
        SyncRepository.builder().on_unavailable("maybe")
    with pytest.raises(ValidationError, match="lambda_color"):
        SyncRepository.builder().stack_options(lambda_color="red")
    with pytest.raises(ValidationError, match="lambda_architecture"):
        SyncRepository.builder().stack("my-app").stack_options(StackOptions(), lambda_architecture="z80").build()


@pytest.mark.parametrize("bad", [None, {}, "x", 5, {"event_id": "1", "timestamp": "t", "action": None}])
def test_events_that_are_none(bad: Any) -> None:
    with pytest.raises(ValidationError, match=r"AuditEvent\.to_dict"):
        AuditEvent.from_dict(bad)


@pytest.mark.parametrize("bad", [None, "x", {}, [Limit.per_day("a", 1)]])
def test_buckets_of_what_is_no_limit(bad: Any) -> None:
    with pytest.raises(ValidationError, match="must be a Limit"):
        BucketState.from_limit("key", "gpt-4", bad, 0)


@pytest.mark.parametrize("bad", [None, "", "x", 1.5, True])
def test_moments_of_buckets(bad: Any) -> None:
    with pytest.raises(ValidationError, match="now_ms"):
        BucketState.from_limit("key", "gpt-4", Limit.per_day("a", 1), bad)


@pytest.mark.parametrize("bad", ["", -1, 1.5, [], "a#b", b"x", "App"])
def test_parts_of_names(bad: Any) -> None:
    options = StackOptions()
    for name in (options.get_role_name, options.get_policy_name):
        with pytest.raises(ValidationError, match="component"):
            name("my-app", bad, "us-east-1")
        with pytest.raises(ValidationError, match="region"):
            name("my-app", "app", bad)
