"""The blocking form says the same as the async one, word for word, and every method of it works."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.aws import engine
from zae_limiter import (
    Lease,
    Limit,
    NamespaceNotFoundError,
    RateLimiter,
    Repository,
    RepositoryBuilder,
    StackManager,
    StackOptions,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
    SyncRepositoryBuilder,
    SyncStackManager,
    ValidationError,
)
from zae_limiter.manifest.states import Manifest, Plan
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, ManualClock

RPM = [Limit.per_minute("rpm", 100)]
FLOORED = Limit.per_minute("rpm", 100, floors={"batch": 0.3})
TWINS: list[tuple[type, type]] = [
    (Repository, SyncRepository),
    (RateLimiter, SyncRateLimiter),
    (Lease, SyncLease),
    (RepositoryBuilder, SyncRepositoryBuilder),
    (StackManager, SyncStackManager),
]
CONTEXT = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def public(kind: type) -> dict[str, Any]:
    """The methods a user may call, and those of the context manager; attributes are compared on instances."""
    found = {name: member for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}
    for name in ("__init__", *CONTEXT, *CONTEXT.values()):
        if name in kind.__dict__:
            found[CONTEXT.get(name, name)] = kind.__dict__[name]
    return found


def spelled(member: Callable[..., Any]) -> tuple[list[tuple[str, Any, Any, str]], str]:
    """A signature without its mode."""
    signature = inspect.signature(member)

    def neutral(annotation: object) -> str:
        return str(annotation).replace("Sync", "").replace("Blocking", "")

    parameters = [(p.name, p.kind, p.default, neutral(p.annotation)) for p in signature.parameters.values()]
    return parameters, neutral(signature.return_annotation)


@pytest.mark.parametrize(("twin", "sync"), TWINS, ids=[sync.__name__ for _, sync in TWINS])
def test_both_forms_have_the_same_members(twin: type, sync: type) -> None:
    assert public(twin).keys() == public(sync).keys()


@pytest.mark.parametrize(
    ("twin", "sync", "name"),
    [
        pytest.param(twin, sync, name, id=f"{sync.__name__}.{name}")
        for twin, sync in TWINS
        for name in sorted(public(twin).keys() & public(sync).keys())
        if name != "__init__" or (twin, sync) != (Lease, SyncLease)
    ],
)
def test_both_forms_have_the_same_signature(twin: type, sync: type, name: str) -> None:
    ours, theirs = public(sync)[name], public(twin)[name]
    assert not inspect.iscoroutinefunction(ours)
    assert spelled(ours) == spelled(theirs)


def test_instances_have_the_same_public_attributes() -> None:
    for twin, sync in (
        (Repository("memory://"), SyncRepository("memory://")),
        (RateLimiter("memory://"), SyncRateLimiter("memory://")),
        (
            RateLimiter("memory://").acquire("key", "gpt-4", {"rpm": 1}),
            SyncRateLimiter("memory://").acquire("key", "gpt-4", {"rpm": 1}),
        ),
    ):
        ours, theirs = ({name for name in dir(each) if not name.startswith("_")} for each in (sync, twin))
        assert ours == theirs


def opened() -> tuple[SyncRepository, SyncRateLimiter]:
    repo = SyncRepository(MemoryStore(ManualClock()))
    return repo, SyncRateLimiter(repo)


def refused(error: type[Exception], call: Callable[[], object]) -> object:
    """What a call returns that is refused: nothing, or in the async form what is to be awaited."""
    try:
        outcome = call()
    except error:
        return None
    assert inspect.isawaitable(outcome)
    return outcome


SHARED: dict[str, Callable[[Any], object]] = {
    "create_entity": lambda it: it.create_entity("new", "New", "org", True, {"a": 1}, "me"),
    "update_entity": lambda it: it.update_entity("key", name="n", expected_version=1, principal="me"),
    "get_entity": lambda it: it.get_entity("key"),
    "get_children": lambda it: it.get_children("org"),
    "delete_entity": lambda it: it.delete_entity("key", "me"),
    "set_parent": lambda it: it.set_parent("key", None, principal="me"),
    "get_bucket": lambda it: it.get_bucket("key", "gpt-4", "rpm"),
    "get_or_create_bucket": lambda it: it.get_or_create_bucket("new", "gpt-4", RPM[0]),
    "get_resource_buckets": lambda it: it.get_resource_buckets("gpt-4", "rpm"),
    "get_system_limits": lambda it: it.get_system_limits(),
    "resolve_on_unavailable": lambda it: it.resolve_on_unavailable(),
    "stack_name": lambda it: it.stack_name,
    "table_name": lambda it: it.table_name,
    "region": lambda it: it.region,
    "endpoint_url": lambda it: it.endpoint_url,
    "list_deployed": lambda it: it.list_deployed("us-east-1", engine.endpoint()),
    "create_stack": lambda it: refused(DeprecationWarning, lambda: it.create_stack(StackOptions())),
    "delete_stack": lambda it: refused(ValidationError, lambda: it.delete_stack()),
    "get_buckets": lambda it: it.get_buckets("key", "gpt-4"),
    "reset_bucket": lambda it: it.reset_bucket("key", "gpt-4", None, "me"),
    "top_up": lambda it: it.top_up("key", "gpt-4", {"rpm": 5}, idempotency_key="k", principal="me"),
    "set_system_defaults": lambda it: it.set_system_defaults(RPM, "allow", "me"),
    "get_system_defaults": lambda it: it.get_system_defaults(),
    "delete_system_defaults": lambda it: it.delete_system_defaults("me"),
    "set_resource_defaults": lambda it: it.set_resource_defaults("gpt-4", RPM, "me"),
    "get_resource_defaults": lambda it: it.get_resource_defaults("gpt-4"),
    "delete_resource_defaults": lambda it: it.delete_resource_defaults("gpt-4", "me"),
    "list_resources_with_defaults": lambda it: it.list_resources_with_defaults(),
    "set_limits": lambda it: it.set_limits("key", RPM, "gpt-4", "me", disabled="bypass", cascade=None),
    "disable_entity": lambda it: it.disable_entity("key", "gpt-4", "me"),
    "enable_entity": lambda it: it.enable_entity("key", "gpt-4", "me"),
    "bypass_entity": lambda it: it.bypass_entity("key", "gpt-4", "me"),
    "disable_resource": lambda it: it.disable_resource("gpt-4", "me"),
    "enable_resource": lambda it: it.enable_resource("gpt-4", "me"),
    "bypass_resource": lambda it: it.bypass_resource("gpt-4", "me"),
    "clear_entity_disabled": lambda it: it.clear_entity_disabled("key", "gpt-4", "me"),
    "clear_resource_disabled": lambda it: it.clear_resource_disabled("gpt-4", "me"),
    "set_entity_cascade": lambda it: it.set_entity_cascade("key", True, "gpt-4", "me"),
    "clear_entity_cascade": lambda it: it.clear_entity_cascade("key", "gpt-4", "me"),
    "get_entity_cascade": lambda it: it.get_entity_cascade("key", "gpt-4"),
    "set_resource_cascade": lambda it: it.set_resource_cascade("gpt-4", False, "me"),
    "clear_resource_cascade": lambda it: it.clear_resource_cascade("gpt-4", "me"),
    "get_resource_cascade": lambda it: it.get_resource_cascade("gpt-4"),
    "resolve_cascade": lambda it: it.resolve_cascade("key", "gpt-4"),
    "get_entity_disabled": lambda it: it.get_entity_disabled("key", "gpt-4"),
    "get_resource_disabled": lambda it: it.get_resource_disabled("gpt-4"),
    "resolve_access": lambda it: it.resolve_access("key", "gpt-4"),
    "get_limits": lambda it: it.get_limits("key", "gpt-4"),
    "delete_limits": lambda it: it.delete_limits("key", "gpt-4", "me"),
    "list_entities_with_custom_limits": lambda it: it.list_entities_with_custom_limits("gpt-4", 10, None),
    "list_resources_with_entity_configs": lambda it: it.list_resources_with_entity_configs(),
    "resolve_limits": lambda it: it.resolve_limits("key", "gpt-4"),
    "get_audit_events": lambda it: it.get_audit_events("key", 10, None),
    "get_usage_snapshots": lambda it: it.get_usage_snapshots("key", None, "daily", datetime.now(UTC), None, 5, None),
    "get_usage_summary": lambda it: it.get_usage_summary(None, "gpt-4", "hourly", None, datetime.now(UTC)),
    "close": lambda it: it.close(),
}
OF_REPOSITORY: dict[str, Callable[[Any], object]] = SHARED | {
    "get_backend_stats": lambda it: it.get_backend_stats(),
    "create_table": lambda it: it.create_table(),
    "delete_table": lambda it: refused(ValidationError, lambda: it.delete_table()),
    "open": lambda it: it.open("red", "serial", url="memory://"),
    "connect": lambda it: refused(NamespaceNotFoundError, lambda: it.connect("red", url="memory://")),
    "ping": lambda it: it.ping(),
    "get_version_record": lambda it: it.get_version_record(),
    "namespace_name": lambda it: it.namespace_name,
    "namespace_id": lambda it: it.namespace_id,
    "builder": lambda it: it.builder().url("memory://").build(),
    "namespace": lambda it: it.namespace("red", on_unavailable="allow", bucket_ttl_multiplier=3),
    "capabilities": lambda it: it.capabilities,
    "is_blocking": lambda it: it.is_blocking,
    "store": lambda it: it.store.capabilities,
    "clock_skew_ms": lambda it: it.clock_skew_ms,
    "invalidate_config_cache": lambda it: it.invalidate_config_cache(),
    "get_cache_stats": lambda it: it.get_cache_stats(),
    "ensure_infrastructure": lambda it: it.ensure_infrastructure(),
    "status": lambda it: it.status(),
    "register_namespace": lambda it: it.register_namespace("blue", "me"),
    "register_namespaces": lambda it: it.register_namespaces(["blue"], "me"),
    "get_namespace": lambda it: it.get_namespace("red"),
    "list_namespaces": lambda it: it.list_namespaces(),
    "list_orphan_namespaces": lambda it: it.list_orphan_namespaces(),
    "delete_namespace": lambda it: it.delete_namespace("red", "me"),
    "recover_namespace": lambda it: it.recover_namespace(it.delete_namespace("red").id, "me"),
    "survey_buckets": lambda it: it.survey_buckets("gpt-4", 10),
    "plan_limits": lambda it: it.plan_limits(Manifest(), prune=True, file="limits.yaml"),
    "apply_plan": lambda it: it.apply_plan(Plan(), "me", lambda change: None),
    "export_limits": lambda it: it.export_limits(),
    "purge_namespace": lambda it: it.purge_namespace(it.delete_namespace("red").id, "me", lambda count: None),
}
OF_LIMITER: dict[str, Callable[[Any], object]] = SHARED | {
    "acquire": lambda it: it.acquire("key", "gpt-4", {"rpm": 1}, RPM, "allow", 1.0, 1.0).__enter__(),
    "available": lambda it: it.available("key", "gpt-4", [FLOORED], "batch"),
    "time_until_available": lambda it: it.time_until_available("key", "gpt-4", {"rpm": 1}, [FLOORED], "batch"),
    "check_availability": lambda it: it.check_availability(["key", "other"], "gpt-4", {"rpm": 1}, [FLOORED], "batch"),
    "get_status": lambda it: it.get_status("key", "gpt-4", [FLOORED], {"rpm": 1}, "batch"),
    "get_resource_capacity": lambda it: it.get_resource_capacity("gpt-4", "rpm", True),
    "is_available": lambda it: it.is_available(0.5),
    "name": lambda it: it.name,
    "repository": lambda it: it.repository,
    "held_slots": lambda it: it.held_slots,
    "renew_slots": lambda it: it.renew_slots(),
    "flush": lambda it: it.flush(),
    "observers": lambda it: it.observers,
}
CASES = [
    pytest.param(which, name, call, id=f"{kind.__name__}.{name}")
    for which, (kind, table) in enumerate(((SyncRepository, OF_REPOSITORY), (SyncRateLimiter, OF_LIMITER)))
    for name, call in table.items()
]


@pytest.mark.parametrize(("which", "name", "call"), CASES)
def test_every_method_works(which: int, name: str, call: Callable[[Any], object]) -> None:
    repo, limiter = opened()
    repo.register_namespace("red")
    repo.create_entity("org")
    repo.create_entity("key", parent_id="org")
    repo.set_limits("key", RPM)
    with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    result = call((repo, limiter)[which])
    assert not inspect.isawaitable(result)


def test_every_method_and_attribute_is_listed_above() -> None:
    for each, table in zip(opened(), (OF_REPOSITORY, OF_LIMITER), strict=True):
        assert {name for name in dir(each) if not name.startswith("_")} <= table.keys()


def test_the_blocking_form_works_inside_a_running_loop_and_without_one() -> None:
    _, limiter = opened()

    def take() -> int:
        with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
            lease.consume(rpm=1)
            lease.adjust(rpm=1)
            lease.release(rpm=1)
        return lease.available["rpm"]

    async def inside() -> int:
        return take()

    assert take() == 99
    assert asyncio.run(inside()) == 97


def test_with_closes_and_hands_itself_over() -> None:
    with SyncRepository("memory://") as repo:
        assert isinstance(repo, SyncRepository)
    with SyncRateLimiter("memory://") as limiter:
        assert isinstance(limiter, SyncRateLimiter)


def test_a_store_that_suspends_is_told_off_and_not_left_hanging() -> None:
    limiter = SyncRateLimiter(FaultyStore(MemoryStore(), suspend=True))
    with pytest.raises(RuntimeError, match="must finish inside the await"):
        limiter.available("key", "gpt-4", RPM)


def test_both_forms_share_one_store() -> None:
    store = MemoryStore(ManualClock())
    blocking, looping = SyncRateLimiter(store), RateLimiter(store)

    async def take() -> int:
        async with looping.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
            return lease.available["rpm"]

    with blocking.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
        assert lease.available == {"rpm": 99}
    assert asyncio.run(take()) == 98
    assert blocking.available("key", "gpt-4", RPM) == {"rpm": 98}


def test_the_builders_take_the_same_steps() -> None:
    steps: dict[str, Any] = {
        "name": "my-app",
        "region": "us-east-1",
        "endpoint_url": "http://localhost",
        "stack_options": StackOptions(),
        "namespace": "prod",
        "config_cache_ttl": 5,
        "max_cached_keys": 100,
        "bucket_ttl_multiplier": 3,
        "clock": ManualClock(),
        "url": "memory://",
        "stack": "my-app",
        "auto_update": False,
        "on_unavailable": "allow",
        "parallel_mode": "serial",
    }
    steps |= {field.name: getattr(StackOptions(), field.name) for field in fields(StackOptions)}
    ignored = {"rejection_cache_ttl": 1.0, "rejection_cache_size": 10, "stamp_ttl": 60, "enable_provisioner": True}
    assert public(RepositoryBuilder).keys() - {"__init__", "build"} <= {*steps, *ignored}
    for builder in (RepositoryBuilder(), SyncRepositoryBuilder()):
        for step, value in steps.items():
            assert getattr(builder, step)(value) is builder
        for step, value in ignored.items():
            with pytest.warns(DeprecationWarning, match=f"^{step} has no effect: ") as caught:
                assert getattr(builder, step)(value) is builder
            assert caught[0].filename == __file__
