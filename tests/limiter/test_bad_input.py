"""Bad input: one specific error with field, value and reason, before anything is asked of the store.

That nothing is asked is counted, on a limiter that has not even read its namespace yet.
"""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from tests.support.acquiring import take
from zae_limiter import (
    EntityNotFoundError,
    InvalidIdentifierError,
    InvalidNameError,
    Limit,
    RateLimiter,
    ValidationError,
)
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness

RPM = [Limit.per_minute("rpm", 100)]
IDS: list[Any] = ["", "x" * 257, "a#b", "a\nb", "a\x00b", "\x7f", "\u2028", "\ud800", None, 5, b"key", ["key"], True]
NAMES: list[Any] = ["", "x" * 129, "a#b", "a b", "1st", "-a", "_a", "a\n", "é", "\ud800", None, 5, b"gpt", ["gpt"]]

Call = Callable[[RateLimiter, Any], Awaitable[object]]


class Fresh:
    """A limiter on a counting store that has never been used."""

    def __init__(self) -> None:
        harness = Harness(lambda clock, blocking: MemoryStore(clock), blocking=True)
        self.store = FaultyStore(harness.store())
        self.limiter = harness.limiter(self.store)
        self.run = harness.run

    def refuses(self, work: Awaitable[object], kind: type[ValidationError] | None = ValidationError) -> ValidationError:
        """The error that ``work`` ends with; of this very type (None: any), complete, and before any I/O."""

        async def awaited() -> None:
            await work

        with pytest.raises(ValidationError) as caught:
            self.run(awaited())
        assert kind is None or type(caught.value) is kind
        assert caught.value.field
        assert caught.value.reason
        assert isinstance(caught.value, ValueError)
        assert not self.store.calls, "the store was asked"
        return caught.value


async def enter(limiter: RateLimiter, entity: Any = "key", resource: Any = "gpt-4", cost: Any = None, **o: Any) -> None:
    async with limiter.acquire(entity, resource, {"rpm": 1} if cost is None else cost, **o):
        raise AssertionError("granted")


WITH_ENTITY: dict[str, Call] = {
    "acquire": lambda limiter, bad: enter(limiter, bad, limits=RPM),
    "available": lambda limiter, bad: limiter.available(bad, "gpt-4"),
    "time_until_available": lambda limiter, bad: limiter.time_until_available(bad, "gpt-4", {"rpm": 1}),
    "get_status": lambda limiter, bad: limiter.get_status(bad, "gpt-4"),
    "create_entity": lambda limiter, bad: limiter.create_entity(bad),
    "update_entity": lambda limiter, bad: limiter.update_entity(bad, name="n"),
    "get_entity": lambda limiter, bad: limiter.get_entity(bad),
    "get_children": lambda limiter, bad: limiter.get_children(bad),
    "delete_entity": lambda limiter, bad: limiter.delete_entity(bad),
    "get_buckets": lambda limiter, bad: limiter.get_buckets(bad),
    "reset_bucket": lambda limiter, bad: limiter.reset_bucket(bad, "gpt-4"),
    "top_up": lambda limiter, bad: limiter.top_up(bad, "gpt-4", {"rpm": 1}),
    "set_limits": lambda limiter, bad: limiter.set_limits(bad, RPM),
    "get_limits": lambda limiter, bad: limiter.get_limits(bad),
    "delete_limits": lambda limiter, bad: limiter.delete_limits(bad),
    "resolve_limits": lambda limiter, bad: limiter.resolve_limits(bad, "gpt-4"),
    "get_audit_events": lambda limiter, bad: limiter.get_audit_events(bad),
}


@pytest.mark.parametrize("name", WITH_ENTITY)
def test_an_entity_id_that_cannot_be_stored(name: str) -> None:
    for bad in IDS:
        fresh = Fresh()
        error = fresh.refuses(WITH_ENTITY[name](fresh.limiter, bad), InvalidIdentifierError)
        assert error.field == ("parent_id" if name == "get_children" else "entity_id")
        assert error.value == bad


@pytest.mark.parametrize("subject", ["$RESOURCE:a#b", "$RESOURCE:", "$x\n", "$\ud800"])
def test_an_audit_subject_that_cannot_be(subject: str) -> None:
    fresh = Fresh()
    fresh.refuses(fresh.limiter.get_audit_events(subject), InvalidIdentifierError)


@pytest.mark.parametrize("taken", ["$SYSTEM", "$RESOURCE:gpt-4", "$NAMESPACE:prod"])
def test_an_entity_id_that_the_audit_log_uses(taken: str) -> None:
    fresh = Fresh()
    assert "reserved" in fresh.refuses(fresh.limiter.create_entity(taken), InvalidIdentifierError).reason


@pytest.mark.parametrize("fine", ["a@example.org", "/v1/users/7", "2001:db8::1", "a:b", "ключ", "x" * 256, "{}", " "])
async def test_an_entity_id_that_is_fine(harness: Harness, fine: str) -> None:
    limiter = harness.limiter()
    await limiter.create_entity(fine)
    async with limiter.acquire(fine, "gpt-4", {"rpm": 1}, limits=RPM) as lease:
        assert lease.available == {"rpm": 99}
    assert (await limiter.get_buckets(fine))[0].entity_id == fine


WITH_RESOURCE: dict[str, Call] = {
    "acquire": lambda limiter, bad: enter(limiter, "key", bad, limits=RPM),
    "available": lambda limiter, bad: limiter.available("key", bad),
    "time_until_available": lambda limiter, bad: limiter.time_until_available("key", bad, {"rpm": 1}),
    "get_status": lambda limiter, bad: limiter.get_status("key", bad),
    "reset_bucket": lambda limiter, bad: limiter.reset_bucket("key", bad),
    "top_up": lambda limiter, bad: limiter.top_up("key", bad, {"rpm": 1}),
    "set_limits": lambda limiter, bad: limiter.set_limits("key", RPM, bad),
    "get_limits": lambda limiter, bad: limiter.get_limits("key", bad),
    "delete_limits": lambda limiter, bad: limiter.delete_limits("key", bad),
    "resolve_limits": lambda limiter, bad: limiter.resolve_limits("key", bad),
    "set_resource_defaults": lambda limiter, bad: limiter.set_resource_defaults(bad, RPM),
    "get_resource_defaults": lambda limiter, bad: limiter.get_resource_defaults(bad),
    "delete_resource_defaults": lambda limiter, bad: limiter.delete_resource_defaults(bad),
    "get_resource_capacity": lambda limiter, bad: limiter.get_resource_capacity(bad, "rpm"),
    "list_entities_with_custom_limits": lambda limiter, bad: limiter.list_entities_with_custom_limits(bad),
    "register_namespace": lambda limiter, bad: limiter.repository.register_namespace(bad),
    "register_namespaces": lambda limiter, bad: limiter.repository.register_namespaces(["fine", bad]),
    "get_namespace": lambda limiter, bad: limiter.repository.get_namespace(bad),
    "delete_namespace": lambda limiter, bad: limiter.repository.delete_namespace(bad),
}


@pytest.mark.parametrize("name", WITH_RESOURCE)
def test_a_resource_or_namespace_name_that_breaks_the_rules(name: str) -> None:
    for bad in NAMES:
        if bad == "1st" and "namespace" in name:  # customer numbers are names of namespaces
            continue
        fresh = Fresh()
        error = fresh.refuses(WITH_RESOURCE[name](fresh.limiter, bad), InvalidNameError)
        assert error.value == bad


@pytest.mark.parametrize("bad", [*NAMES, "a/b", "wcu"])
def test_a_limit_name_that_breaks_the_rules(bad: Any) -> None:
    with pytest.raises(InvalidNameError):
        Limit.per_minute(bad, 1)


@pytest.mark.parametrize("bad", [0, -1, 0.5, 1.0, float("nan"), float("inf"), True, "1", None, 10**13, 10**400])
@pytest.mark.parametrize("field", ["capacity", "refill_amount", "refill_period_seconds"])
def test_numbers_of_a_limit(field: str, bad: Any) -> None:
    good: dict[str, Any] = {"name": "rpm", "capacity": 1, "refill_amount": 1, "refill_period_seconds": 1}
    with pytest.raises(ValidationError) as caught:
        Limit(**{**good, field: bad})
    assert caught.value.field == field


@pytest.mark.parametrize("bad", [-1, 0.0005, 1.0, True, False, float("nan"), float("inf"), 10**13, 10**400, "1", None])
def test_an_amount_that_is_no_count_of_tokens(bad: Any) -> None:
    fresh = Fresh()
    assert fresh.refuses(enter(fresh.limiter, cost={"rpm": bad}, limits=RPM)).field == "consume['rpm']"
    needed = fresh.limiter.time_until_available("key", "gpt-4", {"rpm": bad}, RPM)
    assert fresh.refuses(needed).field == "needed['rpm']"


@pytest.mark.parametrize("bad", [5, "rpm", ["rpm"], {1: 1}, {None: 1}, {("rpm",): 1}])
def test_a_consume_that_is_no_mapping_of_names(bad: Any) -> None:
    fresh = Fresh()
    assert fresh.refuses(enter(fresh.limiter, cost=bad, limits=RPM)).field == "consume"


@pytest.mark.parametrize("where", ["given", "stored"])
def test_a_name_that_no_limit_has(harness: Harness, where: str) -> None:
    async def work() -> None:
        store = FaultyStore(harness.store())
        limiter = harness.limiter(store)
        await limiter.set_system_defaults(RPM)
        limits = RPM if where == "given" else None
        commits = store.calls["commit"]
        with pytest.raises(ValidationError) as caught:
            await enter(limiter, cost={"rpm": 1, "tmp": 5}, limits=limits)
        assert caught.value.field == "consume['tmp']"
        assert caught.value.value == 5
        assert "rpm" in caught.value.reason
        assert store.calls["commit"] == commits
        assert await limiter.available("key", "gpt-4") == {"rpm": 100}
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=limits) as lease:
            for verb in (lease.consume, lease.adjust, lease.release):
                with pytest.raises(ValidationError):
                    await verb(tmp=1)
                with pytest.raises(ValidationError):
                    await verb(rpm=0.5)  # type: ignore[arg-type]  # what is tested
        assert lease.consumed == {"rpm": 1}

    harness.run(work())


BAD_LIMITS: list[Any] = [[], (), RPM[0], "rpm", 5, [None], ["rpm"], [*RPM, *RPM], {"rpm": 1}, [{"name": "rpm"}]]


@pytest.mark.parametrize(
    "call",
    [
        lambda limiter, bad: enter(limiter, limits=bad),
        lambda limiter, bad: limiter.available("key", "gpt-4", bad),
        lambda limiter, bad: limiter.get_status("key", "gpt-4", bad),
        lambda limiter, bad: limiter.set_system_defaults(bad),
        lambda limiter, bad: limiter.set_resource_defaults("gpt-4", bad),
        lambda limiter, bad: limiter.set_limits("key", bad),
    ],
    ids=["acquire", "available", "get_status", "system", "resource", "entity"],
)
def test_limits_that_are_no_list_of_limits(call: Call) -> None:
    for bad in BAD_LIMITS:
        fresh = Fresh()
        assert fresh.refuses(call(fresh.limiter, bad)).field == "limits"


BAD_VALUES: dict[str, tuple[str, list[Any], Call]] = {
    "acquire on_unavailable": (
        "on_unavailable",
        ["maybe", "", 5, True],
        lambda limiter, bad: enter(limiter, limits=RPM, on_unavailable=bad),
    ),
    "acquire max_wait": (
        "max_wait",
        [-1, -0.001, float("nan"), float("inf"), "5"],
        lambda limiter, bad: enter(limiter, limits=RPM, max_wait=bad),
    ),
    "acquire timeout": (
        "timeout",
        [0, -1, float("nan"), "5"],
        lambda limiter, bad: enter(limiter, limits=RPM, timeout=bad),
    ),
    "system on_unavailable": (
        "on_unavailable",
        ["maybe", "", 5],
        lambda limiter, bad: limiter.set_system_defaults(RPM, bad),
    ),
    "parent_id": ("parent_id", IDS[:8], lambda limiter, bad: limiter.create_entity("key", parent_id=bad)),
    "self-parent": ("parent_id", ["key"], lambda limiter, bad: limiter.create_entity("key", parent_id=bad)),
    "new self-parent": ("parent_id", ["key"], lambda limiter, bad: limiter.update_entity("key", parent_id=bad)),
    "cascade": ("cascade", [None, 1, "yes"], lambda limiter, bad: limiter.create_entity("key", cascade=bad)),
    "new cascade": ("cascade", [None, 1, "yes"], lambda limiter, bad: limiter.update_entity("key", cascade=bad)),
    "name": ("name", [5, b"n", "\ud800"], lambda limiter, bad: limiter.create_entity("key", name=bad)),
    "metadata": (
        "metadata",
        [[], "text", {1: 2}, {"a": {1: 2}}, {"a": Ellipsis}, {"a": b"x"}, {"a": "\ud800"}, {"a": float("nan")}],
        lambda limiter, bad: limiter.create_entity("key", metadata=bad),
    ),
    "new metadata": ("metadata", [None, []], lambda limiter, bad: limiter.update_entity("key", metadata=bad)),
    "expected_version": (
        "expected_version",
        ["1", 1.5, True],
        lambda limiter, bad: limiter.update_entity("key", name="n", expected_version=bad),
    ),
    "principal": (
        "principal",
        [5, b"me", "\ud800"],
        lambda limiter, bad: limiter.set_system_defaults(RPM, principal=bad),
    ),
    "audit limit": ("limit", [0, -1, 1.5, True, None], lambda limiter, bad: limiter.get_audit_events("key", bad)),
    "usage limit": (
        "limit",
        [0, -1, 1.5, True, None],
        lambda limiter, bad: limiter.get_usage_snapshots("key", limit=bad),
    ),
    "custom limits limit": (
        "limit",
        [0, -1, 1.5, True, "2"],
        lambda limiter, bad: limiter.list_entities_with_custom_limits(limit=bad),
    ),
    "custom limits cursor": (
        "cursor",
        ["garbage", "a\x00b", 5],
        lambda limiter, bad: limiter.list_entities_with_custom_limits(cursor=bad),
    ),
    "usage next_key": (
        "next_key",
        ["garbage", "a\x00b", 5],
        lambda limiter, bad: limiter.get_usage_snapshots("key", next_key=bad),
    ),
    "window_type": ("window_type", ["weekly", ""], lambda limiter, bad: limiter.get_usage_snapshots("k", None, bad)),
    "usage of nobody": ("entity_id", [None], lambda limiter, bad: limiter.get_usage_snapshots(bad)),
    "usage start": (
        "start_time",
        [datetime(2026, 1, 1), "yesterday", 5],  # noqa: DTZ001  # a naive moment is what is tested
        lambda limiter, bad: limiter.get_usage_snapshots("key", start_time=bad),
    ),
    "capacity limit_name": (
        "limit_name",
        ["", "a/b", None],
        lambda limiter, bad: limiter.get_resource_capacity("gpt-4", bad),
    ),
    "namespaces as text": ("", ["prod"], lambda limiter, bad: limiter.repository.register_namespaces(bad)),
}


@pytest.mark.parametrize(
    ("field", "bad", "call"),
    [
        pytest.param(field, bad, call, id=f"{name}={ascii(bad)[:30]}")
        for name, (field, values, call) in BAD_VALUES.items()
        for bad in values
    ],
)
def test_other_arguments(field: str, bad: Any, call: Call) -> None:
    fresh = Fresh()
    error = fresh.refuses(call(fresh.limiter, bad), None)
    assert error.field.startswith(field)


async def test_an_unknown_parent_costs_a_read_and_changes_nothing(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.create_entity("org")
    before = store.calls.copy()
    with pytest.raises(EntityNotFoundError) as caught:
        await limiter.create_entity("key", parent_id="nobody")
    assert caught.value.entity_id == "nobody"
    with pytest.raises(EntityNotFoundError):
        await limiter.update_entity("org", parent_id="nobody")
    assert store.calls["commit"] == before["commit"]
    assert await limiter.get_entity("key") is None


def test_a_long_value_is_shortened_in_the_message_and_kept_in_the_error() -> None:
    with pytest.raises(InvalidIdentifierError) as caught:
        Fresh().run(enter(Fresh().limiter, "x" * 5_000, limits=RPM))
    assert len(str(caught.value)) < 300
    assert caught.value.value == "x" * 5_000
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.field, again.reason) == (InvalidIdentifierError, "entity_id", caught.value.reason)


@pytest.mark.parametrize("amount", [0.0005, 1.0, float("nan"), float("inf"), True, "1", None, -1])
async def test_amounts_that_would_poison_a_bucket_are_refused(harness: Harness, amount: Any) -> None:
    limiter = harness.limiter()
    await take(limiter, {"rpm": 1}, limits=RPM)
    with pytest.raises(ValidationError):
        await take(limiter, {"rpm": amount}, limits=RPM, on_unavailable="allow")
    assert await limiter.available("key", "gpt-4", RPM) == {"rpm": 99}


@pytest.mark.parametrize("bad", [(), [], ("gpt-4",), ("gpt-4", "gpt-5"), ["gpt-4"], {1, 2}, {"gpt-4": {"rpm": 1}}])
def test_several_resources_are_a_mapping_without_amounts_besides(bad: Any) -> None:
    for cost in ({"rpm": 1}, {"rpm@gpt-4": 1}, {}):
        fresh = Fresh()
        fresh.refuses(enter(fresh.limiter, "key", bad, cost, limits=RPM), None)
    if not isinstance(bad, dict):
        for ask in (fresh.limiter.available, fresh.limiter.get_status):
            fresh.refuses(ask("key", bad), None)
        fresh.refuses(fresh.limiter.time_until_available("key", bad, {"rpm": 1}), None)


async def test_the_names_of_limits_of_several_resources_cannot_be_passed(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    async with limiter.acquire("key", {"a": {"rpm": 1}, "b": {"rpm": 1}}):
        pass
    with pytest.raises(ValidationError, match="resource = "):
        await enter(limiter, "key", ("a", "b"), {"rpm@a": 1})
    with pytest.raises(ValidationError, match=r"'rpm@a'.* there are rpm$"):
        await enter(limiter, "key", "a", {"rpm@a": 1})
    with pytest.raises(ValidationError, match=r"'a'.*'rpm@b'.* there are rpm$"):
        async with limiter.acquire("key", {"a": {"rpm@b": 1}, "b": {"rpm": 1}}):
            raise AssertionError("granted")


@pytest.mark.parametrize("bad", [None, 5, True, {"key": 1}, {"key"}, object(), [None], [5], ["a#b"], [["key"]]])
def test_check_availability_of_what_is_no_entity(bad: Any) -> None:
    fresh = Fresh()
    fresh.refuses(fresh.limiter.check_availability(bad, "gpt-4", {"rpm": 1}), InvalidIdentifierError)


@pytest.mark.parametrize(
    "bad", [None, 5, True, {1, 2}, {"gpt-4"}, object(), [None], [["gpt-4"]], [{1}], {5: {"rpm": 1}}]
)
def test_check_availability_of_what_is_no_resource(bad: Any) -> None:
    fresh = Fresh()
    fresh.refuses(fresh.limiter.check_availability("key", bad), InvalidNameError)


@pytest.mark.parametrize("bad", ["", "a b", 5, ["batch"], {}, "b@c"])
def test_a_priority_that_cannot_be(bad: Any) -> None:
    for ask in ("available", "get_status", "check_availability"):
        fresh = Fresh()
        assert fresh.refuses(getattr(fresh.limiter, ask)("key", "gpt-4", priority=bad), None).field == "priority"
    fresh.refuses(fresh.limiter.time_until_available("key", "gpt-4", {"rpm": 1}, priority=bad), None)
