"""`open`, `connect`, the builder by stack and namespaces of one store: what they find, make and refuse."""

from __future__ import annotations

import asyncio
import copy
import inspect
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.aws.stacks import REGION, aws, inventory, named, status
from tests.support.aws import engine
from zae_limiter import (
    InfrastructureNotFoundError,
    InvalidNameError,
    Limit,
    NamespaceNotFoundError,
    OnUnavailable,
    RateLimiter,
    RateLimiterClosedError,
    Repository,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
    VersionMismatchError,
    ZAELimiterError,
    __version__,
)
from zae_limiter.aws import deployment, package
from zae_limiter.aws.template import function_name
from zae_limiter.records import version
from zae_limiter.records.algebra import Write
from zae_limiter.stores.memory import MemoryStore

RPM = Limit.per_minute("rpm", 10)
SMALL = StackOptions(enable_aggregator=False, enable_alarms=False, enable_audit_archival=False, create_iam=False)


class Face:
    """The async or the blocking classes, and how to get the outcome of a call of theirs."""

    def __init__(self, mode: str) -> None:
        self.Repository: Any = Repository if mode == "async" else SyncRepository
        self.RateLimiter: Any = RateLimiter if mode == "async" else SyncRateLimiter
        self._runner = asyncio.Runner() if mode == "async" else None

    def __call__(self, work: Any) -> Any:
        if self._runner is None:
            assert not inspect.isawaitable(work)
            return work
        return self._runner.run(self._wait_for(work))

    async def _wait_for(self, work: Any) -> Any:
        return await work

    def run(self, call: Callable[[], Any]) -> Any:
        """The outcome of a call that may raise before it can be awaited."""
        return self(call())

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(params=["async", "blocking"])
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    for name in ("ZAEL_STACK", "ZAEL_NAMESPACE", "ZAE_LIMITER_URL"):
        monkeypatch.delenv(name, raising=False)
    made = Face(request.param)
    yield made
    made.close()


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


def where(name: str) -> dict[str, Any]:
    return {"stack": name, "region": REGION, "endpoint_url": engine.endpoint()}


def make_table(name: str) -> None:
    """A table without a stack around it."""
    with SyncRepository(name, REGION, engine.endpoint()) as repository:
        repository.create_table()


def test_open_takes_any_store_and_registers_its_namespace(face: Face) -> None:
    repository = face(face.Repository.open("tenant-a", url="memory://"))
    assert (repository.namespace, repository.namespace_name) == ("tenant-a", "tenant-a")
    assert repository.namespace_id == face(repository.get_namespace("tenant-a")).id
    assert [repository.stack_name, repository.table_name, repository.region, repository.endpoint_url] == [None] * 4
    face(repository.close())
    with pytest.raises(RateLimiterClosedError):
        face(repository.get_entity("key"))


def test_the_environment_says_where_and_what(
    face: Face, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, name: str
) -> None:
    monkeypatch.setenv("ZAE_LIMITER_URL", f"sqlite:///{tmp_path}/limits.db")
    monkeypatch.setenv("ZAEL_NAMESPACE", "tenant-a")
    repository = face(face.Repository.open())
    assert (repository.capabilities.name, repository.namespace) == ("sqlite", "tenant-a")
    face(repository.close())
    assert face(face.Repository.open("tenant-b", url="memory://")).namespace == "tenant-b"
    make_table(name)
    monkeypatch.setenv("ZAEL_STACK", name)
    for opened in (face.Repository.open(), face.Repository.builder().build()):
        repository = face(opened)
        assert (repository.capabilities.name, repository.namespace) == ("sqlite", "tenant-a"), (
            "it goes before $ZAEL_STACK"
        )
        face(repository.close())
    monkeypatch.delenv("ZAE_LIMITER_URL")
    for opened in (
        face.Repository.open(region=REGION, endpoint_url=engine.endpoint()),
        face.Repository.builder().region(REGION).endpoint_url(engine.endpoint()).build(),
    ):
        repository = face(opened)
        assert (repository.stack_name, repository.namespace) == (name, "tenant-a")
        face(repository.close())


def test_without_a_place_it_is_the_stack_of_the_usual_name(face: Face) -> None:
    with pytest.raises(InfrastructureNotFoundError, match="'zae-limiter'"):
        face(face.Repository.connect(region=REGION, endpoint_url=engine.endpoint()))


def test_a_builder_that_is_for_aws_uses_the_stack_of_the_usual_name(face: Face) -> None:
    stack = "zae-limiter"
    try:
        for builder in (
            face.Repository.builder().stack(None).stack_options(SMALL),
            face.Repository.builder(),
            face.Repository.builder().stack_options(lambda_architecture="arm64"),
        ):
            repository = face(builder.region(REGION).endpoint_url(engine.endpoint()).build())
            assert (repository.stack_name, repository.region) == (stack, REGION)
            assert face(repository.get_version_record())["lambda_version"] is None, "there is no aggregator"
            face(repository.close())
    finally:
        face(face.Repository(stack, REGION, engine.endpoint()).delete_stack())


def test_a_builder_without_a_place_is_for_aws_too(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ZAE_LIMITER_URL", "ZAEL_STACK", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(ZAELimiterError, match="region"):  # memory would be a limit per process, without a word
        face(face.Repository.builder().namespace("tenant-a").build())


def test_a_missing_table_is_not_available(face: Face, name: str) -> None:
    limiter = face.RateLimiter(name=name, region=REGION, endpoint_url=engine.endpoint())
    assert face(limiter.is_available()) is False
    lease = limiter.acquire("key", "gpt-4", {"rpm": 1}, [RPM], on_unavailable="allow")
    with pytest.raises(InfrastructureNotFoundError):
        face.run(lease.__aenter__ if hasattr(lease, "__aenter__") else lease.__enter__)
    face(limiter.close())
    with pytest.raises(RateLimiterClosedError):
        face(limiter.is_available())


def test_open_deploys_what_is_missing_and_changes_nothing_that_is_there(face: Face, name: str) -> None:
    repository = face(face.Repository.open("tenant-a", **where(name), stack_options=SMALL))
    assert status(name) == "CREATE_COMPLETE"
    assert (repository.stack_name, repository.table_name) == (name, name)
    assert (repository.region, repository.endpoint_url) == (REGION, engine.endpoint())
    face(repository.create_entity("key"))
    face(repository.close())
    before = inventory()
    repository = face(face.Repository.open("tenant-b", **where(name), stack_options=StackOptions(lambda_memory=512)))
    assert inventory() == before
    assert deployment.read_options(aws(), name) == SMALL
    assert sorted(each.name for each in face(repository.list_namespaces())) == ["tenant-a", "tenant-b"]
    assert face(repository.get_entity("key")) is None
    assert name in [each.stack_name for each in face(face.RateLimiter.list_deployed(REGION, engine.endpoint()))]
    limiter = face.RateLimiter(repository)
    assert (limiter.name, limiter.stack_name, limiter.table_name) == (name, name, name)
    assert face(limiter.get_status()).available
    face(limiter.delete_stack())
    assert status(name) is None
    assert not face(repository.ping())
    face(repository.close())


def test_the_builder_by_stack_does_as_open_does(face: Face, name: str) -> None:
    builder = face.Repository.builder().stack(name).region(REGION).endpoint_url(engine.endpoint())
    builder.enable_aggregator(False).enable_alarms(False).enable_audit_archival(False).create_iam(False)
    repository = face(builder.namespace("tenant-a").tags({"team": "ai"}).build())
    assert deployment.read_options(aws(), name).tags == {"team": "ai"}
    assert deployment.read_options(aws(), name).enable_aggregator is False
    assert face(repository.get_namespace("tenant-a")).id == repository.namespace_id
    face(repository.close())


def test_setters_of_the_builder_replace_single_options(face: Face, name: str) -> None:
    where = face.Repository.builder().name(name).region(REGION).endpoint_url(engine.endpoint())
    face(face(where.stack_options(SMALL).usage_retention_days(7).build()).close())
    assert deployment.read_options(aws(), name).usage_retention_days == 7
    assert deployment.read_options(aws(), name).enable_aggregator is False


def test_connect_provisions_and_registers_nothing(face: Face, name: str) -> None:
    before = inventory()
    with pytest.raises(InfrastructureNotFoundError):
        face(face.Repository.connect(**where(name)))
    assert inventory() == before
    make_table(name)
    for namespace in ("default", "tenant-a"):
        with pytest.raises(NamespaceNotFoundError, match=repr(namespace)):
            face(face.Repository.connect(namespace, **where(name)))
    with SyncRepository(name, REGION, engine.endpoint()) as repository:
        assert repository.list_namespaces() == []
        repository.register_namespace("tenant-a")
    repository = face(face.Repository.connect("tenant-a", **where(name)))
    assert repository.namespace_id is not None
    face(repository.close())


def test_a_table_of_an_older_layout_is_refused_and_left_alone(face: Face, name: str) -> None:
    make_table(name)
    with SyncRateLimiter(name, region=REGION, endpoint_url=engine.endpoint()) as limiter:
        old = {"schema_version": "0.10.0", "lambda_version": "0.17.0"}
        asyncio.run(_commit(name, Write(version.KEY, (), old)))
        for opened in (face.Repository.open, face.Repository.connect):
            with pytest.raises(VersionMismatchError, match="zae-limiter upgrade"):
                face(opened(**where(name)))
        record = limiter.repository.get_version_record()
    assert record is not None
    assert record.items() >= old.items()


async def _commit(name: str, write: Write) -> None:
    repository = Repository(name, REGION, engine.endpoint())
    await repository.store.commit([write])
    await repository.close()


def test_the_first_call_after_opening_has_nothing_left_to_load(face: Face, name: str) -> None:
    make_table(name)
    repository = face(face.Repository.open(**where(name)))
    before, calls = set(sys.modules), repository.get_backend_stats().total_calls
    limiter = face.RateLimiter(repository)
    face(limiter.repository.get_entity("key"))
    assert not {module for module in set(sys.modules) - before if module.startswith("botocore")}
    assert repository.get_backend_stats().total_calls == calls + 1, "neither namespace nor version is read again"
    face(repository.close())


def set_aggregator(name: str, number: str) -> None:
    asyncio.run(_commit(name, Write(version.KEY, (), {"lambda_version": number})))


def read_aggregator(name: str) -> object:
    with SyncRepository(name, REGION, engine.endpoint()) as repository:
        record = repository.get_version_record()
    return None if record is None else record.get("lambda_version")


def test_an_older_aggregator_gets_this_versions_code_unless_told_otherwise(face: Face, name: str) -> None:
    options = StackOptions(enable_alarms=False, enable_audit_archival=False)
    face(face(face.Repository.open(**where(name), stack_options=options)).close())
    function = function_name(name)
    set_aggregator(name, "0.3.0")
    aws().call("lambda", "update_function_code", FunctionName=function, ZipFile=zipped("handler.py", b""))
    builder = face.Repository.builder().stack(name).region(REGION).endpoint_url(engine.endpoint())
    for opened in (face.Repository.open(**where(name), auto_update=False), builder.auto_update(False).build()):
        face(face(opened).close())
    assert read_aggregator(name) == "0.3.0"
    face(face(face.Repository.open(**where(name))).close())
    assert read_aggregator(name) == __version__
    assert package.is_current(aws().call("lambda", "get_function_configuration", FunctionName=function))


def zipped(name: str, content: bytes) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr(name, content)
    return output.getvalue()


def test_an_aggregator_that_cannot_be_renewed_is_in_nobodys_way(face: Face, name: str) -> None:
    make_table(name)
    face(face(face.Repository.open(**where(name))).close())
    for number in ("0.3.0", "99.0.0"):
        set_aggregator(name, number)
        repository = face(face.Repository.open(**where(name)))
        assert face(repository.get_entity("key")) is None
        face(repository.close())
        assert read_aggregator(name) == number


async def test_a_stack_that_many_open_at_once_is_deployed_once(name: str) -> None:
    opened = await asyncio.gather(*(Repository.open(**where(name), stack_options=SMALL) for _ in range(3)))
    assert len({repository.namespace_id for repository in opened}) == 1
    assert status(name) in ("CREATE_COMPLETE", "UPDATE_COMPLETE")
    for repository in opened:
        await repository.close()


def test_arguments_by_place_are_those_of_earlier_versions(face: Face) -> None:
    where = ("my-app", REGION, "http://127.0.0.1:1")
    repository = face.Repository(*where, None, 30)
    assert (repository.stack_name, repository.region, repository.endpoint_url) == where
    assert repository.get_cache_stats().ttl_seconds == 30
    assert face.RateLimiter(None, *where, None, "allow").repository.region == REGION


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("stack", {"stack": "a_b"}),
        ("stack", {"stack": "my-app", "url": "memory://"}),
        ("url", {"url": "my-app"}),
        ("namespace", {"url": "memory://", "namespace": "#"}),
        ("region", {"url": "memory://", "region": REGION}),
        ("config_cache_ttl", {"url": "memory://", "config_cache_ttl": -1}),
    ],
)
def test_arguments_that_make_no_sense(face: Face, field: str, given: dict[str, Any]) -> None:
    for opened in (face.Repository.open, face.Repository.connect):
        with pytest.raises(ValidationError) as caught:
            face.run(lambda opened=opened: opened(**given))  # type: ignore[misc]  # bound at once
        assert caught.value.field == field


def test_arguments_of_open_and_the_builder_alone(face: Face) -> None:
    with pytest.raises(ValidationError, match="parallel_mode"):
        face.run(lambda: face.Repository.open(None, "weird", url="memory://"))
    with pytest.raises(ValidationError, match="stack_options"):
        face.run(lambda: face.Repository.open(url="memory://", stack_options=SMALL))
    with pytest.raises(ValidationError, match="cannot be combined"):
        face.run(lambda: face.Repository.builder().stack("my-app").url("memory://").build())
    with pytest.raises(ValidationError, match="on_unavailable"):
        face.run(lambda: face.Repository.builder().url("memory://").on_unavailable("maybe").build())
    with pytest.raises(TypeError, match="surprise"):
        face.run(lambda: face.Repository.open(url="memory://", surprise=1))


def test_options_without_effect_are_told_where_they_are_given(face: Face) -> None:
    ignored = {"rejection_cache_ttl": 1.0, "rejection_cache_size": 10, "stamp_ttl": 60}
    for option, value in ignored.items():
        with pytest.warns(DeprecationWarning, match=f"^{option} has no effect: ") as caught:
            face(face.Repository.open(url="memory://", **{option: value}))
        assert [each.filename for each in caught] == [__file__]
    repository = face.Repository("memory://")
    for option, usual, other in (
        ("auto_update", False, True),
        ("strict_version", True, False),
        ("skip_version_check", False, True),
    ):
        face.RateLimiter(repository, **{option: usual})
        with pytest.warns(DeprecationWarning, match=f"^{option} has no effect: "):
            face.RateLimiter(repository, **{option: other})
    limiter = face.RateLimiter(repository)
    face(limiter.set_system_defaults([RPM]))
    for call in (
        lambda: limiter.available("key", "gpt-4", use_stored_limits=True),
        lambda: limiter.time_until_available("key", "gpt-4", {"rpm": 1}, use_stored_limits=True),
    ):
        with pytest.warns(DeprecationWarning, match="^use_stored_limits has no effect: ") as caught:
            face.run(call)
        assert [each.filename for each in caught] == [__file__]
    with pytest.warns(DeprecationWarning, match="use_stored_limits"):
        lease = limiter.acquire("key", "gpt-4", {"rpm": 1}, use_stored_limits=True)
    assert lease.consumed == {}


def test_a_failure_mode_is_a_policy(face: Face) -> None:
    with pytest.raises(ValidationError, match="failure_mode"):
        face.RateLimiter("memory://", on_unavailable="block", failure_mode=OnUnavailable.ALLOW)
    with pytest.raises(ValidationError, match="on_unavailable"):
        face.RateLimiter("memory://", failure_mode="maybe")


def test_the_name_of_the_namespace_is_a_string_in_every_respect(face: Face) -> None:
    name = face.Repository("memory://", namespace="tenant-a").namespace
    assert isinstance(name, str)
    assert (name == "tenant-a", f"{name}", {name: 1}["tenant-a"], name.upper()) == (True, "tenant-a", 1, "TENANT-A")
    assert json.dumps({"namespace": name}) == '{"namespace": "tenant-a"}'
    for copied in (pickle.loads(pickle.dumps(name)), copy.copy(name), copy.deepcopy(name), str(name)):
        assert (copied, type(copied)) == ("tenant-a", str)


def test_a_namespace_of_the_same_store_lives_as_long_as_its_repository(face: Face, tmp_path: Any) -> None:
    repository = face(face.Repository.open(url=f"sqlite:///{tmp_path}/limits.db"))
    for unknown in ("tenant-a", "tenant-b"):
        with pytest.raises(NamespaceNotFoundError, match=unknown):
            face(repository.namespace(unknown))
    with pytest.raises(InvalidNameError):
        face.run(lambda: repository.namespace("_"))
    face(repository.register_namespace("tenant-a"))
    tenant = face(repository.namespace("tenant-a"))
    assert (tenant.namespace, repository.namespace) == ("tenant-a", "default")
    assert tenant.store is repository.store
    face(tenant.create_entity("key"))
    assert face(repository.get_entity("key")) is None
    face(tenant.close())
    assert face(tenant.get_entity("key")) is not None
    below = face(tenant.namespace("default"))
    assert below.namespace_id == repository.namespace_id
    face(repository.close())
    for closed in (tenant, below):
        with pytest.raises(RateLimiterClosedError):
            face(closed.get_entity("key"))


def test_what_happens_without_the_store_is_stored_beside_the_limits(face: Face) -> None:
    store = MemoryStore()
    repository = face(face.Repository.builder().url(store).namespace("prod").on_unavailable("allow").build())
    assert face(repository.get_system_defaults()) == ([], OnUnavailable.ALLOW)
    assert face(repository.resolve_on_unavailable()) == "allow"
    face(repository.set_system_defaults([RPM]))
    events = len(face(repository.get_audit_events("$SYSTEM")))
    for policy in ("block", "block"):
        face(repository.namespace("prod", on_unavailable=policy))
    assert face(repository.get_system_defaults()) == ([RPM], OnUnavailable.BLOCK)
    assert face(repository.get_system_limits()) == [RPM]
    assert len(face(repository.get_audit_events("$SYSTEM"))) == events + 1, "what is stored already is not written"
    face(repository.delete_system_defaults())
    assert face(repository.resolve_on_unavailable()) is OnUnavailable.BLOCK
