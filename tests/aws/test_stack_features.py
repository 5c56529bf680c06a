"""What a platform team asks of a stack: its own keys, code from S3, locks, a dashboard, data that stays."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from tests.aws.stacks import REGION, aws, inventory, named, status
from tests.aws.test_deployment import SMALL, version_record
from tests.cli.terminal import run
from tests.support.aws import engine
from zae_limiter import (
    StackOperationError,
    StackOptions,
    SyncRepository,
    SyncStackManager,
    ValidationError,
    __version__,
)
from zae_limiter.aws import archive, deployment, package, stack, template
from zae_limiter.aws.stack import DesiredStack, FollowOptions

QUIET = StackOptions(enable_alarms=False, enable_dashboard=False)
"""A table, its aggregator and an archive."""


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


@pytest.fixture
def bucket(name: str) -> Iterator[str]:
    """A bucket of somebody else, with versions."""
    made = f"{name}-code"
    aws().call("s3", "create_bucket", Bucket=made)
    aws().call("s3", "put_bucket_versioning", Bucket=made, VersioningConfiguration={"Status": "Enabled"})
    yield made
    archive.delete_bucket(aws(), made)


def call(name: str, *words: str) -> Result:
    done = run("--name", name, "--region", REGION, "--endpoint-url", engine.endpoint(), *words, "--json")
    assert done.exit_code == 0, done.stderr
    return done


def shell(name: str, *words: str) -> Any:
    return json.loads(call(name, *words).stdout)


def function_of(name: str) -> Any:
    return aws().call("lambda", "get_function_configuration", FunctionName=template.function_name(name))


# code from S3


def test_code_comes_from_s3_without_a_second_call(name: str, bucket: str) -> None:
    stored = shell(name, "lambda-export", "--s3", f"s3://{bucket}/lambda/")
    assert stored["key"].startswith(f"lambda/zae-limiter-{__version__}-")
    assert stored["version"]
    named_code = {f"--code-s3-{part}": stored[part] for part in ("bucket", "key", "version")}
    flags = [word for pair in named_code.items() for word in pair]
    made = shell(name, "deploy", "--no-alarms", "--no-dashboard", *flags)
    assert made["code"] == "from S3"
    found = function_of(name)
    assert found["CodeSha256"] == stored["code_sha256"] == package.sha256(package.build())
    assert package.upload(aws(), name) == "from S3"
    assert shell(name, "status")["aggregator"]["code_current"] is True
    assert version_record(name)["lambda_version"] == __version__
    assert shell(name, "upgrade", "--dry-run")["aggregator"] is False
    options = deployment.read_options(aws(), name)
    assert (options.code_s3_bucket, options.code_s3_version) == (bucket, stored["version"])

    assert shell(name, "deploy", "--code-s3-bucket", "")["code"] == "uploaded"
    assert deployment.read_options(aws(), name).code_s3_key is None
    assert package.is_current(function_of(name))


@pytest.mark.parametrize(("metadata", "told"), [({"zae-limiter-version": "0.9.0"}, "0.9.0"), ({}, None)])
def test_code_of_another_version_is_told(name: str, bucket: str, metadata: dict[str, str], told: str | None) -> None:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as code:
        code.writestr("zae_limiter_aggregator/handler.py", "def handler(event, context): pass")
    aws().call("s3", "put_object", Bucket=bucket, Key="other.zip", Body=other.getvalue(), Metadata=metadata)
    deployment.deploy(aws(), name, replace(QUIET, code_s3_bucket=bucket, code_s3_key="other.zip"))
    assert not package.is_current(function_of(name))
    assert version_record(name).get("lambda_version") == told
    warning = shell(name, "check")["warning"]
    assert (told in warning) if told else warning is None
    refused = run("--name", name, "--region", REGION, "--endpoint-url", engine.endpoint(), "upgrade", "--lambda-only")
    assert (refused.exit_code, "lambda-export --s3" in refused.stderr) == (15, True)


def test_a_url_that_is_none_is_refused() -> None:
    for url in ("bucket/key", "s3://", "https://bucket/key"):
        shown = run("--region", REGION, "lambda-export", "--s3", url)
        assert (shown.exit_code, "s3://my-bucket/lambda/" in shown.stderr) == (2, True)


def test_a_key_is_taken_as_it_is(name: str, bucket: str) -> None:
    shown = run(
        "--region", REGION, "--endpoint-url", engine.endpoint(), "lambda-export", "--s3", f"s3://{bucket}/a.zip"
    )
    assert shown.exit_code == 0, shown.stderr
    assert f"--code-s3-bucket {bucket} --code-s3-key a.zip --code-s3-version " in shown.stderr
    head = aws().call("s3", "head_object", Bucket=bucket, Key="a.zip")
    assert head["Metadata"] == {"zae-limiter-version": __version__}


# keys, processors, limits


def test_one_key_encrypts_queue_and_log_and_the_function_may_use_it(name: str) -> None:
    key = f"arn:aws:kms:{REGION}:000000000000:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    done = deployment.deploy(aws(), name, replace(QUIET, kms_key_arn=key))
    queue = aws().call(
        "sqs", "get_queue_attributes", QueueUrl=done.resources["DeadLetterQueueUrl"], AttributeNames=["All"]
    )["Attributes"]
    assert queue["KmsMasterKeyId"] == key
    assert queue.get("SqsManagedSseEnabled") != "true"
    (group,) = aws().call("logs", "describe_log_groups", logGroupNamePrefix=template.log_group(name))["logGroups"]
    assert group["kmsKeyId"] == key
    role = QUIET.get_role_name(name, "aggr", REGION)
    policy = aws().call("iam", "get_role_policy", RoleName=role, PolicyName="aggregate")["PolicyDocument"]
    (use,) = [each for each in policy["Statement"] if each["Sid"] == "UseKey"]
    assert (use["Action"], use["Resource"]) == (["kms:Decrypt", "kms:GenerateDataKey"], key)


def test_the_function_runs_on_the_processors_that_were_chosen(name: str) -> None:
    deployment.deploy(aws(), name, replace(QUIET, lambda_architecture="arm64"))
    assert function_of(name)["Architectures"] == ["arm64"]
    deployment.deploy(aws(), name, QUIET)
    assert function_of(name)["Architectures"] == ["x86_64"]


def test_the_package_holds_nothing_that_was_compiled() -> None:
    with zipfile.ZipFile(io.BytesIO(package.build())) as code:
        assert {each.rpartition(".")[2] for each in code.namelist()} == {"py"}


@pytest.mark.parametrize("whole", [True, False], ids=["with an aggregator", "of a table"])
def test_the_dashboard_is_json_and_shows_what_there_is(name: str, whole: bool) -> None:
    options = replace(StackOptions() if whole else replace(SMALL, enable_dashboard=True), enable_alarms=False)
    done = deployment.deploy(aws(), name, options)
    assert done.resources["DashboardName"] == f"{name}-{REGION}"
    body = json.loads(aws().call("cloudwatch", "get_dashboard", DashboardName=f"{name}-{REGION}")["DashboardBody"])
    titles = [each["properties"]["title"] for each in body["widgets"]]
    assert titles[:2] == ["Table: capacity", "Table and indexes: throttled"]
    assert len(titles) == (5 if whole else 2)
    shown = json.dumps(body)
    assert "${" not in shown
    assert (f"{name}-aggregator-dlq" in shown) is whole
    for widget in body["widgets"]:
        assert widget["properties"]["region"] == REGION
        assert all(isinstance(metric, list) for metric in widget["properties"]["metrics"])


# an archive that is locked


@contextlib.contextmanager
def locked(name: str, mode: str) -> Iterator[str]:
    """A deployment whose archive is locked and holds an event."""
    options = replace(QUIET, audit_archive_lock_days=1, audit_archive_lock_mode=mode)
    made = deployment.deploy(aws(), name, options).resources["ArchiveBucket"]
    aws().call("s3", "put_object", Bucket=made, Key="audit/a", Body=b"1")
    yield made


def test_a_lock_cannot_be_turned_off_and_the_way_out_is_named(name: str) -> None:
    with locked(name, "GOVERNANCE"):
        with pytest.raises(ValidationError, match="S3 never takes Object Lock from a bucket; set it to 1"):
            deployment.deploy(aws(), name, QUIET)
        assert status(name) == "CREATE_COMPLETE"
        assert deployment.deploy(aws(), name, replace(QUIET, audit_archive_lock_days=2)).stack == "updated"
        deployment.delete(aws(), name, force=True)


def test_a_locked_archive_is_deleted_only_by_force(name: str) -> None:
    with locked(name, "GOVERNANCE") as made:
        assert aws().call("s3", "get_bucket_versioning", Bucket=made)["Status"] == "Enabled"
        with pytest.raises(StackOperationError, match=r"locked \(GOVERNANCE\); nothing was deleted.*--force"):
            deployment.delete(aws(), name)
        assert status(name) == "CREATE_COMPLETE"
        assert deployment.delete(aws(), name, force=True) == []
    assert made not in inventory()["buckets"]


def test_an_archive_that_nobody_can_delete_stays_and_is_named(name: str) -> None:
    with locked(name, "COMPLIANCE") as made:
        shown = shell(name, "delete", "--yes")
    assert shown == {"name": name, "deleted": True, "kept": [made]}
    found = inventory()
    assert (made in found["buckets"], name in found["tables"], name in found["stacks"]) == (True, False, False)


# what holds data stays


def former_template() -> str:
    """The template as it was when CloudFormation deleted everything."""
    text = template.read_template().replace("DeletionPolicy: RetainExceptOnCreate", "DeletionPolicy: Delete")
    return text.replace("UpdateReplacePolicy: Retain", "UpdateReplacePolicy: Delete")


def test_a_stack_of_the_former_template_is_changed_and_deleted(name: str) -> None:
    wanted = DesiredStack(former_template(), template.OURS, stack.add_own_tags(None))
    stack.apply(aws(), name, wanted, FollowOptions())
    before = inventory()
    assert deployment.deploy(aws(), name, deployment.read_options(aws(), name)).stack == "updated"
    assert inventory()["tables"] == before["tables"]
    assert inventory()["buckets"] == before["buckets"]
    deployment.delete(aws(), name)
    assert name not in inventory()["tables"]


def test_a_stack_of_the_former_template_is_deleted_as_it_is(name: str) -> None:
    before = inventory()
    wanted = DesiredStack(former_template(), template.OURS, stack.add_own_tags(None))
    stack.apply(aws(), name, wanted, FollowOptions())
    deployment.delete(aws(), name)
    assert inventory() == before


def test_who_deletes_the_stack_elsewhere_keeps_table_and_archive(name: str) -> None:
    done = deployment.deploy(aws(), name, QUIET)
    made = done.resources["ArchiveBucket"]
    found = deployment.require_stack(aws(), name)
    stack.remove(aws(), found, FollowOptions())
    left = inventory()
    assert (name in left["tables"], made in left["buckets"]) == (True, True)
    assert deployment.deploy(aws(), name, SMALL, adopt=True).stack == "updated"
    deployment.delete(aws(), name)
    archive.delete_bucket(aws(), made)
    assert name not in inventory()["tables"]


def test_a_failed_creation_leaves_no_protected_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's retention is more than SQS takes, so the creation fails after the table was made."""
    broken = template.read_template().replace("MessageRetentionPeriod: 1209600", "MessageRetentionPeriod: 999999999")
    options = replace(QUIET, enable_deletion_protection=True)
    with monkeypatch.context() as patch:
        patch.setattr(template, "read_template", lambda: broken)
        with pytest.raises(StackOperationError, match="was not created"):
            deployment.deploy(aws(), name, options)
    assert name not in inventory()["tables"]
    assert deployment.deploy(aws(), name, options).stack == "created"
    assert aws().call("dynamodb", "describe_table", TableName=name)["Table"]["DeletionProtectionEnabled"] is True


def is_protected(name: str) -> bool:
    return bool(aws().call("dynamodb", "describe_table", TableName=name)["Table"].get("DeletionProtectionEnabled"))


def test_a_first_deployment_that_was_interrupted_is_protected_by_the_next(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = stack.apply

    def interrupted(*args: Any, **named: Any) -> str:
        if status(name) == "CREATE_COMPLETE":
            raise KeyboardInterrupt
        return apply(*args, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stack, "apply", interrupted)
        deployment.deploy(aws(), name, replace(SMALL, enable_deletion_protection=True))
    assert not is_protected(name)
    assert shell(name, "deploy")["stack"] == "updated"
    assert is_protected(name)
    assert shell(name, "deploy")["stack"] == "unchanged"


@pytest.mark.parametrize("by", ["repository", "manager"])
def test_code_does_not_turn_off_what_an_operator_has_turned_on(name: str, by: str) -> None:
    guarded = replace(SMALL, enable_deletion_protection=True, pitr_recovery_days=35)
    deployment.deploy(aws(), name, guarded)
    wanted = replace(SMALL, usage_retention_days=7, pitr_recovery_days=3)
    where: dict[str, Any] = {"region": REGION, "endpoint_url": engine.endpoint()}
    if by == "manager":
        with SyncStackManager(name, **where) as manager:
            manager.create_stack(wanted)
    else:
        with SyncRepository(name=name, **where, stack_options=wanted) as repository:
            repository.ensure_infrastructure()
    found = deployment.read_options(aws(), name)
    assert found == replace(guarded, usage_retention_days=7, pitr_recovery_days=3)


def test_an_archive_that_is_no_longer_wanted_goes_if_it_is_empty(name: str) -> None:
    made = deployment.deploy(aws(), name, QUIET).resources["ArchiveBucket"]
    deployment.deploy(aws(), name, replace(QUIET, enable_audit_archival=False))
    assert made not in inventory()["buckets"]
