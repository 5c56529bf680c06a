"""The arithmetic of a token bucket, as functions over the stored numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from ..core.balances import Tokens
from ..core.decide import Reading
from ..core.limit import Limit
from ..core.production import MILLI, Rule
from ..core.values import LimitStatus
from ..records.level import parse_calendar

if TYPE_CHECKING:
    from ..core.reports import BucketState

P = ParamSpec("P")


class RefillResult(NamedTuple):
    """Tokens as of ``new_last_refill_ms``."""

    new_tokens_milli: int
    new_last_refill_ms: int


class ConsumeResult(NamedTuple):
    """Whether the tokens were taken, the bucket after it, and the whole tokens that were ``available`` before."""

    success: bool
    new_tokens_milli: int
    new_last_refill_ms: int
    available: int
    retry_after_seconds: float | None


def _accept_burst_milli(refill: Callable[P, RefillResult]) -> Callable[P, RefillResult]:
    """Return ``refill``, which also takes its ``capacity_milli`` by the name that it had up to 0.9."""

    @wraps(refill)
    def wrapped(*args: Any, **named: Any) -> RefillResult:
        if "burst_milli" in named:
            return refill(*args, capacity_milli=named.pop("burst_milli"), **named)
        return refill(*args, **named)

    return wrapped


@_accept_burst_milli
def refill_bucket(
    tokens_milli: int,
    last_refill_ms: int,
    now_ms: int,
    capacity_milli: int,
    refill_amount_milli: int,
    refill_period_ms: int,
) -> RefillResult:
    """Return the tokens at ``now_ms``. Refilling in any number of steps credits what a single step would.

    A clock that went backwards changes nothing.

    >>> refill_bucket(0, 0, 1_500, 10_000, 1_000, 1_000)
    RefillResult(new_tokens_milli=1500, new_last_refill_ms=1500)
    """
    instant = max(now_ms, last_refill_ms)
    rule = Rule(capacity_milli, refill_amount_milli, refill_period_ms)
    return RefillResult(rule.level(tokens_milli, last_refill_ms, instant), instant)


def _rule(state: BucketState) -> Rule:
    calendar = None if state.calendar is None else parse_calendar(state.calendar).begin(state.window_start_ms)
    return Rule(state.capacity_milli, state.refill_amount_milli, state.refill_period_ms, 0, calendar)


def _refill(state: BucketState, now_ms: int) -> RefillResult:
    instant = max(now_ms, state.last_refill_ms)
    return RefillResult(_rule(state).level(state.tokens_milli, state.last_refill_ms, instant), instant)


def try_consume(state: BucketState, requested: int, now_ms: int) -> ConsumeResult:
    """Take ``requested`` whole tokens if they are there; otherwise say when they will be."""
    tokens, instant = _refill(state, now_ms)
    cost = requested * MILLI
    if tokens >= cost:
        return ConsumeResult(True, tokens - cost, instant, tokens // MILLI, 0.0)
    retry = None
    if cost <= state.capacity_milli:
        retry = (_rule(state).fits_at(tokens, instant, cost) - now_ms) / MILLI
    return ConsumeResult(False, tokens, instant, tokens // MILLI, retry)


def force_consume(state: BucketState, amount: int, now_ms: int) -> RefillResult:
    """Take ``amount`` whole tokens whatever the balance: the bucket may go into debt."""
    tokens, instant = _refill(state, now_ms)
    return RefillResult(tokens - amount * MILLI, instant)


def calculate_retry_after(deficit_milli: int, refill_amount_milli: int, refill_period_ms: int) -> float:
    """Return the seconds in which ``deficit_milli`` is made at the latest, whatever the phase of the clock.

    `build_limit_status` gives the exact moment; this is its upper bound without a bucket at hand.
    """
    if deficit_milli <= 0:
        return 0.0
    return -(-deficit_milli * refill_period_ms // refill_amount_milli) / MILLI


def calculate_available(state: BucketState, now_ms: int) -> int:
    """Return the whole tokens at ``now_ms``, rounded down; negative means debt."""
    return _refill(state, now_ms).new_tokens_milli // MILLI


def calculate_time_until_available(state: BucketState, needed: int, now_ms: int) -> float | None:
    """Return the seconds until ``needed`` whole tokens are there; None if they never are, above the capacity."""
    return try_consume(state, needed, now_ms).retry_after_seconds


def build_limit_status(
    entity_id: str, resource: str, limit: Limit, state: BucketState, requested: int, now_ms: int
) -> LimitStatus:
    """Return the status of ``limit`` for a request, given the stored bucket."""
    tokens, instant = _refill(state, now_ms)
    balances = {limit.name: (Tokens(Rule.of(limit), tokens, instant),)}
    fields = Reading(entity_id, resource, (limit,), balances).describe(limit, requested * MILLI, now_ms)
    return LimitStatus(*fields)


def would_refill_satisfy(
    buckets: Sequence[BucketState], consume: Mapping[str, int], now_ms: int
) -> tuple[bool, list[LimitStatus]]:
    """Return whether all of ``consume`` fits once the buckets are refilled to ``now_ms``, and what each of them says.

    A bucket that ``consume`` does not name is not asked.
    """
    statuses = [
        build_limit_status(
            state.entity_id, state.resource, Limit.from_bucket_state(state), state, consume[state.limit_name], now_ms
        )
        for state in buckets
        if state.limit_name in consume
    ]
    return not any(status.exceeded for status in statuses), statuses
