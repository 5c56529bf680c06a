"""The protocol: answers come in whatever pieces the network makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from redis.exceptions import InvalidResponse, ResponseError

from zae_limiter.stores.redis import resp
from zae_limiter.stores.redis.resp import MAX_BYTES, SWAP, Reader, pack, pack_arguments

ANSWERS: list[tuple[bytes, Any]] = [
    (b"$1\r\n=\r\n", b"="),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"$6\r\n\r\n$1\r\n\r\n", b"\r\n$1\r\n"),
    (b":-7\r\n", -7),
    (b"+OK\r\n", b"OK"),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n$2\r\nab\r\n:1\r\n*1\r\n$-1\r\n", [b"ab", 1, [None]]),
    (b"$100000\r\n" + b"x" * 100_000 + b"\r\n", b"x" * 100_000),
]

HOSTILE = [
    b"*1\r\n" * 100_000,
    b"*1\r\n" * 17,
    b"*2000000\r\n",
    b"*1000000\r\n*1000000\r\n",
    b"$33554433\r\n",
    b"$" + b"9" * 5_000 + b"\r\n",
    b":" + b"9" * 5_000 + b"\r\n",
    b"+" + b"x" * 100_000,
]


@given(
    wanted=st.lists(st.sampled_from(ANSWERS), max_size=6),
    cuts=st.lists(st.integers(1, 40) | st.integers(1, 70_000), min_size=1),
)
def test_answers_are_the_same_in_whatever_pieces_they_come(wanted: list[tuple[bytes, Any]], cuts: list[int]) -> None:
    data = b"".join(sent for sent, _ in wanted)
    reader, found, turn = Reader(), [], 0
    while data:
        size = cuts[turn % len(cuts)] if turn < 200 else len(data)
        found += reader.feed(data[:size])
        data = data[size:]
        turn += 1
    assert found == [value for _, value in wanted]


def test_an_error_takes_the_place_of_an_answer() -> None:
    first, second = Reader().feed(b"-MOVED 7 host:1\r\n:1\r\n")
    assert isinstance(first, ResponseError)
    assert (str(first), second) == ("MOVED 7 host:1", 1)


@pytest.mark.parametrize(
    "data", [b"?\r\n", b"$x\r\n", b"$1\r\n123\r\n", b"*1\r\n!\r\n", b"\r\n", b":1.5\r\n", b"HTTP/1.1 400\r\n", *HOSTILE]
)
def test_what_is_no_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(InvalidResponse):
        Reader().feed(data)


@pytest.mark.parametrize("element", [b":1\r\n", b"$4\r\nabcd\r\n", b"*1\r\n+\r\n"], ids=["numbers", "texts", "arrays"])
def test_an_array_in_many_pieces_is_parsed_once(element: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element costs one step, and one more for each piece that ends within it."""
    steps, parse = [0], resp._parse

    def count(*args: Any) -> Any:
        steps[0] += 1
        return parse(*args)

    monkeypatch.setattr(resp, "_parse", count)
    elements, piece = 20_000, 1_000
    data = b"*%d\r\n" % elements + element * elements
    reader, found = Reader(), []
    for at in range(0, len(data), piece):
        found += reader.feed(data[at : at + piece])
    assert [len(value) for value in found] == [elements]
    assert steps[0] <= 1 + elements * (element.count(b"\r\n") if b"*" in element else 1) + len(data) // piece + 1


def test_an_answer_has_an_end() -> None:
    """The bytes that are taken in are bounded, whatever the answer says of its size."""
    reader, taken = Reader(), 0
    piece = b"$5000\r\n" + b"x" * 5000 + b"\r\n"
    with pytest.raises(InvalidResponse):
        reader.feed(b"*1048576\r\n")
        while True:
            assert reader.feed(piece) == []
            taken += len(piece)
    assert taken <= MAX_BYTES


def test_answers_of_any_number_are_not_taken_for_one_long_one() -> None:
    reader = Reader()
    text = b"$1000000\r\n" + b"x" * 1_000_000 + b"\r\n"
    assert sum(len(reader.feed(text)) for _ in range(40)) == 40


def test_a_server_with_too_many_clients_ends_the_connection() -> None:
    with pytest.raises(ConnectionError, match="max number of clients"):
        Reader().feed(b"-ERR max number of clients reached\r\n")


def test_a_command_is_counted_in_bytes() -> None:
    assert pack(("SET", "ä", b"\xff", 12)) == b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xa4\r\n$1\r\n\xff\r\n$2\r\n12\r\n"


@given(keys=st.lists(st.text(), min_size=1), arguments=st.lists(st.text()))
def test_a_script_is_run_by_its_digest_or_by_its_text(keys: list[str], arguments: list[str]) -> None:
    rest = (len(keys), *keys, *arguments)
    command = SWAP.head(len(keys), len(arguments)) + pack_arguments(*keys, *arguments)
    assert command == pack(("EVALSHA", SWAP.digest, *rest))
    assert SWAP.spell_out(command) == pack(("EVAL", SWAP.text, *rest))
