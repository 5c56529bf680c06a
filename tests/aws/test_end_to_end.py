"""A whole life on AWS: deploy, traffic, the real package in Lambda on the stream, usage, archive, upgrade, delete."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import subprocess
import sys
import time
from base64 import b64encode
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.aws.stacks import REGION, aws, inventory, named
from tests.support.aws import engine
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter, SyncRepository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_SECONDS = 90
RPM, TPM = Limit.per_minute("rpm", 600), Limit.per_minute("tpm", 90_000)
Used = Counter[tuple[str, str]]


class Shell:
    """The command line against the local AWS."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *words: str) -> Any:
        """A command that succeeds; what it says, as data."""
        where = ["--name", self.name, "--region", REGION, "--endpoint-url", engine.endpoint(), "--json"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        done = subprocess.run(
            [sys.executable, "-m", "zae_limiter", *words, *where],
            capture_output=True,
            text=True,
            env=environment | engine.CREDENTIALS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


def repository(name: str) -> SyncRepository:
    return SyncRepository(name, region=REGION, endpoint_url=engine.endpoint())


async def traffic(name: str, used: Used) -> None:
    """Requests of two keys of one project, settled in every way, by clients that do not know of each other."""
    chance = random.Random(7)
    limiters = [RateLimiter(name=name, region=REGION, endpoint_url=engine.endpoint()) for _ in range(2)]

    async def request(entity: str, tokens: int, actual: int, *, fails: bool) -> None:
        try:
            async with chance.choice(limiters).acquire(entity, "gpt-4", {"rpm": 1, "tpm": tokens}) as lease:
                await lease.adjust(tpm=actual - tokens)
                if fails:
                    raise InterruptedError
        except (InterruptedError, RateLimitExceeded):
            return
        for level in (entity, "project"):
            used[level, "rpm"] += 1
            used[level, "tpm"] += actual

    await asyncio.gather(
        *(request(f"key-{n % 2}", chance.randrange(900), chance.randrange(1_800), fails=n % 7 == 0) for n in range(120))
    )
    for limiter in limiters:
        await limiter.close()


def eventually(look: Callable[[], Any], wanted: Any) -> None:
    """Look until it is so, or until it will not be any more."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while (found := look()) != wanted and time.monotonic() < ends:
        time.sleep(0.2)
    assert found == wanted


def usage(name: str, window: str) -> Used:
    """What the snapshots say, over all windows of a kind."""
    total: Used = Counter()
    with repository(name) as repo:
        for entity in ("key-0", "key-1", "project"):
            for limit, amount in repo.get_usage_summary(entity, "gpt-4", window).total.items():
                total[entity, limit] += amount
    return total


def stream(name: str) -> list[dict[str, Any]]:
    """Every record of the table's stream, as Lambda is handed them."""
    arn = aws().call("dynamodb", "describe_table", TableName=name)["Table"]["LatestStreamArn"]
    shards = aws().call("dynamodbstreams", "describe_stream", StreamArn=arn)["StreamDescription"]["Shards"]
    found = []
    for shard in shards:
        where = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = aws().call("dynamodbstreams", "get_shard_iterator", **where)["ShardIterator"]
        while iterator:
            answer = aws().call("dynamodbstreams", "get_records", ShardIterator=iterator, Limit=1000)
            found += answer["Records"]
            iterator = answer.get("NextShardIterator") if answer["Records"] else None
    for record in found:
        record["dynamodb"]["ApproximateCreationDateTime"] = record["dynamodb"][
            "ApproximateCreationDateTime"
        ].timestamp()
    return found


def invoke(name: str, records: list[dict[str, Any]]) -> Any:
    """Deliver records to the deployed function."""
    payload = json.dumps({"Records": records}, default=lambda value: b64encode(value).decode()).encode()
    answer = aws().call("lambda", "invoke", FunctionName=f"{name}-aggregator", Payload=payload)
    assert "FunctionError" not in answer, answer["Payload"].read()
    return json.loads(answer["Payload"].read())


def snapshots(name: str) -> list[Any]:
    with repository(name) as repo:
        return [repo.get_usage_snapshots(entity)[0] for entity in ("key-0", "key-1", "project")]


def is_of_bucket(record: dict[str, Any]) -> bool:
    return bool(record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE")


def test_a_whole_life(name: str) -> None:
    shell, used = Shell(name), Counter[tuple[str, str]]()
    before = inventory()
    made = shell.run("deploy", "--snapshot-windows", "hourly,daily,monthly", "--create-iam-roles", "--tag", "team=ml")
    assert (made["stack"], made["code"]) == ("created", "uploaded")
    with repository(name) as repo:
        repo.create_entity("project")
        for entity in ("key-0", "key-1"):
            repo.create_entity(entity, parent_id="project", cascade=True)
        repo.set_resource_defaults("gpt-4", [RPM, TPM], principal="ops")
    asyncio.run(traffic(name, used))
    assert used["project", "rpm"] > 60

    for window in ("hourly", "daily", "monthly"):
        eventually(partial(usage, name, window), used)
    _deliver_again(name)
    _record_alert(name)
    _archive(name, made["resources"])

    state = shell.run("status")
    assert state["available"] is True
    assert shell.run("deploy")["stack"] == "unchanged"
    assert shell.run("check")["compatible"] is True
    shell.run("upgrade", "--yes", "--force")
    assert usage(name, "daily") == used
    shell.run("delete", "--yes", "--force")
    assert inventory() == before


def _deliver_again(name: str) -> None:
    """Every batch of the stream twice, in another order, by the deployed function itself: no snapshot changes."""
    before = snapshots(name)
    records = [record for record in stream(name) if is_of_bucket(record) and record["eventName"] != "REMOVE"]
    assert len(records) > 100
    batches = [records[start : start + 40] for start in range(0, len(records), 40)]
    for batch in (*reversed(batches), *batches):
        assert invoke(name, batch) == {"batchItemFailures": []}
    assert snapshots(name) == before


def _record_alert(name: str) -> None:
    """A client crosses a threshold, and the deployed function writes the audit event."""
    limits = [Limit.quota("tpd", 100, alerts=(0.5,))]
    with repository(name) as repo:
        with SyncRateLimiter(repo).acquire("alerted", "gpt-4", {"tpd": 60}, limits):
            pass
        eventually(lambda: [event.details["used"] for event in repo.get_audit_events("alerted")], [60])


def _archive(name: str, resources: dict[str, str]) -> None:
    """Audit events whose time is over, as DynamoDB's expiry deletes them, end up in the archive."""
    items = aws().call("dynamodb", "scan", TableName=name)["Items"]
    audits = [item for item in items if item["SK"]["S"].startswith("#AUDIT#")]
    for item in audits:
        aws().call("dynamodb", "delete_item", TableName=name, Key={"PK": item["PK"], "SK": item["SK"]})
    expiry = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    removed = [record | {"userIdentity": expiry} for record in stream(name) if record["eventName"] == "REMOVE"]
    expired = [record for record in removed if record["dynamodb"]["Keys"]["SK"]["S"].startswith("#AUDIT#")]
    assert len(expired) == len(audits) > 3
    for _ in range(2):
        assert invoke(name, expired) == {"batchItemFailures": []}
    bucket = next(value for key, value in resources.items() if "rchive" in key)
    lines = []
    for entry in aws().call("s3", "list_objects_v2", Bucket=bucket)["Contents"]:
        content = aws().call("s3", "get_object", Bucket=bucket, Key=entry["Key"])["Body"].read()
        lines += [json.loads(line) for line in gzip.decompress(content).splitlines()]
    assert sorted(line["event_id"] for line in lines) == sorted(item["event_id"]["S"] for item in audits)
