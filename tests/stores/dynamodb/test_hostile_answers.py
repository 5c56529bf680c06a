"""Whatever comes instead of an answer of DynamoDB's is an outage, in both modes: found by a fuzzer, and by name."""

from __future__ import annotations

import copy
import itertools
import json
import zlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.support.scripted_server import CHUNKED, FORMS, Driven, ScriptedServer, Step, isolate, refusal, reply
from zae_limiter import CorruptRecordError, IncompatibleSchemaError, InfrastructureError, RateLimiterUnavailable
from zae_limiter.records.algebra import ABSENT, Committed, Conflict, Guard, Key, Page, Query, Write
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.table import table_definition
from zae_limiter.stores.dynamodb.wire import Answer, Broken, Reader

ONE, TWO = Key("p", "#1"), Key("p", "#2")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


def record(key: Key, **attributes: Any) -> dict[str, Any]:
    return {"PK": {"S": key.pk}, "SK": {"S": key.sk}, "GSI2PK": {"S": "r"}, "GSI2SK": {"S": key.sk}} | attributes


RECORD = record(
    ONE, tokens={"N": "-5"}, share={"N": "0.5"}, name={"S": "ü"}, on={"BOOL": True}, none={"NULL": True},
    map={"M": {"a": {"L": [{"N": "1"}, {"M": {}}]}}}, names={"SS": ["a"]}, sizes={"NS": ["1", "2"]}, raw={"B": "e30="},
)  # fmt: skip
UNITS = {"TableName": "t", "CapacityUnits": 0.5}


async def read_one(store: DynamoStore) -> object:
    return await store.read([ONE])


async def read_two(store: DynamoStore) -> object:
    return await store.read([ONE, TWO])


async def query(store: DynamoStore) -> object:
    return await store.query(Query("p"))


async def query_index(store: DynamoStore) -> object:
    return await store.query(Query("r", gsi="GSI2"))


async def add(store: DynamoStore) -> object:
    return await store.commit([Write(ONE, (Guard("tokens", ">=", -9),), add={"tokens": -1})])


async def put(store: DynamoStore) -> object:
    return await store.commit([Write(ONE, (ABSENT,), put={"tokens": 1})])


async def put_two(store: DynamoStore) -> object:
    return await store.commit([Write(key, (ABSENT,), put={"tokens": 1}) for key in (ONE, TWO)])


async def delete_two(store: DynamoStore) -> object:
    return await store.commit([Write(key, delete=True) for key in (ONE, TWO)])


async def check_table(store: DynamoStore) -> object:
    await store.check_table()
    return None


Use = Callable[[DynamoStore], Coroutine[Any, Any, object]]
TABLE = {key: value for key, value in table_definition("t").items() if key != "BillingMode"} | {"TableStatus": "ACTIVE"}
FAILED = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"
CANCELLED = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"
REASONS = [{"Code": "ConditionalCheckFailed", "Item": RECORD, "Message": "no"}, {"Code": "None"}]
ANSWERS: list[tuple[Use, int, dict[str, Any]]] = [
    (read_one, 200, {"Item": RECORD, "ConsumedCapacity": UNITS}),
    (read_two, 200, {"Responses": {"t": [RECORD]}, "UnprocessedKeys": {}, "ConsumedCapacity": [UNITS]}),
    (query, 200, {"Items": [RECORD], "Count": 1, "ScannedCount": 1}),
    (query_index, 200, {"Items": [RECORD], "Count": 1, "ScannedCount": 1}),
    (add, 200, {"Attributes": RECORD, "ConsumedCapacity": UNITS}),
    (add, 400, {"__type": FAILED, "message": "no", "Item": RECORD}),
    (put, 400, {"__type": FAILED, "message": "no", "Item": RECORD}),
    (put_two, 400, {"__type": CANCELLED, "message": "no", "CancellationReasons": REASONS}),
    (delete_two, 200, {"UnprocessedItems": {}}),
    (check_table, 200, {"Table": TABLE}),
]
"""What is asked of a store, and a real answer to it."""


def encode(status: int, content: bytes, *, chunked: bool = False) -> bytes:
    """An answer without a checksum, which would tell on its own that something was changed."""
    head = f"HTTP/1.1 {status} Any\r\nx-amzn-RequestId: REQ1\r\nDate: Tue, 17 Nov 2026 10:00:00 GMT\r\n".encode()
    if chunked:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(content), content)


def use(server: ScriptedServer, subject: Driven, verb: Use, data: bytes) -> object:
    """What a store makes of an answer that comes whenever it asks; None for an outage or a damaged record."""
    server.script.clear()
    server.script.extend([Step(data, close=True)] * 20)
    try:
        return subject.run(verb(DynamoStore(subject.client)))
    except (RateLimiterUnavailable, CorruptRecordError):
        return None


def check_result(found: object) -> None:
    """Whoever asked gets what it asked for, or nothing."""
    if isinstance(found, list):
        images = found
    elif isinstance(found, Committed):
        images = list(found.images)
    elif isinstance(found, Conflict):
        images = list(found.images.values())
    else:
        assert found is None or isinstance(found, Page)
        images = [] if found is None else [image for _, image in found.items]
    for image in images:
        assert image is None or isinstance(image, dict)
        for value in (image or {}).values():
            assert not isinstance(value, int) or abs(value) < 10**1000


NASTY: list[Any] = [
    None, True, 5, -1, 1e300, 10**400, "", "x", "NaN", "Infinity", "1e1000000", "-1e999999999", "9" * 5000, "1_0", "²",
    [], [[]], [None], {}, {"": {}}, {"a": 5}, {"N": 5}, {"N": "1e1000000"}, {"N": "9" * 5000}, {"N": "NaN"},
    {"X": "1"}, {"S": None}, {"S": "a", "N": "1"}, {"M": {"a": 5}}, {"M": []}, {"L": [5]}, {"L": {}}, {"SS": [5]},
    {"NS": ["NaN"]}, {"NS": "12"}, {"B": "!!"}, {"B": 5}, {"BS": ["!"]}, {"BOOL": 1}, {"NULL": "no"}, {"Code": 5},
    {"N": "²"}, {"N": "1_0"}, {"N": ""}, {"N": "."}, {"S": "\ud800"},
]  # fmt: skip
DEEP: dict[str, Any] = {"S": "x"}
for _ in range(100):
    DEEP = {"L": [DEEP]}
NASTY.append(DEEP)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a JSON something stands; codes of errors stay, as another code is another answer."""
    steps = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in steps:
        if name not in ("__type", "Code"):
            yield (*path, name)
            yield from places(value, (*path, name))


def replaced(content: dict[str, Any], path: tuple[Any, ...], value: Any, *, drop: bool) -> dict[str, Any]:
    """The same with one place changed or missing."""
    changed = copy.deepcopy(content)
    inner: Any = changed
    for step in path[:-1]:
        inner = inner[step]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


@pytest.mark.parametrize(("verb", "status", "content"), ANSWERS, ids=[f"{row[0].__name__}-{row[1]}" for row in ANSWERS])
def test_an_answer_of_any_other_shape_is_an_outage(
    verb: Use, status: int, content: dict[str, Any], server: ScriptedServer, subject: Driven
) -> None:
    found = sorted(places(content), key=repr)

    @settings(deadline=None, max_examples=60)
    @given(st.sampled_from(found), st.sampled_from(NASTY), st.booleans())
    def fuzz(path: tuple[Any, ...], value: Any, drop: bool) -> None:
        body = json.dumps(replaced(content, path, value, drop=drop)).encode()
        try:
            check_result(use(server, subject, verb, encode(status, body)))
        except (InfrastructureError, IncompatibleSchemaError):
            assert verb is check_table, "a table that is none of ours is told so"

    fuzz()


PIECES = [
    b"", b"\r\n", b"\r\n\r\n", b"0", b"9" * 5000, b"-1", b"\xff\xfe", b"\x00", b"Content-Length: 3\r\n", b"[" * 5000,
    b"Transfer-Encoding: chunked\r\n", b"chunked", b"HTTP/1.1 100 Continue\r\n\r\n", b"{", b"}", b'"', b"NaN", b"1e999",
    b"ffffffffffffffffffff", b";" * 5000, b" ", b"HTTP/1.0", b'"Item":[],',
]  # fmt: skip


@st.composite
def broken_bytes(draw: st.DrawFn) -> tuple[Use, bytes]:
    """A real answer, with pieces put into it, taken out of it, or cut off."""
    verb, status, content = draw(st.sampled_from(ANSWERS))
    data = encode(status, json.dumps(content).encode(), chunked=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.sampled_from([start, start + 1, start + 20]))
        data = data[:start] + draw(st.sampled_from(PIECES) | st.binary(max_size=4)) + data[end:]
    return verb, data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


def test_bytes_that_were_changed_or_cut_are_an_answer_or_an_outage(server: ScriptedServer, subject: Driven) -> None:
    @settings(deadline=None)
    @given(broken_bytes())
    def fuzz(broken: tuple[Use, bytes]) -> None:
        verb, data = broken
        try:
            check_result(use(server, subject, verb, data))
        except (InfrastructureError, IncompatibleSchemaError):
            assert b" 200 " not in data[:20] or verb is check_table, "another status is another answer"

    fuzz()


def outcome(data: bytes, cuts: list[int]) -> Answer | str:
    """What a reader makes of bytes that come in pieces, with the end of the connection behind them."""
    reader = Reader()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    try:
        for start, end in itertools.pairwise(edges):
            answer = reader.feed(data[start:end])
            if answer is not None:
                return answer
        answer = reader.feed(b"")
        assert answer is not None
        return answer
    except Broken:
        return "broken"


@settings(deadline=None)
@given(broken_bytes(), st.lists(st.integers(1, 400), max_size=8))
@example((read_one, b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"), [])
def test_an_answer_is_the_same_in_any_pieces(broken: tuple[Use, bytes], cuts: list[int]) -> None:
    data = broken[1]
    assert outcome(data, cuts) == outcome(data, list(range(len(data)))) == outcome(data, [])


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_ends_early_is_broken_at_every_byte(form: str) -> None:
    data = FORMS[form].data
    for end in range(len(data)):
        found = outcome(data[:end], [])
        assert found == "broken" or (form == "until the end" and isinstance(found, Answer)), end


class Counting(bytearray):
    """A buffer that counts the bytes that are searched and copied."""

    work = 0

    def find(self, wanted: Any, start: Any = 0, *rest: Any) -> int:
        found = super().find(wanted, start)
        self.work += (len(self) if found < 0 else found + len(wanted)) - start
        return found

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.work += len(found) if isinstance(place, slice) else 1
        return found

    def __iadd__(self, data: Any) -> Any:  # type: ignore[misc]  # only bytes are added
        self.work += len(data)
        return super().__iadd__(data)


LONG = {
    "many chunks": CHUNKED + b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n",
    "a large chunk": CHUNKED + b"7530\r\n" + b"x" * 30_000 + b"\r\n0\r\n\r\n",
    "extensions": CHUNKED + (b"1;" + b"e" * 3_000 + b"\r\nx\r\n") * 10 + b"0\r\n\r\n",
    "trailers": CHUNKED + b"0\r\n" + b"A: b\r\n" * 5_000 + b"\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 5_000 + b"content-length: 0\r\n\r\n",
    "a large body": b"HTTP/1.1 200 OK\r\ncontent-length: 30000\r\n\r\n" + b"x" * 30_000,
    "many 100": b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000 + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("data", LONG.values(), ids=LONG)
def test_the_work_grows_with_the_bytes_however_they_come(data: bytes, size: int) -> None:
    buffer = Counting()
    reader = Reader(_buffer=buffer)
    answer = None
    for start in range(0, len(data), size):
        assert answer is None
        answer = reader.feed(data[start : start + size])
    assert answer is not None
    assert buffer.work <= 6 * len(data)


ENDLESS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 10),
    "one header": (b"HTTP/1.1 200 OK\r\nA: ", b"b" * 100),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "an extension": (CHUNKED + b"1;", b"e" * 100),
    "a body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1_000_000),
    "chunks": (CHUNKED, b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n"),
    "a trailer": (CHUNKED + b"0\r\nA: ", b"b" * 100),
}


@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS)
def test_an_answer_without_an_end_is_given_up(start: bytes, more: bytes) -> None:
    reader = Reader()
    assert reader.feed(start + more) is None
    with pytest.raises(Broken):
        for _ in range(5_000):
            assert reader.feed(more) is None


def body(content: bytes) -> Step:
    return Step(encode(200, content))


BROKEN = {
    "a length of 5,000 digits": Step(b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5_000 + b"\r\n\r\n"),
    "two lengths": Step(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} "),
    "the same length twice": Step(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}"),
    "a coding that nobody asked for": Step(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n"),
    "a chunk without its end": Step(CHUNKED + b"2\r\n{}xx0\r\n\r\n"),
    "deeply nested": body(b'{"Item":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a list for a record": body(b'{"Item": []}'),
    "a number that is none": body(b'{"Item": {"PK": {"S": "p"}, "SK": {"S": "#1"}, "a": {"N": 5}}}'),
    "a number of a million digits": body(b'{"Item": {"PK": {"S": "p"}, "SK": {"S": "#1"}, "a": {"N": "1e1000000"}}}'),
    "an unknown type": body(b'{"Item": {"PK": {"S": "p"}, "SK": {"S": "#1"}, "a": {"X": "5"}}}'),
    "a record without a key": body(b'{"Item": {"PK": {"S": "p"}}}'),
    "no text": body(b'{"Item": {"PK": {"S": "\xff"}, "SK": {"S": "#1"}}}'),
    "an integer of 5,000 digits": body(b'{"Count": ' + b"9" * 5_000 + b"}"),
    "reasons for something else": refusal("TransactionCanceledException", CancellationReasons=[{"Code": "None"}]),
    "no reasons": refusal("TransactionCanceledException"),
}


@pytest.mark.parametrize("step", BROKEN.values(), ids=BROKEN)
def test_after_what_is_no_answer_the_connection_is_not_used_again(
    step: Step, server: ScriptedServer, subject: Driven
) -> None:
    subject.call()
    server.script.append(step)
    with pytest.raises(RateLimiterUnavailable, match="DynamoDB table 't'"):
        subject.call("TransactWriteItems", {"TransactItems": [1, 2]})
    assert subject.call() == {}
    assert server.accepted == 2


@pytest.mark.parametrize(
    "data",
    [FORMS["chunked"].data + b"HTTP/1.1 200 OK\r\n", CHUNKED[:-2] + b"content-length: 3\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
    ids=["bytes behind the last chunk", "chunks and a length"],
)
def test_a_connection_that_may_hold_something_else_is_not_used_again(
    data: bytes, server: ScriptedServer, subject: Driven
) -> None:
    server.script.append(Step(data))
    subject.call()
    subject.call()
    assert server.accepted == 2


def test_a_write_without_its_record_may_not_have_been_made(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(reply({}))
    with pytest.raises(RateLimiterUnavailable, match="lacks the new record"):
        subject.run(add(DynamoStore(subject.client)))
    assert len(server.seen) == 1


def test_a_damaged_record_is_no_outage(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(reply({"Item": record(ONE, raw={"B": "bm8="})}))
    with pytest.raises(CorruptRecordError, match="raw"):
        subject.run(read_one(DynamoStore(subject.client)))


def test_a_cost_that_cannot_be_is_not_counted(server: ScriptedServer, subject: Driven) -> None:
    data = b'{"ConsumedCapacity": {"CapacityUnits": 1' + b"0" * 400 + b"}}"
    server.script.append(Step(reply(data, crc=zlib.crc32(data)).data))
    assert subject.call("UpdateItem")
    assert subject.client.stats.snapshot().write_units == 0
