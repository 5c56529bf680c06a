"""Limits and standings that the tests of what clients are told share."""

from __future__ import annotations

from hypothesis import strategies as st

from zae_limiter import Limit
from zae_limiter.core.limit import MAX_AMOUNT, MAX_PERIOD_SECONDS
from zae_limiter.web import Fields, LimitView

NOW = 1_700_000_000_250
RPM = Limit.per_minute("rpm", 100)
TPM = Limit.per_minute("tpm", 10_000, burst=15_000)

GRANTED = (LimitView("rpm", RPM, 50, 30_000), LimitView("tpm", TPM, 9_000, 36_000))
REFUSED = (LimitView("rpm", RPM, 0, 59_500, 4_300), LimitView("tpm", TPM, 9_000, 36_000))
CASCADE = (
    LimitView("rpm", RPM, 50, 30_000),
    LimitView("parent.rpm", Limit.per_hour("rpm", 1_000), 20, 3_528_000),
    LimitView("grandparent.rpd", Limit.per_day("rpd", 50_000), 49_999, 1_728),
)

AMOUNTS = st.integers(1, 10_000) | st.integers(1, MAX_AMOUNT) | st.just(MAX_AMOUNT)
PERIODS = st.sampled_from([1, 60, 3_600, 86_400, MAX_PERIOD_SECONDS]) | st.integers(1, MAX_PERIOD_SECONDS)
NAMES = ["rpm", "rpd", "tpm", "tokens", "parent.rpm", "grandparent.tpm", "a", "A", "a.b", "X_1-y.", "z" * 128]
LIMITS = st.builds(Limit, st.sampled_from(NAMES), AMOUNTS, AMOUNTS, PERIODS)
LONG = st.integers(0, 10**7) | st.integers(0, 10**24)


@st.composite
def standings(draw: st.DrawFn, names: st.SearchStrategy[str] | None = None) -> list[LimitView]:
    """Limits of any size at any balance, as a chain of levels would have them."""
    made = []
    for depth in range(draw(st.integers(0, 3))):
        for limit in draw(st.lists(LIMITS, min_size=1, max_size=3, unique_by=lambda limit: limit.name)):
            name = draw(names) if names is not None else Fields().policy_name(depth, limit.name)
            held = draw(st.integers(-(10**13), limit.capacity))
            if name is not None:
                made.append(LimitView(name, limit, held, draw(LONG), draw(st.none() | LONG)))
    return made


def longest(given: list[LimitView]) -> int:
    return max((standing.retry_in_ms or 0 for standing in given), default=0)
