"""A table that was made without a stack becomes part of one, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws.stacks import REGION, aws, inventory, named, status
from tests.aws.test_deploy_failures import broken, flags, make_table
from tests.cli.terminal import run
from tests.support.aws import engine
from tests.support.waiting import until
from zae_limiter import (
    IncompatibleSchemaError,
    Limit,
    StackAlreadyExistsError,
    StackOperationError,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.aws import adoption, deployment, stack, template
from zae_limiter.aws.stack import DesiredStack, FollowOptions
from zae_limiter.aws.stack_options import PRODUCTION

LIMITS = [Limit.per_minute("rpm", 10)]


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


def opened(name: str) -> SyncRepository:
    return SyncRepository(name=name, region=REGION, endpoint_url=engine.endpoint())


def used(name: str) -> int:
    with opened(name) as repository, SyncRateLimiter(repository).acquire("key", "gpt-4", {"rpm": 3}, limits=LIMITS):
        return 10 - SyncRateLimiter(repository).available("key", "gpt-4", limits=LIMITS)["rpm"]


def standing(name: str) -> None:
    """A table with something in it."""
    with opened(name) as repository:
        repository.create_table()
        repository.set_system_defaults([Limit.per_minute("rpm", 77)])
    assert used(name) == 3


def wanted(name: str) -> DesiredStack:
    return DesiredStack(template.read_template(), template.encode_parameters(name, StackOptions()), {})


def test_a_table_is_taken_in_with_all_it_holds(name: str) -> None:
    standing(name)
    with pytest.raises(StackAlreadyExistsError, match="--adopt"):
        deployment.deploy(aws(), name, StackOptions())
    shown = run(*flags(name), "deploy", "--adopt", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert status(name) == "UPDATE_COMPLETE"
    assert used(name) > 3
    with opened(name) as repository:
        assert repository.get_system_defaults()[0] == [Limit.per_minute("rpm", 77)]
    assert deployment.deploy(aws(), name, PRODUCTION, adopt=True).stack == "unchanged"
    assert name in inventory()["tables"]
    deployment.delete(aws(), name, force=True)
    assert name not in inventory()["tables"]


def is_protected(name: str) -> bool:
    return bool(aws().call("dynamodb", "describe_table", TableName=name)["Table"].get("DeletionProtectionEnabled"))


@pytest.mark.parametrize("killed", [False, True])
def test_an_adopted_table_is_protected_and_recoverable(name: str, killed: bool) -> None:
    standing(name)
    assert not is_protected(name)
    if killed:
        parameters = template.encode_parameters(name, PRODUCTION)
        adoption.import_table(aws(), name, wanted(name)._replace(parameters=parameters), FollowOptions())
        assert status(name) == "IMPORT_COMPLETE"
    shown = run(*flags(name), "deploy", "--adopt", "--no-aggregator", "--no-alarms", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert is_protected(name)
    assert deployment.read_options(aws(), name).pitr_recovery_days == 35


def test_a_table_is_imported_as_it_is(name: str) -> None:
    """So the update that follows sees what has to change."""
    with opened(name) as repository:
        repository.create_table(deletion_protection=True)
    adoption.import_table(aws(), name, wanted(name), FollowOptions())
    found = stack.describe(aws(), name)
    assert found is not None
    assert (found.parameters["EnableDeletionProtection"], found.parameters["PitrRecoveryDays"]) == ("true", "0")
    deployment.deploy(aws(), name, StackOptions(enable_aggregator=False))
    assert not is_protected(name)


@pytest.mark.parametrize("imported", [False, True], ids=["proposed", "imported"])
def test_a_killed_adoption_can_be_repeated(name: str, imported: bool) -> None:
    standing(name)
    if imported:
        adoption.import_table(aws(), name, wanted(name), FollowOptions())
        assert status(name) == "IMPORT_COMPLETE"
    else:
        adoption.propose_import(aws(), name, wanted(name))
        assert status(name) == stack.REVIEWED
    assert deployment.deploy(aws(), name, StackOptions(), adopt=True).stack == "updated"
    assert used(name) > 3


def test_what_follows_the_import_may_fail_and_is_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standing(name)
    with broken(monkeypatch), pytest.raises(StackOperationError, match="not updated: Unmakable"):
        deployment.deploy(aws(), name, StackOptions(), adopt=True)
    assert status(name) == "UPDATE_ROLLBACK_COMPLETE"
    assert deployment.deploy(aws(), name, StackOptions()).stack == "updated"
    assert used(name) > 3


@pytest.mark.parametrize("owner", [None, "Terraform", "CDK"])
def test_a_stack_that_somebody_else_made_of_the_template_is_theirs(name: str, owner: str | None) -> None:
    parameters = {"EnableAggregator": "false", **({} if owner is None else {template.OWNER: owner})}
    stack.apply(aws(), name, wanted(name)._replace(parameters=parameters), FollowOptions())
    message = f"was made of this template by {owner or 'another tool'}.*nothing was changed.* delete it there"
    for attempt in (deployment.deploy, lambda here, stack, _: deployment.delete(here, stack)):
        with pytest.raises(StackAlreadyExistsError, match=message):
            attempt(aws(), name, StackOptions())
    aws().call("cloudformation", "delete_stack", StackName=name)
    until(lambda: stack.describe(aws(), name) is None, "the stack is gone")


def test_without_a_table_it_is_a_deployment_like_any_other(name: str) -> None:
    assert deployment.deploy(aws(), name, StackOptions(), adopt=True).stack == "created"


def test_a_table_that_does_not_fit_is_left_alone(name: str) -> None:
    make_table(name)
    with pytest.raises(IncompatibleSchemaError, match="its key"):
        deployment.deploy(aws(), name, StackOptions(), adopt=True)
    assert stack.describe(aws(), name) is None
    aws().call("dynamodb", "delete_table", TableName=name)
