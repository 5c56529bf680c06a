"""The wire itself: it passes on what it sees, notes all of it, and does what it is asked to."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.support.aws import engine
from tests.support.aws.plain import Plain
from tests.support.aws.wire import Wire
from tests.support.deadlines import PATIENCE

_COUNT = itertools.count()
LOST = (http.client.RemoteDisconnected, ConnectionError)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire(engine.endpoint()) as made:
        yield made


@pytest.fixture
def client(wire: Wire) -> Iterator[Plain]:
    made = Plain(wire.url)
    yield made
    made.close()


@pytest.fixture
def table(client: Plain) -> str:
    name = f"wire-{time.time_ns()}-{next(_COUNT)}"
    client.table(name)
    return name


def add(client: Plain, table: str, key: str = "k") -> tuple[int, dict[str, object]]:
    return client.call(
        "UpdateItem",
        TableName=table,
        Key={"PK": {"S": key}, "SK": {"S": "s"}},
        UpdateExpression="ADD #n :one",
        ExpressionAttributeNames={"#n": "n"},
        ExpressionAttributeValues={":one": {"N": "1"}},
        ReturnValues="ALL_NEW",
    )


def count(table: str, key: str = "k") -> int:
    """What the engine itself says."""
    direct = Plain(engine.endpoint())
    _, answer = direct.call("GetItem", TableName=table, Key={"PK": {"S": key}, "SK": {"S": "s"}}, ConsistentRead=True)
    direct.close()
    return int(answer["Item"]["n"]["N"]) if "Item" in answer else 0


def test_every_request_is_noted_with_its_answer(wire: Wire, client: Plain, table: str) -> None:
    mark = wire.mark()
    assert add(client, table)[0] == 200
    client.call("GetItem", TableName="nowhere", Key={"PK": {"S": "k"}, "SK": {"S": "s"}})
    written, refused = wire.calls(since=mark)
    assert wire.operations(since=mark) == ["UpdateItem", "GetItem"]
    assert wire.operations()[0] == "CreateTable"
    assert (written.status, refused.status) == (200, 400)
    assert (written.reads, refused.reads) == (False, True)
    assert written.request["TableName"] == table
    assert written.answer["Attributes"]["n"] == {"N": "1"}
    assert "ResourceNotFound" in refused.answer["__type"]
    assert written.arrived <= written.answered <= refused.arrived
    assert written.sent > 100 < written.received


def test_connections_are_kept_and_told_apart(wire: Wire, client: Plain, table: str) -> None:
    mark = wire.mark()
    add(client, table)
    add(client, table)
    other = Plain(wire.url)
    add(other, table)
    other.close()
    first, second, third = (call.connection for call in wire.calls(since=mark))
    assert first == second != third


def test_a_lost_answer_belongs_to_a_write_that_was_applied(wire: Wire, client: Plain, table: str) -> None:
    wire.lose(operation="UpdateItem")
    with pytest.raises(LOST):
        add(client, table)
    lost = wire.calls()[-1]
    assert (lost.status, lost.delivered) == (200, False)
    assert count(table) == 1
    assert add(client, table)[1]["Attributes"] == {"PK": {"S": "k"}, "SK": {"S": "s"}, "n": {"N": "2"}}


def test_a_dropped_request_never_arrives(wire: Wire, client: Plain, table: str) -> None:
    wire.drop(times=2)
    for _ in range(2):
        with pytest.raises(LOST):
            add(client, table)
    assert [(call.status, call.delivered) for call in wire.calls()[-2:]] == [(0, False)] * 2
    assert count(table) == 0


def test_an_answer_can_be_kept_back(wire: Wire, client: Plain, table: str) -> None:
    hold = wire.hold(operation="UpdateItem")
    heard: list[int] = []
    caller = threading.Thread(target=lambda: heard.append(add(client, table)[0]))
    caller.start()
    assert hold.reached.wait(PATIENCE)
    assert (count(table), heard) == (1, [])
    hold.release()
    caller.join()
    assert heard == [200]


def test_requests_that_overlap_meet_and_others_do_not(wire: Wire, client: Plain, table: str) -> None:
    meeting = wire.together(2, operation="UpdateItem")
    mark = wire.mark()
    other = Plain(wire.url)
    callers = [threading.Thread(target=add, args=(who, table)) for who in (client, other)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    other.close()
    one, two = wire.calls(since=mark)
    assert meeting.met
    assert one.overlaps(two)
    assert two.overlaps(one)

    mark = wire.mark()
    add(client, table)
    add(client, table)
    one, two = wire.calls(since=mark)
    assert not one.overlaps(two)


def test_errors_come_instead_of_the_engine_s_answer(wire: Wire, client: Plain, table: str) -> None:
    wire.instead(500, "InternalServerError")
    wire.throttle(operation="GetItem")
    assert add(client, table)[0] == 500
    assert add(client, table)[0] == 200, "the second fault is for another operation"
    status, answer = client.call("GetItem", TableName=table, Key={"PK": {"S": "k"}, "SK": {"S": "s"}})
    assert status == 400
    assert answer["__type"].endswith("#ProvisionedThroughputExceededException")
    assert count(table) == 1


def test_what_was_asked_for_can_be_taken_back(wire: Wire, client: Plain, table: str) -> None:
    wire.lose(times=5)
    wire.heal()
    assert add(client, table)[0] == 200


def test_down_and_up_again_at_the_same_place(wire: Wire, client: Plain, table: str) -> None:
    url = wire.url
    wire.down()
    with pytest.raises(LOST):
        add(client, table)
    with pytest.raises(ConnectionRefusedError):
        add(client, table)
    wire.up()
    assert wire.url == url
    assert add(client, table)[0] == 200


def test_the_engine_s_clock_is_whatever_the_test_says(wire: Wire, client: Plain, table: str) -> None:
    wire.date = lambda: 1_800_000_000.9
    add(client, table)
    assert client.date is not None
    assert parsedate_to_datetime(client.date).timestamp() == 1_800_000_000
    wire.shift(-3600)
    before = time.time()
    add(client, table)
    assert -3602 <= parsedate_to_datetime(client.date).timestamp() - before <= -3590


def test_pages_can_be_made_small(wire: Wire, client: Plain, table: str) -> None:
    for key in ("a", "b", "c"):
        client.call("PutItem", TableName=table, Item={"PK": {"S": "p"}, "SK": {"S": key}})
    wish: dict[str, Any] = {
        "TableName": table,
        "KeyConditionExpression": "#p = :p",
        "ExpressionAttributeNames": {"#p": "PK"},
        "ExpressionAttributeValues": {":p": {"S": "p"}},
    }
    assert client.call("Query", **wish)[1]["Count"] == 3
    wire.page = 2
    _, answer = client.call("Query", **wish)
    assert (answer["Count"], answer["LastEvaluatedKey"]["SK"]) == (2, {"S": "b"})
    assert client.call("Query", **wish, Limit=1)[1]["Count"] == 1
