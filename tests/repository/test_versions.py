"""Versions: how they compare, what a version record says, and who may open what, on every store."""

from __future__ import annotations

import doctest
import logging

import pytest
from hypothesis import given, strategies as st

from zae_limiter import (
    CorruptRecordError,
    IncompatibleSchemaError,
    NamespaceNotFoundError,
    Repository,
    VersionMismatchError,
    __version__,
)
from zae_limiter.records import keys, version
from zae_limiter.records.algebra import Key, Write
from zae_limiter.repository.backend import check_compatibility
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.sync import BlockingRepository
from zae_limiter.testing import Harness, ManualClock

RISING = [
    "0.1", "0.9.9", "0.10.0", "1.0.0.dev0", "1.0.0.dev3+gabc", "1.0.0a1", "1.0.0-beta.2", "1.0.0rc1", "1.0.0",
    "1.0.0.post1", "1.0.1", "1.9", "1.10", "2", "10.0.0",
]  # fmt: skip


def test_versions_compare_as_numbers_and_before_their_release() -> None:
    found = [version.order(text) for text in RISING]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert version.order("v1.0") == version.order("1.0.0") == version.order("1.0.0+local.7")


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=4), st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_numbers_decide(left: list[int], right: list[int]) -> None:
    padded = [numbers + [0] * (4 - len(numbers)) for numbers in (left, right)]
    orders = [version.order(".".join(map(str, numbers))) for numbers in (left, right)]
    assert (orders[0] < orders[1]) == (padded[0] < padded[1])


@pytest.mark.parametrize("text", ["", "x", "1..2", "1.0.0!", "-1", "1.2.3.4.5", None, 1, "1.0 ", "9" * 50])
def test_what_is_no_version(text: object) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        version.order(text)


def test_the_examples() -> None:
    assert doctest.testmod(version).failed == 0


@pytest.mark.parametrize(
    ("attr", "value"),
    [
        ("schema_version", 1),
        ("schema_version", "one"),
        ("client_min_version", ""),
        ("lambda_version", "latest"),
        ("audit_retention_days", 0),
        ("audit_retention_days", "90"),
        ("audit_retention_days", True),
    ],
)
def test_a_record_that_cannot_be_read_is_damaged(attr: str, value: object) -> None:
    with pytest.raises(CorruptRecordError, match=f"{attr} is .*upgrade"):
        version.decode({attr: value})


def test_what_is_stamped_is_read_back() -> None:
    deployed = version.Deployed("1.2.0", "1.0.0", "1.2.3", 30)
    assert version.decode(dict(version.stamp(deployed).put)) == deployed
    assert version.decode(None) == version.decode({}) == version.Deployed()


async def stamped(repo: Repository, **put: object) -> None:
    """State what is given, and all else as this client would."""
    await repo._backend.store.commit([Write(version.KEY, (), {**version.stamp(version.Deployed()).put, **put})])


REFUSED: list[tuple[dict[str, object], type[Exception], str]] = [
    ({"schema_version": "2.0.0", "client_min_version": "2.0.0"}, IncompatibleSchemaError, "2.0.0.*1.0.0.*Install"),
    ({"client_min_version": "99.1.0"}, IncompatibleSchemaError, f"99.1.0 or later; this is {__version__}"),
    (
        {"schema_version": "0.10.0"},
        VersionMismatchError,
        "0.x, schema 0.10.0.*layout of zae-limiter 1.0.*zae-limiter upgrade",
    ),
    ({"schema_version": 7}, CorruptRecordError, "cannot be read"),
]


@pytest.mark.parametrize("registered", [False, True], ids=["new", "known"])
async def test_data_that_do_not_fit_are_refused(harness: Harness, registered: bool) -> None:
    if registered:
        await harness.repository().get_entity("key")
    for put, kind, text in REFUSED:
        repo = harness.repository()
        await stamped(repo, **put)
        with pytest.raises(kind, match=text):
            await repo.get_entity("key")
        found = (await repo._backend.read([keys.namespace("default")], repo._backend.deadline()))[0]
        assert (found is not None) == registered


async def test_schemas_of_the_same_major_number_fit(harness: Harness) -> None:
    for schema in ("1.0.0", "1.7.3", "1.0.0rc1"):
        repo = harness.repository()
        await stamped(repo, schema_version=schema)
        assert await repo.get_entity("key") is None


@pytest.mark.parametrize("sk", ["#VERSION", "#CONFIG", "#RESOURCES"])
def test_each_record_without_a_namespace_is_a_sign(sk: str) -> None:
    store = MemoryStore(ManualClock())
    run(store.commit([Write(Key("SYSTEM#", sk), (), {"a": 1})]))
    with pytest.raises(VersionMismatchError):
        run(BlockingRepository(store).get_entity("key"))


async def test_data_without_a_namespace_are_not_started_beside(harness: Harness) -> None:
    store = harness.store()
    await store.commit([Write(Key("SYSTEM#", "#VERSION"), (), {"schema_version": "0.5.0"})])
    for name in ("default", "blue"):
        with pytest.raises(VersionMismatchError, match=r"before namespaces.*zae-limiter upgrade"):
            await harness.repository(namespace=name).get_entity("key")
        with pytest.raises(VersionMismatchError, match="before namespaces"):
            await harness.repository().register_namespace(name)
    assert (await store.read([keys.namespace("default")])) == [None]
    _, problem = await check_compatibility(store.read, "default")
    assert isinstance(problem, VersionMismatchError)


async def test_a_namespace_of_another_layout_waits_for_its_upgrade(harness: Harness) -> None:
    record = {"namespace_name": "default", "namespace_id": "abc", "status": "active"}
    await harness.store().commit([Write(keys.namespace("default"), (), record)])
    repo = harness.repository()
    works = (repo.get_entity("key"), repo.register_namespace("default"), repo.list_namespaces())
    for each in works:
        with pytest.raises(VersionMismatchError, match="older layout"):
            await each


async def test_looking_registers_nothing(harness: Harness) -> None:
    repo = harness.repository()
    verdict = await check_compatibility(repo._backend.store.read, "default")
    assert verdict == (version.Deployed(), None)
    with pytest.raises(NamespaceNotFoundError):
        await repo.get_namespace("default")


async def test_an_aggregator_of_another_version_is_told_of_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        repo = harness.repository()
        await stamped(repo, lambda_version="0.3.0")
        for _ in range(3):
            await repo.get_entity("key")
            repo._backend.leave_namespace()
    (record,) = [each for each in caplog.records if each.name == "zae_limiter"]
    assert "0.3.0" in record.getMessage()
    assert __version__ in record.getMessage()
    assert "upgrade --lambda-only" in record.getMessage()


async def test_an_aggregator_of_this_version_needs_no_word(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    repo = harness.repository()
    await stamped(repo, lambda_version=__version__)
    await repo.get_entity("key")
    assert not [each for each in caplog.records if each.name == "zae_limiter"]


async def test_the_record_says_how_long_audit_events_are_kept(harness: Harness) -> None:
    for days in (90, 7):
        repo = harness.repository()
        if days != 90:
            await stamped(repo, audit_retention_days=days)
        await repo.create_entity(f"key-{days}")
        ns = await repo._backend.ns(repo._backend.deadline())
        (event,) = await repo.get_audit_events(f"key-{days}")
        key = keys.audit(ns, f"key-{days}", event.event_id)
        image = (await repo._backend.read([key], repo._backend.deadline()))[0]
        assert image is not None
        assert image["ttl"] == -(-harness.clock.now_ms() // 1000) + days * 86_400
