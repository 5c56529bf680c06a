"""The template: what it makes, with which options, and that AWS's own checks find nothing in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from zae_limiter import StackOptions
from zae_limiter.aws import stack_fields, template
from zae_limiter.aws.stack_options import PRODUCTION
from zae_limiter.cli.app import root
from zae_limiter.records.algebra import TTL
from zae_limiter.records.usage import WINDOWS
from zae_limiter.stores.dynamodb.table import table_definition

NO_VALUE = {"Ref": "AWS::NoValue"}
PATH = str(resources.files("zae_limiter.aws").joinpath("template.yaml"))


@pytest.fixture(scope="module")
def parsed() -> Any:
    """The template as a tree."""
    from cfnlint.decode import decode  # takes a second, which only the process that needs it is to pay

    found, faults = decode(PATH)
    assert not faults
    return found


def test_cfn_lint_finds_nothing() -> None:
    lint = [str(Path(sys.executable).with_name("cfn-lint")), "--include-checks", "I", "--template", PATH]
    found = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("", 0)


def test_it_can_be_sent_as_it_is() -> None:
    assert len(template.read_template().encode()) < 51_200
    assert template.read_template() == Path(PATH).read_text(encoding="utf-8")


def test_it_names_no_partition() -> None:
    assert "arn:aws" not in template.read_template()


def test_its_table_is_the_one_that_is_made_without_a_stack(parsed: Any) -> None:
    table = parsed["Resources"]["Table"]["Properties"]
    wanted = table_definition("name")
    del wanted["TableName"]
    throughput = table["OnDemandThroughput"]
    assert throughput["Fn::If"][0] == "LimitsThroughput"
    for index in wanted["GlobalSecondaryIndexes"]:
        index["OnDemandThroughput"] = throughput
    wanted["StreamSpecification"] = {"StreamViewType": wanted["StreamSpecification"]["StreamViewType"]}
    assert {name: table[name] for name in wanted} == wanted
    assert table["TimeToLiveSpecification"] == {"AttributeName": TTL, "Enabled": True}


def test_only_what_holds_data_is_retained(parsed: Any) -> None:
    """The remains of a failed creation are not: the next one needs their names."""
    found = {
        name: (each.get("DeletionPolicy", "Delete"), each.get("UpdateReplacePolicy", "Delete"))
        for name, each in parsed["Resources"].items()
    }
    kept = {name for name, policies in found.items() if policies != ("Delete", "Delete")}
    assert kept == {"Table", "AuditArchive", "AuditArchivePolicy"}
    assert {found[name] for name in kept} == {("RetainExceptOnCreate", "Retain")}


def test_its_parameters_are_the_options(parsed: Any) -> None:
    declared = parsed["Parameters"]
    given = template.encode_parameters("my-app", StackOptions())
    defaults = {name: str(each["Default"]) for name, each in declared.items()}
    assert defaults.pop("ManagedBy") != given.pop("ManagedBy") == "zae-limiter"
    others = {"RegionInIamNames": "false", "PitrRecoveryDays": "35"}
    assert defaults == given | others, (
        "an updated stack keeps its names; a stack from code is for tests, others are not"
    )
    assert tuple(declared["LogRetentionDays"]["AllowedValues"]) == stack_fields.LOG_RETENTION_DAYS
    assert all(re.fullmatch(declared["SnapshotWindows"]["AllowedPattern"], each) for each in (*WINDOWS, "daily,hourly"))
    for name, option in (("LambdaTimeout", "lambda_timeout"), ("LambdaMemory", "lambda_memory")):
        assert (declared[name]["MinValue"], declared[name]["MaxValue"]) == stack_fields.RANGES[option]


def test_code_that_is_not_there_yet_loses_no_record(parsed: Any) -> None:
    """A run before the upload fails, however it is called, so the stream keeps what it was given."""
    function = parsed["Resources"]["Aggregator"]["Properties"]
    with pytest.raises(RuntimeError, match="not been uploaded"):
        exec(function["Code"]["Fn::If"][2]["ZipFile"], {})
    stream = parsed["Resources"]["AggregatorStream"]["Properties"]
    assert stream["MaximumRecordAgeInSeconds"] == 79_200  # the stream has them for two hours more
    assert stream["StartingPosition"] == "TRIM_HORIZON"


def test_what_is_archived_moves_to_glacier(parsed: Any) -> None:
    archive = parsed["Resources"]["AuditArchive"]["Properties"]
    (move,) = (rule["Transitions"] for rule in archive["LifecycleConfiguration"]["Rules"] if "Transitions" in rule)
    assert move == [{"StorageClass": "GLACIER", "TransitionInDays": {"Ref": "AuditArchiveGlacierDays"}}]
    small = archive["LifecycleConfiguration"]["TransitionDefaultMinimumObjectSize"]
    assert small == "varies_by_storage_class"  # otherwise what is below 128 KB never moves
    assert archive["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}


def test_an_archive_can_be_locked(parsed: Any) -> None:
    archive = parsed["Resources"]["AuditArchive"]["Properties"]
    assert archive["ObjectLockEnabled"] == {"Fn::If": ["Locks", True, NO_VALUE]}
    (condition, lock, none) = archive["ObjectLockConfiguration"]["Fn::If"]
    retention = {"Mode": {"Ref": "AuditArchiveLockMode"}, "Days": {"Ref": "AuditArchiveLockDays"}}
    assert (condition, none) == ("Locks", NO_VALUE)
    assert lock == {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}
    assert parsed["Conditions"]["Versions"]["Fn::Or"][0] == {"Condition": "Locks"}  # a lock needs versions


def test_a_key_encrypts_table_and_archive(parsed: Any) -> None:
    key = {"Ref": "KmsKeyArn"}
    table, archive = (parsed["Resources"][each]["Properties"] for each in ("Table", "AuditArchive"))
    encrypted = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key}
    assert table["SSESpecification"] == {"Fn::If": ["HasKey", encrypted, NO_VALUE]}
    (rule,) = archive["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    assert rule["Fn::If"][1] == {"ServerSideEncryptionByDefault": by_key, "BucketKeyEnabled": True}


def test_runs_are_reserved_and_throughput_is_limited_only_on_demand(parsed: Any) -> None:
    function, table = (parsed["Resources"][each]["Properties"] for each in ("Aggregator", "Table"))
    reserved = {"Fn::If": ["Reserves", {"Ref": "LambdaReservedConcurrency"}, NO_VALUE]}
    assert function["ReservedConcurrentExecutions"] == reserved
    (condition, limits, none) = table["OnDemandThroughput"]["Fn::If"]
    assert (condition, none) == ("LimitsThroughput", NO_VALUE)
    assert limits == {
        "MaxReadRequestUnits": {"Fn::If": ["LimitsReads", {"Ref": "MaxReadRequestUnits"}, NO_VALUE]},
        "MaxWriteRequestUnits": {"Fn::If": ["LimitsWrites", {"Ref": "MaxWriteRequestUnits"}, NO_VALUE]},
    }


def test_every_index_is_watched(parsed: Any) -> None:
    indexes = {each["IndexName"] for each in parsed["Resources"]["Table"]["Properties"]["GlobalSecondaryIndexes"]}
    alarms = [each["Properties"] for each in parsed["Resources"].values() if each["Type"] == "AWS::CloudWatch::Alarm"]
    watched = [
        {each["Name"]: each["Value"] for each in alarm["Dimensions"]}
        for alarm in alarms
        if alarm["MetricName"] == "WriteThrottleEvents"
    ]
    assert {each.get("GlobalSecondaryIndexName") for each in watched} == indexes | {None}
    assert all(each["TableName"] == {"Ref": "Table"} for each in watched)


def test_every_role_can_be_bounded(parsed: Any) -> None:
    roles = [each["Properties"] for each in parsed["Resources"].values() if each["Type"] == "AWS::IAM::Role"]
    by_arn = {"Fn::If": ["Bounds", {"Ref": "PermissionBoundary"}, {"Ref": "AWS::NoValue"}]}
    named = "arn:${AWS::Partition}:iam::${AWS::AccountId}:policy/${PermissionBoundaryName}"
    bound = {"Fn::If": ["BoundsByName", {"Fn::Sub": named}, by_arn]}
    assert [role["PermissionsBoundary"] for role in roles] == [bound] * 5


def test_a_stack_of_any_tool_can_be_restored_unless_it_says_otherwise(parsed: Any) -> None:
    """Without parameters, as pipelines, Terraform and CDK deploy the template: as `zae-limiter deploy` does."""
    assert parsed["Parameters"]["PitrRecoveryDays"]["Default"] == PRODUCTION.pitr_recovery_days


def test_recovery_is_for_as_many_days_as_were_asked_for(parsed: Any) -> None:
    (_, on, off) = parsed["Resources"]["Table"]["Properties"]["PointInTimeRecoverySpecification"]["Fn::If"]
    assert on == {"PointInTimeRecoveryEnabled": True, "RecoveryPeriodInDays": {"Ref": "PitrRecoveryDays"}}
    assert off == {"PointInTimeRecoveryEnabled": False}


def test_the_command_prints_it(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(root, ["cfn-template"]).stdout == template.read_template()
    assert json.loads(runner.invoke(root, ["cfn-template", "--json"]).stdout) == {"template": template.read_template()}
    target = tmp_path / "template.yaml"
    assert runner.invoke(root, ["cfn-template", "--output", str(target)]).exit_code == 0
    assert target.read_text(encoding="utf-8") == template.read_template()
    again = runner.invoke(root, ["cfn-template", "--output", str(target)])
    assert (again.exit_code, "--force" in again.stderr) == (2, True)
    assert runner.invoke(root, ["cfn-template", "--output", str(target), "--force"]).exit_code == 0
