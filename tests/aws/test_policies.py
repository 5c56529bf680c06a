"""Every request of our clients against the policies of a stack, judged as AWS documents it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.aws.account import REGION, ROOT, Account, acting_as, deployed
from tests.aws.policies import Ask, allows, asks, refused
from tests.aws.test_iam import CHANGES, READS, prepare, use
from tests.aws.traffic import BEFORE, KINDS
from tests.support.aws import engine
from tests.support.aws.wire import Call, Wire
from zae_limiter import Limit, RateLimitExceeded, StackOptions, SyncRateLimiter, SyncRepository
from zae_limiter.records import keys
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.client import open_client
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator.archive import archive_objects
from zae_limiter_aggregator.batch import Aggregator
from zae_limiter_aggregator.settings import AggregatorSettings
from zae_limiter_aggregator.stream import ExpiredEvent

STACK = "policies-stack"
TABLES = f"arn:aws:dynamodb:{REGION}:000000000000:table/"
TABLE = TABLES + STACK
RPM = Limit("rpm", 1_000_000, refill_amount=1, refill_period_seconds=86_400)


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    """A stack that nobody aggregates: the stream is the test's."""
    made = deployed(engine.endpoint(), STACK, StackOptions())
    (mapping,) = made.client("lambda").list_event_source_mappings(FunctionName=f"{STACK}-aggregator")[
        "EventSourceMappings"
    ]
    made.client("lambda").delete_event_source_mapping(UUID=mapping["UUID"])
    yield made
    made.client("cloudformation").delete_stack(StackName=STACK)


@contextlib.contextmanager
def recorded(account: Account, namespace: str = "default") -> Iterator[tuple[Wire, SyncRateLimiter]]:
    """A limiter of the root, and what it asks for."""
    with (
        acting_as(ROOT),
        Wire(account.url) as wire,
        SyncRepository(name=account.stack, region=REGION, endpoint_url=wire.url, namespace=namespace) as repository,
    ):
        yield wire, SyncRateLimiter(repository)


def asked(calls: Iterable[Call]) -> list[Ask]:
    return [ask for call in calls for ask in asks(call.operation, call.request, TABLES)]


def actions(policy: Any, *, of: str = "dynamodb:") -> set[str]:
    """The actions that a policy allows."""
    listed = (each["Action"] for each in policy["Statement"] if each["Effect"] == "Allow")
    found = {action for each in listed for action in ([each] if isinstance(each, str) else each)}
    return {action for action in found if action.startswith(of)}


def press(account: Account, *shards: int) -> None:
    """Make shards of the bucket look as if they were written as often as their partitions can take."""
    table = account.client("dynamodb")
    found = (
        item["PK"]["S"] for item in table.scan(TableName=account.stack)["Items"] if "/BUCKET#key#" in item["PK"]["S"]
    )
    for pk in found:
        if keys.parse_bucket_pk(pk).shard_id in shards:
            table.update_item(
                TableName=account.stack,
                Key={"PK": {"S": pk}, "SK": {"S": keys.STATE}},
                UpdateExpression="SET b_wcu_tk = :none ADD b_wcu_tc :many",
                ExpressionAttributeValues={":none": {"N": "-1000000000"}, ":many": {"N": "1000000000"}},
            )


@contextlib.contextmanager
def timed(account: Account, clock: ManualClock, namespace: str) -> Iterator[tuple[Wire, SyncRateLimiter]]:
    """The same as `recorded`, by a clock of the test's own."""
    with acting_as(ROOT), Wire(account.url) as wire:
        client = open_client(account.stack, blocking=True, region=REGION, endpoint_url=wire.url)
        with SyncRepository(DynamoStore(client, clock), namespace=namespace) as repository:
            yield wire, SyncRateLimiter(repository)


def trade_by_kind(account: Account, namespace: str = "default") -> dict[str, list[Ask]]:
    """What each kind of acquire, settlement, renewal and alert asks for."""
    clock, found = ManualClock(), {}
    with timed(account, clock, namespace) as (_, root):
        root.repository.ensure_infrastructure()
        for kind, work in BEFORE.items():
            work(root, clock, kind)
    with timed(account, clock, namespace) as (wire, limiter):
        for kind, work in KINDS.items():
            mark = wire.mark()
            work(limiter, clock, kind)
            found[kind] = asked(wire.calls(mark))
    return found


def trade(account: Account, namespace: str = "default") -> list[Call]:
    """All that an application asks for: first, usual, cascading, atomic, refused and failed acquires, new limits,
    credits, and a bucket that is split."""
    with recorded(account, namespace) as (_, root):
        root.repository.ensure_infrastructure()
        prepare(root.repository)
        root.repository.set_limits("team", [RPM])
        root.repository.set_resource_defaults("gpt-4", [RPM])
    with recorded(account, namespace) as (wire, limiter):
        use_widely(limiter)
        with recorded(account, namespace) as (_, root):
            root.repository.set_resource_defaults("gpt-4", [RPM, Limit.per_minute("tpm", 50_000)])
            root.repository.top_up("rich", "gpt-4", {"rpm": 5})
        limiter.repository.invalidate_config_cache()
        use_widely(limiter)
        with limiter.acquire("rich", "gpt-4", consume={"rpm": 1_000_003}):
            pass
        calls = wire.calls()
    press(account, 0)
    with recorded(account, namespace) as (wire, limiter):
        use_widely(limiter)
        return calls + wire.calls()


def use_widely(limiter: SyncRateLimiter) -> None:
    limiter.repository.ensure_infrastructure()
    for atomic in (False, True):
        with limiter.acquire("key", "gpt-4", consume={"rpm": 2}, atomic=atomic) as lease:
            lease.consume(rpm=1)
            lease.adjust(rpm=4)
            lease.release(rpm=2)
    with pytest.raises(RateLimitExceeded), limiter.acquire("key", "gpt-4", consume={"rpm": 999_999}):
        pass
    with contextlib.suppress(ZeroDivisionError), limiter.acquire("key", "gpt-4", consume={"rpm": 7}):
        raise ZeroDivisionError
    with limiter.acquire("guest", "gpt-4", consume={"rpm": 1}, limits=[RPM]):
        pass
    limiter.available("key", "gpt-4")
    limiter.time_until_available("key", "gpt-4", {"rpm": 5})
    limiter.get_status("key", "gpt-4")
    assert limiter.is_available()


@pytest.fixture(scope="module")
def by_kind(account: Account) -> dict[str, list[Ask]]:
    return trade_by_kind(account)


@pytest.fixture(scope="module")
def trading(account: Account, by_kind: dict[str, list[Ask]]) -> list[Ask]:
    calls = trade(account)
    assert {call.operation for call in calls} >= {"TransactWriteItems", "PutItem", "UpdateItem", "BatchGetItem"}
    return asked(calls) + [ask for each in by_kind.values() for ask in each]


@pytest.mark.parametrize("kind", KINDS)
def test_the_acquire_policy_allows_every_kind_of_limit(
    account: Account, by_kind: dict[str, list[Ask]], kind: str
) -> None:
    assert "dynamodb:UpdateItem" in {ask.action for ask in by_kind[kind]}
    assert list(refused(account.document("AcquirePolicyArn"), by_kind[kind])) == []


def test_the_acquire_policy_allows_all_that_an_application_asks_for(account: Account, trading: list[Ask]) -> None:
    assert list(refused(account.document("AcquirePolicyArn"), trading)) == []


def test_the_recorded_traffic_includes_a_split(trading: list[Ask]) -> None:
    made = {key for ask in trading if ask.action == "dynamodb:UpdateItem" for key in ask.keys}
    assert {keys.parse_bucket_pk(key).shard_id for key in made if "/BUCKET#key#" in key} == {0, 1}


def test_the_acquire_policy_allows_no_more_than_an_application_asks_for(account: Account, trading: list[Ask]) -> None:
    """Each action, each kind of key and each attribute in it is used."""
    policy = account.document("AcquirePolicyArn")
    assert actions(policy) == {ask.action for ask in trading}
    for place, statement in enumerate(policy["Statement"]):
        for condition, patterns in statement.get("Condition", {}).get("ForAllValues:StringLike", {}).items():
            for pattern in set(patterns) - {"SYSTEM#"}:
                assert list(refused(without(policy, place, condition, pattern), trading)), f"{condition} {pattern}"


def without(policy: Any, place: int, condition: str, pattern: str) -> Any:
    """The policy less one pattern."""
    statements = list(policy["Statement"])
    conditions = statements[place]["Condition"]["ForAllValues:StringLike"]
    fewer = {**conditions, condition: [each for each in conditions[condition] if each != pattern]}
    statements[place] = {**statements[place], "Condition": {"ForAllValues:StringLike": fewer}}
    return {**policy, "Statement": statements}


@pytest.fixture(scope="module")
def administration(account: Account) -> dict[str, list[Ask]]:
    """What each read and each change asks for."""
    found = {}
    with recorded(account) as (_, root):
        root.repository.ensure_infrastructure()
        root.repository.register_namespace("other")
    with recorded(account, "other") as (wire, limiter):
        prepare(limiter.repository)
        use(limiter)
        for name, work in {**READS, **CHANGES}.items():
            mark = wire.mark()
            work(limiter)
            found[name] = asked(wire.calls(mark))
    return found


@pytest.mark.parametrize("what", [*READS, *CHANGES])
def test_the_full_policy_allows_everything(account: Account, administration: dict[str, list[Ask]], what: str) -> None:
    assert list(refused(account.document("FullPolicyArn"), administration[what])) == []


@pytest.mark.parametrize("what", READS)
def test_the_read_policy_allows_reading(account: Account, administration: dict[str, list[Ask]], what: str) -> None:
    assert list(refused(account.document("ReadPolicyArn"), administration[what])) == []


@pytest.mark.parametrize("policy", ["ReadPolicyArn", "AcquirePolicyArn"])
@pytest.mark.parametrize("what", CHANGES)
def test_no_other_policy_allows_a_change(
    account: Account, administration: dict[str, list[Ask]], what: str, policy: str
) -> None:
    writes = [ask for ask in administration[what] if not ask.action.endswith(("GetItem", "Query"))]
    assert writes
    elsewhere = [ask for ask in writes if not all("/BUCKET#" in key for key in ask.keys)]
    assert elsewhere
    assert list(refused(account.document(policy), elsewhere)) == elsewhere


def test_the_acquire_policy_reads_no_audit_event(account: Account, administration: dict[str, list[Ask]]) -> None:
    policy = account.document("AcquirePolicyArn")
    (query,) = (ask for ask in administration["audit"] if ask.action == "dynamodb:Query")
    assert not allows(policy, query)
    for action in ("dynamodb:GetItem", "dynamodb:BatchGetItem"):
        assert allows(policy, Ask(action, TABLE, frozenset(["ns/ENTITY#key"])))
        assert not allows(policy, Ask(action, TABLE, query.keys))
        assert not allows(policy, Ask(action, TABLE, query.keys | {"ns/ENTITY#key"}))


@pytest.mark.parametrize("subject", ["x/BUCKET", "x/ENTITY", "/SYSTEM", "$RESOURCE:a/RESOURCE", "SYSTEM"])
def test_no_name_makes_a_key_look_like_another_kind(account: Account, subject: str) -> None:
    """Names hold no ``#``, so what stands before one in a key is ours."""
    policy = account.document("AcquirePolicyArn")
    written = frozenset(["PK", "SK"])
    for pk in (keys.pk_entity("ns", subject), keys.pk_resource("ns", subject), keys.pk_audit("ns", subject)):
        assert not allows(policy, Ask("dynamodb:PutItem", TABLE, frozenset([pk]), written))
    assert not allows(policy, Ask("dynamodb:GetItem", TABLE, frozenset([keys.pk_audit("ns", subject)])))
    for pk in (keys.bucket("ns", subject, "gpt-4").pk, keys.pk_alert("ns", subject)):
        assert allows(policy, Ask("dynamodb:PutItem", TABLE, frozenset([pk]), written))


def test_another_table_is_out_of_reach(account: Account, trading: list[Ask]) -> None:
    other = [ask._replace(resource=ask.resource.replace(STACK, f"{STACK}-2")) for ask in trading]
    for policy in ("AcquirePolicyArn", "ReadPolicyArn", "FullPolicyArn"):
        assert list(refused(account.document(policy), other)) == other


def stream_records(account: Account) -> list[dict[str, Any]]:
    """All records of the table's stream."""
    streams = account.client("dynamodbstreams")
    arn = account.outputs["StreamArn"]
    found: list[dict[str, Any]] = []
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        place = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = streams.get_shard_iterator(**place)["ShardIterator"]
        while iterator and (answer := streams.get_records(ShardIterator=iterator))["Records"]:
            found += answer["Records"]
            iterator = answer.get("NextShardIterator")
    return found


def test_the_aggregators_role_allows_what_it_asks_for_and_no_more(account: Account, trading: list[Ask]) -> None:
    press(account, 0, 1)
    kinds = (keys.STATE, keys.ALERT_PREFIX)
    records = [each for each in stream_records(account) if each["dynamodb"]["Keys"]["SK"]["S"].startswith(kinds)]
    with acting_as(ROOT), Wire(account.url) as wire:
        store = DynamoStore(open_client(STACK, blocking=True, region=REGION, endpoint_url=wire.url))
        answer = Aggregator(store, AggregatorSettings(STACK), None).process([delivered(record) for record in records])
        run(store.close())
        wanted = asked(wire.calls())
    assert answer == {"batchItemFailures": []}
    policy = account.role_document(f"{STACK}-aggr-{REGION}", "aggregate")
    assert list(refused(policy, wanted)) == []
    following = {f"dynamodb:{verb}" for verb in ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")}
    assert actions(policy) == {ask.action for ask in wanted} | following


def delivered(record: dict[str, Any]) -> dict[str, Any]:
    """A stream record as Lambda delivers it."""
    body = record["dynamodb"]
    instant = body["ApproximateCreationDateTime"].timestamp()
    return {**record, "dynamodb": {**body, "ApproximateCreationDateTime": instant}}


def test_the_aggregators_role_may_put_archives_and_nothing_else(account: Account) -> None:
    policy = account.role_document(f"{STACK}-aggr-{REGION}", "aggregate")
    bucket = f"arn:aws:s3:::{account.outputs['ArchiveBucket']}"
    event = {"timestamp": "2030-01-02T03:04:05Z", "event_id": "1", "action": "limits_set", "entity_id": "key"}
    ((name, _),) = archive_objects([ExpiredEvent(keys.audit("ns", "key", "1"), "1", 0, event)])
    assert allows(policy, Ask("s3:PutObject", f"{bucket}/{name}"))
    assert not allows(policy, Ask("s3:PutObject", f"{bucket}/other/{name}"))
    assert not allows(policy, Ask("s3:GetObject", f"{bucket}/{name}"))
    assert not allows(policy, Ask("dynamodb:PutItem", TABLE, frozenset(["ns/SYSTEM#"])))
    assert not allows(policy, Ask("dynamodb:UpdateItem", TABLE, frozenset(["ns/RESOURCE#gpt-4"])))
    assert not allows(policy, Ask("dynamodb:GetItem", TABLE, frozenset(["ns/AUDIT#key"])))
