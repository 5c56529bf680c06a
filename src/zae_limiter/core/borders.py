"""Limits with a schedule across its borders: what a bucket holds after some of them, and when a cost fits.

At a border a bucket goes on under other numbers: a raise keeps what it holds, a cut clamps it. Between two borders it
is a bucket as any other. So the level of a bucket that held ``x`` at its anchor is ``min(ceiling, x + produced)``,
however many borders lie in between: both numbers are found border by border, and no write is needed at any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from .balances import Tokens, balance, wait_ms
from .limit import Limit
from .production import FAR, FOR_EVER, Rule
from .schedule import find_active, last_change, next_change
from .tokens import NEVER_USED

_HORIZON_MS = 50 * 366 * 86_400_000
"""What does not fit until then counts as never: nobody waits for it, and looking on takes long."""
_MOST_BORDERS = 1_000
"""Most borders at which a wait is computed. A longer wait is reported as lasting until the last of them, when the
caller can ask again. A quota skips the borders that change nothing, so this is a bound for rates."""

_next_border = lru_cache(maxsize=2**12)(next_change)
"""`next_change`, for those who go from border to border, again and again."""


class Scheduled(NamedTuple):
    """A limit with its schedule, and the part of it that a request has to leave."""

    limit: Limit
    floor: float = 0.0

    def rule_at(self, instant_ms: int, like: Rule) -> Rule:
        """Return the whole rule in force at an instant, with the windows of the bucket that ``like`` is from."""
        schedule, states = self.limit.schedule, _find_states(self.limit)
        entry = find_active(schedule, instant_ms)
        return states[0 if entry is None else 1 + schedule.index(entry)]._replace(calendar=like.calendar)

    def floor_of(self, rule: Rule) -> int:
        """Return what a request has to leave under a whole rule."""
        return round(rule.capacity * self.floor)


@lru_cache(maxsize=2**10)
def _find_states(limit: Limit) -> tuple[Rule, ...]:
    """Return the rule of a limit while no entry of its schedule is in force, and while each of them is."""
    return tuple(map(Rule.of, limit.states()))


def find_scheduled(limits: Sequence[Limit], priority: str | None) -> dict[str, Scheduled]:
    """Return the limits of tokens that have a schedule, by name, for requests of a priority.

    Slots are what they are at any moment: there is nothing to carry over a border.
    """
    found = [limit for limit in limits if limit.schedule and not limit.is_concurrency]
    return {limit.name: Scheduled(limit, limit.floor(priority)) for limit in found}


def find_interval(limits: Sequence[Limit], now_ms: int) -> tuple[int, int]:
    """Return since when all limits are what they are at an instant, and the instant from which one of them is not."""
    schedules = [limit.schedule for limit in limits if limit.schedule]
    starts = [start for each in schedules if (start := last_change(each, now_ms)) is not None]
    ends = [end for each in schedules if (end := next_change(each, now_ms)) is not None]
    return max(starts, default=0), min(ends, default=FAR)


def _end_of(rule: Rule, border_ms: int) -> int:
    """Return until when a rule produces before a border: a window that begins at the border is of the next one."""
    return border_ms if rule.calendar is None else border_ms - 1


class Span(NamedTuple):
    """The instants that matter for carrying a bucket: its anchor, its last charge, the change of its limits, and now.

    The change is not before the last charge, which has counted under the old limits, nor after now.
    """

    anchor_ms: int
    newest_ms: int
    changed_ms: int
    now_ms: int


def carry(scheduled: Scheduled | None, old: Rule, new: Rule, span: Span, place: tuple[int, int]) -> tuple[int, int]:
    """Carry a shard (``place``: which of how many) from its anchor under ``old`` to now under ``new``.

    Return what was produced, and the most that is left of what it held after all borders.
    """
    produced, ceiling, rule, start = 0, FAR, old, span.anchor_ms
    for end, following in _switches(scheduled, old, new, span, place):
        made = rule.produced_between(start, end)
        produced, ceiling = produced + made, min(ceiling + made, rule.capacity)
        rule, start = following, end
    made = rule.produced_between(start, span.now_ms)
    return produced + made, min(ceiling + made, rule.capacity, new.capacity)


def _switches(
    scheduled: Scheduled | None, old: Rule, new: Rule, span: Span, place: tuple[int, int]
) -> Iterator[tuple[int, Rule]]:
    """Yield until when each rule is in force, and the rule after it: at a change of the limits, and at borders."""
    rule, since = old, span.newest_ms
    if scheduled is None or scheduled.rule_at(since, new).share(*place) != old:
        since = span.changed_ms
        rule = new if scheduled is None else scheduled.rule_at(since, new).share(*place)
        yield since, rule
    if scheduled is None:
        return
    border = next_change(scheduled.limit.schedule, since)
    while border is not None and border <= span.now_ms:
        end = _end_of(rule, border)
        rule = scheduled.rule_at(border, new).share(*place)
        yield end, rule
        border = _next_border(scheduled.limit.schedule, border)


def wait_across(scheduled: Scheduled, balances: Sequence[Tokens], cost_milli: int, now_ms: int, from_ms: int) -> int:
    """Return the milliseconds until a cost fits, across the borders to come; `FOR_EVER` if it never does.

    ``from_ms`` is an instant before which it is not asked for. Only borders within fifty years are looked at, and only
    `_MOST_BORDERS` of them: the wait ends at the last one if the cost does not fit before.
    """
    limit, instant = scheduled.limit, now_ms
    credit = sum(shard.credit(now_ms) for shard in balances)
    if all(cost_milli + scheduled.floor_of(state) > state.capacity + credit for state in _find_states(limit)):
        return FOR_EVER
    whole = scheduled.rule_at(now_ms, balances[0].rule)
    for _ in range(_MOST_BORDERS):
        border = _next_border(limit.schedule, instant)
        need, begin, end = cost_milli + scheduled.floor_of(whole), max(instant, from_ms), border or FOR_EVER
        if begin < end and need <= sum(shard.rule.capacity + shard.credit(begin) for shard in balances):
            fits_ms = begin + wait_ms(balances, need, begin)
            if fits_ms < end:
                return fits_ms - now_ms
        if border is None or border - now_ms > _HORIZON_MS:
            return FOR_EVER
        border = _skip_borders(scheduled, balances, whole, cost_milli, border)
        following = scheduled.rule_at(border, balances[0].rule)
        balances, instant, whole = _cross(balances, whole, following, border), border, following
    return max(instant, from_ms) - now_ms


def _skip_borders(
    scheduled: Scheduled, balances: Sequence[Tokens], whole: Rule, cost_milli: int, border_ms: int
) -> int:
    """Return the first instant from a border on that can change what is held or whether the cost fits.

    For a rate this is the border itself. A quota holds the same until its next window begins, or until an entry comes
    into force that clamps it or has a floor low enough for the cost.
    """
    calendar = balances[0].rule.calendar
    if calendar is None or any(shard.tokens == NEVER_USED for shard in balances):
        return border_ms
    instant, schedule = border_ms - 1, scheduled.limit.schedule
    held = balance(balances, instant)
    latest = calendar.start(calendar.index(instant) + 1)
    for place, state in enumerate(_find_states(scheduled.limit)):
        fits = cost_milli + scheduled.floor_of(state) <= held
        if fits or any(shard.level(instant) > _share_like(shard, whole, state).capacity for shard in balances):
            if place == 0 or schedule[place - 1].matches(instant):
                return border_ms
            latest = min(latest, next_change((schedule[place - 1],), instant) or latest)
    return latest


def _share_like(shard: Tokens, whole: Rule, other: Rule) -> Rule:
    """Return the share that a shard of one whole rule has in another."""
    return other.share(shard.rule.phase // whole.period, shard.rule.period // whole.period or 1)


def _cross(balances: Sequence[Tokens], whole: Rule, following: Rule, border_ms: int) -> tuple[Tokens, ...]:
    """Return the shards of a bucket right after a border."""
    crossed = []
    for shard in balances:
        rule, end = _share_like(shard, whole, following), _end_of(following, border_ms)
        level = shard.without_credits().level(end)
        held = NEVER_USED if shard.tokens == NEVER_USED else min(rule.capacity, level)
        crossed.append(Tokens(rule, held, end, shard.credits))
    return tuple(crossed)
