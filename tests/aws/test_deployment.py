"""Deployments: everything is there, doing it again changes nothing, and nothing is left when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.aws.stacks import REGION, aws, inventory, named, status
from tests.support.aws import engine
from tests.support.backends import dynamodb_client
from zae_limiter import (
    InfrastructureNotFoundError,
    Limit,
    RateLimiter,
    Repository,
    StackOperationError,
    StackOptions,
    Store,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
    __version__,
)
from zae_limiter.aws import archive, deployment, package, stack, template
from zae_limiter.aws.calls import Aws
from zae_limiter.aws.events import Event
from zae_limiter.aws.stack import DesiredStack, FollowOptions
from zae_limiter.aws.template import log_group
from zae_limiter.records import version
from zae_limiter.records.algebra import Image, Write
from zae_limiter.records.version import SCHEMA_VERSION
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.store import DynamoStore

SMALL = StackOptions(
    enable_aggregator=False,
    enable_alarms=False,
    enable_dashboard=False,
    enable_audit_archival=False,
    create_iam=False,
)
"""Nothing but the table."""


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


def opened(name: str, **options: Any) -> SyncRepository:
    return SyncRepository(name=name, region=REGION, endpoint_url=engine.endpoint(), **options)


def stored(name: str) -> DynamoStore:
    return DynamoStore(dynamodb_client(name, blocking=True))


def version_record(name: str) -> Image:
    (found,) = run(stored(name).read([version.KEY]))
    assert found is not None
    return found


def usable(name: str, entity: str = "key") -> bool:
    with opened(name) as repository:
        limiter = SyncRateLimiter(repository)
        with limiter.acquire(entity, "gpt-4", {"rpm": 1}, limits=[Limit.per_hour("rpm", 10)]):
            return limiter.available(entity, "gpt-4", [Limit.per_hour("rpm", 10)]) == {"rpm": 9}


def test_it_works_and_doing_it_again_changes_nothing(name: str) -> None:
    told: list[Event] = []
    done = deployment.deploy(aws(), name, StackOptions(), progress=told.append)
    assert (done.stack, done.code, done.region) == ("created", "uploaded", REGION)
    assert done.resources["FunctionName"] == f"{name}-aggregator"
    assert {event.resource for event in told} >= {"Table", "Aggregator", name}
    function = aws().call("lambda", "get_function_configuration", FunctionName=f"{name}-aggregator")
    assert function["CodeSha256"] == package.sha256(package.build())
    assert usable(name)
    again = deployment.deploy(aws(), name, StackOptions())
    assert (again.stack, again.code) == ("unchanged", "unchanged")
    changed = deployment.deploy(aws(), name, StackOptions(lambda_memory=512))
    assert (changed.stack, changed.code) == ("updated", "unchanged")
    function = aws().call("lambda", "get_function_configuration", FunctionName=f"{name}-aggregator")
    assert function["MemorySize"] == 512
    assert usable(name, "other")
    aws().call("lambda", "update_function_code", FunctionName=f"{name}-aggregator", ZipFile=package.build() + b"\0")
    replaced = deployment.deploy(aws(), name, StackOptions(lambda_memory=512))
    assert (replaced.stack, replaced.code) == ("unchanged", "uploaded")


FORMER = {
    '  NamesRegion: !Equals [!Ref RegionInIamNames, "true"]': '  NamesRegion: !Equals ["true", "false"]',
    "  RegionInIamNames:\n": "  Unused:\n",
}
"""What makes the template one whose names of roles and policies are without the region, and that has no such option."""


def former_template() -> str:
    text = template.read_template()
    for present, former in FORMER.items():
        assert present in text
        text = text.replace(present, former)
    return text


def test_a_pipeline_that_updates_the_former_template_keeps_the_names(name: str) -> None:
    """It passes the parameters that it knows; a policy of another name would be another one."""
    former = DesiredStack(former_template(), {"EnableAggregator": "false"}, stack.add_own_tags(None))
    stack.apply(aws(), name, former, FollowOptions())
    before = deployment.require_stack(aws(), name).outputs
    assert before["AcquirePolicyArn"].endswith(f":policy/{name}-acq")
    stack.apply(aws(), name, former._replace(template=template.read_template()), FollowOptions())
    assert deployment.require_stack(aws(), name).outputs["AcquirePolicyArn"] == before["AcquirePolicyArn"]


def test_a_new_stack_has_the_region_in_its_names(name: str) -> None:
    made = deployment.deploy(aws(), name, StackOptions(enable_aggregator=False)).resources
    assert made["AcquirePolicyArn"].endswith(f":policy/{name}-acq-{REGION}")


@pytest.mark.parametrize("options", [StackOptions(create_iam_roles=True), StackOptions(region_in_iam_names=True)])
def test_a_stack_keeps_the_names_of_its_roles_unless_told_otherwise(name: str, options: StackOptions) -> None:
    parameters = template.encode_parameters(name, StackOptions(create_iam_roles=True))
    del parameters["RegionInIamNames"]
    stack.apply(aws(), name, DesiredStack(former_template(), parameters, stack.add_own_tags(None)), FollowOptions())
    before = deployment.require_stack(aws(), name).outputs
    assert before["AppRoleArn"].endswith(f":role/{name}-app")
    for _ in range(2):
        deployment.deploy(aws(), name, options)
    after = deployment.require_stack(aws(), name).outputs
    if options.region_in_iam_names:
        assert after["AcquirePolicyArn"].endswith(f":policy/{name}-acq-{REGION}")
    else:
        assert {after[each] for each in before if each.endswith(("RoleArn", "PolicyArn"))} == {
            before[each] for each in before if each.endswith(("RoleArn", "PolicyArn"))
        }


def test_a_new_stack_whose_role_names_would_be_too_long_is_refused() -> None:
    with pytest.raises(ValidationError, match="at most 39 are allowed while role names hold the region"):
        deployment.deploy(aws(), "a" * 40, StackOptions())


def test_its_options_can_be_read_back(name: str) -> None:
    options = replace(SMALL, usage_retention_days=7, pitr_recovery_days=3, tags={"team": "limits"})
    assert deployment.read_options(aws(), name) == StackOptions()
    deployment.deploy(aws(), name, options)
    assert deployment.read_options(aws(), name) == options
    found = stack.describe(aws(), name)
    assert found is not None
    assert found.tags == {
        "team": "limits",
        stack.MANAGED_TAG: "true",
        stack.VERSION_TAG: __version__,
        stack.SCHEMA_TAG: SCHEMA_VERSION,
    }


def test_the_version_record_says_what_was_deployed(name: str) -> None:
    deployment.deploy(aws(), name, StackOptions(audit_retention_days=30))
    assert version.decode(version_record(name)) == version.Deployed(
        SCHEMA_VERSION, version.OLDEST_CLIENT, __version__, 30
    )
    deployment.deploy(aws(), name, StackOptions(audit_retention_days=31, enable_aggregator=False))
    assert version.decode(version_record(name)) == version.Deployed(SCHEMA_VERSION, version.OLDEST_CLIENT, None, 31)


def test_a_schema_that_waits_for_its_upgrade_is_left_alone(name: str) -> None:
    deployment.deploy(aws(), name, SMALL)
    older = version.stamp(version.Deployed("0.9.0", "0.0.1"))
    run(stored(name).commit([older]))
    deployment.deploy(aws(), name, replace(SMALL, audit_retention_days=5))
    assert version.decode(version_record(name)) == version.Deployed("0.9.0", "0.0.1", None, 5)


def test_data_from_before_there_were_version_records_get_none(name: str) -> None:
    deployment.deploy(aws(), name, SMALL)
    store = stored(name)
    run(store.commit([Write(version.KEY, delete=True), Write(version.UNPREFIXED[0], put={"schema_version": "0.1.0"})]))
    deployment.deploy(aws(), name, SMALL)
    assert run(store.read([version.KEY])) == [None]


def test_it_leaves_nothing_behind(name: str) -> None:
    before = inventory()
    options = StackOptions(create_iam_roles=True, tags={"team": "limits"})
    done = deployment.deploy(aws(), name, options)
    made = {kind: found - before[kind] for kind, found in inventory().items()}
    assert all(made.values()), made
    assert usable(name)
    aws().call("s3", "put_object", Bucket=done.resources["ArchiveBucket"], Key="audit/a", Body=b"1")
    told: list[Event] = []
    deployment.delete(aws(), name, progress=told.append)
    assert inventory() == before
    assert (told[-1].resource, told[-1].status) == (name, "DELETE_COMPLETE")


def archived(name: str) -> str:
    """The archive of a deployment, with an event in it."""
    (bucket,) = archive.list_archives(aws(), deployment.require_stack(aws(), name))
    aws().call("s3", "put_object", Bucket=bucket, Key="audit/year=2026/x.jsonl.gz", Body=b"x")
    return bucket


@pytest.mark.parametrize("less", [StackOptions(enable_aggregator=False), StackOptions(enable_audit_archival=False)])
def test_an_archive_that_holds_something_is_not_dropped_by_the_way(name: str, less: StackOptions) -> None:
    deployment.deploy(aws(), name, StackOptions())
    bucket = archived(name)
    with pytest.raises(StackOperationError, match=f"{bucket}.*holds audit events"):
        deployment.deploy(aws(), name, less)
    assert status(name) == "CREATE_COMPLETE"
    archive.empty_bucket(aws(), bucket)
    assert deployment.deploy(aws(), name, less).stack == "updated"


def test_an_archive_that_is_written_to_while_it_is_deleted_goes_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 refuses to delete a bucket that holds something."""
    deployment.deploy(aws(), name, StackOptions())
    bucket = archived(name)
    late = iter((b"1",))
    really = archive.empty_bucket

    def empty(aws: Aws, bucket: str, **rest: bool) -> None:
        really(aws, bucket, **rest)
        for body in late:
            aws.call("s3", "put_object", Bucket=bucket, Key="audit/late", Body=body)

    monkeypatch.setattr(archive, "empty_bucket", empty)
    deployment.delete(aws(), name)
    assert bucket not in inventory()["buckets"]


def test_a_log_that_came_back_goes_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.deploy(aws(), name, StackOptions(enable_aggregator=False))
    really = stack.remove

    def remove(*given: Any, **rest: Any) -> None:
        really(*given, **rest)
        aws().call("logs", "create_log_group", logGroupName=log_group(name))

    monkeypatch.setattr(stack, "remove", remove)
    deployment.delete(aws(), name)
    assert log_group(name) not in inventory()["log groups"]


def test_what_is_protected_is_not_deleted(name: str) -> None:
    deployment.deploy(aws(), name, replace(SMALL, enable_deletion_protection=True, enable_audit_archival=True))
    with pytest.raises(StackOperationError, match=r"deletion protection; nothing was deleted.*--force.*deploy --name"):
        deployment.delete(aws(), name)
    deployment.deploy(aws(), name, SMALL)
    protect = "update_termination_protection"
    aws().call("cloudformation", protect, StackName=name, EnableTerminationProtection=True)
    with pytest.raises(StackOperationError, match=r"termination protection; nothing was deleted.*--stack-name"):
        deployment.delete(aws(), name)
    assert status(name) == "UPDATE_COMPLETE"
    aws().call("cloudformation", protect, StackName=name, EnableTerminationProtection=False)
    deployment.delete(aws(), name)
    with pytest.raises(InfrastructureNotFoundError, match="does not exist in us-east-1"):
        deployment.delete(aws(), name)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
def test_code_declares_what_it_needs(name: str, blocking: bool) -> None:
    async def work() -> None:
        async with Repository(
            name=name, region=REGION, endpoint_url=engine.endpoint(), stack_options=SMALL, namespace="default"
        ) as repository:
            await repository.ensure_infrastructure()
            await repository.create_entity("key")

    if blocking:
        with opened(name, stack_options=SMALL) as repository:
            repository.ensure_infrastructure()
            repository.create_entity("key")
    else:
        asyncio.run(work())
    assert status(name) == "CREATE_COMPLETE"
    with opened(name) as repository:
        repository.ensure_infrastructure()
        assert repository.get_entity("key") is not None


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
def test_a_limiter_with_options_deploys_at_its_first_use_and_once(
    name: str, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed: list[str] = []

    def noted(store: Store, options: StackOptions) -> deployment.Deployment:
        deployed.append(name)
        return plainly(store, options)

    plainly = deployment.deploy_store
    monkeypatch.setattr(deployment, "deploy_store", noted)
    where: dict[str, Any] = {"name": name, "region": REGION, "endpoint_url": engine.endpoint()}

    async def work() -> None:
        async def take(entity: str) -> None:
            async with limiter.acquire(entity, "gpt-4", {"rpm": 1}, limits=[Limit.per_minute("rpm", 9)]):
                pass

        async with RateLimiter(**where, stack_options=SMALL) as limiter:
            await asyncio.gather(*(take(f"key-{n}") for n in range(5)))

    if blocking:
        with (
            SyncRateLimiter(**where, stack_options=SMALL) as limiter,
            limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=[Limit.per_minute("rpm", 9)]),
        ):
            pass
    else:
        asyncio.run(work())
    assert deployed == [name]
    assert status(name) == "CREATE_COMPLETE"


async def test_a_deployment_that_fails_fails_everybody_who_waits_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def failing(store: Store, options: StackOptions) -> deployment.Deployment:
        tried.append(len(tried))
        raise StackOperationError("no")

    monkeypatch.setattr(deployment, "deploy_store", failing)
    where: dict[str, Any] = {"name": "none", "region": REGION, "endpoint_url": "http://127.0.0.1:1"}
    async with Repository(**where, stack_options=SMALL) as repository:
        with pytest.raises(StackOperationError):
            await repository.get_entity("first")  # finds the credentials, so that those below begin together
        for times in (2, 3):
            found = await asyncio.gather(*(repository.get_entity(f"key-{n}") for n in range(4)), return_exceptions=True)
            assert [type(each) for each in found] == [StackOperationError] * 4
            assert len(tried) == times


def test_the_builder_deploys_and_registers(name: str) -> None:
    builder = SyncRepository.builder().name(name).region(REGION).endpoint_url(engine.endpoint())
    with builder.namespace("prod").stack_options(SMALL).build() as repository:
        assert [each.name for each in repository.list_namespaces()] == ["prod"]
    assert status(name) == "CREATE_COMPLETE"


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [
        ("dynamodb://my_app", SMALL, "name"),
        ("dynamodb://my-app", replace(SMALL, create_iam=True, role_name_format="x" * 60 + "{}"), "role_name_format"),
    ],
    ids=["name", "option"],
)
def test_what_cannot_be_deployed_is_refused_at_once(url: str, options: StackOptions, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SyncRepository(url, region=REGION, endpoint_url="http://127.0.0.1:1", stack_options=options)
    assert caught.value.field == field
