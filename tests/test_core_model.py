"""The limiter against a model: each limit by itself, in whole numbers, as simply as it can be said.

A bucket of several limits with different periods must decide, refuse, promise and hold exactly what the limits would
one by one. The machine draws any sequence of acquires, settlements, failures and steps of the clock, also backwards.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.backends import BACKENDS, Backend
from tests.test_laws import NAMES, START_MS, costs, several_limits, steps
from zae_limiter import CapacityExceeded, Limit, RateLimitExceeded
from zae_limiter.runtime.blocking import run
from zae_limiter.testing.conformance.oracle import Pot, balances
from zae_limiter.testing.conformance.room import beside, new_limiter
from zae_limiter.testing.conformance.traffic import RESOURCE, Boom

PLAIN: dict[str, Any] = {}
LOOKING: dict[str, Any] = {"speculative_writes": False, "refusal_ttl": 0}


class Machine(RuleBasedStateMachine):
    """One bucket, its clients and its model."""

    backend: Backend
    clients: list[dict[str, Any]]

    @initialize(limits=several_limits, phase=st.integers(0, 100_000))
    def open(self, limits: tuple[Limit, ...], phase: int) -> None:
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.harness = self.stack.enter_context(self.backend.harness(folder))
        self.clock = self.harness.clock
        self.clock.set_ms(START_MS + phase)
        self.limits = limits
        keeper = run(new_limiter(self.harness))
        run(keeper.set_limits("key", limits))
        self.keeper = keeper
        self.limiters = [beside(self.harness, keeper, **options) for options in self.clients]
        self.pots: dict[str, Pot] = {}
        self.fresh = 0
        self.leases: list[tuple[Any, list[tuple[int, dict[str, int]]]]] = []

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def levels(self) -> dict[str, int]:
        full = {limit.name: limit.capacity * 1000 for limit in self.limits}
        return full | {name: pot.level(self.now_ms) for name, pot in self.pots.items()}

    @rule(data=st.data())
    def pass_time(self, data: st.DataObject) -> None:
        self.clock.advance_ms(data.draw(steps(self.limits), label="ms"))

    @rule(back_ms=st.integers(1, 5_000))
    def start_anew_with_a_clock_that_is_behind(self, back_ms: int) -> None:
        """New processes, whose clock is behind; the leases of the old ones are still open."""
        self.clock.advance_ms(-back_ms)
        self.limiters = [beside(self.harness, self.keeper, **options) for options in self.clients]
        self.fresh = len(self.leases)

    @rule(data=st.data(), client=st.integers(0, 2))
    def acquire(self, data: st.DataObject, client: int) -> None:
        cost = data.draw(costs(self.limits, spare=1), label="cost")
        limiter = self.limiters[client % len(self.limiters)]
        lease = limiter.acquire("key", RESOURCE, cost)
        levels = self.levels()
        try:
            run(lease.__aenter__())
        except CapacityExceeded:
            assert any(cost.get(limit.name, 0) > limit.capacity for limit in self.limits)
        except RateLimitExceeded as refusal:
            self.expect_refusal(refusal, cost, levels)
        else:
            assert all(not need or levels[name] >= need * 1000 for name, need in cost.items())
            self.take(cost)
            self.leases.append((lease, [(self.now_ms, cost)]))
            assert lease.available == {name: milli // 1000 for name, milli in self.levels().items()}

    def expect_refusal(self, refusal: RateLimitExceeded, cost: dict[str, int], levels: dict[str, int]) -> None:
        short = {name for name, need in cost.items() if need and levels[name] < need * 1000}
        assert {status.limit_name for status in refusal.violations} == short
        assert {status.limit_name: status.available for status in refusal.statuses} == {
            name: milli // 1000 for name, milli in levels.items()
        }
        wait_ms = max(self.pots[name].missing_ms(cost[name], self.now_ms) for name in short)
        assert refusal.retry_after_seconds == wait_ms / 1000

    def take(self, cost: dict[str, int]) -> None:
        if not self.pots:  # the first acquire makes the bucket
            self.pots = {limit.name: Pot.full(limit, self.now_ms) for limit in self.limits}
        for name, need in cost.items():
            if need:
                self.pots[name].take(need, self.now_ms)

    @rule(data=st.data(), place=st.integers(0, 100))
    def consume_more(self, data: st.DataObject, place: int) -> None:
        own = self.leases[self.fresh :]
        if not own:
            return
        lease, taken = own[place % len(own)]
        cost = data.draw(costs(self.limits), label="cost")
        levels = self.levels()
        try:
            run(lease.consume(cost))
        except RateLimitExceeded as refusal:
            self.expect_refusal(refusal, cost, levels)
        else:
            self.take(cost)
            taken.append((self.now_ms, cost))

    @rule(data=st.data(), place=st.integers(0, 100))
    def settle(self, data: st.DataObject, place: int) -> None:
        if not self.leases:
            return
        lease, taken = self.pop(place)
        changes = {limit.name: st.integers(-2 * limit.capacity, 3 * limit.capacity) for limit in self.limits}
        delta = data.draw(st.fixed_dictionaries({}, optional=changes), label="delta")
        run(lease.adjust(delta))
        total = Counter(delta)
        for _, cost in taken:
            total.update(cost)
        assert lease.consumed == dict(total)
        run(lease.__aexit__(None, None, None))
        for name, amount in delta.items():
            self.pots[name].settle(amount, taken[0][0])

    def pop(self, place: int) -> tuple[Any, list[tuple[int, dict[str, int]]]]:
        place %= len(self.leases)
        self.fresh -= place < self.fresh
        return self.leases.pop(place)

    @rule(place=st.integers(0, 100))
    def fail(self, place: int) -> None:
        if not self.leases:
            return
        lease, taken = self.pop(place)
        run(lease.__aexit__(Boom, Boom(), None))
        for taken_ms, cost in taken:
            for name, amount in cost.items():
                self.pots[name].settle(-amount, taken_ms)

    @rule(client=st.integers(0, 2))
    def look(self, client: int) -> None:
        found = run(self.limiters[client % len(self.limiters)].available("key", RESOURCE))
        assert found == {name: milli // 1000 for name, milli in self.levels().items()}

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "pots"):
            found = run(balances(self.keeper, ["key"], self.now_ms))
            assert found == {("key", RESOURCE, name): milli for name, milli in self.levels().items() if self.pots}


def machine(name: str, backend: Backend, clients: list[dict[str, Any]]) -> type[Machine]:
    """A machine on a backend, with its clients."""
    return type(name, (Machine,), {"backend": backend, "clients": clients})


BLOCKING = {backend.kind: backend for backend in BACKENDS if backend.blocking}


@pytest.mark.parametrize(
    ("clients", "share"),
    [([PLAIN], 0.4), ([LOOKING, LOOKING, LOOKING], 0.2)],
    ids=["one client", "several clients that look first"],
)
@pytest.mark.parametrize("kind", list(BLOCKING))
def test_one_limit_at_a_time(kind: str, clients: list[dict[str, Any]], share: float) -> None:
    """Grants, refusals, promised moments and stored balances are those of the limits one by one."""
    assert len(NAMES) > 1
    examples = settings.default.max_examples if settings.default else 100
    part = share if kind == "memory" else share / 5
    run_state_machine_as_test(
        machine("Limiter", BLOCKING[kind], clients),
        settings=settings(max_examples=max(3, int(examples * part)), stateful_step_count=25),
    )
