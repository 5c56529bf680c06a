"""The service's clock as read off its Date headers, however wrong the host's is."""

from __future__ import annotations

import logging
from email.utils import formatdate

import pytest
from hypothesis import given, strategies as st

from zae_limiter.stores.dynamodb.answers import DateClock
from zae_limiter.stores.server_clock import HostClock, Interval
from zae_limiter.testing import ManualClock

START = 1_800_000_000_000
DRIFT_MS = 5
"""How much the possible offsets widen, either way, in the 21 s of twenty answers."""


class World:
    """True time, a host that is wrong by ``skew_ms``, and answers that take their time."""

    def __init__(self, skew_ms: int) -> None:
        self.true_ms = START
        self.skew_ms = skew_ms
        self.host = ManualClock(START + skew_ms)
        self.clock = DateClock(self.host)

    def advance(self, milliseconds: int) -> None:
        self.true_ms += milliseconds
        self.host.advance_ms(milliseconds)

    def ask(self, there_ms: int, back_ms: int) -> None:
        sent_ms = self.host.now_ms()
        self.advance(there_ms)
        date = formatdate(self.true_ms // 1000, usegmt=True)
        self.advance(back_ms)
        self.clock.observe(date, sent_ms, self.host.now_ms(), sent_ms + self.clock.offset_ms)

    @property
    def error_ms(self) -> int:
        return abs(self.clock.now_ms() - self.true_ms)


LATENCIES = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 2_000)), min_size=1, max_size=30
)
SKEWS = st.integers(-90_000, 90_000)


@given(SKEWS, LATENCIES)
def test_the_true_offset_is_always_possible(skew_ms: int, answers: list[tuple[int, int, int]]) -> None:
    world = World(skew_ms)
    for there, back, idle in answers:
        world.ask(there, back)
        interval = world.clock.interval
        assert interval is not None
        assert interval.low <= -skew_ms <= interval.high
        assert world.error_ms <= 1000 + there + back + 1
        world.advance(idle)


@given(SKEWS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=20, max_size=20))
def test_twenty_answers_bring_it_to_within_a_round_trip(skew_ms: int, latencies: list[tuple[int, int]]) -> None:
    world = World(skew_ms)
    for there, back in latencies:
        world.ask(there, back)
        world.advance(1050 - there - back)  # so that the answers meet the second at phases 50 ms apart
    assert world.error_ms <= max(there + back for there, back in latencies) + 50 + DRIFT_MS


@given(st.lists(st.tuples(st.integers(5, 60), st.integers(5, 60)), min_size=20, max_size=20))
def test_hosts_a_minute_off_either_way_agree(latencies: list[tuple[int, int]]) -> None:
    ahead, behind = World(60_000), World(-60_000)
    for there, back in latencies:
        for world in (ahead, behind):
            world.ask(there, back)
            world.advance(1050 - there - back)
    largest = max(there + back for there, back in latencies)
    assert abs(ahead.clock.now_ms() - behind.clock.now_ms()) <= largest + 50 + DRIFT_MS


@given(st.integers(-40, 40), LATENCIES)
def test_a_host_in_step_keeps_its_own_time(skew_ms: int, answers: list[tuple[int, int, int]]) -> None:
    world = World(skew_ms)
    for there, back, idle in answers:
        world.ask(there, back)
        assert abs(world.clock.skew_ms) <= abs(skew_ms)
        world.advance(idle)


def test_before_any_answer_it_is_the_hosts_clock() -> None:
    world = World(0)
    assert (world.clock.now_ms(), world.clock.skew_ms, world.clock.interval) == (START, 0, None)


def test_a_minute_ahead_is_corrected_by_the_first_answer_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(60_000)
    world.advance(500)
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        for _ in range(5):
            world.ask(10, 10)
    assert world.error_ms <= 520
    assert abs(world.clock.skew_ms - 60_000) <= 520
    (record,) = caplog.records
    assert record.getMessage() == "The clock of this host is +60.0 s off DynamoDB's; decisions follow DynamoDB's."


def test_a_host_in_step_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World(20)
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        for _ in range(20):
            world.ask(10, 10)
            world.advance(311)
    assert not caplog.records


@pytest.mark.parametrize("step_ms", [-30_000, 30_000])
def test_a_stepped_clock_starts_afresh(step_ms: int) -> None:
    world = World(0)
    for _ in range(10):
        world.ask(5, 5)
        world.advance(150)
    world.host.advance_ms(step_ms)
    world.ask(5, 5)
    assert world.error_ms <= 1010


def test_drift_widens_what_is_possible_however_often_it_is_asked() -> None:
    world = World(0)
    for hour in range(3):  # the host gains 100 ppm: 360 ms an hour
        for _ in range(900):
            world.ask(2, 2)
            world.advance(3_996)
            if world.true_ms % 10_000 < 4_000:
                world.host.advance_ms(1)
        assert world.error_ms <= 1_100, hour


@given(st.integers(0, 900), st.integers(0, 999), st.lists(st.integers(0, 400), min_size=2, max_size=30))
def test_small_corrections_never_step_it_back(skew_ms: int, phase_ms: int, idle: list[int]) -> None:
    world = World(skew_ms)
    world.advance(phase_ms)
    last = world.clock.now_ms()
    for pause in idle:
        world.ask(3, 3)
        now = world.clock.now_ms()
        assert now >= last
        last = now
        world.advance(pause)


def test_it_stalls_until_the_service_has_caught_up() -> None:
    world = World(900)
    world.advance(950)
    before = world.clock.now_ms()
    world.ask(3, 3)
    assert world.clock.skew_ms == 850
    assert world.clock.now_ms() == before
    world.advance(2_000)
    assert before < world.clock.now_ms() <= world.true_ms + 50


def test_the_possible_offsets_widen_by_the_same_however_often_they_are_aged() -> None:
    often = once = Interval(-10, 10, START)
    for second in range(1, 101):
        often = often.widen(START + second * 1_000)
    assert often == once.widen(START + 100_000) == Interval(-30, 30, START + 100_000)
    assert often.widen(START) == often, "and never narrow"


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 99 Nov 2026", "\x00", "0" * 100])
def test_a_date_that_is_none_teaches_nothing(date: str | None) -> None:
    clock = DateClock(ManualClock(START))
    clock.observe(date, START, START, START)
    assert clock.interval is None


@given(st.text(max_size=40) | st.from_regex(r"Sun, \d{1,3} [A-Z][a-z]{2} \d{1,6} \d{1,3}:\d\d(:\d\d)? ?(GMT)?"))
def test_no_date_breaks_it(date: str) -> None:
    DateClock(ManualClock(START)).observe(date, START, START, START)


def test_the_hosts_own_clock_moves_with_the_monotonic_one() -> None:
    host = HostClock()
    first = host.now_ms()
    assert host.now_ms() >= first
    assert DateClock().now_ms() >= first
