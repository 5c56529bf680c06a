"""Law 9 as a property: never more slots held than there are, and all free again once their holders are done or dead.

The law and its model are in the conformance suite; here are the scenarios, on every store in both modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.conformance.slots import Step, slots_never_exceed
from tests.laws.test_laws import PHASES, from_start, prove
from zae_limiter import Limit

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from zae_limiter.testing import Harness

    Story = tuple[int, Limit, list[Step], list[int]]

ACTIONS = ("take", "take", "take", "take", "end", "fail", "kill", "stall", "look")
UNSTALLED = tuple(action for action in ACTIONS if action != "stall")


@st.composite
def stories(draw: st.DrawFn, skews: st.SearchStrategy[int], actions: tuple[str, ...], most: int) -> Story:
    """A phase, a limit, what happens, and by how much the clock of each client is off."""
    slots, ttl = draw(st.integers(1, 5)), draw(st.sampled_from([30, 60, 120]) | st.integers(30, 120))
    telling = [0, 0, 1, 700, ttl * 1000 // 3, ttl * 1000 - 1, ttl * 1000, ttl * 1000 + 1, 3 * ttl * 1000]
    waits = st.sampled_from(telling) | st.integers(0, 2 * ttl * 1000)
    off = draw(st.lists(skews, min_size=1, max_size=4))
    step = st.builds(Step, waits, st.sampled_from(actions), st.integers(0, len(off) - 1))
    steps = draw(st.lists(step, min_size=4, max_size=most))
    return draw(PHASES), Limit.concurrent("parallel", slots, ttl=ttl), steps, off


def check(backend: Backend, harness: Harness, drawn: st.SearchStrategy[Story], share: float) -> None:
    """Run law 9 over stories."""

    def law(story: Story) -> None:
        phase, limit, steps, skews = story
        from_start(harness, phase, slots_never_exceed(harness, limit, steps, skews))

    prove(backend, share, drawn, law)


def test_law_9_never_more_than_there_are(backend: Backend, harness: Harness) -> None:
    """Clients take, end, fail, die and stall, with waits from nothing to several times to live."""
    check(backend, harness, stories(st.just(0), ACTIONS, most=25), 0.8)


def test_law_9_with_clocks_that_are_off(backend: Backend, harness: Harness) -> None:
    """The same with clocks of clients that are up to five seconds ahead or behind."""
    check(backend, harness, stories(st.sampled_from([0, 5_000, -5_000, 1]), UNSTALLED, most=25), 0.4)
