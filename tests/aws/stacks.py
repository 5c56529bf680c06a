"""Stacks of the tests: names of their own, small templates whose end a test decides, and all that an account holds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator

from tests.support.aws import engine
from zae_limiter import InfrastructureNotFoundError, StackOperationError
from zae_limiter.aws import deployment, stack
from zae_limiter.aws.calls import Aws
from zae_limiter.aws.stack import DesiredStack

REGION = "us-east-1"
_COUNT = itertools.count()

QUEUE = """
Parameters:
  Seconds: {Type: String, Default: "60"}
Resources:
  First:
    Type: AWS::SQS::Queue
  Second:
    Type: AWS::SQS::Queue
    DependsOn: First
    Properties: {MessageRetentionPeriod: !Ref Seconds}
"""
"""Two queues; one that should keep its messages for longer than SQS can fails."""

GATED = """
Resources:
  Handle:
    Type: AWS::CloudFormation::WaitConditionHandle
  Gate:
    Type: AWS::CloudFormation::WaitCondition
    Properties: {Handle: !Ref Handle, Timeout: "600", Count: 1}
"""
"""A stack that is not finished before somebody says so."""

FOREVER = "999999999"


@functools.lru_cache(maxsize=1)
def aws() -> Aws:
    """The engine under test; its clients take longer to make than most tests."""
    return Aws(REGION, engine.endpoint())


@contextlib.contextmanager
def named() -> Iterator[str]:
    """A name that nobody has; a stack of ours that gets it is gone afterwards."""
    name = f"stack-{os.getpid()}-{next(_COUNT)}"
    yield name
    with contextlib.suppress(InfrastructureNotFoundError):
        deployment.delete(aws(), name, force=True)


def wanted(template: str, ours: bool = True, **parameters: str) -> DesiredStack:
    """A stack of a small template."""
    return DesiredStack(template, parameters, stack.add_own_tags(None) if ours else {"team": "other"})


def open_gate(name: str) -> None:
    """Let a gated stack be finished, as soon as it has come to its gate."""
    signal = {"StackName": name, "LogicalResourceId": "Gate", "UniqueId": "1", "Status": "SUCCESS"}
    for _ in range(100):
        with contextlib.suppress(StackOperationError):
            aws().call("cloudformation", "signal_resource", **signal)
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} never came to its gate")


def status(name: str) -> str | None:
    """The status of a stack; None where there is none."""
    found = stack.describe(aws(), name)
    return None if found is None else found.status


def _listed(service: str, operation: str, member: str, pick: Callable[[dict[str, str]], str]) -> set[str]:
    return {pick(each) for each in aws().call(service, operation).get(member, ())}


def inventory() -> dict[str, set[str]]:
    """Everything that a deployment could leave behind, by kind."""
    here = aws()
    return {
        "stacks": _listed("cloudformation", "describe_stacks", "Stacks", lambda each: each["StackName"]),
        "tables": set(here.call("dynamodb", "list_tables")["TableNames"]),
        "functions": _listed("lambda", "list_functions", "Functions", lambda each: each["FunctionName"]),
        "mappings": _listed("lambda", "list_event_source_mappings", "EventSourceMappings", lambda each: each["UUID"]),
        "queues": set(here.call("sqs", "list_queues").get("QueueUrls", ())),
        "log groups": _listed("logs", "describe_log_groups", "logGroups", lambda each: each["logGroupName"]),
        "buckets": _listed("s3", "list_buckets", "Buckets", lambda each: each["Name"]),
        "alarms": _listed("cloudwatch", "describe_alarms", "MetricAlarms", lambda each: each["AlarmName"]),
        "dashboards": _listed("cloudwatch", "list_dashboards", "DashboardEntries", lambda each: each["DashboardName"]),
        "policies": {each["Arn"] for each in here.call("iam", "list_policies", Scope="Local")["Policies"]},
        "roles": _listed("iam", "list_roles", "Roles", lambda each: each["RoleName"]),
    }
