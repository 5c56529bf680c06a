"""The stored text: what a TypeScript worker of the same design reads and writes, and nothing else."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.kv.support import CLIENT, KEY, Mode
from zae_limiter.kv import CorruptStateError, TokenBucket
from zae_limiter.kv.state import decode, encode
from zae_limiter.testing import ManualClock

CORRUPT: dict[str, Any] = {
    "nothing": "",
    "spaces": "   ",
    "no JSON": "hello",
    "half": '{"tokens":9,"lastRef',
    "two": '{"tokens":9,"lastRefill":1,"capacity":10}{}',
    "single quotes": "{'tokens':9,'lastRefill':1,'capacity':10}",
    "null": "null",
    "a number": "9",
    "a text": '"tokens"',
    "a list": "[9,1,10]",
    "a list of states": '[{"tokens":9,"lastRefill":1,"capacity":10}]',
    "an empty object": "{}",
    "no tokens": '{"lastRefill":1,"capacity":10}',
    "no lastRefill": '{"tokens":9,"capacity":10}',
    "no capacity": '{"tokens":9,"lastRefill":1}',
    "other names": '{"tokens":9,"last_refill":1,"capacity":10}',
    "tokens as text": '{"tokens":"9","lastRefill":1,"capacity":10}',
    "tokens null": '{"tokens":null,"lastRefill":1,"capacity":10}',
    "tokens true": '{"tokens":true,"lastRefill":1,"capacity":10}',
    "tokens negative": '{"tokens":-1,"lastRefill":1,"capacity":10}',
    "a part of a token": '{"tokens":2.5,"lastRefill":1,"capacity":10}',
    "tokens NaN": '{"tokens":NaN,"lastRefill":1,"capacity":10}',
    "tokens infinite": '{"tokens":Infinity,"lastRefill":1,"capacity":10}',
    "tokens overflowing": '{"tokens":1e999,"lastRefill":1,"capacity":10}',
    "more tokens than room": '{"tokens":11,"lastRefill":1,"capacity":10}',
    "tokens a list": '{"tokens":[9],"lastRefill":1,"capacity":10}',
    "lastRefill negative": '{"tokens":9,"lastRefill":-1,"capacity":10}',
    "lastRefill a date": '{"tokens":9,"lastRefill":"2027-01-15T08:00:00.000Z","capacity":10}',
    "lastRefill beyond dates": '{"tokens":9,"lastRefill":1e17,"capacity":10}',
    "lastRefill false": '{"tokens":9,"lastRefill":false,"capacity":10}',
    "capacity zero": '{"tokens":0,"lastRefill":1,"capacity":0}',
    "capacity huge": '{"tokens":9,"lastRefill":1,"capacity":1e30}',
    "carry of a whole token": '{"tokens":9,"lastRefill":1,"capacity":10,"carry":60000}',
    "carry negative": '{"tokens":9,"lastRefill":1,"capacity":10,"carry":-1}',
    "carry null": '{"tokens":9,"lastRefill":1,"capacity":10,"carry":null}',
    "hundreds of digits": '{"tokens":9,"lastRefill":' + "9" * 200 + ',"capacity":10}',
    "thousands of digits": '{"tokens":' + "9" * 5_000 + ',"lastRefill":1,"capacity":10}',
    "deep": "[" * 250,
    "endless": "x" * 1_000_000,
    "Latin-1": '{"tokens":9,"lastRefill":1,"capacity":10,"é":1}'.encode("latin-1"),
    "UTF-16": '{"tokens":9,"lastRefill":1,"capacity":10}'.encode("utf-16"),
    "byte order mark": "\ufeff" + '{"tokens":9,"lastRefill":1,"capacity":10}',
    "no text": 17,
    "an object": {"tokens": 9, "lastRefill": 1, "capacity": 10},
}

GOOD: dict[str, str | bytes] = {
    "as written": '{"tokens":9,"lastRefill":1800000000000,"capacity":10}',
    "bytes": b'{"tokens":9,"lastRefill":1800000000000,"capacity":10}',
    "floats": '{"tokens":9.0,"lastRefill":1800000000000.0,"capacity":1e1}',
    "exponents": '{"tokens":9,"lastRefill":1.8e12,"capacity":10}',
    "another order": '{"capacity":10,"lastRefill":1800000000000,"tokens":9}',
    "spaces": ' { "tokens" : 9,\n "lastRefill" : 1800000000000, "capacity" : 10 } ',
    "more than we know": '{"tokens":9,"lastRefill":1800000000000,"capacity":10,"version":2,"by":["eu"]}',
}


class Stored:
    """A store whose every key holds the same."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.saved: list[TokenBucket] = []

    async def get(self, key: str) -> TokenBucket | None:
        return decode(self.state)

    async def save(self, key: str, bucket: TokenBucket) -> None:
        self.saved.append(bucket)


def test_written_as_javascript_writes_it() -> None:
    assert encode(TokenBucket(9, 1_800_000_000_000, 10)) == GOOD["as written"]
    assert encode(TokenBucket(9, 1, 10, 4)) == '{"tokens":9,"lastRefill":1,"capacity":10,"carry":4}'


@pytest.mark.parametrize("state", GOOD.values(), ids=GOOD)
def test_read(state: str | bytes) -> None:
    bucket = decode(state)
    assert bucket == TokenBucket(9, 1_800_000_000_000, 10)
    assert {type(number) for number in (bucket.tokens, bucket.last_refill_ms, bucket.capacity)} == {int}


@pytest.mark.parametrize("state", CORRUPT.values(), ids=CORRUPT)
def test_corrupt_states_reset_the_bucket(
    state: Any, mode: Mode, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zae_limiter.kv")
    stored = Stored(state)
    result = mode.check(stored, clock=clock)(CLIENT)
    assert result.allowed
    assert not result.degraded
    assert stored.saved == [TokenBucket(9, clock.now_ms(), 10)]
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert (record.name, record.__dict__["kv_key"]) == ("zae_limiter.kv", KEY)
    assert record.__dict__["reason"]
    assert len(record.__dict__["state"]) < 400
    assert len(record.getMessage()) < 200


def test_a_state_from_a_future_that_no_clock_explains(
    mode: Mode, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zae_limiter.kv")
    day_ms = 86_400_000
    ahead = TokenBucket(0, clock.now_ms() + day_ms, 10)
    assert not mode.check(Stored(encode(ahead)), clock=clock)(CLIENT).allowed
    assert not caplog.records
    beyond = TokenBucket(0, clock.now_ms() + day_ms + 1, 10)
    assert mode.check(Stored(encode(beyond)), clock=clock)(CLIENT).tokens_remaining == 9
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_the_error_says_what_and_travels() -> None:
    with pytest.raises(CorruptStateError, match="lacks capacity") as caught:
        decode('{"tokens":9,"lastRefill":1}')
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.reason, again.excerpt) == ("lacks capacity", repr('{"tokens":9,"lastRefill":1}'))


@given(
    st.integers(1, 10**12).flatmap(
        lambda top: st.tuples(st.integers(0, top), st.integers(0, 10**15), st.just(top), st.integers(0, 59_999))
    )
)
def test_what_is_written_is_read(members: tuple[int, int, int, int]) -> None:
    bucket = TokenBucket(*members)
    assert decode(encode(bucket)) == bucket
    assert list(json.loads(encode(bucket)))[:3] == ["tokens", "lastRefill", "capacity"]


@given(st.text() | st.binary() | st.none() | st.floats() | st.lists(st.integers()))
def test_anything_else_is_one_error(state: Any) -> None:
    with pytest.raises(CorruptStateError):
        decode(state)
