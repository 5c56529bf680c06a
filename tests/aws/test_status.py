"""`status` of a repository: on DynamoDB also what AWS knows of table and stack, as far as it may be seen."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.aws.stacks import REGION, aws, named
from tests.repository.test_open import Face, face, make_table
from tests.support.aws import engine
from tests.support.scripted_server import CLOSE, HANG, ScriptedServer, Step, isolate, refusal, reply
from zae_limiter import StackOptions, Status, SyncRepository, __version__
from zae_limiter.aws import deployment
from zae_limiter.aws.health import describe_deployment
from zae_limiter.stores.dynamodb.client import open_client
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.testing import Harness

__all__ = ["face"]

OF_AWS = ("name", "region", "stack_status", "table_status", "lambda_version", "table_item_count", "table_size_bytes")
ROLES = ("app_role_arn", "admin_role_arn", "readonly_role_arn")


@pytest.fixture(scope="module")
def stack() -> Iterator[str]:
    """A stack with an aggregator and roles."""
    with named() as made:
        deployment.deploy(aws(), made, StackOptions(create_iam_roles=True, enable_alarms=False))
        yield made


def test_a_stack_is_told_with_its_table_its_aggregator_and_its_roles(face: Face, stack: str) -> None:
    repository = face(face.Repository.open(stack=stack, region=REGION, endpoint_url=engine.endpoint()))
    found: Status = face(face.RateLimiter(repository).get_status())
    assert (found.available, found.backend, found.name, found.region) == (True, "dynamodb", stack, REGION)
    assert (found.stack_status, found.table_status) == ("CREATE_COMPLETE", "ACTIVE")
    assert (found.aggregator_enabled, found.lambda_version, found.client_version) == (True, __version__, __version__)
    assert found.table_item_count is not None
    assert found.table_item_count > 0
    assert found.table_size_bytes is not None
    assert [str(getattr(found, role)).partition("-")[0] for role in ROLES] == [
        "arn:aws:iam::000000000000:role/stack"
    ] * 3
    assert len({getattr(found, role) for role in ROLES}) == 3
    face(repository.close())


def test_a_table_without_a_stack_has_no_status_of_one(face: Face) -> None:
    with named() as name:
        make_table(name)
        repository = face.Repository(name, REGION, engine.endpoint())
        found: Status = face(repository.status())
        assert (found.name, found.table_status, found.stack_status) == (name, "ACTIVE", None)
        assert not found.aggregator_enabled
        face(repository.close())
        with SyncRepository(name, REGION, engine.endpoint()) as made:
            made.delete_table()


@pytest.mark.parametrize("step", [CLOSE, refusal("UnknownOperationException")], ids=["closed", "no CloudFormation"])
def test_what_does_not_answer_is_left_out(face: Face, stack: str, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint())
    with ScriptedServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", server.url)
        server.script.append(step)
        repository = face.Repository(stack, REGION)
        found: Status = face(repository.status())
        face(repository.close())
    assert len(server.seen) == 1
    assert (found.available, found.reason, found.table_status) == (True, None, "ACTIVE")
    assert (found.stack_status, found.aggregator_enabled, found.app_role_arn) == (None, False, None)


MALFORMED: dict[str, object] = {
    "no table": {},
    "a list": {"Table": []},
    "a text": {"Table": "ACTIVE"},
    "null": {"Table": None},
    "no status": {"Table": {"ItemCount": 5}},
    "a status that is none": {"Table": {"TableStatus": {"a": 1}}},
    "a count in words": {"Table": {"TableStatus": "ACTIVE", "ItemCount": "many"}},
    "a count without end": {"Table": {"TableStatus": "ACTIVE", "ItemCount": float("inf")}},
    "a date without end": {"Table": {"TableStatus": "ACTIVE", "CreationDateTime": 1e300}},
    "a list of lists": [[]],
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_an_answer_that_cannot_be_read_is_left_out(content: object, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    with ScriptedServer() as server:
        server.script += [reply(json.dumps(content).encode())] * 9
        store = DynamoStore(open_client("my-app", blocking=True, region=REGION, endpoint_url=server.url))
        assert describe_deployment(store) == {"name": "my-app", "region": REGION}
        assert [seen.operation for seen in server.seen] == ["DescribeTable", ""]


def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    monkeypatch.setattr("zae_limiter.aws.health.DESCRIBE_SECONDS", 0.2)
    with ScriptedServer() as server:
        server.script.append(HANG)
        store = DynamoStore(open_client("my-app", blocking=True, region=REGION, endpoint_url=server.url))
        assert describe_deployment(store) == {"name": "my-app"}


async def test_other_stores_have_nothing_of_it(harness: Harness) -> None:
    if harness.repository().capabilities.name != "dynamodb":
        found = await harness.repository().status()
        assert found.available
        assert [getattr(found, field) for field in (*OF_AWS, *ROLES)] == [None] * 10
        assert not found.aggregator_enabled
