"""Health: every part is shown by itself, what is missing is said, and silence is an exit code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.aws.account import client, judged
from tests.aws.stacks import QUEUE, REGION, aws, named, wanted
from tests.aws.test_deployment import SMALL
from tests.cli.terminal import run
from tests.support.aws import engine
from tests.support.backends import dynamodb_client, dynamodb_table
from zae_limiter import InfrastructureNotFoundError, StackOptions, ValidationError, __version__
from zae_limiter.aws import deployment, health, package, stack
from zae_limiter.aws.calls import Aws
from zae_limiter.aws.health import AggregatorHealth, Health, StackHealth, Versions
from zae_limiter.aws.stack import FollowOptions
from zae_limiter.records import version
from zae_limiter.records.version import SCHEMA_VERSION
from zae_limiter.runtime.blocking import run as blocking
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.table import create_table
from zae_limiter.stores.memory import MemoryStore


def look(name: str) -> Health:
    return health.check_health(DynamoStore(dynamodb_client(name, blocking=True)))


def status(name: str, *flags: str, url: str | None = None, **env: str) -> tuple[int, str]:
    place = ("--name", name, "--region", REGION, "--endpoint-url", url or engine.endpoint())
    shown = run(*place, "status", *flags, env={**env})
    return shown.exit_code, shown.stdout


def lines(text: str) -> dict[str, str]:
    """What a table of two columns says, by its first one."""
    rows = (re.split(r"\s{2,}", line, maxsplit=1) for line in text.splitlines())
    return {row[0]: row[1] for row in rows}


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """A whole deployment."""
    with named() as made:
        deployment.deploy(aws(), made, StackOptions(pitr_recovery_days=7))
        yield made


def test_a_deployment_shows_all_its_parts(name: str) -> None:
    found = look(name)
    assert found.available
    assert found.latency_ms is not None
    assert found.troubles == {}
    assert found.stack == StackHealth("CREATE_COMPLETE", None)
    assert found.table is not None
    assert (found.table.status, found.table.stream, found.table.deletion_protection) == ("ACTIVE", True, False)
    assert found.table.items >= 1
    assert found.aggregator == AggregatorHealth("Active", True, "Successful")
    assert found.stream_mapping == "Enabled"
    assert found.dead_letters == 0
    assert found.versions == Versions(__version__, SCHEMA_VERSION, version.OLDEST_CLIENT, __version__)
    assert found.namespaces == 0


def test_the_command_line_shows_them_as_a_table_and_as_json(name: str) -> None:
    code, text = status(name)
    assert code == 0
    found = lines(text)
    assert found["answers"] == "yes"
    assert found["stack"] == "CREATE_COMPLETE"
    assert found["aggregator"] == f"Active, code of this version, {__version__}"
    code, text = status(name, "--json")
    data: dict[str, Any] = json.loads(text)
    assert (code, data["available"], data["stack"]["status"], data["dead_letters"]) == (0, True, "CREATE_COMPLETE", 0)


def test_what_needs_somebody_is_seen(name: str) -> None:
    url = aws().call("sqs", "get_queue_url", QueueName=f"{name}-aggregator-dlq")["QueueUrl"]
    aws().call("sqs", "send_message", QueueUrl=url, MessageBody="lost")
    aws().call("lambda", "update_function_code", FunctionName=f"{name}-aggregator", ZipFile=package.build() + b"\0")
    found = look(name)
    assert found.dead_letters == 1
    assert found.aggregator is not None
    assert not found.aggregator.code_current
    text = lines(status(name)[1])
    assert text["dead letters"] == "1"
    assert "code of another version: deploy or upgrade" in text["aggregator"]


def test_a_table_without_a_stack_has_none() -> None:
    with dynamodb_table() as made:
        found = look(made)
        assert (found.available, found.stack, found.aggregator, found.dead_letters) == (True, None, None, None)
        assert found.versions == Versions(__version__)
        assert "created without one" in lines(status(made)[1])["stack"]


def test_a_table_whose_name_no_stack_can_have() -> None:
    client = dynamodb_client(f"no.stack_{os.getpid()}", blocking=True)
    blocking(create_table(client))
    try:
        found = health.check_health(DynamoStore(client))
        assert (found.available, found.stack, found.troubles) == (True, None, {})
    finally:
        blocking(client.call("DeleteTable", {"TableName": client.table}))


def test_a_deployment_that_was_interrupted_before_its_table_was_protected() -> None:
    with named() as made:
        wanted = replace(SMALL, enable_deletion_protection=True)
        deployment.deploy(aws(), made, wanted, wait=False)
        found = look(made)
        assert found.table is not None
        assert not found.table.deletion_protection
        assert "not protected against deletion yet, deploy again" in lines(status(made)[1])["stack"]
        deployment.deploy(aws(), made, wanted)
        found = look(made)
        assert found.table is not None
        assert found.table.deletion_protection
        assert found.stack is not None
        assert found.stack.reason is None
        deployment.deploy(aws(), made, SMALL)


def test_a_stack_that_lost_its_table_does_not_answer() -> None:
    with named() as made:
        deployment.deploy(aws(), made, replace(SMALL))
        aws().call("dynamodb", "delete_table", TableName=made)
        found = look(made)
        assert (found.available, found.table) == (False, None)
        code, text = status(made)
        assert code == 5
        assert lines(text)["table"] == "missing"


def test_nothing_there_is_not_found() -> None:
    with pytest.raises(InfrastructureNotFoundError, match="Neither a stack nor a table"):
        look("nothing-there")
    assert status("nothing-there")[0] == 14


def test_a_stack_of_somebody_else_is_not_shown() -> None:
    with named() as made:
        stack.apply(aws(), f"{made}-x", wanted(QUEUE, ours=False), FollowOptions())
        with pytest.raises(InfrastructureNotFoundError):
            look(f"{made}-x")
        found = stack.describe(aws(), f"{made}-x")
        assert found is not None
        stack.remove(aws(), found, FollowOptions())


def test_silence_is_told_with_its_reason() -> None:
    code, text = status("my-app", url="http://127.0.0.1:1", **engine.CREDENTIALS)
    assert code == 5
    found = lines(text)
    assert found["answers"] == "no"
    assert "cannot be reached" in found["read"]
    assert "stack" not in found


def test_other_stores_tell_their_reason_too() -> None:
    shown = run("--url", "redis://127.0.0.1:1", "status")
    assert shown.exit_code == 5
    assert "reason" in lines(shown.stdout)


def test_only_dynamodb_has_such_a_health() -> None:
    with pytest.raises(ValidationError, match="memory"):
        health.check_health(MemoryStore())


@pytest.fixture(scope="module")
def strict() -> Iterator[str]:
    """An engine that judges who may do what, with a limiter in it."""
    with judged() as url:
        with pytest.MonkeyPatch.context() as root:
            for variable, value in engine.CREDENTIALS.items():
                root.setenv(variable, value)
            with Aws(REGION, url) as made:
                deployment.deploy(made, "my-app", replace(SMALL, create_iam=True))
        yield url


def user(url: str, name: str, *policies: str) -> dict[str, str]:
    """A user who has some policies of the limiter, as environment variables."""
    iam = client("iam", url)
    iam.create_user(UserName=name)
    for policy in policies:
        iam.attach_user_policy(UserName=name, PolicyArn=f"arn:aws:iam::000000000000:policy/{policy}")
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


def test_a_part_that_may_not_be_seen_says_so(strict: str) -> None:
    """Who may only read the table sees the table, and why not the rest."""
    code, text = status("my-app", url=strict, **user(strict, "reader", f"my-app-read-{REGION}"))
    found = lines(text)
    assert (code, found["answers"]) == (0, "yes")
    assert found["table"] == "ACTIVE"
    assert "not authorized to perform: cloudformation:DescribeStacks" in found["stack"]
    assert "not authorized" in found["aggregator"]


def test_who_may_nothing_is_told_what_is_missing(strict: str) -> None:
    nobody = user(strict, "nobody")
    place = ("--name", "my-app", "--region", REGION, "--endpoint-url", strict)
    for command in ("status", "deploy", "delete", "list"):
        shown = run(*place, command, env={**nobody})
        assert shown.exit_code == 18
        assert len(shown.stderr.splitlines()) == 1
        assert "not authorized to perform: " in shown.stderr
