"""`StackManager`: what `deployment` does, under the names that programs of 0.17 use, in both modes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.aws.stacks import REGION, aws, named, status
from tests.support.aws import engine
from zae_limiter import (
    InfrastructureNotFoundError,
    InvalidNameError,
    StackManager,
    StackOptions,
    SyncStackManager,
    ValidationError,
)
from zae_limiter.aws import deployment
from zae_limiter.aws.template import function_name

SMALL = StackOptions(enable_aggregator=False, enable_alarms=False, enable_audit_archival=False, create_iam=False)
KINDS: list[Any] = [StackManager, SyncStackManager]


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


def outcome(work: Any) -> Any:
    async def wait() -> Any:
        return await work

    return asyncio.run(wait()) if inspect.isawaitable(work) else work


@pytest.mark.parametrize("kind", KINDS)
def test_the_life_of_a_stack(kind: Any, name: str) -> None:
    manager = kind(name, REGION, engine.endpoint())
    assert (outcome(manager.stack_exists(name)), outcome(manager.get_stack_status(name))) == (False, None)
    with pytest.raises(InfrastructureNotFoundError):
        outcome(manager.apply_template())
    made = outcome(manager.create_stack(SMALL))
    assert (made["stack_name"], made["status"]) == (name, "CREATE_COMPLETE")
    assert (outcome(manager.stack_exists(name)), outcome(manager.get_stack_status(name))) == (True, "CREATE_COMPLETE")
    assert outcome(manager.create_stack(SMALL))["stack_id"] == made["stack_id"]
    assert outcome(manager.ensure_tags({"team": "ai"})) is True
    assert outcome(manager.ensure_tags({"team": "ai"})) is False
    assert deployment.read_options(aws(), name).tags == {"team": "ai"}
    assert outcome(manager.apply_template())["stack_id"] == made["stack_id"]
    assert outcome(manager.aggregator_exists()) is False
    assert outcome(manager.deploy_lambda_code(skip_absent=True)) == {"status": "skipped"}
    with pytest.raises(InfrastructureNotFoundError):
        outcome(manager.deploy_lambda_code())
    with pytest.raises(ValidationError, match="the aggregator of the stack"):
        outcome(manager.deploy_lambda_code("nobody"))
    outcome(manager.delete_stack(name))
    assert status(name) is None
    outcome(manager.delete_stack(name))
    outcome(manager.close())


def test_an_aggregator_gets_its_code_and_its_stream(name: str) -> None:
    with SyncStackManager(name, REGION, engine.endpoint()) as manager:
        manager.create_stack(StackOptions(enable_alarms=False, enable_audit_archival=False))
        assert manager.aggregator_exists() is True
        assert manager.aggregator_exists("nobody") is False
        assert manager.deploy_lambda_code(function_name(name)) == {"status": "unchanged"}
        assert manager.wait_for_esm_ready(function_name(name)) is True
        assert manager.wait_for_esm_ready("nobody", max_seconds=0) is False


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_places_are_checked_at_once(kind: Any) -> None:
    with pytest.raises(InvalidNameError):
        kind("a_b")
    with pytest.raises(ValidationError, match="endpoint_url"):
        kind("my-app", endpoint_url="nowhere")
