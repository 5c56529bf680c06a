"""The policies for one namespace: two tenants of one table, each with its own data and nothing of the other's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.aws.account import REGION, ROOT, Account, Guarded, acting_as, deployed, judged
from tests.aws.policies import PARTITION_KEYS, Ask, Document, allows, for_principal, refused
from tests.aws.test_iam import CHANGES, READS, Work, prepare, use
from tests.aws.test_policies import TABLES, actions, asked, recorded, trade, trade_by_kind
from tests.support.aws import engine
from tests.support.aws.wire import Wire
from zae_limiter import AccessDeniedError, NamespaceNotFoundError, StackOptions, SyncRateLimiter, SyncRepository
from zae_limiter.records import keys

STACK = "tenants-stack"
TABLE = TABLES + STACK
POLICIES = {"acquire": "NamespaceAcquirePolicyArn", "full": "NamespaceFullPolicyArn", "read": "NamespaceReadPolicyArn"}
INDEXES = sorted(PARTITION_KEYS - {"PK"})
OF_ALL = {"list namespaces", "register namespace", "delete namespace"}
"""What is done with the registry of all namespaces, and so by nobody who has one."""
MORE: dict[str, Work] = {
    "usage of an entity": lambda limiter: limiter.repository.get_usage_snapshots(entity_id="key"),
    "usage of a resource": lambda limiter: limiter.repository.get_usage_snapshots(resource="gpt-4"),
    "survey": lambda limiter: limiter.repository.survey_buckets(),
    "export": lambda limiter: limiter.repository.export_limits(),
}
OWN_READS, OWN_CHANGES = (
    {name: work for name, work in each.items() if name not in OF_ALL} for each in ({**READS, **MORE}, CHANGES)
)
LISTS: list[Work] = [
    lambda limiter: limiter.repository.get_children("team"),
    lambda limiter: [(each.resource, each.limit_name) for each in limiter.repository.get_buckets("key")],
    lambda limiter: limiter.get_resource_capacity("gpt-4", "rpm"),
    lambda limiter: [(each.entity_id, each.available) for each in limiter.repository.survey_buckets().loads],
]
"""What is read by each of the four indexes."""
REGISTRY = {keys.REGISTRY, "SYSTEM#"}


class Tenant(NamedTuple):
    """A namespace and everything that was asked for in it."""

    id: str
    trading: list[Ask]
    administration: dict[str, list[Ask]]

    @property
    def asks(self) -> list[Ask]:
        """All that names a key of the namespace."""
        every = [*self.trading, *(ask for each in self.administration.values() for ask in each)]
        return [ask for ask in every if ask.keys - REGISTRY]


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    made = deployed(engine.endpoint(), STACK, StackOptions(enable_aggregator=False))
    yield made
    made.client("cloudformation").delete_stack(StackName=STACK)


@pytest.fixture(scope="module")
def tenants(account: Account) -> list[Tenant]:
    return [act(account, name) for name in ("tenant-a", "tenant-b")]


def act(account: Account, name: str) -> Tenant:
    """Everything that can be done in a namespace."""
    with recorded(account) as (_, root):
        root.repository.ensure_infrastructure()
        namespace_id = root.repository.register_namespace(name).id
    trading = asked(trade(account, name)) + [ask for each in trade_by_kind(account, name).values() for ask in each]
    found = {}
    with recorded(account, name) as (wire, limiter):
        use_again(limiter)
        for what, work in {**OWN_READS, **OWN_CHANGES}.items():
            mark = wire.mark()
            work(limiter)
            found[what] = asked(wire.calls(mark))
    return Tenant(namespace_id, trading, found)


def use_again(limiter: SyncRateLimiter) -> None:
    with limiter.acquire("key", "gpt-4", consume={"rpm": 1}):
        pass


def policy(account: Account, which: str, tenant: Tenant) -> Document:
    """A policy as it is for whoever has the tenant's tag."""
    return for_principal(account.document(POLICIES[which]), zael_namespace_id=tenant.id)


def test_a_tenant_may_acquire_in_its_own_namespace(account: Account, tenants: list[Tenant]) -> None:
    for tenant in tenants:
        assert len(tenant.trading) > 20
        assert list(refused(policy(account, "acquire", tenant), tenant.trading)) == []


@pytest.mark.parametrize("opens", [SyncRepository.open, SyncRepository.connect])
def test_a_tenant_may_open_its_own_namespace(account: Account, tenants: list[Tenant], opens: Any) -> None:
    with acting_as(ROOT), Wire(account.url) as wire:
        opens("tenant-a", stack=account.stack, region=REGION, endpoint_url=wire.url).close()
        calls = asked(wire.calls(0))
    assert {key for ask in calls for key in ask.keys} == {keys.REGISTRY}
    assert list(refused(policy(account, "acquire", tenants[0]), calls)) == []


def test_the_acquire_policy_of_a_tenant_is_that_of_all_but_for_the_keys(account: Account) -> None:
    of_all, of_one = (account.document(each) for each in ("AcquirePolicyArn", POLICIES["acquire"]))
    assert actions(of_all) == actions(of_one)
    for statement, same in zip(of_all["Statement"], of_one["Statement"], strict=False):
        assert (statement["Sid"], statement["Action"]) == (same["Sid"], same["Action"])
        listed = [each.get("Condition", {}).get("ForAllValues:StringLike", {}) for each in (statement, same)]
        assert len({str(each.get("dynamodb:Attributes")) for each in listed}) == 1


@pytest.mark.parametrize("what", [*OWN_READS, *OWN_CHANGES])
def test_a_tenant_may_administer_its_own_namespace(account: Account, tenants: list[Tenant], what: str) -> None:
    for tenant in tenants:
        assert list(refused(policy(account, "full", tenant), tenant.administration[what])) == []


@pytest.mark.parametrize("what", OWN_READS)
def test_a_tenant_may_read_its_own_namespace(account: Account, tenants: list[Tenant], what: str) -> None:
    for tenant in tenants:
        assert list(refused(policy(account, "read", tenant), tenant.administration[what])) == []


@pytest.mark.parametrize("what", OWN_CHANGES)
def test_who_reads_a_namespace_changes_nothing(account: Account, tenants: list[Tenant], what: str) -> None:
    for tenant in tenants:
        writes = [ask for ask in tenant.administration[what] if not ask.action.endswith(("GetItem", "Query"))]
        assert writes
        assert list(refused(policy(account, "read", tenant), writes)) == writes


@pytest.mark.parametrize("which", POLICIES)
def test_nothing_that_another_tenant_does_is_allowed(account: Account, tenants: list[Tenant], which: str) -> None:
    for own, other in (tenants, tenants[::-1]):
        assert {ask.resource for ask in other.asks} == {TABLE, *(f"{TABLE}/index/GSI{n}" for n in range(1, 5))}
        assert list(refused(policy(account, which, own), other.asks)) == other.asks


@pytest.mark.parametrize("which", POLICIES)
def test_nothing_is_allowed_to_somebody_without_the_tag(account: Account, tenants: list[Tenant], which: str) -> None:
    untagged = account.document(POLICIES[which])
    elsewhere = for_principal(untagged, zael_namespace="other")
    for tenant in tenants:
        for document in (untagged, elsewhere, for_principal(untagged, zael_namespace_id="")):
            assert list(refused(document, tenant.asks)) == tenant.asks


def requests_of(own: str, other: str) -> dict[str, list[Ask]]:
    """Ways to another tenant's data that no client of ours takes."""
    kinds = ("BUCKET#key#gpt-4#0", "ENTITY#key", "RESOURCE#gpt-4", "SYSTEM#", "AUDIT#key", "")
    theirs = [f"{other}/{kind}" for kind in kinds]
    mine = f"{own}/BUCKET#key#gpt-4#0"
    single = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem", "Query")
    several = ("BatchGetItem", "BatchWriteItem")
    partiql = ("PartiQLSelect", "PartiQLInsert", "PartiQLUpdate", "PartiQLDelete")
    written = frozenset(["PK", "SK"])
    return {
        "one key": [Ask(f"dynamodb:{verb}", TABLE, frozenset([key]), written) for verb in single for key in theirs],
        "beside a key of its own": [
            Ask(f"dynamodb:{verb}", TABLE, frozenset([mine, key]), written) for verb in several for key in theirs
        ],
        "by an index": [
            Ask("dynamodb:Query", f"{TABLE}/index/{index.removesuffix('PK')}", frozenset([key]))
            for index in INDEXES
            for key in (other, *theirs)
        ],
        "all of it": [Ask("dynamodb:Scan", each) for each in (TABLE, *(f"{TABLE}/index/GSI{n}" for n in range(1, 5)))],
        "by PartiQL": [Ask(f"dynamodb:{verb}", TABLE, frozenset([key])) for verb in partiql for key in (mine, *theirs)],
        "by PartiQL without a key": [Ask(f"dynamodb:{verb}", TABLE) for verb in partiql],
        "by the stream or a backup": [
            Ask(f"dynamodb:{verb}", TABLE)
            for verb in ("GetRecords", "CreateBackup", "ExportTableToPointInTime", "DeleteTable", "UpdateTable")
        ],
    }


@pytest.mark.parametrize("which", POLICIES)
@pytest.mark.parametrize("way", requests_of("a", "b"))
def test_there_is_no_way_around(account: Account, tenants: list[Tenant], which: str, way: str) -> None:
    for own, other in (tenants, tenants[::-1]):
        wanted = requests_of(own.id, other.id)[way]
        assert list(refused(policy(account, which, own), wanted)) == wanted


def test_the_same_ways_lead_to_its_own_data(account: Account, tenants: list[Tenant]) -> None:
    """So the refusals above are due to whose the keys are."""
    full, own = policy(account, "full", tenants[0]), tenants[0].id
    ways = requests_of(own, own)
    for way in ("one key", "beside a key of its own", "by an index"):
        assert list(refused(full, ways[way])) == []


@pytest.mark.parametrize("which", POLICIES)
def test_the_registry_is_read_by_name_only(account: Account, tenants: list[Tenant], which: str) -> None:
    document = policy(account, which, tenants[0])
    registry = frozenset([keys.REGISTRY])
    assert allows(document, Ask("dynamodb:GetItem", TABLE, registry))
    for verb in ("Query", "PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "ConditionCheckItem"):
        assert not allows(document, Ask(f"dynamodb:{verb}", TABLE, registry, frozenset(["PK", "SK"])))


@pytest.mark.parametrize("which", POLICIES)
def test_no_tag_is_the_registry(account: Account, which: str) -> None:
    """A tag with the id that the registry's keys begin with lets nobody change it."""
    document = for_principal(account.document(POLICIES[which]), zael_namespace_id="_")
    mixed = frozenset([keys.REGISTRY, "_/BUCKET#key#gpt-4#0"])
    for verb in ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"):
        for named in (frozenset([keys.REGISTRY]), frozenset(["_/BUCKET#key#gpt-4#0"]), mixed):
            assert not allows(document, Ask(f"dynamodb:{verb}", TABLE, named, frozenset(["PK"])))


@pytest.mark.parametrize("which", POLICIES)
def test_a_request_that_names_no_key_is_refused(account: Account, tenants: list[Tenant], which: str) -> None:
    """Conditions over all values hold where there is no value."""
    document = policy(account, which, tenants[0])
    about_table = ("dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive", "dynamodb:DescribeContinuousBackups")
    for action in actions(document):
        assert allows(document, Ask(action, TABLE)) is (action in about_table)


@pytest.mark.parametrize("which", POLICIES)
def test_a_stack_can_name_the_namespace_itself(tenants: list[Tenant], which: str) -> None:
    own, other = tenants
    options = StackOptions(enable_aggregator=False, enable_alarms=False, policy_namespace_id=own.id)
    made = deployed(engine.endpoint(), f"{STACK}-{which}", options)
    document = made.document(POLICIES[which])
    made.client("cloudformation").delete_stack(StackName=made.stack)
    assert "PrincipalTag" not in str(document)
    moved = {
        tenant.id: [ask._replace(resource=elsewhere(ask, made.stack)) for ask in tenant.asks] for tenant in tenants
    }
    assert [ask for ask in moved[own.id] if allows(document, ask)]
    assert list(refused(document, moved[other.id])) == moved[other.id]


def elsewhere(ask: Ask, stack: str) -> str:
    return ask.resource.replace(STACK, stack, 1)


@pytest.fixture(scope="module")
def strict() -> Iterator[tuple[Account, dict[str, str]]]:
    """An account that judges requests, and the ids of two namespaces in it."""
    with judged() as url:
        made = deployed(url, STACK, StackOptions(enable_aggregator=False, enable_alarms=False))
        ids = {}
        with acting_as(ROOT):
            for name in ("tenant-a", "tenant-b"):
                with SyncRepository(name=STACK, region=REGION, endpoint_url=url) as root:
                    ids[name] = root.register_namespace(name).id
                with opened(url, name) as limiter:
                    prepare(limiter.repository)
                    use_again(limiter)
        yield made, ids


@contextlib.contextmanager
def opened(url: str, namespace: str) -> Iterator[SyncRateLimiter]:
    with SyncRepository(name=STACK, region=REGION, endpoint_url=url, namespace=namespace) as repository:
        yield SyncRateLimiter(repository)


@contextlib.contextmanager
def tenant_wire(strict: tuple[Account, dict[str, str]], which: str) -> Iterator[str]:
    """The way of somebody with tenant a's tag to the table."""
    made, ids = strict
    user = made.user(f"tenant-{which}", POLICIES[which])
    document = for_principal(made.document(POLICIES[which]), zael_namespace_id=ids["tenant-a"])
    try:
        with acting_as(user), Guarded(made.url, document, TABLES) as wire:
            yield wire.url
    finally:
        remove_user(made, f"tenant-{which}")


def remove_user(account: Account, name: str) -> None:
    iam: Any = account.client("iam")
    iam.delete_user_policy(UserName=name, PolicyName="known")
    for each in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
        iam.delete_access_key(UserName=name, AccessKeyId=each["AccessKeyId"])
    iam.delete_user(UserName=name)


def test_a_client_with_a_tenants_policy_works(strict: tuple[Account, dict[str, str]]) -> None:
    with tenant_wire(strict, "acquire") as url, opened(url, "tenant-a") as limiter:
        use(limiter)
        assert limiter.is_available()


def test_a_program_that_connects_works_with_a_tenants_policy(strict: tuple[Account, dict[str, str]]) -> None:
    with tenant_wire(strict, "acquire") as url:
        repository = SyncRepository.connect("tenant-a", stack=STACK, region=REGION, endpoint_url=url)
        with repository, SyncRateLimiter(repository) as limiter:
            use_again(limiter)


def test_an_administrator_of_a_tenant_works(strict: tuple[Account, dict[str, str]]) -> None:
    with tenant_wire(strict, "full") as url, opened(url, "tenant-a") as limiter:
        for work in (*OWN_READS.values(), *OWN_CHANGES.values()):
            work(limiter)
        for each in ("new", "team"):
            limiter.repository.delete_entity(each)
        prepare(limiter.repository)


@pytest.mark.parametrize("which", POLICIES)
def test_a_client_cannot_open_another_tenants_namespace(strict: tuple[Account, dict[str, str]], which: str) -> None:
    before = strict[0].client("dynamodb").scan(TableName=STACK)["Items"]
    with tenant_wire(strict, which) as url, opened(url, "tenant-b") as limiter:
        for work in (use_again, *OWN_READS.values(), *OWN_CHANGES.values()):
            with pytest.raises(AccessDeniedError):
                work(limiter)
    assert strict[0].client("dynamodb").scan(TableName=STACK)["Items"] == before


def test_no_tenant_can_slip_records_into_the_lists_of_another(strict: tuple[Account, dict[str, str]]) -> None:
    """Which index entries somebody writes no policy says; they name the tenant's own key all the same."""
    account, ids = strict
    table = account.client("dynamodb")
    own, other = ids["tenant-b"], ids["tenant-a"]
    with acting_as(ROOT), opened(account.url, "tenant-a") as limiter:
        before = [work(limiter) for work in LISTS]
        foreign = {"PK": {"S": f"{own}/BUCKET#key#gpt-4#0"}, "SK": {"S": keys.STATE}}
        entry = keys.bucket_indexes(keys.parse_bucket_pk(f"{other}/BUCKET#key#gpt-4#0"))
        entry |= {"GSI1PK": keys.gsi1_pk_parent(other, "team"), "GSI1SK": keys.gsi1_sk_child("evil")}
        item = table.get_item(TableName=STACK, Key=foreign)["Item"]
        table.put_item(TableName=STACK, Item={**item, **{name: {"S": value} for name, value in entry.items()}})
        assert [work(limiter) for work in LISTS] == before
    with tenant_wire(strict, "read") as url, opened(url, "tenant-a") as limiter:
        assert [work(limiter) for work in LISTS] == before
    table.put_item(TableName=STACK, Item=item)


@pytest.mark.parametrize("which", POLICIES)
def test_a_name_that_nobody_has_is_called_so(strict: tuple[Account, dict[str, str]], which: str) -> None:
    with tenant_wire(strict, which) as url, opened(url, "nobody") as limiter, pytest.raises(NamespaceNotFoundError):
        limiter.available("key", "gpt-4")
