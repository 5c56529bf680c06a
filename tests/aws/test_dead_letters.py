"""Batches that the aggregator has given up: listed, replayed while the stream has them, told where it has not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import Result

from tests.aws.stacks import REGION, aws, named
from tests.aws.test_end_to_end import stream
from tests.cli.terminal import run
from tests.support.aws import engine
from zae_limiter import InfrastructureNotFoundError, Limit, StackOptions, SyncRateLimiter, SyncRepository
from zae_limiter.aws import dead_letters, deployment, template

CONTEXT = {"condition": "RecordAgeExceeded", "approximateInvokeCount": 9}
OPTIONS = StackOptions(enable_alarms=False, enable_dashboard=False, snapshot_windows="hourly")


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """A deployment whose mapping is off, with changes of a bucket in its stream that nobody has counted."""
    with named() as made:
        deployment.deploy(aws(), made, OPTIONS)
        mapping = aws().call("lambda", "list_event_source_mappings", FunctionName=template.function_name(made))
        aws().call("lambda", "delete_event_source_mapping", UUID=mapping["EventSourceMappings"][0]["UUID"])
        with opened(made) as repository:
            repository.ensure_infrastructure()
            repository.set_system_defaults([Limit.per_minute("rpm", 100)])
            for _ in range(3):
                with SyncRateLimiter(repository).acquire("key", "gpt-4", {"rpm": 1}):
                    pass
        yield made


def opened(name: str) -> SyncRepository:
    return SyncRepository(name=name, region=REGION, endpoint_url=engine.endpoint())


def counted(name: str) -> dict[str, int]:
    with opened(name) as repository:
        return dict(repository.get_usage_summary("key", "gpt-4", "hourly").total)


def give_up(
    name: str,
    first: str,
    last: str,
    shard: str | None = None,
    change: Mapping[str, Any] | None = None,
    context: object = CONTEXT,
) -> None:
    """Put a message into the queue as Lambda does when it has given a batch up."""
    arn = aws().call("dynamodb", "describe_table", TableName=name)["Table"]["LatestStreamArn"]
    shards = aws().call("dynamodbstreams", "describe_stream", StreamArn=arn)["StreamDescription"]["Shards"]
    body = {
        "requestContext": context,
        "version": "1.0",
        "DDBStreamBatchInfo": {
            "shardId": shard or shards[0]["ShardId"],
            "startSequenceNumber": first,
            "endSequenceNumber": last,
            "approximateArrivalOfFirstRecord": "2026-01-01T00:00:00Z",
            "batchSize": 3,
            "streamArn": arn,
            **(change or {}),
        },
    }
    send(name, json.dumps(body))


def send(name: str, body: str) -> None:
    aws().call("sqs", "send_message", QueueUrl=queue(name), MessageBody=body)


def queue(name: str) -> str:
    return str(aws().call("sqs", "get_queue_url", QueueName=template.queue_name(name))["QueueUrl"])


def waiting(name: str) -> int:
    return len(dead_letters.list_letters(aws(), name))


def call(name: str, *words: str) -> Result:
    return run("--name", name, "--region", REGION, "--endpoint-url", engine.endpoint(), "dead-letters", *words)


def changes(name: str) -> list[str]:
    """The sequence numbers of all changes of buckets."""
    found = [each for each in stream(name) if each["dynamodb"]["Keys"]["SK"]["S"] == "#STATE"]
    return [each["dynamodb"]["SequenceNumber"] for each in found]


def test_a_batch_is_listed_replayed_and_gone(name: str) -> None:
    assert counted(name) == {}
    first, *_, last = changes(name)
    give_up(name, first, last)
    (listed,) = json.loads(call(name, "list", "--json").stdout)
    assert (listed["first"], listed["last"], listed["reason"]) == (first, last, "RecordAgeExceeded")
    assert "receipt" not in listed

    (dry,) = json.loads(call(name, "replay", "--dry-run", "--json").stdout)
    assert (dry["state"], dry["found"] >= 3, dry["counted"]) == ("found", True, 0)
    assert (counted(name), waiting(name)) == ({}, 1)

    shown = call(name, "replay")
    assert shown.exit_code == 0, shown.stderr
    assert "replayed" in shown.stdout
    assert counted(name) == {"rpm": 3}
    assert waiting(name) == 0


def test_a_second_replay_counts_nothing_twice(name: str) -> None:
    first, *_, last = changes(name)
    for _ in range(2):
        give_up(name, first, last)
        (done,) = dead_letters.replay(aws(), name)
        assert done.state == "replayed"
    assert counted(name) == {"rpm": 3}


def test_what_the_stream_no_longer_has_is_told_and_kept_unless_dropped(name: str) -> None:
    give_up(name, "1" * 25, "2" * 25, shard="shardId-00000000000000000000-00000000")
    kept = call(name, "replay")
    assert kept.exit_code == 25
    assert "expired" in kept.stdout
    assert "of 1 message 1 could not be replayed" in kept.stderr
    assert waiting(name) == 1
    (dropped,) = json.loads(call(name, "replay", "--drop-expired", "--json").stdout)
    assert (dropped["state"], dropped["found"]) == ("expired", 0)
    assert waiting(name) == 0


def test_messages_of_others_are_left_alone(name: str) -> None:
    for body in ("no JSON", "[]", '{"DDBStreamBatchInfo": {}}'):
        send(name, body)
    listed = call(name, "list", "--json")
    assert json.loads(listed.stdout) == []
    assert "3 messages not written by Lambda" in " ".join(listed.stderr.split())
    replayed = call(name, "replay")
    assert replayed.exit_code == 0
    assert "3 messages not written by Lambda" in " ".join(replayed.stderr.split())
    assert hidden(name) == 0, "others can receive them"
    aws().call("sqs", "purge_queue", QueueUrl=queue(name))


def hidden(name: str) -> int:
    return dead_letters.count_hidden(aws(), name)


BROKEN = {
    "startSequenceNumber": ("abc", None),
    "batchSize": ("x",),
    "shardId": ("shardId-00000000000000000000-nope",),
    "streamArn": ("arn:aws:dynamodb:us-east-1:000000000000:table/nope/stream/x", None),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BROKEN.items() for value in values])
def test_one_bad_message_does_not_keep_the_others(name: str, field: str, value: str | None) -> None:
    first, *_, last = changes(name)
    give_up(name, first, last, change={field: value})
    give_up(name, first, last)
    done = dead_letters.replay(aws(), name)
    assert [each.state for each in done].count("replayed") == 1
    assert hidden(name) == 0
    aws().call("sqs", "purge_queue", QueueUrl=queue(name))


def test_a_message_without_a_context_is_replayed(name: str) -> None:
    first, *_, last = changes(name)
    give_up(name, first, last, context=None)
    assert [each.state for each in dead_letters.replay(aws(), name)] == ["replayed"]


def test_a_replay_that_is_interrupted_hides_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    first, *_, last = changes(name)
    for _ in range(2):
        give_up(name, first, last)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(dead_letters, "_replay_one", interrupt)
        dead_letters.replay(aws(), name)
    assert hidden(name) == 0
    assert [each.state for each in dead_letters.replay(aws(), name)] == ["replayed", "replayed"]


def test_what_a_killed_run_has_hidden_is_mentioned(name: str) -> None:
    first, *_, last = changes(name)
    give_up(name, first, last)
    (message,) = aws().call("sqs", "receive_message", QueueUrl=queue(name), VisibilityTimeout=300)["Messages"]
    for command in ("list", "replay"):
        shown = call(name, command)
        assert "No batch can be received now." in shown.stdout + shown.stderr
        assert "about 1 message cannot be received now" in " ".join(shown.stderr.split())
    assert shown.exit_code == 25
    aws().call("sqs", "delete_message", QueueUrl=queue(name), ReceiptHandle=message["ReceiptHandle"])


def test_a_batch_that_fails_again_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_, last = changes(name)
    give_up(name, first, last)
    broken = {"Variables": {"ZAE_LIMITER_TABLE": name, "ZAE_LIMITER_SNAPSHOT_WINDOWS": "weekly"}}
    function = template.function_name(name)
    before = aws().call("lambda", "get_function_configuration", FunctionName=function)["Environment"]
    aws().call("lambda", "update_function_configuration", FunctionName=function, Environment=broken)
    failed = call(name, "replay", "--json")
    aws().call("lambda", "update_function_configuration", FunctionName=function, Environment=before)
    assert failed.exit_code == 25
    (done,) = json.loads(failed.stdout)
    assert done["state"] == "failed"
    assert "weekly" in done["error"]
    assert waiting(name) == 1
    assert [each.state for each in dead_letters.replay(aws(), name)] == ["replayed"]


def test_a_stack_without_an_aggregator_has_no_queue() -> None:
    with pytest.raises(InfrastructureNotFoundError, match="no dead-letter queue"):
        dead_letters.list_letters(aws(), "nobody-has-this")
    assert call("nobody-has-this", "replay").exit_code == 14


class Scripted:
    """A shard of two pages, and a function that keeps what it is sent."""

    region = REGION

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = records
        self.sent: list[list[Any]] = []

    def call(self, service: str, operation: str, **request: Any) -> Any:
        if operation == "get_queue_url":
            return {"QueueUrl": "queue"}
        if operation == "receive_message":
            batch = {"shardId": "s", "startSequenceNumber": "9", "endSequenceNumber": "11", "batchSize": 3}
            body = json.dumps({"DDBStreamBatchInfo": {**batch, "streamArn": "arn"}})
            return {"Messages": [{"MessageId": "1", "Body": body, "ReceiptHandle": "r"}]}
        if operation == "get_records":
            page = int(request["ShardIterator"])
            return {"Records": self.records[page : page + 2], "NextShardIterator": str(page + 2)}
        if operation == "invoke":
            self.sent.append(json.loads(request["Payload"])["Records"])
            report = {"message": "batch", "counted": 2, "repeated": 1, "archived": 0}
            log = base64.b64encode(f"START\n{json.dumps(report)}\nEND".encode()).decode()
            return {"Payload": Answer(), "LogResult": log}
        return {"ShardIterator": "0"}


class Answer:
    def read(self) -> bytes:
        return b'{"batchItemFailures": []}'


def record(sequence: int, sort_key: str = "#STATE") -> dict[str, Any]:
    body = {
        "Keys": {"PK": {"S": "a"}, "SK": {"S": sort_key}},
        "SequenceNumber": str(sequence),
        "ApproximateCreationDateTime": datetime(2026, 1, 1, tzinfo=UTC),
        "NewImage": {"binary": {"B": b"\x00"}},
    }
    return {
        "eventName": "MODIFY",
        "dynamodb": body,
        "userIdentity": {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"},
    }


def test_records_are_sent_as_lambda_would_and_only_those_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted([record(8), record(9), record(10, "#META"), record(11), record(12)])
    (done,) = dead_letters.replay(script, "my-app")  # type: ignore[arg-type]  # it answers as Aws does
    assert (done.state, done.records, done.counted, done.passed) == ("replayed", 2, 2, 1)
    (sent,) = script.sent
    assert [each["dynamodb"]["SequenceNumber"] for each in sent] == ["9", "11"]
    assert sent[0]["dynamodb"]["ApproximateCreationDateTime"] == 1767225600.0
    assert sent[0]["dynamodb"]["NewImage"] == {"binary": {"B": "AA=="}}
    assert sent[0]["userIdentity"] == {"principalId": "dynamodb.amazonaws.com", "type": "Service"}
    assert sent[0]["eventSourceARN"] == "arn"
    monkeypatch.setattr(dead_letters, "_MOST_BYTES", 10)
    dead_letters.replay(script, "my-app")  # type: ignore[arg-type]
    assert [len(each) for each in script.sent] == [2, 1, 1]
