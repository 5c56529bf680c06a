"""Answers in good form that are none of DynamoDB's to this request: too many, too late, too large, too far off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from tests.stores.dynamodb.test_hostile_answers import (
    ONE,
    RECORD,
    TWO,
    Use,
    add,
    delete_two,
    put,
    put_two,
    query,
    query_index,
    read_one,
    read_two,
    record,
)  # fmt: skip
from tests.support.modes import MODES
from tests.support.paths import CERTIFICATE
from tests.support.scripted_server import CHUNKED, Driven, ScriptedServer, Step, driven, isolate, refusal, reply
from zae_limiter import AccessDeniedError, InfrastructureError, RateLimiterUnavailable
from zae_limiter.records.algebra import Key
from zae_limiter.stores.dynamodb.answers import DateClock
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.wire import Broken, Reader
from zae_limiter.testing import ManualClock

NOW = 1_800_000_000_000
FAR = NOW + 3_600_000
FAILED = "ConditionalCheckFailedException"
CANCELLED = "TransactionCanceledException"
REASONS = [{"Code": "ConditionalCheckFailed"}, {"Code": "None"}]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


def use(server: ScriptedServer, subject: Driven, verb: Use, *steps: Step) -> object:
    """What a store makes of answers, the last of which comes again and again."""
    server.script.extend([*steps, *steps[-1:] * 9])
    return subject.run(verb(DynamoStore(subject.client)))


# What came behind an answer


def serve_two_records(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Answer each request of a connection over TLS with two answers, in two records that leave together."""
    try:
        connection, _ = listener.accept()
    except OSError:  # the listener was closed
        return
    threading.Thread(target=serve_two_records, args=(listener, context), daemon=True).start()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)

    def until_done(step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536) or b"\0")  # what is no TLS ends it

    with connection, contextlib.suppress(OSError):
        until_done(tls.do_handshake)
        while until_done(lambda: tls.read(65536)):
            tls.write(reply({"ours": 1}).data)
            tls.write(reply({"Item": RECORD}).data)
            connection.sendall(outgoing.read())


@pytest.mark.parametrize("mode", MODES)
def test_a_second_answer_over_tls_answers_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(CERTIFICATE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_two_records, args=(listener, context), daemon=True).start()
    try:
        with driven(mode, f"https://localhost:{listener.getsockname()[1]}") as subject:
            assert [subject.call() for _ in range(3)] == [{"ours": 1}] * 3
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


# The time


NO_DATES = [
    "Tue, 17 Nov 2026 99999999999999999999:00:00 GMT", f"Tue, 17 Nov 2026 {'9' * 4200}:00:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 GMT", "Tue, 17 Nov 0001 00:00:00 GMT", "Tue, 31 Feb 2026 00:00:00 GMT",
    "Tue, 17 Nov 2026 24:00:00 GMT", "Tue, 17 Nov 2026 00:00:00 +0500", "Tue, -9 Nov 2026 00:00:00 GMT",
    "Tue, ١٧ Nov 2026 00:00:00 GMT", "Tue, 17 Nov 2026 00:00:00 GMT\n",
]  # fmt: skip


@pytest.mark.parametrize("date", NO_DATES, ids=range(len(NO_DATES)))
def test_only_a_plain_date_is_one(date: str) -> None:
    clock = DateClock(ManualClock(NOW))
    for _ in range(3):
        clock.observe(date, NOW, NOW, NOW)
    assert (clock.interval, clock.now_ms()) == (None, NOW)


def told(instant_ms: int) -> str:
    return formatdate(instant_ms // 1000, usegmt=True)


def test_one_date_that_is_far_off_is_not_believed() -> None:
    clock = DateClock(ManualClock(NOW))
    clock.observe(told(FAR), NOW, NOW, NOW)
    assert clock.now_ms() == NOW
    clock.observe(told(NOW), NOW, NOW, NOW)
    clock.observe(told(FAR), NOW, NOW, NOW)
    assert clock.now_ms() == NOW, "a good one in between takes the doubt away"
    clock.observe(told(FAR + 60_000), NOW, NOW, NOW)
    assert clock.now_ms() == NOW, "nor two that differ"
    clock.observe(told(FAR + 60_000), NOW, NOW, NOW)
    assert abs(clock.now_ms() - FAR - 60_000) <= 1000, "two that agree: the engine checks no signatures"


def test_a_date_near_the_accepted_signature_is_believed_at_once() -> None:
    clock = DateClock(ManualClock(NOW))
    clock.observe(told(FAR), NOW, NOW, FAR)
    assert abs(clock.now_ms() - FAR) <= 1000


def test_a_hostile_date_leaves_the_client_as_it_was(server: ScriptedServer, subject: Driven) -> None:
    for date in (*NO_DATES[:3], told(FAR * 2)):
        server.script.append(reply({}, date=date))
        subject.call()
        assert subject.client.clock.offset_ms == 0
    server.script.append(reply(b"[]", date=told(NOW)))
    with pytest.raises(RateLimiterUnavailable):
        subject.call()
    assert subject.client.clock.interval is None, "what cannot be read teaches nothing"


def test_a_made_up_refusal_of_the_time_moves_no_clock(server: ScriptedServer, subject: Driven) -> None:
    far = told(2_000_000_000_000)
    server.script.extend([refusal("RequestExpired", "made up", date=far), refusal("RequestExpired", "not yet current")])
    with pytest.raises(AccessDeniedError, match="clock"):
        subject.call()
    assert [seen.headers["x-amz-date"][:4] for seen in server.seen][1] == "2033", "it was signed as the refusal said"
    assert (subject.client.clock.offset_ms, subject.client.clock.interval) == (0, None)


def test_a_wrong_host_is_corrected_by_the_answer_to_its_second_signature(
    server: ScriptedServer, subject: Driven
) -> None:
    far = told(2_000_000_000_000)
    busy = refusal("ThrottlingException", "slow", date=far)
    server.script.extend([refusal("RequestTimeTooSkewed", "no", date=far), busy, reply({}, date=far)])
    subject.call()
    assert [seen.headers["x-amz-date"][:4] for seen in server.seen][1:] == ["2033", "2033"]
    assert abs(subject.client.clock.now_ms() - 2_000_000_000_000) <= 5_000


# Sizes


def test_a_body_may_be_as_large_as_its_operation_needs(server: ScriptedServer, subject: Driven) -> None:
    large = reply({"Items": [], "x": "x" * 3_000_000})
    server.script.append(large)
    assert subject.call("Query")["Items"] == []
    server.script.append(large)
    with pytest.raises(RateLimiterUnavailable, match="claims a length"):
        subject.call("GetItem")


def batch(number: int) -> dict[str, Any]:
    keys = [{"PK": {"S": "p"}, "SK": {"S": str(place)}} for place in range(number)]
    return {"RequestItems": {"t": {"Keys": keys}}}


def test_a_body_may_be_as_large_as_the_records_that_were_asked_for(server: ScriptedServer, subject: Driven) -> None:
    large = reply({"Responses": {}, "Items": [], "x": "x" * 3_000_000})
    for operation, few, enough in (("BatchGetItem", batch(1), batch(2)), ("Query", {"Limit": 1}, {"Limit": 2})):
        server.script += [large, large]
        with pytest.raises(RateLimiterUnavailable, match="claims a length"):
            subject.run(subject.client.call(operation, few))
        assert subject.run(subject.client.call(operation, enough))["Items"] == []


VALUES = {
    "records": ("Responses", {"t": [record(ONE)] * 150_000}),
    "numbers": ("x", [1] * 1_250_001),
    "lists": ("x", [[]] * 625_001),
    "names": ("x", {str(number): {} for number in range(625_001)}),
}


@pytest.mark.parametrize("name", VALUES)
def test_an_answer_of_very_many_values_is_not_even_read(
    name: str, server: ScriptedServer, subject: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading 24 MB of small values would take seconds and a gigabyte, beyond any deadline."""
    field, values = VALUES[name]
    server.script.append(reply({"Responses": {}, field: values}))
    read: list[object] = []
    monkeypatch.setattr("zae_limiter.stores.dynamodb.answers.json.loads", read.append)
    with pytest.raises(RateLimiterUnavailable, match="more than 1,250,000 brackets"):
        subject.run(subject.client.call("BatchGetItem", batch(100)))
    assert not read


@pytest.mark.parametrize("text", [",", "[", "{"])
def test_a_page_of_any_records_is_read(text: str, server: ScriptedServer, subject: Driven) -> None:
    """DynamoDB ends a page behind the record with which it is 1 MB long."""
    server.script.append(reply({"Items": [record(ONE, x={"S": text * 300_000})] * 4}))
    assert len(subject.call("Query")["Items"]) == 4


@pytest.mark.parametrize("operation", ["BatchGetItem", "Query", "Scan"])
def test_more_records_than_were_asked_for_are_an_outage(
    operation: str, server: ScriptedServer, subject: Driven
) -> None:
    request = {**batch(2), "Limit": 2}
    item = {"PK": {"S": "p"}, "SK": {"S": "1"}}
    for number in (2, 3):
        server.script.append(reply({"Responses": {"t": [item] * number}, "Items": [], "LastEvaluatedKey": item}))
        if operation != "BatchGetItem":
            server.script[-1] = reply({"Items": [item] * number, "LastEvaluatedKey": item})
    assert subject.run(subject.client.call(operation, request))
    with pytest.raises(RateLimiterUnavailable, match="more records than were asked for"):
        subject.run(subject.client.call(operation, request))


@pytest.mark.parametrize("piece", [b"2\r\n[]\r\n", b"0\r\n" + b"A: b\r\n" * 1000], ids=["chunks", "trailers"])
def test_small_pieces_do_not_get_past_the_bound(piece: bytes) -> None:
    reader, fed = Reader(most=10_000_000), 0
    reader.feed(CHUNKED)
    with pytest.raises(Broken, match="framing"):
        while fed < 1_000_000:
            reader.feed(piece)
            fed += len(piece)
            piece = piece[3:] if piece.startswith(b"0\r\n") else piece
    assert fed <= 100_000


def test_other_tasks_run_while_a_long_answer_comes(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    data = reply({"Items": [], "x": "x" * 99_000}).data
    pieces = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    seen = []
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def receive(*_: object) -> bytes:
        """Return what is there already, without suspending."""
        seen.append(turns)
        return pieces[len(seen) - 1]

    async def work(subject: Driven) -> None:
        monkeypatch.setattr(subject.client.connections.sockets, "receive", receive)
        other = asyncio.ensure_future(count_turns())
        await subject.client.call("Query", {})
        other.cancel()

    with driven("async", server.url) as subject:
        subject.run(work(subject))
    assert len(seen) == len(pieces)
    assert seen[-1] - seen[0] >= len(pieces) - 1


def test_what_a_service_says_is_cut_and_printable(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(refusal("SomethingNew", "\x1b[2J" + "m" * 1_000_000 + "\n"))
    with pytest.raises(InfrastructureError) as caught:
        subject.call()
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).isprintable()


# Answers to something else


@pytest.mark.parametrize("status", [201, 206, 226, 301, 308, 401, 403, 404, 413, 426, 451, 600, 999])
@pytest.mark.parametrize("verb", [read_one, read_two, query, add, put, put_two, delete_two])
def test_a_status_without_an_error_is_an_outage(
    status: int, verb: Use, server: ScriptedServer, subject: Driven
) -> None:
    with pytest.raises(RateLimiterUnavailable, match="cannot be read"):
        use(server, subject, verb, reply({}, status))


@pytest.mark.parametrize("said", ["", "#", "a b#", "x# ", "\x1b[2J"])
def test_an_error_without_a_name_is_an_outage(said: str, server: ScriptedServer, subject: Driven) -> None:
    with pytest.raises(RateLimiterUnavailable, match="names no error"):
        use(server, subject, read_one, reply({"__type": said}, 400))


@pytest.mark.parametrize("status", [201, 301, 600])
def test_an_error_has_the_status_of_one(status: int, server: ScriptedServer, subject: Driven) -> None:
    with pytest.raises(RateLimiterUnavailable, match="its status"):
        use(server, subject, read_one, reply({"__type": "x#AccessDeniedException"}, status))


@pytest.mark.parametrize("verb", [read_one, read_two, query, query_index, delete_two])
@pytest.mark.parametrize("error", [{"__type": FAILED}, {"__type": CANCELLED, "CancellationReasons": REASONS}])
def test_a_condition_that_nobody_set_cannot_fail(
    verb: Use, error: dict[str, Any], server: ScriptedServer, subject: Driven
) -> None:
    with pytest.raises(RateLimiterUnavailable, match="there was none"):
        use(server, subject, verb, reply(error, 400))


ELSE = Key("q", "#9")
ELSEWHERE = record(ELSE)
NOT_OURS: list[tuple[Use, dict[str, Any]]] = [
    *((verb, content) for verb in (read_two, query, query_index) for content in ({}, {"a": 1})),
    *((verb, {"__type": "x#Any"}) for verb in (read_one, put, delete_two)),
    (read_one, {"Item": ELSEWHERE}),
    (read_one, {"Item": record(TWO)}),
    (read_two, {"Responses": {"t": [ELSEWHERE]}}),
    (read_two, {"Responses": {"u": [RECORD]}}),
    (add, {"Attributes": {}}),
    (add, {"Attributes": ELSEWHERE}),
]


@pytest.mark.parametrize(("verb", "content"), NOT_OURS)
def test_an_answer_to_something_else_is_an_outage(
    verb: Use, content: dict[str, Any], server: ScriptedServer, subject: Driven
) -> None:
    with pytest.raises(RateLimiterUnavailable, match="cannot be read"):
        use(server, subject, verb, reply(content))


def test_a_record_behind_an_index_that_nobody_asked_for_is_an_outage(server: ScriptedServer, subject: Driven) -> None:
    found = reply({"Items": [record(ONE), record(TWO)]})
    with pytest.raises(RateLimiterUnavailable, match="nobody asked"):
        use(server, subject, query_index, found, reply({"Responses": {"t": [ELSEWHERE]}}))


def keyed(key: Key) -> dict[str, Any]:
    return {"PK": {"S": key.pk}, "SK": {"S": key.sk}}


REST: list[tuple[Use, str, list[Any]]] = [
    (
        read_two,
        "UnprocessedKeys",
        [float("nan"), [], {"Keys": 5}, {"Keys": [keyed(Key("q", "#9"))]}, {"Keys": [[]] * 3}],
    ),
    (delete_two, "UnprocessedItems", [float("inf"), {}, [5], [{"PutRequest": {"Item": RECORD}}], [[]] * 3]),
]


@pytest.mark.parametrize(("verb", "field", "contents"), REST, ids=[row[1] for row in REST])
def test_what_was_not_sent_cannot_be_unprocessed(
    verb: Use, field: str, contents: list[Any], server: ScriptedServer, subject: Driven
) -> None:
    for rest in [*({"t": each} for each in contents), {"other": contents[-1]}, {"\ud800": []}]:
        server.script.clear()
        server.seen.clear()
        with pytest.raises(RateLimiterUnavailable):
            use(server, subject, verb, reply({"Responses": {}, field: rest}))
        assert len(server.seen) == 1, "nothing is sent again"


def test_what_is_unprocessed_is_sent_again_as_it_was(server: ScriptedServer, subject: Driven) -> None:
    again = {"Keys": [keyed(TWO)], "ConsistentRead": False, "ProjectionExpression": "x"}
    steps = reply({"Responses": {"t": [RECORD]}, "UnprocessedKeys": {"t": again}}), reply({"Responses": {}})
    found = use(server, subject, read_two, *steps)
    assert isinstance(found, list)
    assert (found[0]["tokens"], found[1]) == (-5, None)
    assert json.loads(server.seen[1].body)["RequestItems"] == {"t": {"Keys": [keyed(TWO)], "ConsistentRead": True}}
    server.script.clear()
    delete = {"DeleteRequest": {"Key": keyed(TWO)}}
    use(server, subject, delete_two, reply({"UnprocessedItems": {"t": [delete]}}), reply({}))
    assert json.loads(server.seen[3].body)["RequestItems"] == {"t": [delete]}


@pytest.mark.parametrize("line", [b"HTTP/1.1 2000 OK", b"HTTP/1.x 200 OK", b"HTTP/1.1 200OK"])
def test_a_status_line_is_a_plain_one(line: bytes) -> None:
    with pytest.raises(Broken, match="not HTTP"):
        Reader().feed(line + b"\r\ncontent-length: 0\r\n\r\n")


def test_a_number_has_ascii_digits(server: ScriptedServer, subject: Driven) -> None:
    with pytest.raises(RateLimiterUnavailable, match="is not a number"):
        use(server, subject, read_one, reply({"Item": record(ONE, a={"N": "٣"})}))
