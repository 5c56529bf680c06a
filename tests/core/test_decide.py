"""Decisions over a chain: every level and limit, all or nothing, as the levels would decide one by one."""

from __future__ import annotations

from hypothesis import given, strategies as st

from zae_limiter import CapacityExceeded, Limit
from zae_limiter.core.balances import Tokens
from zae_limiter.core.decide import Reading, find_fitting, refusal, statuses, wait_for
from zae_limiter.core.production import Rule

NOW = 1_800_000_000_000
NAMES = ("rpm", "tpm", "rpd")


@st.composite
def readings(draw: st.DrawFn) -> list[Reading]:
    """One to three levels with one to three limits each, seen at different times, full, drained or in debt."""
    chain = []
    for place in range(draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
        limits = tuple(
            Limit(name, draw(st.integers(1, 50)), draw(st.integers(1, 100)), draw(st.sampled_from([1, 7, 60])))
            for name in sorted(names)
        )
        balances = {
            limit.name: (
                Tokens(Rule.of(limit), draw(st.integers(-50_000, 60_000)), NOW - draw(st.integers(0, 60_000))),
            )
            for limit in limits
        }
        chain.append(Reading(f"level-{place}", "gpt-4", limits, balances))
    return chain


COSTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 60).map(lambda whole: whole * 1000), max_size=3)


def balances(chain: list[Reading], now: int = NOW) -> dict[tuple[str, str], int]:
    return {
        (reading.entity_id, limit.name): reading.balances[limit.name][0].level(now)
        for reading in chain
        for limit in reading.limits
    }


@given(readings(), COSTS)
def test_refused_if_and_only_if_one_limit_of_one_level_refuses(chain: list[Reading], cost: dict[str, int]) -> None:
    short = {(who, name) for (who, name), there in balances(chain).items() if name in cost and cost[name] > there}
    error = refusal(chain, cost, NOW)
    assert (error is not None) == bool(short)
    if error is not None:
        assert {(status.entity_id, status.limit_name) for status in error.violations} == short
        assert len(error.statuses) == len(balances(chain)), "all are shown, violated or not"


@given(readings(), COSTS)
def test_never_and_not_yet_are_told_apart(chain: list[Reading], cost: dict[str, int]) -> None:
    error = refusal(chain, cost, NOW)
    never = any(cost.get(limit.name, 0) > limit.capacity * 1000 for reading in chain for limit in reading.limits)
    assert isinstance(error, CapacityExceeded) == never
    if error is not None:
        assert (error.retry_after_seconds is None) == never


@given(readings(), COSTS)
def test_after_the_promised_time_it_fits_and_not_before(chain: list[Reading], cost: dict[str, int]) -> None:
    error = refusal(chain, cost, NOW)
    if isinstance(error, CapacityExceeded):
        return
    wait = wait_for(chain, cost, NOW)
    assert refusal(chain, cost, NOW + wait) is None
    if error is None:
        assert wait == 0
    else:
        assert refusal(chain, cost, NOW + wait - 1) is not None
        assert error.retry_after_seconds == wait / 1000


@given(readings(), st.lists(COSTS, max_size=6))
def test_together_they_fit_as_one_after_the_other(chain: list[Reading], costs: list[dict[str, int]]) -> None:
    """Who does not fit takes nothing; a cost of nothing fits where there is no debt."""
    left = balances(chain)
    expected = []
    for cost in costs:
        needs = {(who, name): cost.get(name, 0) for who, name in left}
        fits = all(pot[1] not in cost or left[pot] >= need for pot, need in needs.items())
        expected.append(fits)
        if fits:
            left = {pot: there - needs[pot] for pot, there in left.items()}
    assert find_fitting(chain, costs, NOW) == expected


@given(readings(), COSTS)
def test_every_status_is_of_the_deciding_numbers(chain: list[Reading], cost: dict[str, int]) -> None:
    found = {(status.entity_id, status.limit_name): status for status in statuses(chain, cost, NOW)}
    for pot, there in balances(chain).items():
        assert found[pot].available == there // 1000
        assert found[pot].requested == cost.get(pot[1], 0) // 1000
