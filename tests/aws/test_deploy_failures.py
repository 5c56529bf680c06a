"""Deployments that fail or are killed: one line says why, nothing is left half done, and the next one succeeds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError

from tests.aws.stacks import REGION, aws, inventory, named, status
from tests.aws.test_deployment import SMALL, usable
from tests.cli.terminal import run
from tests.support.aws import engine
from tests.support.deadlines import PATIENCE
from tests.support.paths import ROOT
from tests.support.scripted_server import ScriptedServer, reply
from zae_limiter import (
    AccessDeniedError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
    StackAlreadyExistsError,
    StackOperationError,
    StackOptions,
    ValidationError,
    ZAELimiterError,
)
from zae_limiter.aws import deployment, package, template
from zae_limiter.aws.calls import Aws, code_of, translate

UNMAKABLE = """
  Unmakable:
    Type: AWS::SQS::Queue
    DependsOn: Table
    Properties: {MessageRetentionPeriod: 999999999}

Outputs:
"""
"""A resource that CloudFormation cannot create, after the table."""


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


@contextlib.contextmanager
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The template with one resource more than can be made."""
    body = template.read_template()
    assert body.count("\nOutputs:\n") == 1
    with monkeypatch.context() as patched:
        patched.setattr(template, "read_template", lambda: body.replace("\nOutputs:\n", UNMAKABLE))
        yield


def flags(name: str) -> tuple[str, ...]:
    return ("--name", name, "--region", REGION, "--endpoint-url", engine.endpoint())


def test_a_failed_creation_is_told_in_one_line_and_rolled_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = inventory()
    with broken(monkeypatch):
        with pytest.raises(StackOperationError, match=r"not created: Unmakable \(AWS::SQS::Queue\): .* rolled back\.$"):
            deployment.deploy(aws(), name, StackOptions())
        shown = run(*flags(name), "deploy", "--no-aggregator")
    assert shown.exit_code == 15
    errors = [line for line in shown.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "Unmakable (AWS::SQS::Queue): Invalid value for the parameter MessageRetentionPeriod" in errors[0]
    assert shown.stderr.splitlines()[-1] == errors[0]
    assert status(name) == "ROLLBACK_COMPLETE"
    assert inventory() == {**before, "stacks": before["stacks"] | {name}}
    assert deployment.deploy(aws(), name, SMALL).stack == "created"
    assert usable(name)


def test_a_failed_change_leaves_what_worked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.deploy(aws(), name, SMALL)
    assert usable(name)
    with broken(monkeypatch), pytest.raises(StackOperationError, match=r"not updated: Unmakable .* rolled back\.$"):
        deployment.deploy(aws(), name, replace(SMALL, pitr_recovery_days=7))
    assert status(name) == "UPDATE_ROLLBACK_COMPLETE"
    assert deployment.read_options(aws(), name) == SMALL
    assert usable(name, "other")


def test_what_a_failed_creation_wanted_is_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with broken(monkeypatch), pytest.raises(StackOperationError):
        deployment.deploy(aws(), name, SMALL)
    assert deployment.read_options(aws(), name) == StackOptions()


def make_table(name: str) -> None:
    aws().call(
        "dynamodb",
        "create_table",
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )


def test_a_table_of_that_name_is_not_touched(name: str) -> None:
    make_table(name)
    before = inventory()
    shown = run(*flags(name), "deploy", "--json")
    assert shown.exit_code == 16
    assert f"The DynamoDB table '{name}' exists in us-east-1" in shown.stderr
    with pytest.raises(StackAlreadyExistsError, match="Choose another name, or import it with --adopt"):
        deployment.deploy(aws(), name, SMALL)
    assert inventory() == before
    aws().call("dynamodb", "delete_table", TableName=name)
    assert deployment.deploy(aws(), name, SMALL).stack == "created"


@pytest.mark.parametrize("kind", ["SQS queue", "log group"])
def test_other_names_that_are_taken_are_told_too(name: str, kind: str) -> None:
    if kind == "SQS queue":
        url = aws().call("sqs", "create_queue", QueueName=f"{name}-aggregator-dlq")["QueueUrl"]
        undo = ("sqs", "delete_queue", {"QueueUrl": url})
    else:
        group = {"logGroupName": f"/aws/lambda/{name}-aggregator"}
        aws().call("logs", "create_log_group", **group)
        undo = ("logs", "delete_log_group", group)
    with pytest.raises(StackAlreadyExistsError, match=f"The {kind} .* is not part of a zae-limiter stack"):
        deployment.deploy(aws(), name, StackOptions())
    aws().call(undo[0], undo[1], **undo[2])


@pytest.mark.parametrize(
    ("arn", "reason"),
    [
        ("my-role", "must be an ARN such as"),
        ("arn:aws:iam::000000000000:role/nobody", "does not exist in this account"),
    ],
    ids=["no ARN", "no role"],
)
def test_a_bad_role_is_told_before_anything_is_created(name: str, arn: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        deployment.deploy(aws(), name, StackOptions(aggregator_role_arn=arn))
    shown = run(*flags(name), "deploy", "--aggregator-role-arn", arn)
    assert shown.exit_code == 2
    assert reason in shown.stderr.splitlines()[-1]
    assert status(name) is None


def test_a_bad_role_is_told_before_anything_is_changed(name: str) -> None:
    deployment.deploy(aws(), name, StackOptions())
    shown = run(*flags(name), "deploy", "--aggregator-role-arn", "arn:aws:iam::000000000000:role/nobody")
    assert shown.exit_code == 2
    assert "does not exist in this account" in shown.stderr
    assert status(name) == "CREATE_COMPLETE"


def test_several_may_deploy_at_once(name: str) -> None:
    def one(_: int) -> str:
        with Aws(REGION, engine.endpoint()) as mine:
            return deployment.deploy(mine, name, SMALL).stack

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(one, range(3))) == ["created", "unchanged", "unchanged"]
    assert usable(name)


CHILD = """
import sys
from zae_limiter import StackOptions
from zae_limiter.aws.calls import Aws
from zae_limiter.aws.deployment import deploy

name, moment, region, endpoint = sys.argv[1:]

def stop(now):
    if now == moment:
        print(now, flush=True)
        sys.stdin.read()

stop("before")
deploy(Aws(region, endpoint), name, StackOptions(), progress=lambda event: stop(f"{event.resource} {event.status}"))
stop("after")
"""


@contextlib.contextmanager
def deploying(name: str, moment: str) -> Iterator[subprocess.Popen[str]]:
    """A deployment by another process, which stands still at a moment."""
    environment = {**os.environ, **engine.CREDENTIALS}
    words = [sys.executable, "-c", CHILD, name, moment, REGION, engine.endpoint()]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, cwd=ROOT, env=environment, text=True, **pipes) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize(
    "moment",
    ["{name} CREATE_IN_PROGRESS", "Table CREATE_COMPLETE", "{name} CREATE_COMPLETE"],
    ids=["begun", "half done", "no code yet"],
)
def test_a_killed_deployment_can_be_repeated(name: str, moment: str) -> None:
    there = moment.format(name=name)
    with deploying(name, there) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == there
        child.send_signal(signal.SIGKILL)
        assert child.wait(PATIENCE) == -signal.SIGKILL
    done = deployment.deploy(aws(), name, StackOptions())
    assert done.code == "uploaded"
    assert status(name) in ("CREATE_COMPLETE", "UPDATE_COMPLETE")
    assert package.upload(aws(), name) == "unchanged"
    assert usable(name)


def refusal(code: str, message: str, http: int = 400) -> ClientError:
    response: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": http}}
    return ClientError(response, "CreateStack")


TRANSLATIONS: list[tuple[Exception, type[ZAELimiterError]]] = [
    (refusal("AccessDenied", "User: x is not authorized\nto perform: y"), AccessDeniedError),
    (refusal("ExpiredToken", "The security token has expired"), AccessDeniedError),
    (refusal("Throttling", "Rate exceeded"), RateLimiterUnavailable),
    (refusal("Whatever", "oops", 503), RateLimiterUnavailable),
    (refusal("ValidationError", "Stack with id my-app does not exist"), InfrastructureNotFoundError),
    (refusal("ValidationError", "Parameters: [X] must have values"), StackOperationError),
    (refusal("AlreadyExistsException", "Stack [my-app] already exists"), StackAlreadyExistsError),
    (refusal("InsufficientCapabilitiesException", "Requires capabilities"), StackOperationError),
    (NoCredentialsError(), AccessDeniedError),
    (EndpointConnectionError(endpoint_url="http://x"), RateLimiterUnavailable),
    (ReadTimeoutError(endpoint_url="http://x"), RateLimiterUnavailable),
]


NAMES = [f"{code_of(error) or type(error).__name__} {number}" for number, (error, _) in enumerate(TRANSLATIONS)]


def test_what_botocore_cannot_parse_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in engine.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with ScriptedServer() as server, Aws("us-east-1", server.url) as aws:
        server.script.extend([reply(b"<oops", 400, headers=("content-type: text/xml",))] * 9)
        with pytest.raises(RateLimiterUnavailable, match="cloudformation:DescribeStacks"):
            aws.call("cloudformation", "describe_stacks")
        server.script.extend([reply(b"<oops", 400, headers=("content-type: text/xml",))] * 9)
        with pytest.raises(RateLimiterUnavailable, match="cloudformation:DescribeStacks"):
            list(aws.pages("cloudformation", "describe_stacks"))


@pytest.mark.parametrize(("error", "kind"), TRANSLATIONS, ids=NAMES)
def test_what_aws_says_is_one_of_our_errors(error: Exception, kind: type[ZAELimiterError]) -> None:
    found = translate(error, "cloudformation:create_stack")
    assert type(found) is kind
    assert str(found).startswith("cloudformation:CreateStack: ")
    assert "\n" not in str(found)
