"""The queue behind a write in flight: somebody leads as long as somebody waits."""

from __future__ import annotations

import pytest

from zae_limiter import RateLimiterUnavailable
from zae_limiter.limiter.coalescer import PendingCharge, WriteCoalescer
from zae_limiter.runtime.blocking import ThreadSignal
from zae_limiter.runtime.deadline import Deadline


def charge_for(seconds: float = 1.0) -> PendingCharge[str]:
    return PendingCharge({"rpm": 1000}, Deadline.begin(seconds))


def leads(coalescer: WriteCoalescer[str], charge: PendingCharge[str] | None = None) -> bool:
    charge = charge or charge_for()
    return coalescer.lead(charge) is charge


def test_one_leads_and_the_others_queue_until_it_is_decided() -> None:
    coalescer: WriteCoalescer[str] = WriteCoalescer()
    first, second = charge_for(), charge_for()
    assert leads(coalescer)
    assert not leads(coalescer)
    assert coalescer.queue(second, ThreadSignal) is second.signal
    assert second.signal is not None
    first.grant = "granted"
    assert coalescer.decide([first], None) == []
    assert (first.decided, second.decided, second.leads) == (True, False, True)
    assert not leads(coalescer), "the second one does"
    assert coalescer.batch(second) == [second]
    assert coalescer.decide([second], ValueError()) == []
    assert isinstance(second.error, ValueError)
    assert leads(coalescer)


def test_whoever_queues_when_the_write_has_just_landed_leads_at_once() -> None:
    coalescer: WriteCoalescer[str] = WriteCoalescer()
    assert leads(coalescer)
    late = charge_for()
    assert not leads(coalescer)
    coalescer.decide([charge_for()], None)
    assert coalescer.queue(late, ThreadSignal) is None
    assert not leads(coalescer)
    assert not coalescer.waiting


def test_the_one_with_the_most_time_left_leads_next_and_takes_the_others_along() -> None:
    coalescer: WriteCoalescer[str] = WriteCoalescer()
    assert leads(coalescer)
    short, long = charge_for(1), charge_for(9)
    for charge in (short, long):
        coalescer.queue(charge, ThreadSignal)
    coalescer.decide([charge_for()], None)
    assert (short.leads, long.leads) == (False, True)
    assert coalescer.batch(long) == [short, long]


def test_a_grant_whose_caller_is_gone_is_handed_back_once() -> None:
    coalescer: WriteCoalescer[str] = WriteCoalescer()
    early, late = charge_for(), charge_for()
    assert leads(coalescer, early)
    early.batch = [early, late]
    assert coalescer.withdraw(early, alone=False) == [], "it is in flight"
    assert not leads(coalescer)
    early.grant = late.grant = "granted"
    assert coalescer.decide([early, late], None) == ["granted"]
    assert coalescer.withdraw(late, alone=False) == ["granted"]
    assert leads(coalescer)


@pytest.mark.parametrize("begun", [False, True])
def test_others_go_on_without_a_leader_that_was_interrupted(begun: bool) -> None:
    """Before its write began, or when it was over and nobody had been told."""
    coalescer: WriteCoalescer[str] = WriteCoalescer()
    first, along, second = charge_for(), charge_for(), charge_for()
    assert leads(coalescer, first)
    coalescer.queue(second, ThreadSignal)
    if begun:
        first.batch = [first, along]
        first.grant = along.grant = "granted"
    assert coalescer.withdraw(first, alone=True) == (["granted"] if begun else [])
    assert along.decided == begun
    assert second.leads
    assert coalescer.batch(second) == [second]
    coalescer.decide([second], None)
    assert leads(coalescer)


def test_an_heir_that_leaves_before_it_has_led_has_an_heir() -> None:
    coalescer: WriteCoalescer[str] = WriteCoalescer()
    first, second, third = charge_for(), charge_for(9), charge_for()
    assert leads(coalescer, first)
    for charge in (second, third):
        coalescer.queue(charge, ThreadSignal)
    coalescer.decide([first], None)
    assert second.leads
    assert coalescer.withdraw(second, alone=False) == []
    assert third.leads


def test_a_charge_without_an_outcome_ends_with_an_error() -> None:
    coalescer: WriteCoalescer[str] = WriteCoalescer()
    assert leads(coalescer)
    charge = charge_for()
    coalescer.decide([charge], None)
    assert isinstance(charge.error, RateLimiterUnavailable)
