"""The workloads of every contestant, defined once: quotas, the cost of a decision, and the expected answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from typing import NamedTuple

from bench.rivals.port import Cost, Quota

RPM = Quota("rpm", 1_000_000, 60)
TPM = Quota("tpm", 1_000_000_000, 60)
SCARCE = Quota("rpm", 10, 3600)

ONE: Cost = {"rpm": 1}
BOTH: Cost = {"rpm": 1, "tpm": 500}
WARM = 50


class Workload(NamedTuple):
    """One kind of decision, repeated."""

    name: str
    quotas: tuple[Quota, ...]
    cost: Cost
    admits: bool = True
    """The expected answer of every decision, once warm."""
    keys: int | None = 1
    """Number of keys that take turns; None for a new key per decision."""
    callers: int = 1
    """Number of concurrent callers in one event loop."""

    def asked(self) -> Iterator[str]:
        """Return the keys of the decisions, without end."""
        if self.keys is None:
            return map("new-{}".format, count())
        return cycle([f"key-{number}" for number in range(self.keys)])

    @property
    def warm_up(self) -> int:
        """Decisions after which every key has been seen and a scarce quota is spent."""
        return max(WARM, 2 * (self.keys or 0))

    @property
    def modes(self) -> tuple[str, ...]:
        """Callers at the same time need an event loop."""
        return ("blocking", "async") if self.callers == 1 else ("async",)


WORKLOADS = (
    Workload("one limit", (RPM,), ONE),
    Workload("two limits", (RPM, TPM), BOTH),
    Workload("over the limit", (SCARCE,), ONE, admits=False),
    Workload("1,000 keys", (RPM,), ONE, keys=1_000),
    Workload("a new key each time", (RPM,), ONE, keys=None),
    Workload("32 callers at once", (RPM, TPM), BOTH, callers=32),
)
