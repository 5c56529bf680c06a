"""Kinds of the LLM call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, cycle
from typing import NamedTuple

from zae_limiter import Decision, Limit, Observer

ORGANISATION, PROJECT = "organisation", "project"
ESTIMATE, USED = {"rpm": 1, "tpm": 500}, 130
RPM = Limit.per_minute("rpm", 1_000_000)
TPM = Limit.per_minute("tpm", 1_000_000_000)
SPENT = Limit.per_hour("tpm", ESTIMATE["tpm"])
"""Tokens left to the organisation when it refuses: enough for one call."""


class Counting(Observer):
    """An observer that counts decisions."""

    def __init__(self) -> None:
        self.decisions = 0

    def on_decision(self, decision: Decision) -> None:
        """One more."""
        self.decisions += 1


class Case(NamedTuple):
    """One kind of call, repeated."""

    name: str
    depth: int = 3
    """Levels: a key alone, or a key with a project and an organisation above it."""
    end: str = "settled"
    """``""`` if it is never settled, or ``refused`` if the organisation has nothing left."""
    limits: tuple[Limit, ...] = (RPM, TPM)
    estimate: dict[str, int] = ESTIMATE
    used: int = USED
    """Tokens that the call turns out to have used."""
    keys: int | None = 1
    """Number of keys that take turns; None for a new key per call."""
    observed: bool = False

    def asked(self) -> Iterator[str]:
        """The keys of the calls, without an end."""
        return cycle(self.known()) if self.keys else map("new-{}".format, count())

    def known(self) -> list[str]:
        """The keys that take turns."""
        return [f"key-{number}" for number in range(self.keys or 0)]

    def parents(self, calls: int) -> Iterator[tuple[str, str | None]]:
        """Every entity that so many calls need, each after the one above it."""
        new = [] if self.keys else [f"new-{number}" for number in range(calls)]
        if self.depth > 1:
            yield from ((ORGANISATION, None), (PROJECT, ORGANISATION))
            yield from ((key, PROJECT) for key in chain(self.known(), new))


PLAIN = (
    Case("one level", 1, ""),
    Case("one level, settled", 1),
    Case("three levels", end=""),
    Case("three levels, settled"),
)
SETTLED = PLAIN[-1].name
CASES = (
    *PLAIN,
    Case("refused at the top", end="refused"),
    Case("a new key", end="", keys=None),
    Case("a new key, settled", keys=None),
    Case("100 keys, settled", keys=100),
    Case("settled, with an observer", observed=True),
    Case("settled, soft limits", limits=(RPM, Limit.per_minute("tpm", 1_000_000_000, soft=True))),
    Case("settled, soft limits overdrawn", limits=(RPM, Limit.per_minute("tpm", 1_000, soft=True))),
    Case("settled, quotas", limits=(RPM, Limit.quota("tpm", 1_000_000_000, every="day"))),
    Case("settled, alerts", limits=(RPM, Limit.per_minute("tpm", 1_000_000_000, alerts=(0.8, 0.95)))),
    Case("settled above the estimate", used=2 * ESTIMATE["tpm"]),
    Case("settled, in debt", limits=(RPM, Limit.per_minute("tpm", 1_000)), estimate={"rpm": 1}),
)
