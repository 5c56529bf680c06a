"""Calls as a program of 0.17 writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.aws import engine
from zae_limiter import (
    InfrastructureError,
    Repository,
    StackAlreadyExistsError,
    StackOperationError,
    SyncRepository,
    ValidationError,
)
from zae_limiter.infra.discovery import InfrastructureDiscovery
from zae_limiter.infra.sync_discovery import SyncInfrastructureDiscovery

if TYPE_CHECKING:
    from zae_limiter.testing import Harness


@pytest.mark.parametrize("kind", [Repository, SyncRepository])
def test_a_builder_takes_the_keywords_of_0_17(kind: Any) -> None:
    builder = kind.builder().stack(name="my-app").region(name="eu-west-1").namespace(name="tenant")
    builder = builder.endpoint_url(url="http://localhost:4566").config_cache_ttl(seconds=5).auto_update(enabled=False)
    expected = {"region": "eu-west-1", "namespace": "tenant", "endpoint_url": "http://localhost:4566"}
    assert builder._options == expected | {"config_cache_ttl": 5}


@pytest.mark.parametrize("mode", ["auto", "gevent", "threadpool", "serial"])
def test_a_builder_takes_a_parallel_mode(mode: str) -> None:
    with SyncRepository.builder().url("memory://").parallel_mode(mode).build() as repository:
        assert repository.namespace_name == "default"


def test_a_parallel_mode_that_never_was_is_named() -> None:
    with pytest.raises(ValidationError, match="serial"):
        SyncRepository.builder().parallel_mode("fast")


def test_a_parallel_mode_of_a_repository_has_no_effect() -> None:
    SyncRepository("memory://", parallel_mode="auto").close()
    with pytest.warns(DeprecationWarning, match="parallel_mode has no effect"):
        SyncRepository("memory://", parallel_mode="serial").close()


@pytest.mark.parametrize("consistent", [True, False])
async def test_an_entity_is_read_consistently_whatever_is_asked_for(harness: Harness, consistent: bool) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("key")
    for reader in (limiter, limiter.repository):
        found = await reader.get_entity("key", consistent_read=consistent)
        assert found is not None
        assert found.id == "key"


def test_a_stack_that_exists_is_no_operation_that_failed() -> None:
    assert issubclass(StackAlreadyExistsError, InfrastructureError)
    assert not issubclass(StackAlreadyExistsError, StackOperationError)


async def test_creating_a_stack_by_a_repository_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="Repository.open") as warned, pytest.raises(ValidationError):
        await Repository("memory://").create_stack()
    with pytest.warns(DeprecationWarning, match="Repository.open") as blocking, pytest.raises(ValidationError):
        SyncRepository("memory://").create_stack()
    assert {each.filename for each in (*warned, *blocking)} == {__file__}


async def test_discovery_finds_what_is_deployed() -> None:
    place = {"region": "us-east-1", "endpoint_url": engine.endpoint()}
    expected = SyncRepository.list_deployed(**place)
    async with InfrastructureDiscovery(**place) as discovery:
        assert await discovery.list_limiters() == expected
    with SyncInfrastructureDiscovery(**place) as blocking:
        assert blocking.list_limiters() == expected


@pytest.mark.parametrize("kind", [Repository, SyncRepository])
def test_a_builder_has_the_methods_of_0_17_and_no_others(kind: Any) -> None:
    builder = kind.builder().lambda_memory(value=512).enable_alarms(False).create_iam_roles().tags({"team": "ml"})
    expected = {"lambda_memory": 512, "enable_alarms": False, "create_iam_roles": True, "tags": {"team": "ml"}}
    assert builder._settings == expected
    for name in ("lambda_color", "_private", "find_method"):
        with pytest.raises(AttributeError, match=name):
            getattr(builder, name)
