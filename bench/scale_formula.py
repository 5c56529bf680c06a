"""DynamoDB cost of an organisation with very many keys, processes and decisions: the formula of ``bench.scale``.

It counts the calls of the store, exact and with prefetch; write units, records and dollars follow from these.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from zae_limiter.limiter.prefetch.bucket import FEWEST
from zae_limiter.records.charging import LAG_MS
from zae_limiter.records.splitting import MAX_SHARDS

ONE_WAY_MS = (1.0, 8.0)
"""Latency of a call each way, in both simulations."""
ROUND_TRIP = sum(ONE_WAY_MS) / 1000
WRITES_PER_ADVANCE = 1
"""The write that draws it also gives back what is left of the one before."""
BY_CHANCE = 2
"""Demand comes by chance: an advance for n acquires takes 1 + 2 / n writes; found with the simulations."""
LAG = LAG_MS / 1000
"""Seconds by which a draw from a full, shared bucket counts earlier than it is written."""
CACHED, CACHED_KEYS = 60.0, 131_072
"""For how many seconds a process remembers the config of a key, and of how many keys."""
LOST = 0.75
"""Races lost per exact decision on the organisation's full bucket, measured with the limiter."""
READ_UNITS = 4
"""Read units per key: its entity, its limits for the resource and for all resources, and its bucket."""
RECORD_WRITES = 1000
SPLIT_AT = 800
"""Writes a second that a record takes, and from how many on it is split."""
TABLE_UNITS = 40_000
"""Units a second that a table may use, of reads and of writes, unless AWS has raised it for the account."""
USED = 0.8
"""Which part of each limit is asked for."""


class Traffic(NamedTuple):
    """Decisions a second for keys of one organisation, by processes that serve as many keys each."""

    processes: int = 10_000
    decisions: float = 1_000_000
    keys: int = 100_000
    processes_per_key: int = 10_000
    """Number of processes that serve one key."""
    prefetch: float = 0

    @property
    def pace(self) -> float:
        """Requests of one process per second."""
        return self.decisions / self.processes

    @property
    def keys_each(self) -> int:
        """Number of keys that one process serves."""
        return max(1, round(self.keys * self.processes_per_key / self.processes))

    @property
    def key_pace(self) -> float:
        """Requests of one process for one of its keys, per second."""
        return self.pace / self.keys_each

    @property
    def cached(self) -> float:
        """For how many seconds a process remembers the config of a key."""
        return CACHED if self.keys_each <= CACHED_KEYS else min(CACHED, CACHED_KEYS / self.pace)

    @property
    def is_held(self) -> bool:
        """Whether processes draw tokens of the organisation in advance."""
        return self.pace * self.prefetch >= FEWEST

    @property
    def lag(self) -> float:
        """How much sooner the organisation's tokens expire, as many processes write its full bucket."""
        return min(LAG, self.prefetch / 2) if self.processes > 1 else 0

    def shrink(self, processes: int) -> Traffic:
        """Return fewer processes with the same traffic for each of them, and for each key in it."""
        processes_per_key = max(1, self.processes_per_key * processes // self.processes)
        keys = self.keys_each * processes // processes_per_key
        return self._replace(
            processes=processes, decisions=self.pace * processes, keys=keys, processes_per_key=processes_per_key
        )


class Prices(NamedTuple):
    """DynamoDB prices in us-east-1, in dollars: per million request units, and per capacity unit and hour."""

    writes: float = 0.625
    reads: float = 0.125
    write_hour: float = 0.00065
    read_hour: float = 0.00013
    used: float = 0.7
    """Which part of provisioned capacity is used: the usual target of auto scaling."""

    def on_demand(self, writes: float, reads: float) -> float:
        """Return dollars an hour for units a second."""
        return (writes * self.writes + reads * self.reads) * 3600 / 1e6

    def provisioned(self, writes: float, reads: float) -> float:
        """Return dollars an hour for units a second of capacity that was booked."""
        return (writes * self.write_hour + reads * self.read_hour) / self.used


class Calls(NamedTuple):
    """Calls of the store per decision: writes to keys and to the organisation, lost races for these, and reads."""

    keys: float
    organisation: float
    lost: float
    reads: float


# The formula.


def exact_writes(pace: float) -> float:
    """Return the writes a second of one process to a bucket that it asks for ``pace`` times a second.

    Whoever comes while one is under way is written together with others after it.

    >>> round(exact_writes(10), 2), round(exact_writes(1000), 1)
    (9.96, 111.1)
    """
    return 1 / (ROUND_TRIP + math.exp(-pace * ROUND_TRIP) / pace)


def held_writes(pace: float, prefetch: float, lag: float = 0) -> float:
    """Return the writes a second of one process that draws tokens of a bucket in advance.

    They last for as long as they may be granted, and the next caller has more of them drawn. As demand comes by chance
    some draws are too small, the more so the fewer acquires they are for. Where fewer than two are expected in that
    time every acquire is written.

    >>> round(held_writes(100, 0.5), 2), round(held_writes(10, 0.5), 2), round(held_writes(3, 0.5), 2)
    (2.04, 2.33, 3.0)
    """
    expected = pace * prefetch
    if expected < FEWEST:
        return exact_writes(pace)
    return WRITES_PER_ADVANCE * (1 + BY_CHANCE / expected) / (prefetch - lag + 1 / pace)


def expect(traffic: Traffic) -> Calls:
    """Return the calls by the formula.

    >>> [round(each, 3) for each in expect(Traffic(prefetch=0.5))]
    [1.0, 0.023, 0, 0.944]
    """
    key_pace, pace, prefetch = traffic.key_pace, traffic.pace, traffic.prefetch
    by_key = held_writes(key_pace, prefetch) / key_pace
    whole = held_writes(pace, prefetch, traffic.lag) / pace if traffic.is_held else by_key
    lost = 0 if traffic.is_held or traffic.processes == 1 else LOST
    reads = 1 / (1 + key_pace * traffic.cached) + 1 / (pace * CACHED)
    return Calls(by_key, whole, lost, reads)


class Bill(NamedTuple):
    """Resources that the traffic needs, per second unless stated otherwise."""

    writes_to_keys: float
    writes_to_organisation: float
    lost_races: float
    reads: float
    calls_per_decision: float
    calls_per_process: float
    write_units: float
    read_units: float
    records_needed: int
    """Of the organisation's bucket."""
    records: int
    writes_per_record: float
    on_demand_per_hour: float
    provisioned_per_hour: float
    on_demand_per_million_decisions: float


def bill(traffic: Traffic, prices: Prices) -> Bill:
    """Return what traffic needs by the formula."""
    keys, organisation, lost, reads = (each * traffic.decisions for each in expect(traffic))
    calls, units = keys + organisation + lost + reads, (keys + organisation + lost, reads * READ_UNITS)
    needed = 1 << max(0, math.ceil(math.log2((organisation + lost) / SPLIT_AT)))
    made = min(needed, MAX_SHARDS)
    dollars = prices.on_demand(*units)
    return Bill(
        keys, organisation, lost, reads, calls / traffic.decisions, calls / traffic.processes, *units,
        needed, made, (organisation + lost) / made,
        dollars, prices.provisioned(*units), dollars / (traffic.decisions * 3600 / 1e6),
    )  # fmt: skip


def bounds(traffic: Traffic, prices: Prices) -> dict[str, float]:
    """Return how many times over each bound is used: more than 1 is too much."""
    needs = bill(traffic, prices)
    organisation = needs.writes_to_organisation + needs.lost_races
    return {
        f"{MAX_SHARDS} records of the organisation, {RECORD_WRITES:,} writes/s each": organisation
        / (MAX_SHARDS * RECORD_WRITES),
        f"the record of a key, {RECORD_WRITES:,} writes/s": needs.writes_to_keys / traffic.keys / RECORD_WRITES,
        f"write units of a table, {TABLE_UNITS:,}/s unless raised": needs.write_units / TABLE_UNITS,
        f"read units of a table, {TABLE_UNITS:,}/s unless raised": needs.read_units / TABLE_UNITS,
    }
