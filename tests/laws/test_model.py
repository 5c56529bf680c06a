"""The limiter against a model: each limit by itself, in whole numbers, as simply as it can be said.

A bucket of several limits with different periods must decide, refuse, promise and hold exactly what the limits would
one by one. The machine draws any sequence of acquires, settlements, failures and steps of the clock, also backwards.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conformance.oracle import ExactBucket, balances, made
from tests.conformance.room import beside, new_limiter
from tests.conformance.traffic import RESOURCE, Boom
from tests.laws.test_laws import DAY_MS, NAMES, START_MS, costs, limits, several_limits, steps
from tests.support.backends import BACKENDS, Backend
from zae_limiter import CapacityExceeded, Limit, RateLimitExceeded
from zae_limiter.runtime.blocking import run

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN: dict[str, Any] = {}
LOOKING: dict[str, Any] = {"speculative_writes": False, "refusal_ttl": 0}
MOST_MADE = 2**51
"""A bucket of which a limit has made more millitokens than this is moved to a new anchor by the next grant."""
LAST_MS = 2**47 - DAY_MS
"""In the year 6429: usage is not written down by calendar for ever."""


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Sydney")
"""Zones of whole hours that change their clocks, never at midnight."""
FLOORS = st.sampled_from([None, None, {"batch": 0.25}, {"batch": 0.5, "free": 0.8}])


@st.composite
def policies(draw: st.DrawFn, name: str) -> Limit:
    """A rate, or a quota with windows from seconds to months; soft, with floors, or plain."""
    soft, floors = draw(st.booleans()), draw(FLOORS)
    if draw(st.booleans()):
        return replace(draw(limits(name)), soft=soft, floors=tuple(floors.items()) if floors else ())
    periods = st.sampled_from([timedelta(seconds=1), timedelta(seconds=90), timedelta(hours=5)])
    every = draw(st.sampled_from(["hour", "day", "week", "month"]) | periods)
    amount = draw(st.sampled_from([1, 10, 1_000]) | st.integers(1, 10**6))
    rollover = draw(st.sampled_from([0, 0, 1, amount, 3 * amount]))
    zone = draw(st.sampled_from(ZONES)) if isinstance(every, str) else "UTC"
    return Limit.quota(name, amount, every=every, tz=zone, rollover=rollover, soft=soft, floors=floors)


several_policies = st.integers(1, 3).flatmap(lambda count: st.tuples(*(policies(name) for name in NAMES[:count])))


class Taken(NamedTuple):
    """A grant: when it counts from, and what it took."""

    at_ms: int
    cost: dict[str, int]
    priority: str | None


class Machine(RuleBasedStateMachine):
    """One bucket, its clients and its model."""

    backend: Backend
    clients: list[dict[str, Any]]
    kinds: Callable[[str], st.SearchStrategy[Limit]]
    several: st.SearchStrategy[tuple[Limit, ...]]

    @initialize(data=st.data(), phase=st.integers(0, 100_000))
    def open(self, data: st.DataObject, phase: int) -> None:
        given = data.draw(self.several, label="limits")
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.harness = self.stack.enter_context(self.backend.harness(folder))
        self.clock = self.harness.clock
        self.clock.set_ms(START_MS + phase)
        self.limits = given
        keeper = run(new_limiter(self.harness))
        run(keeper.set_limits("key", given))
        self.keeper = keeper
        self.limiters = [beside(self.harness, keeper, **options) for options in self.clients]
        self.pots: dict[str, ExactBucket] = {}
        self.anchor_ms = self.newest_ms = 0
        self.changed_ms = dict.fromkeys([limit.name for limit in given], 0)
        self.leases: list[tuple[Any, list[Taken]]] = []

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def bucket_now_ms(self) -> int:
        """Now, or the newest instant as of which anything was taken from the bucket: its limits share one time."""
        return max(self.now_ms, self.newest_ms)

    def levels(self) -> dict[str, int]:
        """The balances under the limits in force."""
        if not self.pots:
            return {limit.name: limit.capacity * 1000 for limit in self.limits}
        return {name: pot.level(self.now_ms) for name, pot in self.pots_in_force().items()}

    def pots_in_force(self) -> dict[str, ExactBucket]:
        """The pots as they are, those of changed limits as they will be when the bucket meets these."""
        moved = self.moved_pots()
        return {name: pot if pot.limit == moved[name].limit else moved[name] for name, pot in self.pots.items()}

    def moved_pots(self) -> dict[str, ExactBucket]:
        """The pots as they are once the bucket is moved to the limits in force, which count from their change on."""
        pots = {name: replace(pot) for name, pot in self.pots.items()}
        for limit in self.limits if pots else ():
            changed_ms = max(self.changed_ms[limit.name], self.newest_ms)
            pots[limit.name].change(limit, min(changed_ms, self.bucket_now_ms))
        return pots

    @rule(data=st.data())
    def change_limits(self, data: st.DataObject) -> None:
        """Other capacities and rates for some; buckets follow at the next acquire, whatever becomes of it."""
        if len(self.limiters) > 1:
            return  # the others would hear of it only from the bucket
        before, self.limits = (
            self.limits,
            tuple(data.draw(st.just(limit) | type(self).kinds(limit.name), label="limit") for limit in self.limits),
        )
        self.changed_ms |= {limit.name: self.now_ms for limit in self.limits if limit not in before}
        run(self.limiters[0].set_limits("key", self.limits))
        self.anchor_ms = max(self.newest_ms, self.anchor_ms + 1)  # the bucket is stamped

    def move_to_new_limits(self) -> int:
        """A raise keeps the tokens, a cut clamps them, and from here on the new rate makes new ones.

        Return the instant as of which the acquire that does it decides: never before the newest that the bucket knows.
        """
        in_force = {limit.name: limit for limit in self.limits}
        if all(pot.limit == in_force[name] for name, pot in self.pots.items()):
            return self.now_ms  # nothing to move: the limits were set again as they were
        return self.move_anchor()

    def move_anchor(self) -> int:
        """Move the bucket to the limits in force, and return the instant as of which that is done."""
        self.pots = self.moved_pots()
        self.newest_ms = self.bucket_now_ms
        for pot in self.pots.values():
            pot.cut(self.newest_ms)
        self.anchor_ms = max(self.newest_ms, self.anchor_ms + 1)
        return self.newest_ms

    def granted_as_of(self, decided_ms: int) -> int:
        """Return the instant of a grant: that of the decision, or of the move to a new anchor where the old is far."""
        pots = self.pots.values()
        is_far = any(made(pot.limit, self.now_ms) - made(pot.limit, self.anchor_ms) > MOST_MADE for pot in pots)
        return self.move_anchor() if is_far else decided_ms

    @rule(data=st.data())
    def pass_time(self, data: st.DataObject) -> None:
        step_ms = data.draw(steps(self.limits), label="ms")
        self.clock.advance_ms(min(step_ms, LAST_MS - self.now_ms))

    @rule(back_ms=st.integers(1, 5_000))
    def start_anew_with_a_clock_that_is_behind(self, back_ms: int) -> None:
        """The processes end, their bodies fail, and new ones start whose clock is behind."""
        for lease, taken in self.leases:
            self.failed(lease, taken)
        self.leases = []
        self.clock.advance_ms(-back_ms)
        self.limiters = [beside(self.harness, self.keeper, **options) for options in self.clients]

    @rule(data=st.data(), client=st.integers(0, 2))
    def acquire(self, data: st.DataObject, client: int) -> None:
        cost = data.draw(costs(self.limits, spare=1), label="cost")
        known = sorted({name for limit in self.limits for name, _ in limit.floors})
        priority = data.draw(st.sampled_from([None, *known]), label="priority")
        limiter = self.limiters[client % len(self.limiters)]
        lease = limiter.acquire("key", RESOURCE, cost, priority=priority)
        levels, found = self.levels(), self.pots_in_force()
        decided_ms, least = self.move_to_new_limits(), self.least(priority)
        try:
            run(lease.__aenter__())
        except CapacityExceeded:
            assert self.never_fits(cost, priority)
        except RateLimitExceeded as refusal:
            self.expect_refusal(refusal, cost, levels, found, priority)
        else:
            decided_ms = self.granted_as_of(decided_ms)
            levels = {name: pot.level(decided_ms) for name, pot in self.pots.items()} or levels
            assert all(levels[name] >= need * 1000 + least[name] for name, need in cost.items())
            self.leases.append((lease, [self.take(cost, decided_ms, priority)]))
            left = {name: milli // 1000 for name, milli in self.levels().items()}
            assert lease.available == left
            soft = {limit.name for limit in self.limits if limit.soft}
            over = sorted(name for name, need in cost.items() if need and left[name] < 0 and name in soft)
            assert lease.overdrawn == tuple(over)

    def least(self, priority: str | None) -> dict[str, int]:
        """What a request has to leave of each limit."""
        return {
            limit.name: -(10**18) if limit.soft else round(limit.capacity * 1000 * limit.floor(priority))
            for limit in self.limits
        }

    def never_fits(self, cost: dict[str, int], priority: str | None) -> bool:
        """Whether a limit can never hold as much, with what has to be left of it."""
        least, most = self.least(priority), {limit.name: limit.capacity * 1000 for limit in self.limits}
        return any(need * 1000 + least[name] > most[name] for name, need in cost.items())

    def expect_refusal(
        self,
        refusal: RateLimitExceeded,
        cost: dict[str, int],
        levels: dict[str, int],
        found: dict[str, ExactBucket],
        priority: str | None,
    ) -> None:
        """A refusal tells of the pots as they were found, before the bucket is moved to changed limits."""
        least = self.least(priority)
        short = {name for name, need in cost.items() if levels[name] < need * 1000 + least[name]}
        assert {status.limit_name for status in refusal.violations} == short
        assert {status.limit_name: status.available for status in refusal.statuses} == {
            name: milli // 1000 for name, milli in levels.items()
        }
        wait_ms = max(found[name].missing_ms(cost[name], self.now_ms, least[name]) for name in short)
        assert refusal.retry_after_seconds == wait_ms / 1000

    def take(self, cost: dict[str, int], decided_ms: int, priority: str | None) -> Taken:
        if not self.pots:  # the first acquire makes the bucket
            self.pots = {limit.name: ExactBucket.full(limit, self.now_ms) for limit in self.limits}
            self.anchor_ms = self.newest_ms = self.now_ms
        for name, need in cost.items():
            if need:
                self.pots[name].take(need, decided_ms)
                self.newest_ms = self.bucket_now_ms
        return Taken(self.bucket_now_ms, cost, priority)

    @rule(data=st.data(), place=st.integers(0, 100))
    @precondition(lambda self: self.leases)
    def consume_more(self, data: st.DataObject, place: int) -> None:
        lease, taken = self.leases[place % len(self.leases)]
        priority = taken[0].priority
        if priority is not None and all(priority not in dict(limit.floors) for limit in self.limits):
            return  # it has been taken off the limits since
        cost = data.draw(costs(self.limits), label="cost")
        levels, found = self.levels(), self.pots_in_force()
        decided_ms = self.move_to_new_limits()
        try:
            run(lease.consume(cost))
        except CapacityExceeded:
            assert self.never_fits(cost, priority)
        except RateLimitExceeded as refusal:
            self.expect_refusal(refusal, cost, levels, found, priority)
        else:
            decided_ms = self.granted_as_of(decided_ms)
            taken.append(self.take(cost, decided_ms, priority))

    @rule(data=st.data(), place=st.integers(0, 100))
    @precondition(lambda self: self.leases)
    def settle(self, data: st.DataObject, place: int) -> None:
        lease, taken = self.leases.pop(place % len(self.leases))
        changes = {limit.name: st.integers(-2 * limit.capacity, 3 * limit.capacity) for limit in self.limits}
        first = self.limits[0].name
        delta = data.draw(st.fixed_dictionaries({first: changes.pop(first)}, optional=changes), label="delta")
        run(lease.adjust(delta))
        spent = Counter[str]()
        for each in taken:
            spent.update(each.cost)
        delta = {name: max(amount, -spent[name]) for name, amount in delta.items()}
        assert lease.consumed == {name: spent[name] + delta.get(name, 0) for name in (*spent, *delta)}
        run(lease.__aexit__(None, None, None))
        for each in taken:  # what goes back goes to where it was taken
            here = {name: max(amount, -each.cost.get(name, 0)) for name, amount in delta.items()}
            delta = {name: amount - here[name] for name, amount in delta.items()}
            self.settled(each, {name: amount for name, amount in here.items() if amount})

    def settled(self, taken: Taken, delta: dict[str, int]) -> None:
        if any(amount > 0 for amount in delta.values()):
            self.move_to_new_limits()
        for name, amount in delta.items():
            if amount > 0:
                self.newest_ms = max(self.bucket_now_ms, taken.at_ms)
                self.pots[name].take(amount, self.newest_ms)
            else:
                self.pots[name].give_back(-amount, taken.at_ms, self.bucket_now_ms)

    @rule(place=st.integers(0, 100))
    @precondition(lambda self: self.leases)
    def fail(self, place: int) -> None:
        self.failed(*self.leases.pop(place % len(self.leases)))

    def failed(self, lease: Any, taken: list[Taken]) -> None:
        run(lease.__aexit__(Boom, Boom(), None))
        for each in taken:
            self.settled(each, {name: -amount for name, amount in each.cost.items()})

    @rule(client=st.integers(0, 2))
    def look(self, client: int) -> None:
        found = run(self.limiters[client % len(self.limiters)].available("key", RESOURCE))
        assert found == {name: milli // 1000 for name, milli in self.levels().items()}

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "pots"):
            found = run(balances(self.keeper, ["key"], self.now_ms))
            expected = {("key", RESOURCE, name): pot.level(self.now_ms) for name, pot in self.pots.items()}
            assert found == expected, (found, expected)


def machine(name: str, **fields: Any) -> type[Machine]:
    """A machine on a backend, with its clients and kinds of limits."""
    return type(name, (Machine,), fields)


BLOCKING = {backend.kind: backend for backend in BACKENDS if backend.blocking}
CLIENTS = pytest.mark.parametrize(
    ("clients", "share"),
    [([PLAIN], 0.8), ([LOOKING, LOOKING, LOOKING], 0.4)],
    ids=["one client", "several clients that look first"],
)


def run_machine(made: type[Machine], share: float) -> None:
    """Run a machine with a share of the profile's examples; a store outside the process gets a part of them."""
    examples = settings.default.max_examples if settings.default else 100
    part = share if made.backend.kind == "memory" else share / 5
    run_state_machine_as_test(
        made, settings=settings(max_examples=max(3, int(examples * part)), stateful_step_count=40)
    )


@CLIENTS
@pytest.mark.parametrize("kind", list(BLOCKING))
def test_one_limit_at_a_time(kind: str, clients: list[dict[str, Any]], share: float) -> None:
    """Grants, refusals, promised moments and stored balances are those of the limits one by one."""
    fields = {"backend": BLOCKING[kind], "clients": clients}
    run_machine(machine("Limiter", **fields, kinds=limits, several=several_limits), share)


@CLIENTS
@pytest.mark.parametrize("kind", list(BLOCKING))
def test_all_kinds_of_limits_in_one_bucket(kind: str, clients: list[dict[str, Any]], share: float) -> None:
    """Rates, quotas, soft limits and floors in one bucket are what they would be one by one."""
    fields = {"backend": BLOCKING[kind], "clients": clients}
    run_machine(machine("Policies", **fields, kinds=policies, several=several_policies), share)
