"""Stacks of the template: which resources they have, what those are called, and how they are set up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.account import REGION, Account, client, deployed
from tests.aws.stacks import aws
from tests.support.aws import engine
from zae_limiter import StackOptions
from zae_limiter.aws import deployment, template

TOPIC = "arn:aws:sns:us-east-1:123456789012:alarms"
BOUNDARY = "arn:aws:iam::aws:policy/PowerUserAccess"
ROLE = "arn:aws:iam::000000000000:role/given"
ISSUER = "oidc.eks.us-east-1.amazonaws.com/id/0123ABCD"
PROVIDER = f"arn:aws:iam::123456789012:oidc-provider/{ISSUER}"


BARE = StackOptions(enable_aggregator=False, enable_alarms=False, enable_dashboard=False, create_iam=False)


@pytest.fixture(scope="module")
def plain() -> Iterator[Account]:
    """As it comes."""
    yield from stack("template-plain", StackOptions())


@pytest.fixture(scope="module")
def rich() -> Iterator[Account]:
    """With everything that can be had."""
    wanted = StackOptions(
        snapshot_windows="hourly,daily,monthly",
        usage_retention_days=7,
        log_retention_days=14,
        lambda_timeout=90,
        lambda_memory=512,
        alarm_sns_topic=TOPIC,
        lambda_duration_threshold_pct=50,
        permission_boundary=BOUNDARY,
        role_name_format="pb-{}-x",
        policy_name_format="pol-{}",
        audit_archive_glacier_days=3,
        enable_tracing=True,
        create_iam_roles=True,
        region_in_iam_names=False,
        app_role_trust="ecs,lambda,eks",
        oidc_provider_arn=PROVIDER,
        oidc_subject="system:serviceaccount:default:my-app",
        require_mfa=True,
        policy_namespace_id="a1B2c3D4e5-",
        enable_deletion_protection=True,
    )
    yield from stack("template-rich", wanted)


@pytest.fixture(scope="module")
def bare() -> Iterator[Account]:
    """A table and nothing else."""
    yield from stack("template-bare", BARE)


@pytest.fixture(scope="module")
def lent() -> Iterator[Account]:
    """An aggregator with somebody else's role, which archives nothing."""
    wanted = StackOptions(create_iam=False, aggregator_role_arn=ROLE, enable_audit_archival=False)
    yield from stack("template-lent", wanted)


def stack(name: str, wanted: StackOptions) -> Iterator[Account]:
    made = deployed(engine.endpoint(), name, wanted)
    yield made
    deployment.delete(aws(), name, force=True)


def resources_of(account: Account) -> dict[str, str]:
    """The physical ids of a stack's resources by logical id."""
    found = account.client("cloudformation").describe_stack_resources(StackName=account.stack)["StackResources"]
    return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found}


AGGREGATOR = {"Aggregator", "AggregatorStream", "AggregatorLogGroup", "AggregatorDeadLetters"}
ARCHIVE = {"AuditArchive", "AuditArchivePolicy"}
POLICIES = {
    "AcquirePolicy": "acq",
    "FullPolicy": "full",
    "ReadPolicy": "read",
    "NamespaceAcquirePolicy": "ns-acq",
    "NamespaceFullPolicy": "ns-full",
    "NamespaceReadPolicy": "ns-read",
}
ROLES = {"AppRole", "OidcAppRole", "AdminRole", "ReadRole"}
ALARMS = {
    *("ErrorsAlarm", "FailuresAlarm", "DamagedAlarm", "DurationAlarm", "IteratorAgeAlarm", "DeadLettersAlarm"),
    *("WriteThrottleAlarm", "ReadThrottleAlarm", "FunctionThrottleAlarm"),
    *(f"Index{number}ThrottleAlarm" for number in range(1, 5)),
}


def test_what_there_is(plain: Account, rich: Account, bare: Account, lent: Account) -> None:
    usual = {"Table", "Dashboard", "AggregatorRole", *AGGREGATOR, *ARCHIVE, *POLICIES, *ALARMS}
    assert resources_of(plain).keys() == usual
    assert resources_of(rich).keys() == usual | ROLES
    assert resources_of(bare).keys() == {"Table"}
    assert resources_of(lent).keys() == {"Table", "Dashboard", *AGGREGATOR, *ALARMS}


def test_what_it_is_called(plain: Account, rich: Account) -> None:
    found = resources_of(plain)
    name = plain.stack
    assert found["Table"] == name
    assert found["Aggregator"] == f"{name}-aggregator"
    assert found["AggregatorDeadLetters"].endswith(f"/{name}-aggregator-dlq")
    assert found["AggregatorLogGroup"] == f"/aws/lambda/{name}-aggregator"
    assert found["AggregatorRole"] == f"{name}-aggr-{REGION}" == StackOptions().get_role_name(name, "aggr", REGION)
    for policy, component in POLICIES.items():
        assert found[policy].endswith(f":policy/{name}-{component}-{REGION}")
        assert found[policy].endswith(f":policy/{StackOptions().get_policy_name(name, component, REGION)}")
        assert resources_of(rich)[policy].endswith(f":policy/pol-{rich.stack}-{component}")
    roles = {"AggregatorRole": "aggr", "AppRole": "app", "OidcAppRole": "app-oidc", "AdminRole": "admin"}
    roles["ReadRole"] = "read"
    assert {role: resources_of(rich)[role] for role in roles} == {
        role: f"pb-{rich.stack}-{component}-x" for role, component in roles.items()
    }


def test_the_function(plain: Account, rich: Account, lent: Account) -> None:
    found = function_of(rich)
    assert (found["Runtime"], found["Handler"]) == ("python3.12", "zae_limiter_aggregator.handler.handler")
    assert (found["Timeout"], found["MemorySize"], found["TracingConfig"]) == (90, 512, {"Mode": "Active"})
    assert found["Environment"]["Variables"] == {
        "ZAE_LIMITER_TABLE": rich.stack,
        "ZAE_LIMITER_SNAPSHOT_WINDOWS": "hourly,daily,monthly",
        "ZAE_LIMITER_USAGE_RETENTION_DAYS": "7",
        "ZAE_LIMITER_ARCHIVE_BUCKET": rich.outputs["ArchiveBucket"],
    }
    assert found["Role"] == rich.outputs["AggregatorRoleArn"]
    assert function_of(plain)["TracingConfig"] == {"Mode": "PassThrough"}
    assert function_of(lent)["Role"] == ROLE
    assert "ZAE_LIMITER_ARCHIVE_BUCKET" not in function_of(lent)["Environment"]["Variables"]


def function_of(account: Account) -> Any:
    return account.client("lambda").get_function(FunctionName=account.outputs["FunctionName"])["Configuration"]


def mapping_of(account: Account) -> Any:
    listed = account.client("lambda").list_event_source_mappings(FunctionName=account.outputs["FunctionName"])
    (found,) = listed["EventSourceMappings"]
    return found


def test_the_stream_leads_to_the_function(plain: Account, lent: Account) -> None:
    found = mapping_of(plain)
    assert found["EventSourceArn"] == plain.outputs["StreamArn"]
    assert found["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert found["BisectBatchOnFunctionError"] is True
    assert found["DestinationConfig"]["OnFailure"]["Destination"].endswith(f":{plain.stack}-aggregator-dlq")
    buckets = {"eventName": ["INSERT", "MODIFY"], "dynamodb": {"Keys": {"SK": {"S": ["#STATE"]}}}}
    expired = {
        "eventName": ["REMOVE"],
        "userIdentity": {"type": ["Service"], "principalId": ["dynamodb.amazonaws.com"]},
        "dynamodb": {"Keys": {"SK": {"S": [{"prefix": "#AUDIT#"}]}}},
    }
    alerts = {"eventName": ["INSERT"], "dynamodb": {"Keys": {"SK": {"S": [{"prefix": "#ALERT#"}]}}}}
    assert filters(found) == [buckets, alerts, expired]
    assert filters(mapping_of(lent)) == [buckets, alerts]


def filters(mapping: Any) -> list[Any]:
    return [json.loads(each["Pattern"]) for each in mapping["FilterCriteria"]["Filters"]]


def test_what_cannot_be_counted_waits_in_an_encrypted_queue(plain: Account) -> None:
    queue = plain.client("sqs").get_queue_attributes(
        QueueUrl=plain.outputs["DeadLetterQueueUrl"], AttributeNames=["All"]
    )["Attributes"]
    assert queue["MessageRetentionPeriod"] == str(14 * 86_400)
    assert queue["SqsManagedSseEnabled"] == "true"


def test_the_archive_is_private_and_encrypted(rich: Account) -> None:
    s3, bucket = rich.client("s3"), rich.outputs["ArchiveBucket"]
    blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert set(blocked.values()) == {True}
    (encryption,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert encryption["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    (deny,) = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])["Statement"]
    assert (deny["Effect"], deny["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})


def test_the_log_is_kept_as_long_as_was_asked_for(rich: Account) -> None:
    (group,) = rich.client("logs").describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{rich.stack}-")["logGroups"]
    assert group["retentionInDays"] == 14


def test_the_alarms(plain: Account, rich: Account) -> None:
    watched = {
        f"{rich.stack}-aggregator-errors": ("AWS/Lambda", "Errors", 1),
        f"{rich.stack}-aggregator-duration": ("AWS/Lambda", "Duration", 45_000),
        f"{rich.stack}-aggregator-failures": ("ZaeLimiter/Aggregator", "failures", 1),
        f"{rich.stack}-aggregator-damaged": ("ZaeLimiter/Aggregator", "damaged", 1),
        f"{rich.stack}-aggregator-iterator-age": ("AWS/Lambda", "IteratorAge", 300_000),
        f"{rich.stack}-aggregator-dlq": ("AWS/SQS", "ApproximateNumberOfMessagesVisible", 1),
        f"{rich.stack}-write-throttles": ("AWS/DynamoDB", "WriteThrottleEvents", 1),
        f"{rich.stack}-read-throttles": ("AWS/DynamoDB", "ReadThrottleEvents", 1),
        f"{rich.stack}-aggregator-throttles": ("AWS/Lambda", "Throttles", 1),
        **{
            f"{rich.stack}-gsi{number}-write-throttles": ("AWS/DynamoDB", "WriteThrottleEvents", 1)
            for number in range(1, 5)
        },
    }
    found = alarms_of(rich)
    assert {each["AlarmName"]: (each["Namespace"], each["MetricName"], each["Threshold"]) for each in found} == watched
    assert {topic for each in found for topic in each["AlarmActions"]} == {TOPIC}
    assert all(rich.stack in each["Dimensions"][0]["Value"] for each in found)
    assert not [each for each in alarms_of(plain) if each["AlarmActions"]]


def alarms_of(account: Account) -> list[Any]:
    prefix = f"{account.stack}-"
    found: list[Any] = account.client("cloudwatch").describe_alarms(AlarmNamePrefix=prefix)["MetricAlarms"]
    return found


def test_the_roles_have_their_policies(rich: Account) -> None:
    iam = rich.client("iam")
    wanted = {"app": "AcquirePolicyArn", "app-oidc": "AcquirePolicyArn", "admin": "FullPolicyArn"}
    for component, policy in {**wanted, "read": "ReadPolicyArn"}.items():
        name = f"pb-{rich.stack}-{component}-x"
        (attached,) = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
        assert attached["PolicyArn"] == rich.outputs[policy]


def trust_of(account: Account, component: str) -> Any:
    """The statements of who may assume a role."""
    found = account.client("iam").get_role(RoleName=f"pb-{account.stack}-{component}-x")["Role"]
    document = found["AssumeRolePolicyDocument"]
    return (json.loads(document) if isinstance(document, str) else document)["Statement"]


def test_who_may_assume_the_roles(rich: Account) -> None:
    own = {"AWS": "arn:aws:iam::000000000000:root"}
    people, services = trust_of(rich, "app")
    assert people == {"Effect": "Allow", "Principal": own, "Action": "sts:AssumeRole"}
    assert services == {
        "Effect": "Allow",
        "Principal": {"Service": ["ecs-tasks.amazonaws.com", "lambda.amazonaws.com", "pods.eks.amazonaws.com"]},
        "Action": ["sts:AssumeRole", "sts:TagSession"],
    }
    (federated,) = trust_of(rich, "app-oidc")
    assert (federated["Action"], federated["Principal"]) == ("sts:AssumeRoleWithWebIdentity", {"Federated": PROVIDER})
    assert federated["Condition"] == {
        "StringEquals": {f"{ISSUER}:aud": "sts.amazonaws.com"},
        "StringLike": {f"{ISSUER}:sub": "system:serviceaccount:default:my-app"},
    }
    for component in ("admin", "read"):
        (person,) = trust_of(rich, component)
        assert person["Condition"] == {"Bool": {"aws:MultiFactorAuthPresent": "true"}}


def test_without_more_only_the_account_may_assume_them() -> None:
    for made in stack("template-people", StackOptions(create_iam_roles=True, enable_aggregator=False)):
        assert "OidcAppRole" not in resources_of(made)
        for component in ("app", "admin", "read"):
            role = made.client("iam").get_role(RoleName=f"{made.stack}-{component}-{REGION}")["Role"]
            (only,) = role["AssumeRolePolicyDocument"]["Statement"]
            assert "Condition" not in only
            assert only["Principal"] == {"AWS": "arn:aws:iam::000000000000:root"}


def test_the_same_stack_in_two_regions_of_an_account() -> None:
    """Roles and policies are the account's, not the region's."""
    wanted = StackOptions(create_iam_roles=True)
    made = [deployed(engine.endpoint(), "template-twice", wanted, region) for region in ("eu-west-1", "ap-southeast-2")]
    named = [
        {physical for logical, physical in resources_of(each).items() if logical in {*POLICIES, *ROLES}}
        for each in made
    ]
    assert [len(each) for each in named] == [9, 9]
    assert not named[0] & named[1]
    for each in made:
        each.client("cloudformation").delete_stack(StackName=each.stack)


def test_tracing_is_allowed_only_where_it_is_on(plain: Account, rich: Account) -> None:
    tracing = [statements(plain, f"{plain.stack}-aggr-{REGION}"), statements(rich, f"pb-{rich.stack}-aggr-x")]
    assert ["Trace" in each for each in tracing] == [False, True]


def statements(account: Account, role: str) -> set[str]:
    return {each["Sid"] for each in account.role_document(role, "aggregate")["Statement"]}


def test_the_table_is_protected_if_that_was_asked_for(plain: Account, rich: Account) -> None:
    described = [account.client("dynamodb").describe_table(TableName=account.stack) for account in (plain, rich)]
    assert [each["Table"]["DeletionProtectionEnabled"] for each in described] == [False, True]


def test_a_stack_says_which_options_it_was_made_with(rich: Account) -> None:
    (found,) = rich.client("cloudformation").describe_stacks(StackName=rich.stack)["Stacks"]
    again = StackOptions.from_parameters({each["ParameterKey"]: each["ParameterValue"] for each in found["Parameters"]})
    assert (again.lambda_duration_threshold_pct, again.role_name_format) == (50, "pb-{}-x")
    assert template.encode_parameters(rich.stack, again) == {
        each["ParameterKey"]: each["ParameterValue"] for each in found["Parameters"]
    }


def test_without_iam_the_template_itself_demands_a_role() -> None:
    given = {"CreateIam": "false", "EnableAggregator": "true"}
    with pytest.raises(ClientError, match="AggregatorRoleArn"):
        client("cloudformation", engine.endpoint()).create_stack(
            StackName="template-refused",
            TemplateBody=template.read_template(),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
        )
