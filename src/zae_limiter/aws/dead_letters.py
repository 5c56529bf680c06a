"""Replay the batches that the aggregator has given up.

A message of the queue names the batch: stream, shard and sequence numbers. Its records are read from the stream, which
keeps them for a day, and sent to the function once more. The function counts each change at most once, so a replay can
be repeated. A message is deleted after its batch has succeeded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple

from ..core.errors import InfrastructureError, InfrastructureNotFoundError, StackOperationError
from ..records import keys
from .calls import Aws, code_of
from .template import function_name, queue_name

_HIDDEN_SECONDS = 300
"""Visibility timeout while a message is replayed, in seconds."""
_MOST_BYTES = 5_000_000
"""Lambda takes up to 6 MB in one call."""
_OLDEST = {"ShardIteratorType": "TRIM_HORIZON"}
_MOST_EMPTY = 20
"""Empty pages in a row after which a shard is taken to have no more records."""


class DeadLetter(NamedTuple):
    """A batch that was given up."""

    message_id: str
    shard_id: str
    first: str
    last: str
    records: int
    arrived_at: str | None
    """When its first record came into the stream."""
    reason: str | None
    stream_arn: str
    receipt: str


class Replay(NamedTuple):
    """The result of replaying one batch. Changes are counted once per window."""

    letter: DeadLetter
    state: str
    """``replayed``, ``found`` (by a dry run), ``expired`` if the stream no longer has its records, or ``failed``."""
    records: int = 0
    counted: int = 0
    passed: int = 0
    """Changes that are counted already, or behind which a later change of the same bucket was counted."""
    archived: int = 0
    reason: str | None = None


def list_letters(
    aws: Aws, name: str, *, on_unreadable: Callable[[str], object] = lambda message_id: None
) -> list[DeadLetter]:
    """Return the batches that the queue of a stack names, and leave its messages there.

    ``on_unreadable`` is called with the id of each message that Lambda did not write.
    """
    with _hold_messages(aws, _find_queue(aws, name)) as held:
        return list(_parse_letters(held, on_unreadable))


def count_hidden(aws: Aws, name: str) -> int:
    """Return about how many messages are invisible, because another consumer has received them."""
    attribute = "ApproximateNumberOfMessagesNotVisible"
    url = _find_queue(aws, name)
    found = aws.call("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=[attribute])
    return int(found.get("Attributes", {}).get(attribute, 0))


def replay(
    aws: Aws,
    name: str,
    *,
    dry_run: bool = False,
    drop_expired: bool = False,
    progress: Callable[[Replay], object] = lambda done: None,
    on_unreadable: Callable[[str], object] = lambda message_id: None,
) -> list[Replay]:
    """Replay every batch of the queue of a stack. Return the results; one that fails does not end the others.

    ``dry_run`` only reads the records from the stream; ``drop_expired`` deletes messages whose records are gone.
    ``progress`` is called with each result, ``on_unreadable`` as in `list_letters`.
    """
    url = _find_queue(aws, name)
    done = []
    with _hold_messages(aws, url) as held:
        for letter in list(_parse_letters(held, on_unreadable)):
            try:
                result = _replay_one(aws, name, letter, dry_run)
            except InfrastructureError as error:
                result = Replay(letter, "failed", reason=str(error))
            if result.state == "replayed" or (result.state == "expired" and drop_expired and not dry_run):
                aws.call("sqs", "delete_message", QueueUrl=url, ReceiptHandle=letter.receipt)
                del held[letter.message_id]
            progress(result)
            done.append(result)
    return done


def _find_queue(aws: Aws, name: str) -> str:
    try:
        return str(aws.call("sqs", "get_queue_url", QueueName=queue_name(name))["QueueUrl"])
    except InfrastructureNotFoundError as error:
        raise InfrastructureNotFoundError(
            f"Stack {name!r} has no dead-letter queue in {aws.region}: it has no aggregator, or does not exist there."
        ) from error


@contextmanager
def _hold_messages(aws: Aws, url: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Receive messages, by id, until no new one comes. At the end, however it comes, let others receive those left."""
    request = {"MaxNumberOfMessages": 10, "VisibilityTimeout": _HIDDEN_SECONDS}
    held: dict[str, dict[str, Any]] = {}
    try:
        while True:  # a request that waits asks all of SQS's servers, any other only some
            found = aws.call("sqs", "receive_message", QueueUrl=url, **request, WaitTimeSeconds=1).get("Messages", ())
            fresh = {each["MessageId"]: each for each in found if each["MessageId"] not in held}
            if not fresh:
                break
            held |= fresh
        yield held
    finally:
        for message in held.values():
            with suppress(InfrastructureError):  # what fails comes back by itself after a while
                back = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
                aws.call("sqs", "change_message_visibility", QueueUrl=url, **back)


def _parse_letters(held: Mapping[str, dict[str, Any]], on_unreadable: Callable[[str], object]) -> Iterator[DeadLetter]:
    for message_id, message in held.items():
        letter = _parse_letter(message)
        if letter is None:
            on_unreadable(message_id)
        else:
            yield letter


def _parse_letter(message: dict[str, Any]) -> DeadLetter | None:
    """Return the batch that a message names, or None if Lambda did not write it."""
    try:
        body = json.loads(message["Body"])
        batch, context = body["DDBStreamBatchInfo"], body.get("requestContext")
        first, last = str(batch["startSequenceNumber"]), str(batch["endSequenceNumber"])
        int(first), int(last)
        return DeadLetter(
            message_id=message["MessageId"],
            shard_id=str(batch["shardId"]),
            first=first,
            last=last,
            records=int(batch["batchSize"]),
            arrived_at=batch.get("approximateArrivalOfFirstRecord"),
            reason=context.get("condition") if isinstance(context, dict) else None,
            stream_arn=str(batch["streamArn"]),
            receipt=message["ReceiptHandle"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _replay_one(aws: Aws, name: str, letter: DeadLetter, dry_run: bool) -> Replay:
    records = _read_batch(aws, letter)
    if not records:
        return Replay(letter, "expired")
    if dry_run:
        return Replay(letter, "found", len(records))
    result = Replay(letter, "replayed", len(records))
    for chunk in _split(records):
        answer = aws.call("lambda", "invoke", FunctionName=function_name(name), Payload=chunk, LogType="Tail")
        payload = json.loads(answer["Payload"].read() or b"null") or {}
        if "FunctionError" in answer or payload.get("batchItemFailures"):
            reason = payload.get("errorMessage") or "the function could not process it; see its log"
            return result._replace(state="failed", reason=reason)
        report = _read_report(answer.get("LogResult", ""))
        result = result._replace(
            counted=result.counted + report.get("counted", 0),
            passed=result.passed + report.get("repeated", 0),
            archived=result.archived + report.get("archived", 0),
        )
    return result


def _read_batch(aws: Aws, letter: DeadLetter) -> list[dict[str, Any]]:
    """Return those records of a batch that the stream still has and the function is for."""
    found: list[dict[str, Any]] = []
    iterator, empty = _open_shard(aws, letter), 0
    while iterator is not None and empty < _MOST_EMPTY:
        page = aws.call("dynamodbstreams", "get_records", ShardIterator=iterator, Limit=1000)
        records = page["Records"]
        found += [each for each in records if int(letter.first) <= _sequence(each) <= int(letter.last)]
        empty = 0 if records else empty + 1
        passed = bool(records) and _sequence(records[-1]) >= int(letter.last)
        iterator = None if passed else page.get("NextShardIterator")
    return [_convert(each, letter.stream_arn) for each in found if _concerns_function(each)]


def _open_shard(aws: Aws, letter: DeadLetter) -> str | None:
    """Return an iterator at the batch, or at what is left of it; None if the shard is gone."""
    where = {"StreamArn": letter.stream_arn, "ShardId": letter.shard_id}
    for position in ({"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": letter.first}, _OLDEST):
        try:
            return str(aws.call("dynamodbstreams", "get_shard_iterator", **where, **position)["ShardIterator"])
        except InfrastructureNotFoundError:
            return None
        except StackOperationError as error:
            if code_of(error) != "TrimmedDataAccessException":
                raise
    return None


def _sequence(record: dict[str, Any]) -> int:
    return int(record["dynamodb"]["SequenceNumber"])


def _concerns_function(record: dict[str, Any]) -> bool:
    """Return whether a record is of a bucket, an alert or an audit event; Lambda's filter passes no others."""
    sort_key = record["dynamodb"]["Keys"]["SK"]["S"]
    return bool(sort_key == keys.STATE or sort_key.startswith((keys.ALERT_PREFIX, keys.AUDIT_PREFIX)))


def _convert(record: dict[str, Any], stream_arn: str) -> dict[str, Any]:
    """Return a record in the form in which Lambda hands it to functions."""
    who = {name[:1].lower() + name[1:]: value for name, value in (record.get("userIdentity") or {}).items()}
    return {**record, "eventSourceARN": stream_arn, **({"userIdentity": who} if who else {})}


def _split(records: list[dict[str, Any]]) -> list[bytes]:
    """Return events that hold the records in their order, none of them too large for one call."""
    chunks: list[list[str]] = [[]]
    size = 0
    for text in (json.dumps(record, default=_spell) for record in records):
        if chunks[-1] and size + len(text) > _MOST_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(text)
        size += len(text) + 1
    return [f'{{"Records":[{",".join(texts)}]}}'.encode() for texts in chunks]


def _spell(value: object) -> object:
    """Return what JSON lacks as Lambda spells it."""
    if isinstance(value, datetime):
        return value.timestamp()
    assert isinstance(value, bytes), value  # botocore makes nothing else
    return base64.b64encode(value).decode()


def _read_report(log: str) -> dict[str, int]:
    """Return the report of a batch from the end of a log; empty if it is not there."""
    for line in reversed(base64.b64decode(log).decode(errors="replace").splitlines()):
        start = line.find("{")
        try:
            found = json.loads(line[start:]) if start >= 0 else None
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("message") == "batch":
            return found
    return {}
