"""Keys: every record has one of its own, whatever it is named, and a key can be taken apart in one way only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given, strategies as st

from zae_limiter import InvalidIdentifierError, Limit, ValidationError
from zae_limiter.core import names
from zae_limiter.records import keys
from zae_limiter.testing import Harness

NASTY = [
    "a",
    "a/b",
    "/",
    "{}",
    "..",
    "😀",
    "BUCKET",
    "ENTITY",
    "a/BUCKET",
    "STATE",
    "0",
    "SYSTEM",
    "$x",
    ":",
    "e\u0301",
    "é",
]
SPACES = st.text("abcXYZ019_-", min_size=1, max_size=11)
RESOURCES = st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,8}", fullmatch=True)


@st.composite
def ids(draw: st.DrawFn) -> str:
    value = draw(st.sampled_from(NASTY) | st.text(min_size=1, max_size=20))
    try:
        return names.entity_id(value)
    except InvalidIdentifierError:
        assume(False)
        raise


@given(SPACES, ids(), RESOURCES, st.integers(0, 10**6))
def test_a_bucket_key_can_be_taken_apart(space: str, entity_id: str, resource: str, shard: int) -> None:
    key = keys.bucket(space, entity_id, resource, shard)
    assert keys.parse_bucket_pk(key.pk) == (space, entity_id, resource, shard)
    assert key == (f"{space}/BUCKET#{entity_id}#{resource}#{shard}", keys.STATE)


@pytest.mark.parametrize(
    "pk",
    ["", "x", "ns/ENTITY#a", "ns/BUCKET#a#b", "ns/BUCKET#a#b#x", "ns/BUCKET#a#b#1#2", "BUCKET#a#b#1", "ns/BUCKET#a#b#"],
)
def test_other_keys_are_no_buckets(pk: str) -> None:
    with pytest.raises(ValueError, match="is not the partition key of a bucket"):
        keys.parse_bucket_pk(pk)


@given(st.tuples(SPACES, ids(), RESOURCES), st.tuples(SPACES, ids(), RESOURCES))
def test_different_records_have_different_keys(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """Every kind of record, for two sets of names: as many keys as there are records."""
    assert len(kinds(*one) & kinds(*other)) == shared(one, other)


def kinds(space: str, entity_id: str, resource: str) -> set[tuple[str, str]]:
    made = [
        keys.meta(space, entity_id),
        keys.entity_config(space, entity_id, resource),
        keys.entity_config(space, entity_id, names.DEFAULT_RESOURCE),
        keys.bucket(space, entity_id, resource),
        keys.bucket(space, entity_id, resource, 1),
        keys.audit(space, entity_id, "0000000000001-ff"),
        keys.usage(space, entity_id, resource, "hourly", "2026-01-01T00:00:00Z"),
        keys.usage(space, entity_id, resource, "daily", "2026-01-01T00:00:00Z"),
        keys.resource_config(space, resource),
        keys.system_config(space),
        keys.version(space),
        keys.resources(space),
        keys.entity_config_resources(space),
    ]
    assert len(set(made)) == len(made)
    return {(str(key.pk), str(key.sk)) for key in made}


def shared(one: tuple[str, str, str], other: tuple[str, str, str]) -> int:
    """How many records two sets of names have in common: those whose own names are the same."""
    space, who, resource = (mine == yours for mine, yours in zip(one, other, strict=True))
    if not space:
        return 0
    of_space, of_resource, of_entity, of_both = 4, 1 * resource, 3 * who, 5 * (who and resource)
    return of_space + of_resource + of_entity + of_both


def test_audit_subjects_are_no_entities() -> None:
    for subject in (keys.AUDIT_SYSTEM, keys.audit_resource("gpt-4"), keys.audit_namespace("prod")):
        with pytest.raises(InvalidIdentifierError):
            names.entity_id(subject)


def test_the_registry_is_no_namespace_of_users() -> None:
    assert keys.REGISTRY == "_/SYSTEM#"
    assert keys.namespace("prod") == ("_/SYSTEM#", "#NAMESPACE#prod")
    assert keys.nsid("abc") == ("_/SYSTEM#", "#NSID#abc")


ANY_ID = st.text(min_size=1, max_size=30).filter(lambda text: _accepted(names.entity_id, text))
ANY_RESOURCE = st.from_regex(r"[A-Za-z][A-Za-z0-9_./:-]{0,20}", fullmatch=True)


def _accepted(check: Callable[[object], str], text: str) -> bool:
    try:
        return check(text) == text
    except ValidationError:
        return False


@given(ANY_ID, ANY_RESOURCE, ANY_ID, ANY_RESOURCE)
def test_two_buckets_never_share_a_key(entity: str, resource: str, other: str, elsewhere: str) -> None:
    one, two = keys.bucket("ns", entity, resource), keys.bucket("ns", other, elsewhere)
    assert (one == two) == ((entity, resource) == (other, elsewhere))
    assert keys.parse_bucket_pk(one.pk) == ("ns", entity, resource, 0)
    assert (keys.meta("ns", entity) == keys.meta("ns", other)) == (entity == other)
    config, config_two = keys.entity_config("ns", entity, resource), keys.entity_config("ns", other, elsewhere)
    assert (config == config_two) == ((entity, resource) == (other, elsewhere))
    assert (
        len({one.pk, keys.pk_entity("ns", entity), keys.pk_resource("ns", resource), keys.pk_audit("ns", entity)}) == 4
    )


async def test_look_alikes_have_buckets_of_their_own(harness: Harness) -> None:
    limiter = harness.limiter()
    pairs = [
        ("a", "b/c"),
        ("a/b", "c"),
        ("a:b", "c"),
        ("A", "c"),
        ("a", "c"),
        ("a ", "c"),
        ("127.0.0.1", "c"),
        ("é", "c"),
    ]
    for entity, resource in pairs:
        async with limiter.acquire(entity, resource, {"rpm": 100}, [Limit.per_hour("rpm", 100)]):
            pass
