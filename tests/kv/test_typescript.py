"""A TypeScript worker of the same design and this limiter share their states: checked against real JavaScript."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Self

import pytest

from tests.kv.support import CLIENT, KEY
from zae_limiter.kv import ClientIdentity, RateLimitPolicy, SyncEnforceRateLimit, TokenBucket
from zae_limiter.kv.state import decode, encode
from zae_limiter.testing import ManualClock

NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed: nothing to run the worker with")


class Worker:
    """The worker in a process of its own."""

    def __enter__(self) -> Self:
        script = str(Path(__file__).with_name("worker.mjs"))
        self._process = subprocess.Popen(
            [str(NODE), script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, **request: Any) -> Any:
        """One request and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Shared:
    """The state of one client, which the worker and this limiter read and write in turns."""

    def __init__(self, worker: Worker, policy: RateLimitPolicy) -> None:
        self.clock = ManualClock()
        self.state: str | None = None
        self._worker = worker
        self._policy = policy
        self._limiter = SyncEnforceRateLimit(self, policy, self.clock)

    async def get(self, key: str) -> TokenBucket | None:
        return None if self.state is None else decode(self.state)

    async def save(self, key: str, bucket: TokenBucket) -> None:
        self.state = encode(bucket)

    def python(self) -> bool:
        """A request that comes to this limiter."""
        return self._limiter.check(CLIENT).allowed

    def typescript(self) -> bool:
        """A request that comes to the worker."""
        policy = {"rpm": self._policy.requests_per_minute, "capacity": self._policy.bucket_capacity}
        answer = self._worker.ask(state=self.state, now=self.clock.now_ms(), **policy)
        self.state = answer["state"]
        return bool(answer["allowed"])


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A worker for all tests."""
    with Worker() as running:
        yield running


@pytest.fixture
def shared(worker: Worker) -> Shared:
    """A client of which nobody has heard, under the standard policy."""
    return Shared(worker, RateLimitPolicy.standard_ip_policy())


@pytest.mark.parametrize(
    "raw", [CLIENT, "127.0.0.1", "0.0.0.0", "255.255.255.255", "10.1.2.3:4711", " 192.0.2.1 ", "1.1.1.1"]
)
def test_an_ipv4_address_has_the_same_key(raw: str, worker: Worker) -> None:
    assert worker.ask(ip=raw) == ClientIdentity.from_ip(raw).kv_key


def test_the_key_that_others_have_stored() -> None:
    """What ``sha256sum`` says."""
    assert KEY == "rate_limit:ip:fec52565aa0cf18f"


def test_the_worker_goes_on_where_this_limiter_stopped(shared: Shared) -> None:
    assert [shared.python() for _ in range(3)] == [True] * 3
    assert [shared.typescript() for _ in range(8)] == [True] * 7 + [False]


def test_this_limiter_goes_on_where_the_worker_stopped(shared: Shared) -> None:
    assert [shared.typescript() for _ in range(3)] == [True] * 3
    assert [shared.python() for _ in range(8)] == [True] * 7 + [False]


def test_both_write_the_same_text(shared: Shared, worker: Worker) -> None:
    shared.typescript()
    written = shared.state
    shared.state = None
    shared.python()
    assert shared.state == written


def test_the_worker_gets_the_fraction_that_this_limiter_left(shared: Shared) -> None:
    """Six seconds a token; the worker is asked 5,999 and 6,000 ms after the last one was made, whoever saw it."""
    while shared.python():
        pass
    shared.clock.advance_ms(6_000 + 4_321)
    assert shared.python()
    shared.clock.advance_ms(6_000 - 4_321 - 1)
    assert not shared.typescript()
    shared.clock.advance_ms(1)
    assert shared.typescript()


@pytest.mark.parametrize(("rate", "capacity"), [(10, 10), (7, 9), (60, 60), (999, 1_001)])
def test_in_turns_they_never_grant_more_than_one_would(rate: int, capacity: int, worker: Worker) -> None:
    chance = Random(rate)
    shared = Shared(worker, RateLimitPolicy.create(rate, capacity))
    start_ms, granted = shared.clock.now_ms(), 0
    for _ in range(300):
        shared.clock.advance_ms(chance.choice([0, 1, 17, 999, 60_000 // rate, 90_000 // rate]))
        granted += chance.choice([shared.python, shared.typescript])()
        passed_ms = shared.clock.now_ms() - start_ms
        assert granted <= capacity + rate * passed_ms // 60_000
    assert granted >= min(300, capacity)


def test_states_of_any_kind_are_read_on_both_sides(worker: Worker) -> None:
    chance = Random(1)
    for _ in range(100):
        capacity = chance.randint(1, 1_000)
        carry = chance.choice([0, 1, 6, 59_999])
        bucket = TokenBucket(chance.randint(0, capacity), chance.randint(0, 2 * 10**12), capacity, carry)
        answer = worker.ask(state=encode(bucket), now=0, rpm=1, capacity=capacity)
        assert answer["allowed"] is (bucket.tokens > 0)
        left = replace(bucket.consume() or bucket, carry=0)
        assert answer["state"] == encode(left)
        assert decode(answer["state"]) == left
