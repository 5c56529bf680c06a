"""The eight laws, each on a scenario that has broken other limiters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance import laws
from tests.conformance.traffic import Boom, Family, Move
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of
from zae_limiter.testing.faults import Fault

if TYPE_CHECKING:
    from zae_limiter.testing.harness import Harness

TWENTY = Limit.per_second("rps", 20)
DAILY = Limit.per_day("rpd", 1_000)
ODD = Limit("rps", 20, 47, 3)
"""15 and two thirds of a millitoken in a millisecond."""
BURST = Limit.per_minute("tpm", 601, burst=900)
"""10 and one sixtieth."""


def _bursts(count: int, clients: int = 1) -> list[Move]:
    """Idle times, bursts, failures and debts, one after the other; no two alike."""
    return [
        Move(
            wait_ms=(0, 1, 37, 450, 0, 3, 1_900)[number % 7],
            cost={"rps": number % 5 + 1, "tpm": (number * 53) % 400},
            outcome=(None, {}, {"tpm": 120}, {"tpm": -30}, {"rps": 3})[number % 5],
            hold=number % 4,
            client=number % clients,
            child=number // 2 % 3,
        )
        for number in range(count)
    ]


@check
async def law_1_never_over_admit(harness: Harness) -> None:
    """Three clients, two of them with clocks that are off, never get more than the limits allow."""
    for parents in ([], [ODD, BURST]):
        family = await Family(harness, [ODD, BURST], parents, children=3).settle_in([0, -700, 300])
        await laws.never_over_admits(family, _bursts(60, clients=3))


@check
async def law_1_after_an_idle_time(harness: Harness) -> None:
    """What an idle bucket would have made beyond its ceiling is never spent."""
    limit = Limit("rps", 100, 10, 1)
    for parents, idle_ms in (([], 30_000), ([], 3_600_000), ([limit], 30_000)):
        family = await Family(harness, [limit], parents).settle_in([0, 0])
        moves = [Move(idle_ms if number == 9 else 6, {"rps": 2}, client=number % 2) for number in range(75)]
        await laws.never_over_admits(family, moves)


@check
async def law_1_after_a_give_back(harness: Harness) -> None:
    """What comes back beyond the ceiling is not spent either, by a client that has not seen it come."""
    limit = Limit("rps", 100, 10, 1)
    family = await Family(harness, [limit]).settle_in([0, 0])
    held = Move(0, {"rps": 100}, {"rps": -100}, hold=2)
    seen = Move(10, {"rps": 0}, client=1)
    after = [Move(5_000, {"rps": 50}, client=1), *(Move(0, {"rps": 10}, client=1) for _ in range(12))]
    await laws.never_over_admits(family, [held, seen, seen, *after])


@check
async def law_2_refill_is_exact(harness: Harness) -> None:
    """A limit of 1,000 a day beside one of 20 a second, driven for an hour, has refilled to the last millitoken."""
    await laws.refill_is_exact(harness, DAILY, TWENTY, 900, [1, 2, 7, 49, 50, 51, 400, 999] * 10 + [359_844] * 10)
    await laws.refill_is_exact(harness, Limit("odd", 500, 5, 3), TWENTY, 490, [1] * 50 + [7] * 20)


@check
async def law_3_the_promised_moment(harness: Harness) -> None:
    """Refused 1 ms before the promised moment, granted at it."""
    for cost in ({"rps": 20}, {"rps": 1, "tpm": 900}, {"tpm": 1}):
        for parents, anew in (([BURST], False), ([BURST], True), ([], False), ([], True)):
            family = await Family(harness, [ODD, BURST], parents).settle_in()
            moves = [Move(0, {"rps": 20, "tpm": 500}), Move(13, {"tpm": 390}, {"tpm": 333}), Move(1, {"rps": 0})]
            await laws.promise_is_kept(family, moves, cost, anew=anew)


@check
async def law_3_for_a_slow_limit(harness: Harness) -> None:
    """The same to the millisecond where a millitoken takes seven of them, or 86 and two fifths."""
    for limit in (Limit("slow", 10, 1, 7), Limit.per_day("slow", 1_000)):
        for parents in ([], [limit]):
            family = await Family(harness, [limit], parents).settle_in()
            used = limit.capacity - 4
            moves = [Move(0, {"slow": used}), Move(777, {"slow": 1}), Move(5, {"slow": 1}), Move(6, {"slow": 1})]
            await laws.promise_is_kept(family, moves, {"slow": 2}, anew=False)


@check
async def law_4_all_or_nothing(harness: Harness) -> None:
    """A refusal by one limit of one level leaves every balance of every level as it was."""
    family = await Family(harness, [ODD, BURST], [Limit.per_minute("tpm", 100)], children=2).settle_in([0, 0])
    await laws.refusal_changes_nothing(family, [Move(0, {"rps": 3, "tpm": 60})], {"rps": 1, "tpm": 41})


@check
async def law_5_never_and_not_yet(harness: Harness) -> None:
    """A cost above the capacity, of the entity or of its parent, is an error of its own."""
    used = [Move(0, {"rps": 1, "tpm": 50})]
    for moves in ([], used, [*used, Move(600_000, {"rps": 0})]):
        for cost in ({"tpm": 901}, {"tpm": 101}, {"tpm": 100}, {"rps": 21, "tpm": 101}, {"rps": 20, "tpm": 50}):
            family = await Family(harness, [ODD, BURST], [Limit.per_minute("tpm", 100)]).settle_in()
            await laws.never_is_not_yet(family, moves, cost)


@check
async def law_6_time_never_runs_backwards(harness: Harness) -> None:
    """A clock that steps back, by a millisecond or a year, drains nothing and grants nothing extra."""
    for back_ms in (1, 999, 60_000, 365 * 86_400_000):
        for parents in ([], [BURST]):
            family = await Family(harness, [ODD, BURST], parents).settle_in()
            moves = [Move(0, {"rps": 5, "tpm": 300}), Move(400, {"rps": 1}), Move(0, {"rps": 9})]
            await laws.time_never_runs_backwards(family, moves, back_ms, {"rps": 1, "tpm": 100})


@check
async def law_7_nothing_leaks(harness: Harness) -> None:
    """An exception of any kind and a closed generator leave the balance where it should be."""
    for error in (Boom(), KeyboardInterrupt(), SystemExit(), GeneratorExit()):
        family = await Family(harness, [ODD, BURST], [BURST]).settle_in()
        await laws.nothing_leaks(family, [Move(0, {"rps": 5, "tpm": 300})], {"rps": 2, "tpm": 100}, error, 40)
    for chunks in (0, 1, 5):
        family = await Family(harness, [ODD, BURST], [BURST]).settle_in()
        await laws.streams_do_not_leak(family, {"rps": 2, "tpm": 100}, chunks)


@check
async def law_8_a_refusal_is_no_failure(harness: Harness) -> None:
    """Limit exceeded, store down and bad input are different types."""
    for fault in (Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.DROP_ANSWER):
        await laws.refusal_is_no_failure(harness, TWENTY, fault)


CHECKS = checks_of(globals())
