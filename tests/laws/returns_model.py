"""The model that decided what unused tokens are worth: how much of a limit do LLM calls really use?

A call reserves an estimate, runs for a while and gives back what it did not use. Two rules for what comes back:

    plain     it is added to the bucket, and a level above the capacity is cut
    strict    the bucket is replayed as if the call had cost its actual usage from the start. In every window the tokens
              that are kept are then at most capacity + rate x window, whatever open calls turn out to use; no limiter
              that promises this can grant more

``python -m tests.laws.returns_model`` prints the table at full size, which takes a few minutes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Receipt = Any
POLL_S = 0.2
"""How long a client that was refused waits before it asks again."""


class Bucket(Protocol):
    """A limit that calls reserve tokens of."""

    def take(self, now: float, amount: int) -> Receipt | None:
        """Take tokens and return a receipt, or None if they are not there."""

    def give_back(self, now: float, receipt: Receipt, amount: int) -> None:
        """Give back tokens of a receipt."""


@dataclass
class PlainBucket:
    """What comes back is added."""

    capacity: float
    rate: float
    level: float = field(init=False)
    last: float = 0.0

    def __post_init__(self) -> None:
        self.level = self.capacity

    def _refill(self, now: float) -> None:
        self.level = min(self.capacity, self.level + (now - self.last) * self.rate)
        self.last = now

    def take(self, now: float, amount: int) -> Receipt | None:
        self._refill(now)
        if self.level < amount:
            return None
        self.level -= amount
        return amount

    def give_back(self, now: float, receipt: Receipt, amount: int) -> None:
        self._refill(now)
        self.level = min(self.capacity, self.level + amount)


@dataclass
class StrictBucket:
    """The history is replayed with what was kept; open calls count at their estimate."""

    capacity: float
    rate: float
    level: float = field(init=False)
    last: float = 0.0
    charges: list[list[Any]] = field(default_factory=list)
    """Instant, tokens and whether it is settled, for every charge after ``last``."""

    def __post_init__(self) -> None:
        self.level = self.capacity

    def _level(self, now: float) -> float:
        level, last = self.level, self.last
        for at, amount, _ in self.charges:
            level, last = min(self.capacity, level + (at - last) * self.rate) - amount, at
        return min(self.capacity, level + (now - last) * self.rate)

    def take(self, now: float, amount: int) -> Receipt | None:
        if self._level(now) < amount:
            return None
        self.charges.append([now, amount, False])
        return self.charges[-1]

    def give_back(self, now: float, receipt: Receipt, amount: int) -> None:
        receipt[1:] = receipt[1] - amount, True
        while self.charges and self.charges[0][2]:
            at, kept, _ = self.charges.pop(0)
            self.level = min(self.capacity, self.level + (at - self.last) * self.rate) - kept
            self.last = at


class Workload(NamedTuple):
    """Clients that call without a pause: what they reserve, use and how long a call takes, in seconds."""

    rate: int
    capacity: int
    estimate: int
    actual: int
    shortest: float
    longest: float
    clients: int
    seconds: float


class Delivered(NamedTuple):
    """``used`` is the share of capacity + rate x time that was really used.

    ``excess`` is by how much kept tokens, counted at the instant of their grant, exceed capacity + rate x window in any
    window, as a share of the capacity.
    """

    used: float
    excess: float


WORKLOADS = {
    "chat, 5 s, 4.6k for 0.9k, 60k/min": Workload(1_000, 60_000, 4_596, 900, 2, 8, 200, 1_200),
    "long chat, 25 s, 4.6k for 0.9k, 60k/min": Workload(1_000, 60_000, 4_596, 900, 10, 40, 200, 1_200),
    "reasoning, 60 s, 16k for 4k, 200k/min": Workload(3_333, 200_000, 16_000, 4_000, 30, 90, 400, 1_800),
    "small burst, 5 s, 4k for 0.8k, 1k/s + 10k": Workload(1_000, 10_000, 4_000, 800, 2, 8, 64, 600),
}


def simulate(
    bucket: Bucket, load: Workload, seed: int = 1, pass_time: Callable[[float], None] | None = None
) -> Delivered:
    """Run a workload against a bucket; ``pass_time`` hears of every instant before anything happens at it."""
    chance, kept = random.Random(seed), []
    queue: list[tuple[float, int, Any]] = [(chance.random(), client, None) for client in range(load.clients)]
    heapq.heapify(queue)
    number = load.clients
    while queue[0][0] < load.seconds:
        now, _, call = heapq.heappop(queue)
        if pass_time is not None:
            pass_time(now)
        number += 1
        if call is not None:
            began, receipt, used = call
            bucket.give_back(now, receipt, load.estimate - used)
            kept.append((began, used))
            heapq.heappush(queue, (now + 0.001, number, None))
            continue
        receipt = bucket.take(now, load.estimate)
        if receipt is None:
            heapq.heappush(queue, (now + POLL_S, number, None))
        else:
            used = min(load.estimate, max(1, round(load.actual * chance.uniform(0.5, 1.5))))
            ends = now + chance.uniform(load.shortest, load.longest)
            heapq.heappush(queue, (ends, number, (now, receipt, used)))
    due = load.rate * load.seconds + load.capacity
    return Delivered(sum(used for _, used in kept) / due, _excess(kept, load))


def _excess(kept: list[tuple[float, int]], load: Workload) -> float:
    level, last, lowest = float(load.capacity), 0.0, 0.0
    for at, amount in sorted(kept):
        level, last = min(load.capacity, level + (at - last) * load.rate) - amount, at
        lowest = min(lowest, level)
    return -lowest / load.capacity


if __name__ == "__main__":
    print(f"{'workload':44}{'plain':>8}{'excess':>8}{'strict':>8}{'excess':>8}")
    for name, load in WORKLOADS.items():
        plain, strict = (simulate(kind(load.capacity, load.rate), load) for kind in (PlainBucket, StrictBucket))
        print(f"{name:44}{plain.used:8.2f}{plain.excess:8.2f}{strict.used:8.2f}{strict.excess:8.2f}")
