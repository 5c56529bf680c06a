"""A bucket over time: a burst, refusals, refill, an estimate, its settlement into debt, repayment.

A real limiter on the memory store; only the clock is told when to move.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bench.figures import ALARM, COLOURS, LINE, MUTED, OURS, figure
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.testing import ManualClock

LIMIT = Limit.per_minute("tpm", 12_000, burst=10_000)
BURST, ESTIMATE, ACTUAL = 2_000, 3_000, 9_000
STEP_S = 0.5


class Moment(NamedTuple):
    """Something that happened to the bucket."""

    second: float
    tokens: int
    kind: str
    amount: int


class Story(NamedTuple):
    """Observations: levels by the second, and events."""

    capacity: int
    per_second: float
    levels: list[tuple[float, int]]
    moments: list[Moment]


class Witness:
    """Moves the clock, and writes down the level of the bucket whenever it does or something happens."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.limiter = SyncRateLimiter(SyncRepository("memory://", clock=self.clock))
        self.limiter.set_system_defaults([LIMIT])
        self.levels: list[tuple[float, int]] = []
        self.moments: list[Moment] = []
        self._start_ms = self.clock.now_ms()

    @property
    def second(self) -> float:
        """Now."""
        return (self.clock.now_ms() - self._start_ms) / 1000

    def look(self) -> int:
        """Note the level."""
        tokens = self.limiter.available("key", "gpt-4")["tpm"]
        self.levels.append((self.second, tokens))
        return tokens

    def until(self, second: float) -> None:
        """Let time pass."""
        self.look()
        while self.second < second:
            self.clock.advance(min(STEP_S, second - self.second))
            self.look()

    def note(self, kind: str, amount: int) -> None:
        """Something has just happened."""
        self.moments.append(Moment(self.second, self.look(), kind, amount))

    def take(self, amount: int) -> None:
        """A request whose cost was known."""
        try:
            with self.limiter.acquire("key", "gpt-4", {"tpm": amount}):
                pass
            self.note("granted", amount)
        except RateLimitExceeded:
            self.note("refused", amount)


def run() -> Story:
    """Two minutes in the life of a bucket."""
    witness = Witness()
    witness.until(4)
    for _ in range(7):
        witness.take(BURST)
        witness.until(witness.second + 0.5)
    witness.until(28)
    with witness.limiter.acquire("key", "gpt-4", {"tpm": ESTIMATE}) as lease:
        witness.note("estimated", ESTIMATE)
        witness.until(34)
        lease.adjust(tpm=ACTUAL - ESTIMATE)
    witness.note("settled", ACTUAL - ESTIMATE)
    for second in (37, 41, 45):
        witness.until(second)
        witness.take(BURST)
    for second in (56, 62):
        witness.until(second)
        witness.take(BURST)
    witness.until(116)
    witness.limiter.close()
    return Story(LIMIT.capacity, LIMIT.refill_rate, witness.levels, witness.moments)


MARKS = {
    "granted": ("v", OURS, f"granted {BURST:,}"),
    "refused": ("x", ALARM, f"refused {BURST:,}"),
    "estimated": ("D", COLOURS[2], f"granted an estimate of {ESTIMATE:,}"),
    "settled": ("s", COLOURS[3], f"settled: it was {ACTUAL:,}"),
}


def draw(story: Story) -> Any:
    """The level, and what happened."""
    drawn, axes = figure(1, 1, (9.0, 4.4))
    axis = axes[0][0]
    seconds, tokens = zip(*story.levels, strict=True)
    axis.plot(seconds, tokens, color=LINE, linewidth=1.6)
    axis.fill_between(seconds, tokens, 0, where=[each < 0 for each in tokens], color=ALARM, alpha=0.25, label="debt")
    axis.axhline(story.capacity, color=MUTED, linestyle="--", linewidth=1)
    axis.axhline(0, color=MUTED, linewidth=1)
    axis.annotate("capacity", (seconds[-1], story.capacity), (0, 4), textcoords="offset points", ha="right")
    for kind, (marker, colour, label) in MARKS.items():
        found = [each for each in story.moments if each.kind == kind]
        spots = [each.second for each in found], [each.tokens for each in found]
        axis.plot(*spots, marker, color=colour, label=label, markersize=7, markeredgewidth=2, linestyle="none")
    axis.set_xlabel("seconds")
    axis.set_ylabel("tokens in the bucket")
    axis.set_title(f"Capacity {story.capacity:,}, refilled with {story.per_second:,.0f} a second", fontsize=11)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, columnspacing=1.2, handletextpad=0.4)
    return drawn
