"""The policies of a deployed stack: who has them can do what they are for, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.account import REGION, ROOT, Account, Guarded, Keys, acting_as, client, deployed, judged
from tests.aws.policies import Document
from zae_limiter import AccessDeniedError, Limit, RateLimitExceeded, StackOptions, SyncRateLimiter, SyncRepository
from zae_limiter.records import keys

STACK = "iam-stack"
TABLES = f"arn:aws:dynamodb:{REGION}:000000000000:table/"
RPM = Limit("rpm", 100, refill_amount=1, refill_period_seconds=86_400)
"""It gives nothing back while a test runs."""


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    """A stack with limits, a family of entities and some traffic in it."""
    with judged() as url:
        made = deployed(url, STACK, StackOptions(create_iam_roles=True))
        with acting_as(ROOT), opened(url) as limiter:
            prepare(limiter.repository)
            with limiter.acquire("key", "gpt-4", consume={"rpm": 1}):
                pass
        yield made


@contextlib.contextmanager
def opened(url: str) -> Iterator[SyncRateLimiter]:
    """A limiter that knows nothing yet, with the credentials in force."""
    with SyncRepository(name=STACK, region=REGION, endpoint_url=url) as repository:
        yield SyncRateLimiter(repository)


def prepare(repository: SyncRepository) -> None:
    repository.ensure_infrastructure()
    repository.set_system_defaults([RPM])
    repository.set_resource_defaults("gpt-4", [RPM])
    repository.create_entity("team")
    repository.create_entity("key", parent_id="team", cascade=True)
    repository.set_limits("team", [RPM])


@pytest.fixture(scope="module")
def acquirer(account: Account) -> Keys:
    return account.user("acquirer", "AcquirePolicyArn")


@pytest.fixture(scope="module")
def acquire_policy(account: Account) -> Document:
    return account.document("AcquirePolicyArn")


@pytest.fixture(scope="module")
def reader(account: Account) -> Keys:
    return account.user("reader", "ReadPolicyArn")


@pytest.fixture(scope="module")
def admin(account: Account) -> Keys:
    return account.user("admin", "FullPolicyArn")


Work = Callable[[SyncRateLimiter], Any]

READS: dict[str, Work] = {
    "get entity": lambda limiter: limiter.repository.get_entity("key"),
    "get children": lambda limiter: limiter.repository.get_children("team"),
    "get buckets": lambda limiter: limiter.repository.get_buckets("key"),
    "get limits": lambda limiter: limiter.repository.get_limits("team"),
    "get system defaults": lambda limiter: limiter.repository.get_system_defaults(),
    "list resources": lambda limiter: limiter.repository.list_resources_with_defaults(),
    "list entities": lambda limiter: limiter.repository.list_entities_with_custom_limits("_default_"),
    "list namespaces": lambda limiter: limiter.repository.list_namespaces(),
    "audit": lambda limiter: limiter.repository.get_audit_events("key"),
    "available": lambda limiter: limiter.available("key", "gpt-4"),
    "capacity": lambda limiter: limiter.get_resource_capacity("gpt-4", "rpm"),
}

CHANGES: dict[str, Work] = {
    "set system defaults": lambda limiter: limiter.repository.set_system_defaults([RPM]),
    "set resource defaults": lambda limiter: limiter.repository.set_resource_defaults("gpt-4", [RPM]),
    "set limits": lambda limiter: limiter.repository.set_limits("key", [RPM]),
    "create entity": lambda limiter: limiter.repository.create_entity("new"),
    "update entity": lambda limiter: limiter.repository.update_entity("key", name="other"),
    "delete limits": lambda limiter: limiter.repository.delete_limits("team"),
    "delete resource defaults": lambda limiter: limiter.repository.delete_resource_defaults("gpt-4"),
    "delete system defaults": lambda limiter: limiter.repository.delete_system_defaults(),
    "delete entity": lambda limiter: limiter.repository.delete_entity("key"),
    "top up": lambda limiter: limiter.repository.top_up("key", "gpt-4", {"rpm": 5}, idempotency_key="k"),
    "reset bucket": lambda limiter: limiter.repository.reset_bucket("key", "gpt-4"),
    "register namespace": lambda limiter: limiter.repository.register_namespace("blue"),
    "delete namespace": lambda limiter: limiter.repository.delete_namespace("default"),
}
"""In an order in which all of them can be done."""


def use(limiter: SyncRateLimiter) -> None:
    """All that an application does with a limiter."""
    limiter.repository.ensure_infrastructure()
    before = limiter.available("key", "gpt-4")["rpm"]
    with limiter.acquire("key", "gpt-4", consume={"rpm": 2}) as lease:
        lease.consume(rpm=1)
        lease.adjust(rpm=4)
        lease.release(rpm=2)
    with pytest.raises(RateLimitExceeded), limiter.acquire("key", "gpt-4", consume={"rpm": 99}):
        pass
    assert limiter.available("key", "gpt-4")["rpm"] == before - 5


def items(account: Account) -> list[dict[str, Any]]:
    """All records but the buckets."""
    found = account.client("dynamodb").scan(TableName=STACK)["Items"]
    return sorted((item for item in found if "/BUCKET#" not in item["PK"]["S"]), key=str)


def test_the_acquire_policy_is_enough_to_acquire(account: Account, acquirer: Keys) -> None:
    with acting_as(acquirer), opened(account.url) as limiter:
        use(limiter)


@pytest.mark.parametrize("what", ["get children", "audit", "list entities", "list namespaces", "capacity"])
def test_who_may_acquire_cannot_look_around(account: Account, acquirer: Keys, what: str) -> None:
    with acting_as(acquirer), opened(account.url) as limiter, pytest.raises(AccessDeniedError):
        READS[what](limiter)


def test_the_acquire_policy_is_enough_also_where_keys_are_judged(
    account: Account, acquirer: Keys, acquire_policy: Document
) -> None:
    with acting_as(acquirer), Guarded(account.url, acquire_policy, TABLES) as wire, opened(wire.url) as limiter:
        use(limiter)


@pytest.mark.parametrize("what", CHANGES)
def test_who_may_acquire_can_change_nothing(
    account: Account, acquirer: Keys, acquire_policy: Document, what: str
) -> None:
    before = items(account)
    with acting_as(acquirer), Guarded(account.url, acquire_policy, TABLES) as wire, opened(wire.url) as limiter:
        with pytest.raises(AccessDeniedError):
            CHANGES[what](limiter)
        assert not [call for call in wire.calls() if not call.reads]
    assert items(account) == before


def by_hand(account: Account) -> dict[str, tuple[str, dict[str, Any]]]:
    """Requests that no client of ours makes."""
    found = items(account)
    config = next(item for item in found if item["SK"]["S"] == keys.CONFIG)
    event = next(item for item in found if item["SK"]["S"].startswith(keys.AUDIT_PREFIX))
    ns = config["PK"]["S"].partition("/")[0]
    bucket = {"PK": {"S": keys.bucket(ns, "key", "gpt-4").pk}, "SK": {"S": keys.STATE}}
    change = {"UpdateExpression": "SET l_rpm_cp = :cp", "ExpressionAttributeValues": {":cp": {"N": "1"}}}
    config_key, event_key = ({name: item[name] for name in ("PK", "SK")} for item in (config, event))
    return {
        "change a config": ("UpdateItem", {"Key": config_key, **change}),
        "replace a config": ("PutItem", {"Item": config}),
        "wipe a config out": ("PutItem", {"Item": config_key}),
        "read an audit event": ("GetItem", {"Key": event_key}),
        "write an audit event": ("PutItem", {"Item": event}),
        "delete a bucket": ("DeleteItem", {"Key": bucket}),
        "write what is not a bucket's": ("UpdateItem", {"Key": bucket, **change}),
        "make a bucket a child": ("PutItem", {"Item": bucket | {"GSI1PK": {"S": f"{ns}/PARENT#team"}}}),
        "read everything": ("Scan", {}),
        "read by PartiQL": ("ExecuteStatement", {"Statement": f'SELECT * FROM "{STACK}"'}),
    }


REQUESTS = [
    "change a config", "replace a config", "wipe a config out", "read an audit event", "write an audit event",
    "delete a bucket", "write what is not a bucket's", "make a bucket a child", "read everything",
]  # fmt: skip


@pytest.mark.parametrize("what", REQUESTS)
def test_who_may_acquire_cannot_by_hand_either(
    account: Account, acquirer: Keys, acquire_policy: Document, what: str
) -> None:
    operation, request = by_hand(account)[what]
    with Guarded(account.url, acquire_policy, TABLES) as wire:
        assert called(wire.url, acquirer, operation, request) == "AccessDeniedException"


@pytest.mark.parametrize("what", ["delete a bucket", "read everything", "read by PartiQL"])
def test_nor_without_any_keys_being_judged(account: Account, acquirer: Keys, what: str) -> None:
    operation, request = by_hand(account)[what]
    assert called(account.url, acquirer, operation, request) == "AccessDeniedException"


def called(url: str, keys: Keys, operation: str, request: dict[str, Any]) -> str:
    """The error of a request that somebody makes by hand."""
    addressed = request if operation == "ExecuteStatement" else {"TableName": STACK, **request}
    with pytest.raises(ClientError) as caught:
        client("dynamodb", url, keys)._make_api_call(operation, addressed)
    code: str = caught.value.response["Error"]["Code"]
    return code


@pytest.mark.parametrize("what", READS)
def test_who_may_read_can(account: Account, reader: Keys, what: str) -> None:
    with acting_as(ROOT), opened(account.url) as limiter:
        expected = READS[what](limiter)
    with acting_as(reader), opened(account.url) as limiter:
        found = READS[what](limiter)
    assert found == expected
    assert found


def test_who_may_read_cannot_acquire(account: Account, reader: Keys) -> None:
    with acting_as(reader), opened(account.url) as limiter:
        before = limiter.available("key", "gpt-4")
        with pytest.raises(AccessDeniedError), limiter.acquire("key", "gpt-4", consume={"rpm": 1}):
            pass
        assert limiter.available("key", "gpt-4") == before


@pytest.mark.parametrize("what", CHANGES)
def test_who_may_read_can_change_nothing(account: Account, reader: Keys, what: str) -> None:
    before = items(account)
    with acting_as(reader), opened(account.url) as limiter, pytest.raises(AccessDeniedError):
        CHANGES[what](limiter)
    assert items(account) == before


def test_who_may_do_all_can(account: Account, admin: Keys) -> None:
    with acting_as(admin), opened(account.url) as limiter:
        use(limiter)
        for read in READS.values():
            assert read(limiter)
        for change in CHANGES.values():
            change(limiter)
        (orphan,) = limiter.repository.list_orphan_namespaces()
        limiter.repository.purge_namespace(orphan.id)
    with acting_as(ROOT), opened(account.url) as limiter:
        prepare(limiter.repository)


def test_a_stranger_can_do_nothing(account: Account) -> None:
    stranger = account.client("iam").create_user(UserName="stranger")["User"]["UserName"]
    made = account.client("iam").create_access_key(UserName=stranger)["AccessKey"]
    keys = Keys(made["AccessKeyId"], made["SecretAccessKey"])
    with acting_as(keys), opened(account.url) as limiter, pytest.raises(AccessDeniedError):
        limiter.available("key", "gpt-4")
