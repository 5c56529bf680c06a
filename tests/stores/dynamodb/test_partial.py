"""Half-done work and lost races, told to the DynamoDB store by a client that answers from a script."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.aws.strict import complaints
from zae_limiter import RateLimiterUnavailable, ValidationError
from zae_limiter.records.algebra import PRESENT, Committed, Conflict, Guard, Key, Page, Query, Write
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.answers import Refused
from zae_limiter.stores.dynamodb.client import Client, Stats
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.values import encode_item
from zae_limiter.testing import ManualClock

ONE, TWO, THREE = (Key("p", f"#{number}") for number in range(3))


def outcome(store: DynamoStore, *writes: Write) -> Committed | Conflict:
    return run(store.commit(writes))


class Scripted:
    """A client that answers what it is told to and notes what it is asked."""

    table = "table"
    region = "us-east-1"
    timeout = 5.0

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.clock = ManualClock()
        self.answers = deque(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.pauses: list[float] = []
        self.repeatable = False
        self.connections = SimpleNamespace(sockets=self)

    async def call(
        self, operation: str, request: Mapping[str, Any], *, timeout: float | None = None, repeatable: bool = False
    ) -> dict[str, Any]:
        assert list(complaints(operation, request)) == []
        assert request["ReturnConsumedCapacity"] == "TOTAL"
        assert operation == "DeleteItem" or repeatable == (operation not in ("UpdateItem", "PutItem"))
        self.repeatable = repeatable
        self.asked.append((operation, dict(request)))
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def prepare(self) -> None:
        pass

    close = prepare
    stats = Stats()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def scripted(*answers: dict[str, Any] | Exception) -> tuple[DynamoStore, Scripted]:
    client = Scripted(*answers)
    return DynamoStore(cast(Client, client)), client


def items(*keys: Key, **attributes: Any) -> list[dict[str, Any]]:
    return [encode_item(key, attributes) for key in keys]


def bare(*keys: Key) -> list[dict[str, Any]]:
    return [encode_item(key, {}) for key in keys]


def cancelled(*reasons: dict[str, Any]) -> Refused:
    return Refused("TransactionCanceledException", {"CancellationReasons": list(reasons)})


def test_keys_left_undone_are_asked_for_again() -> None:
    left = {"table": {"Keys": bare(TWO), "ConsistentRead": True}}
    store, client = scripted(
        {"Responses": {"table": items(ONE, n=1)}, "UnprocessedKeys": left},
        {"Responses": {"table": []}, "UnprocessedKeys": left},
        {"Responses": {"table": items(TWO, n=2)}},
    )
    assert run(store.read([ONE, TWO, ONE])) == [{"n": 1}, {"n": 2}, {"n": 1}]
    assert [request["RequestItems"]["table"]["Keys"] for _, request in client.asked] == [
        bare(ONE, TWO),
        bare(TWO),
        bare(TWO),
    ]
    assert len(client.pauses) == 2
    assert all(0 < pause <= 1 for pause in client.pauses)


class Ahead(Scripted):
    """A client whose host is days ahead, and knows it from its first answer on."""

    async def call(self, *args: Any, **options: Any) -> dict[str, Any]:
        answer = await super().call(*args, **options)
        self.clock.set_ms(99_000)
        return answer


def test_what_was_read_is_judged_by_the_clock_as_the_answer_has_set_it() -> None:
    item = items(ONE, n=1, ttl=100, GSI1PK="p", GSI1SK="s")[0]
    image = {"n": 1, "ttl": 100, "GSI1PK": "p", "GSI1SK": "s"}
    store = DynamoStore(cast(Client, Ahead({"Item": item})))
    assert run(store.read([ONE])) == [image]
    for query in (Query("p"), Query("p", gsi="GSI1")):
        store = DynamoStore(cast(Client, Ahead({"Items": [item]})))
        assert run(store.query(query)) == Page(((ONE, image),), None)


def test_deletes_left_undone_are_sent_again() -> None:
    left = {"table": [{"DeleteRequest": {"Key": bare(TWO)[0]}}]}
    store, client = scripted({"UnprocessedItems": left}, {})
    assert outcome(store, Write(ONE, delete=True), Write(TWO, delete=True)) == Committed((None, None))
    assert client.asked[1][1]["RequestItems"] == left
    assert len(client.pauses) == 1


def test_a_verb_has_one_deadline_for_all_its_calls() -> None:
    store, client = scripted({"Responses": {}, "UnprocessedKeys": {"table": {"Keys": bare(TWO)}}})
    with pytest.raises(RateLimiterUnavailable, match="within 1e-09 s"):
        run(store.read([ONE, TWO], timeout=1e-9))
    assert client.asked == []


def test_a_transaction_in_the_way_is_waited_for_while_another_write_takes_its_form() -> None:
    expired = items(TWO, n=1, ttl=1)[0]
    reasons = ({"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed", "Item": expired})
    store, client = scripted(cancelled(*reasons), {}, {"Item": items(ONE, n=2)[0]})
    assert outcome(store, Write(ONE, add={"n": 1}), Write(TWO, add={"n": 1})) == Committed(({"n": 2}, {"n": 1}))
    (first, second) = (request["TransactItems"] for _, request in client.asked[:2])
    assert [list(item) for item in first] == [["Update"], ["Update"]]
    assert [list(item) for item in second] == [["Update"], ["Put"]]
    tokens = {request["ClientRequestToken"] for _, request in client.asked[:2]}
    assert len(tokens) == 2, "another request is another token"
    assert len(client.pauses) == 1


def test_a_record_that_comes_and_goes_is_not_chased_for_ever() -> None:
    there, gone = items(ONE, n=1)[0], items(ONE, n=1, ttl=1)[0]
    answers = [Refused("ConditionalCheckFailedException", {"Item": item}) for item in (gone, there) * 10]
    store, client = scripted(*answers)
    with pytest.raises(RateLimiterUnavailable, match="too much contention on"):
        outcome(store, Write(ONE, add={"n": 1}))
    assert len(client.asked) < 20


def test_a_delete_may_be_repeated_only_if_it_is_blind() -> None:
    store, client = scripted({}, {})
    outcome(store, Write(ONE, delete=True))
    assert client.repeatable
    outcome(store, Write(ONE, (PRESENT,), delete=True))
    assert not client.repeatable, "the second one would find nothing and take it for a lost race"


def test_what_dynamodb_compares_in_another_way_is_a_conflict_and_no_loop() -> None:
    """True equals 1 here and not there; the form was right, so sending it again changes nothing."""
    there = items(ONE, n=1)[0]
    store, client = scripted(Refused("ConditionalCheckFailedException", {"Item": there}))
    assert outcome(store, Write(ONE, (Guard("n", "=", True),), add={"n": 1})) == Conflict({ONE: {"n": 1}})
    assert len(client.asked) == 1


def test_reads_are_consistent_where_they_can_be() -> None:
    store, client = scripted({}, {"Responses": {}}, {"Items": []}, {"Items": []})
    run(store.read([ONE]))
    run(store.read([ONE, TWO]))
    run(store.query(Query("p")))
    run(store.query(Query("p", gsi="GSI1")))
    one, two, table, index = (request for _, request in client.asked)
    assert one["ConsistentRead"] is two["RequestItems"]["table"]["ConsistentRead"] is table["ConsistentRead"] is True
    assert "ConsistentRead" not in index, "an index has no consistent reads"


def test_a_page_is_filled_past_expired_records_and_ends_exactly() -> None:
    start = bare(TWO)[0]
    store, client = scripted(
        {"Items": items(ONE, TWO, ttl=1), "LastEvaluatedKey": start},
        {"Items": items(THREE, n=1), "LastEvaluatedKey": bare(THREE)[0]},
        {"Items": []},
    )
    assert run(store.query(Query("p", limit=1))) == Page(((THREE, {"n": 1}),), None)
    assert [request["Limit"] for _, request in client.asked] == [2, 2, 1]
    assert client.asked[1][1]["ExclusiveStartKey"] == start


@pytest.mark.parametrize(
    "found",
    [
        [],
        items(ONE, GSI2PK="g", GSI2SK="moved"),
        items(ONE, GSI2PK="other", GSI2SK="s"),
        items(ONE, n=1),
        items(ONE, GSI2PK="g", GSI2SK="s", ttl=1),
    ],
    ids=["deleted", "moved", "another partition", "left the index", "expired"],
)
def test_an_index_entry_that_is_out_of_date_shows_nothing(found: Sequence[dict[str, Any]]) -> None:
    entry = items(ONE, GSI2PK="g", GSI2SK="s")[0]
    store, client = scripted({"Items": [entry]}, {"Item": found[0]} if found else {})
    assert run(store.query(Query("g", gsi="GSI2"))) == Page((), None)
    assert [operation for operation, _ in client.asked] == ["Query", "GetItem"]


@pytest.mark.parametrize("bounds", [{"start": "b", "end": "a"}, {"prefix": "b", "end": "a"}, {"end": ""}], ids=str)
def test_an_empty_range_asks_nobody(bounds: dict[str, str]) -> None:
    store, _ = scripted()
    assert run(store.query(Query("p", **bounds))) == Page((), None)  # type: ignore[arg-type]  # texts by their names


@pytest.mark.parametrize("cursor", ["", "a", "a\0b", "\0\0", "a\0b\0c\0d", "b\0p\0b"])
def test_a_cursor_of_something_else_is_an_error_before_any_call(cursor: str) -> None:
    store, _ = scripted()
    with pytest.raises(ValidationError, match="not a cursor"):
        run(store.query(Query("p", prefix="a", after=cursor)))


def test_a_cursor_cannot_leave_its_partition() -> None:
    store, client = scripted({"Items": []}, {"Items": []})
    run(store.query(Query("p", after="s\0other\0s")))
    run(store.query(Query("g", gsi="GSI1", after="s\0other\0s")))
    assert client.asked[0][1]["ExclusiveStartKey"]["PK"] == {"S": "p"}
    assert client.asked[1][1]["ExclusiveStartKey"]["GSI1PK"] == {"S": "g"}


@pytest.mark.parametrize(("prefix", "upper"), [("a", "b"), ("a\ud7ff", "a\ue000"), ("a\U0010ffff", "b")])
def test_a_bounded_prefix_ends_where_it_ends(prefix: str, upper: str) -> None:
    store, client = scripted({"Items": []})
    run(store.query(Query("p", prefix=prefix, start=prefix + "x")))
    values = client.asked[0][1]["ExpressionAttributeValues"]
    assert (values[":lower"], values[":upper"]) == ({"S": prefix + "x"}, {"S": upper})


def test_a_record_just_behind_a_bounded_prefix_is_not_in_it() -> None:
    inside, behind = Key("p", "ab"), Key("p", "b")
    store, _ = scripted({"Items": items(inside, behind, n=1)})
    assert run(store.query(Query("p", prefix="a", start="aa"))) == Page(((inside, {"n": 1}),), None)
