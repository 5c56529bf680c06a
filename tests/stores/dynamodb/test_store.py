"""The DynamoDB store: which calls it makes, and the algebra as its oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.aws.strict import complaints
from tests.support.backends import dynamodb_client, dynamodb_table
from zae_limiter import CorruptRecordError, ValidationError
from zae_limiter.records.algebra import (
    ABSENT,
    NEVER,
    PRESENT,
    TTL,
    Committed,
    Conflict,
    Guard,
    Image,
    Key,
    Write,
    apply_write,
    holds,
    is_live,
)
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb import access
from zae_limiter.stores.dynamodb.client import Client
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.values import encode_item
from zae_limiter.testing import Harness, ManualClock
from zae_limiter.testing.conformance import STORE_CHECKS

ONE, TWO = Key("p", "#1"), Key("p", "#2")
COUNT = iter(range(10**9))


@pytest.fixture(scope="module")
def table() -> Iterator[str]:
    with dynamodb_table() as name:
        yield name


@pytest.fixture
def store(table: str) -> Iterator[DynamoStore]:
    made = DynamoStore(dynamodb_client(table, blocking=True), ManualClock())
    yield made
    run(made.close())


def fresh(count: int = 1) -> list[Key]:
    """Keys that no other test uses."""
    partition = f"p{next(COUNT)}"
    return [Key(partition, f"#{number:03d}") for number in range(count)]


def in_seconds(store: DynamoStore, seconds: int) -> int:
    return store.clock.now_ms() + seconds * 1000


def pass_time(store: DynamoStore, seconds: float) -> None:
    cast(ManualClock, store.clock).advance(seconds)


def calls(store: DynamoStore, work: Callable[[], object]) -> dict[str, int]:
    """What ``work`` asks of DynamoDB."""
    before = store.stats().calls
    work()
    return {
        name: count - before.get(name, 0) for name, count in store.stats().calls.items() if count != before.get(name)
    }


def outcome(store: DynamoStore, *writes: Write) -> Committed | Conflict:
    return run(store.commit(writes))


SINGLE: list[tuple[str, Write, Mapping[str, int], bool]] = [
    ("change", Write(ONE, (Guard("n", "=", 5),), add={"n": 1}), {"UpdateItem": 1}, True),
    ("lost race", Write(ONE, (Guard("n", "=", 4),), add={"n": 1}), {"UpdateItem": 1}, False),
    ("lost create", Write(ONE, (ABSENT,), {"n": 1}), {"PutItem": 1}, False),
    ("create", Write(TWO, (ABSENT,), {"n": 1}), {"PutItem": 1}, True),
    ("add to nothing", Write(TWO, add={"n": 1}), {"UpdateItem": 1}, True),
    ("put off", Write(ONE, add={"n": 1}, expires_at_ms=30_000), {"UpdateItem": 1}, True),
    ("not brought nearer", Write(ONE, add={"n": 1}, expires_at_ms=5_000), {"UpdateItem": 2}, True),
    ("nothing but not nearer", Write(ONE, (PRESENT,), expires_at_ms=5_000), {"UpdateItem": 1}, True),
    ("check", Write(ONE, (Guard("n", "=", 5),)), {"GetItem": 1}, True),
    ("failing check", Write(TWO, (PRESENT,)), {"GetItem": 1}, False),
    ("delete", Write(ONE, delete=True), {"DeleteItem": 1}, True),
    ("guarded delete", Write(ONE, (Guard("n", "=", 4),), delete=True), {"DeleteItem": 1}, False),
    ("delete if absent", Write(TWO, (ABSENT,), delete=True), {"GetItem": 1}, True),
    ("impossible", Write(ONE, (ABSENT, PRESENT), {"n": 1}), {"GetItem": 1}, False),
]


@pytest.mark.parametrize(
    ("write", "expected", "holds_"), [case[1:] for case in SINGLE], ids=[case[0] for case in SINGLE]
)
def test_one_write_is_one_call(store: DynamoStore, write: Write, expected: Mapping[str, int], holds_: bool) -> None:
    there, nowhere = fresh(2)
    outcome(store, Write(there, (), {"n": 5}, expires_at_ms=in_seconds(store, 10)))
    later = write.expires_at_ms and store.clock.now_ms() + write.expires_at_ms
    write = write._replace(key=there if write.key == ONE else nowhere, expires_at_ms=later)
    found: list[Committed | Conflict] = []
    assert calls(store, lambda: found.append(outcome(store, write))) == expected
    assert isinstance(found[0], Committed if holds_ else Conflict)


@pytest.mark.parametrize(
    "write", [Write(ONE, add={"n": 1}), Write(ONE, (), {"m": 1}, remove=("n",))], ids=["add", "put"]
)
def test_an_expired_record_is_replaced_in_a_second_call(store: DynamoStore, write: Write) -> None:
    (key,) = fresh()
    outcome(store, Write(key, (), {"n": 5, "old": 1}, expires_at_ms=in_seconds(store, 10)))
    pass_time(store, 10)
    write = write._replace(key=key)
    assert calls(store, lambda: outcome(store, write)) == {"UpdateItem": 1, "PutItem": 1}
    assert run(store.read([key])) == [apply_write(None, write)]


def test_what_a_transaction_asks(store: DynamoStore) -> None:
    one, two, three = fresh(3)
    creates = [Write(key, (ABSENT,), {"n": 1}, expires_at_ms=in_seconds(store, 10)) for key in (one, two)]
    assert calls(store, lambda: outcome(store, *creates)) == {"TransactWriteItems": 1}
    changes = [Write(key, add={"n": 1}) for key in (one, two)]
    assert calls(store, lambda: outcome(store, *changes)) == {"TransactWriteItems": 1, "BatchGetItem": 1}
    lost = [Write(one, (Guard("n", "=", 9),), add={"n": 1}), Write(two, (PRESENT,), add={"n": 1})]
    found: list[Committed | Conflict] = []
    assert calls(store, lambda: found.append(outcome(store, *lost))) == {"TransactWriteItems": 1}
    assert list(found[0].images) == [one], "the conflict tells of the record that stood in the way"
    nearer = [Write(one, (PRESENT,), expires_at_ms=in_seconds(store, 5)), Write(three, add={"n": 1})]
    assert calls(store, lambda: outcome(store, *nearer)) == {"TransactWriteItems": 2, "BatchGetItem": 1}
    pass_time(store, 10)
    again = [Write(one, add={"n": 1}), Write(three, add={"n": 1}), Write(two)]
    found.clear()
    assert calls(store, lambda: found.append(outcome(store, *again))) == {"TransactWriteItems": 2, "BatchGetItem": 1}
    assert found[0] == Committed(({"n": 1}, {"n": 2}, None))


def test_unguarded_checks_ask_for_the_images_only(store: DynamoStore) -> None:
    one, two = fresh(2)
    outcome(store, Write(one, (), {"n": 1}))
    assert calls(store, lambda: outcome(store, Write(one), Write(two))) == {"BatchGetItem": 1}
    assert outcome(store, Write(one), Write(two)) == Committed(({"n": 1}, None))
    assert outcome(store) == Committed(())


def test_many_deletes_go_in_batches_and_too_many_writes_nowhere(store: DynamoStore) -> None:
    keys = fresh(130)
    for start in (0, 100):
        outcome(store, *(Write(key, (ABSENT,), {"n": 1}) for key in keys[start : start + 100]))
    assert calls(store, lambda: run(store.read(keys * 2))) == {"BatchGetItem": 2}
    assert calls(store, lambda: outcome(store, *(Write(key, delete=True) for key in keys))) == {"BatchWriteItem": 6}
    assert run(store.read(keys)) == [None] * 130

    def too_many() -> None:
        with pytest.raises(ValidationError, match="at most 100"):
            outcome(store, *(Write(key, (ABSENT,), {"n": 1}) for key in keys))

    assert calls(store, too_many) == {}


NUMBERS = st.integers(-3, 3)
NAMES = st.sampled_from(["n", "m"])
GUARDS = st.one_of(
    st.builds(Guard, NAMES, st.sampled_from(["=", "<", "<=", ">", ">="]), NUMBERS),
    st.builds(Guard, NAMES, st.just("between"), st.tuples(NUMBERS, NUMBERS)),
    st.sampled_from([PRESENT, ABSENT]),
)
EXPIRIES = st.sampled_from([None, NEVER, 5_000, 15_000])
WRITES = st.builds(
    Write,
    st.just(ONE),
    st.lists(GUARDS, max_size=2).map(tuple),
    st.dictionaries(NAMES, NUMBERS, max_size=2),
    st.dictionaries(NAMES, NUMBERS, max_size=2),
    st.lists(NAMES, max_size=1).map(tuple),
    EXPIRIES,
    st.integers(0, 5).map(lambda chance: chance == 0),
    st.none(),
)
IMAGES = st.none() | st.dictionaries(NAMES, NUMBERS)


@settings(max_examples=120)
@given(write=WRITES, image=IMAGES, life=st.sampled_from([None, -5, 10]), beside=st.booleans())
def test_every_write_does_what_the_algebra_says(
    store: DynamoStore, write: Write, image: Image | None, life: int | None, beside: bool
) -> None:
    """On a record that is missing, live or expired, alone or in a transaction."""
    key, other = fresh(2)
    now_ms = store.clock.now_ms()
    if image is not None:
        image = {**image, "there": 1, **({} if life is None else {TTL: now_ms // 1000 + life})}
        put = {"TableName": store.client.table, "Item": encode_item(key, image)}
        run(store.client.call("PutItem", put))
    live = image if is_live(image, now_ms) else None
    write = write._replace(key=key, expires_at_ms=write.expires_at_ms and now_ms + write.expires_at_ms)
    if live is None and not (write.put or write.add or write.expires_at_ms):
        return  # a record without a single attribute is not worth a rule
    expected = (live if write.is_check else apply_write(live, write)) if holds(live, write.guards) else live
    company = [Write(other, (), {"n": 1})] if beside else []
    found = outcome(store, *company, write)
    assert isinstance(found, Committed) is holds(live, write.guards)
    told = found.images[-1] if isinstance(found, Committed) else found.images[key]
    assert told == expected
    kept = expected if is_live(expected, now_ms) else None
    assert run(store.read([key])) == [kept]


def test_a_damaged_record_is_said_to_be_damaged(store: DynamoStore) -> None:
    text, odd, other = fresh(3)
    outcome(store, Write(text, (), {"n": "text"}))
    for writes in ([Write(text, add={"n": 1})], [Write(text, add={"n": 1}), Write(other, add={"n": 1})]):
        with pytest.raises(CorruptRecordError):
            outcome(store, *writes)
    expiries: list[Any] = ["soon", None, True, []]
    for expiry in expiries:
        item = encode_item(odd, {TTL: expiry, "n": 1})
        run(store.client.call("PutItem", {"TableName": store.client.table, "Item": item}))
        with pytest.raises(CorruptRecordError, match="is no number"):
            run(store.read([odd]))
        with pytest.raises(CorruptRecordError, match="is no number"):
            outcome(store, Write(odd, (Guard("n", "=", 1),), add={"n": 1}))
        outcome(store, Write(odd, delete=True))
        assert run(store.read([odd])) == [None], "deleting it repairs it"


def shape(node: Any, name: str = "") -> str:
    """A request without its values: one of each shape need be checked."""
    if isinstance(node, dict):
        return str({key: shape(value, key) for key, value in node.items()})
    if isinstance(node, list):
        return str({shape(value) for value in node})
    return str(node) if name.endswith("Expression") else type(node).__name__


class Strict(Client):
    """A client that lets only those requests through that the service takes."""

    passed: ClassVar[set[tuple[str, str]]] = set()

    async def call(
        self, operation: str, request: Mapping[str, Any], *, timeout: float | None = None, repeatable: bool = False
    ) -> dict[str, Any]:
        """Check it, then call."""
        if (operation, shape(dict(request))) not in self.passed:
            found = list(complaints(operation, request))
            assert not found, f"{operation}: {found}"
            self.passed.add((operation, shape(dict(request))))
        return await super().call(operation, request, timeout=timeout, repeatable=repeatable)


def test_every_request_of_the_conformance_suite_is_valid(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "CAPACITY_DETAIL", "INDEXES")
    made: list[DynamoStore] = []

    def opened(clock: Any, blocking: bool) -> DynamoStore:
        client = dynamodb_client(table, blocking=blocking)
        client.__class__ = Strict
        made.append(DynamoStore(client, clock))
        return made[-1]

    for check in STORE_CHECKS:
        if check.name != "commits.race_of_several_writes":  # a declared deviation
            check.run(Harness(opened, blocking=True))
    for store in made:
        run(store.close())
