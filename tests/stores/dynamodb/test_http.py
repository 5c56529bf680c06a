"""HTTP/1.1 as bytes: answers in every form, in any pieces, and what is none."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given, strategies as st

from tests.support.scripted_server import CHUNKED, FORMS
from zae_limiter.stores.dynamodb.wire import Broken, Reader


@given(st.sampled_from(sorted(FORMS)), st.lists(st.integers(0, 120), max_size=6))
def test_an_answer_may_come_in_any_pieces(form: str, cuts: list[int]) -> None:
    data = FORMS[form].data
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    reader = Reader()
    answers = [reader.feed(data[start:end]) for start, end in itertools.pairwise(edges) if start < end]
    if answers[-1] is None:
        answers.append(reader.feed(b""))
    *early, last = answers
    assert last is not None
    assert json.loads(last.body) == {"a": "b"}
    assert not any(early)


@given(st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED, CHUNKED + b"5\r\n"]), st.binary(max_size=80))
def test_whatever_comes_is_an_answer_or_broken(start: bytes, rest: bytes) -> None:
    reader = Reader()
    with contextlib.suppress(Broken):
        if reader.feed(start + rest) is None:
            reader.feed(b"")


@pytest.mark.parametrize("size", [b"-5", b"+5", b"0x5", b"1_0", b"", b" ", b"5 5", b"g"])
def test_a_chunk_has_a_plain_size(size: bytes) -> None:
    with pytest.raises(Broken):
        Reader().feed(CHUNKED + size + b"\r\n{    }\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("head", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n", True),
    ],
)
def test_who_may_be_asked_again(head: bytes, again: bool) -> None:
    reader = Reader()
    assert reader.feed(head + b"content-length: 2\r\n\r\n{}") is not None
    assert reader.keep_alive == again


def test_chunks_count_more_than_a_length() -> None:
    answer = Reader().feed(CHUNKED[:-2] + b"content-length: 3\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    assert answer is not None
    assert answer.body == b"{}"


def test_an_endless_head_is_given_up() -> None:
    reader = Reader()
    with pytest.raises(Broken, match="no end"):
        for _ in range(100):
            reader.feed(b"x" * 1000)
