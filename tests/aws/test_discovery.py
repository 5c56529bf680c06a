"""Discovery: our stacks are found among all others, whatever their number and state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from tests.aws.account import judged
from tests.aws.stacks import FOREVER, QUEUE, REGION, wanted
from tests.cli.terminal import run
from zae_limiter import LimiterInfo, StackOperationError, __version__
from zae_limiter.aws import stack
from zae_limiter.aws.calls import Aws
from zae_limiter.aws.stack import FollowOptions
from zae_limiter.records.version import SCHEMA_VERSION

HANDLE = "Resources: {Handle: {Type: AWS::CloudFormation::WaitConditionHandle}}"
OTHERS = 120
"""More stacks than CloudFormation lists at once."""


@pytest.fixture(scope="module")
def account() -> Iterator[Aws]:
    """An account of its own, in which nobody else has stacks."""
    with judged() as url, pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ACCESS_KEY_ID", "test")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "test")
        with Aws(REGION, url) as aws:
            yield aws


def test_nothing_deployed_says_what_to_type(account: Aws) -> None:
    assert stack.find_limiters(account) == []
    assert account.endpoint_url is not None
    place = ("--region", REGION, "--endpoint-url", account.endpoint_url)
    shown = run(*place, "list")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "zae-limiter deploy --name my-app --region us-east-1" in shown.stderr
    assert json.loads(run(*place, "list", "--json").stdout) == []


def test_ours_are_found_among_all_others(account: Aws) -> None:
    stack.apply(account, "zebra", wanted(QUEUE), FollowOptions())
    for number in range(OTHERS):
        stack.apply(account, f"other-{number}", wanted(HANDLE, ours=False), FollowOptions(), wait=False)
    with pytest.raises(StackOperationError) as caught:
        stack.apply(account, "ant", wanted(QUEUE, Seconds=FOREVER), FollowOptions())
    assert (caught.value.stack_name, caught.value.table_name) == ("ant", "ant")
    assert caught.value.reason
    assert caught.value.reason in str(caught.value)
    failed = [each for each in caught.value.events if each["ResourceStatus"] == "CREATE_FAILED"]
    assert (failed[0]["LogicalResourceId"], failed[0]["ResourceType"]) == ("Second", "AWS::SQS::Queue")
    assert failed[0]["ResourceStatusReason"] in caught.value.reason
    found = stack.find_limiters(account)
    assert [replace(each, creation_time="", last_updated_time=None) for each in found] == [
        LimiterInfo("ant", REGION, "ROLLBACK_COMPLETE", __version__, SCHEMA_VERSION),
        LimiterInfo("zebra", REGION, "CREATE_COMPLETE", __version__, SCHEMA_VERSION),
    ]
    assert all(datetime.fromisoformat(each.creation_time).tzinfo is not None for each in found)
    assert account.endpoint_url is not None
    place = ("--region", REGION, "--endpoint-url", account.endpoint_url)
    rows = [line.split() for line in run(*place, "list").stdout.splitlines()]
    assert rows[0] == ["name", "region", "status", "version", "schema"]
    assert [row[:3] for row in rows[2:]] == [
        ["ant", REGION, "ROLLBACK_COMPLETE"],
        ["zebra", REGION, "CREATE_COMPLETE"],
    ]
    assert [each["stack_name"] for each in json.loads(run(*place, "list", "--json").stdout)] == ["ant", "zebra"]
