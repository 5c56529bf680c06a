"""The one thread that does background work for all limiters of a process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.limiter.test_concurrency import in_a_fork
from tests.support.deadlines import PATIENCE
from tests.support.waiting import until
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.limiter import slot_leases
from zae_limiter.runtime import housekeeper as module
from zae_limiter.runtime.housekeeper import Housekeeper

NAME = "zae-limiter-housekeeper"
SHORT = [Limit.concurrent("parallel", 1, ttl=1)]


@pytest.fixture
def housekeeper() -> Housekeeper:
    """One of its own, whose threads are told apart by what they do."""
    return Housekeeper()


def once(work: Callable[[], object]) -> Callable[[], None]:
    """A chore that is done once."""

    def chore() -> None:
        work()

    return chore


def is_over(housekeeper: Housekeeper) -> bool:
    """Wait until nothing is left to do, and its thread has ended."""
    until(lambda: housekeeper._thread is None, "the end of the thread")
    return not housekeeper._due


def test_chores_are_done_when_they_are_due_by_a_thread_that_ends_with_them(housekeeper: Housekeeper) -> None:
    done: list[str] = []

    def note(name: str) -> Callable[[], None]:
        return once(lambda: done.append(name))

    housekeeper.schedule(note("late"), 3600)
    housekeeper.schedule(note("early"), 0.03)
    until(lambda: done == ["early"], "the one that is due")
    thread = housekeeper._thread
    assert thread is not None
    assert (thread.name, thread.daemon) == (NAME, True)
    housekeeper.schedule(note("now"), 0)
    until(lambda: done == ["early", "now"], "the next one, by the same thread")
    assert housekeeper._thread is thread


def test_a_chore_that_hangs_keeps_no_other_waiting(housekeeper: Housekeeper) -> None:
    ends, done = threading.Event(), threading.Event()
    housekeeper.schedule(once(lambda: ends.wait(PATIENCE)), 0)
    housekeeper.schedule(once(done.set), 0.01)
    assert done.wait(PATIENCE)
    ends.set()
    until(lambda: housekeeper._thread is None, "its end, with nothing left to do")


def test_the_earlier_of_two_moments_counts_and_a_chore_says_when_it_is_due_again(housekeeper: Housekeeper) -> None:
    turns: Iterator[float | None] = iter([0.0, 0.01, None])
    done: list[float] = []

    def chore() -> float | None:
        done.append(time.monotonic())
        return next(turns)

    began = time.monotonic()
    housekeeper.schedule(chore, 0.02)
    housekeeper.schedule(chore, 3600)
    until(lambda: len(done) == 3, "three turns")
    assert done[0] >= began + 0.02
    assert done[2] >= done[1] + 0.01
    assert is_over(housekeeper)


def test_a_chore_that_raises_is_logged_and_tried_again_and_the_others_go_on(
    housekeeper: Housekeeper, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.01)
    failures, others = [KeyError("one"), KeyError("two")], list[int]()

    def chore() -> None:
        if failures:
            raise failures.pop()

    with caplog.at_level(logging.WARNING, "zae_limiter"):
        housekeeper.schedule(chore, 0)
        housekeeper.schedule(once(lambda: others.append(1)), 0)
        assert is_over(housekeeper)
    assert (failures, others) == ([], [1])
    fields = [(record.__dict__["zae_event"], record.__dict__["zae_error_type"]) for record in caplog.records]
    assert fields == [("chore.failed", "KeyError")] * 2


def test_cancelling_waits_for_the_chore_that_is_being_done(housekeeper: Housekeeper) -> None:
    begun, ended, go_on = threading.Event(), list[bool](), threading.Event()

    def chore() -> float:
        begun.set()
        go_on.wait(PATIENCE)
        ended.append(True)
        return 0.0

    housekeeper.schedule(chore, 0)
    assert begun.wait(PATIENCE)
    threading.Timer(0.02, go_on.set).start()
    housekeeper.cancel(chore)
    assert ended == [True], "it was over, and is not done again"
    assert is_over(housekeeper)
    assert ended == [True]


def test_cancelling_what_is_due_later_ends_the_thread(housekeeper: Housekeeper) -> None:
    chore = once(lambda: None)
    housekeeper.schedule(chore, 3600)
    thread = housekeeper._thread
    assert thread is not None
    housekeeper.cancel(chore)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    housekeeper.cancel(chore)


def test_a_chore_may_cancel_itself(housekeeper: Housekeeper) -> None:
    done: list[int] = []

    def chore() -> float:
        housekeeper.cancel(chore)
        done.append(1)
        return 0.0

    housekeeper.schedule(chore, 0)
    assert is_over(housekeeper)
    assert done == [1]


def test_several_limiters_share_one_thread_which_ends_after_them(
    housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_leases, "HOUSEKEEPER", housekeeper)
    limiters = [SyncRateLimiter("memory://") for _ in range(3)]
    leases = [limiter.acquire("key", "gpt-4", {}, limits=SHORT) for limiter in limiters]
    for lease in leases:
        lease.enter()
    thread = housekeeper._thread
    assert len(housekeeper._due) == 3
    time.sleep(1.2)  # each is renewed several times
    assert [lease.lost for lease in leases] == [False] * 3
    assert housekeeper._thread is thread
    for lease, limiter in zip(leases, limiters, strict=True):
        lease.exit()
        limiter.close()
    assert is_over(housekeeper)


@pytest.mark.unix
def test_a_child_process_starts_without_chores_and_has_a_thread_of_its_own(housekeeper: Housekeeper) -> None:
    done: list[int] = []
    mine = once(lambda: done.append(1))
    housekeeper.schedule(mine, 3600)

    def child() -> tuple[bool, list[int]]:
        nothing = (housekeeper._due, housekeeper._thread) == ({}, None)
        housekeeper.schedule(once(lambda: done.append(2)), 0)
        until(lambda: done, "the chore of the child")
        housekeeper.cancel(mine)
        return nothing, done

    assert in_a_fork(child)() == [True, [2]]
    assert mine in housekeeper._due
    assert housekeeper._thread is not None
    assert housekeeper._thread.is_alive()
    housekeeper.cancel(mine)
