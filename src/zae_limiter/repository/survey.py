"""Surveys: every bucket of a resource, or of the namespace, at one instant, and which of them are the busiest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from ..core import names
from ..core.bucket import MILLI, balance
from ..core.errors import ValidationError
from ..core.limit import whole
from ..records import bucket
from ..records.level import SHARDS
from ..records.listing import buckets_of_namespace, buckets_of_resource
from .namespaces import NamespaceOperations

if TYPE_CHECKING:
    from ..core.values import BucketState
    from ..records.algebra import Query

ORDERS = ("used", "left", "rate")
MAX_RECORDS = 10_000
_MOST_RECORDS = 1_000_000
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Load:
    """One limit of one bucket at the instant of a survey; whole tokens, rounded down, negative in debt."""

    entity_id: str
    resource: str
    limit_name: str
    capacity: int
    available: int
    utilization_pct: float
    full_in_seconds: float
    total_consumed_milli: int
    consumed_per_second: float | None = None
    """Net consumption since the survey before; None where there is none to compare with."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The loads that were seen; not ``complete`` where there are more records than were to be looked at."""

    taken_at_ms: int
    records: int
    complete: bool
    loads: tuple[Load, ...]

    def busiest(self, most: int = 20, by: str = "used", since: Survey | None = None) -> list[Load]:
        """The first ``most`` loads, with their rates since an earlier survey.

        ``by`` is ``"used"`` (the largest share of the capacity first), ``"left"`` (the fewest tokens first) or
        ``"rate"`` (the most tokens a second first).
        """
        whole("most", most, 1, _MOST_RECORDS)
        if by not in ORDERS:
            raise ValidationError("by", by, f"must be one of {', '.join(ORDERS)}")
        return sorted(self._rated(since), key=lambda load: _rank(load, by))[:most]

    def _rated(self, since: Survey | None) -> list[Load]:
        seconds = 0.0 if since is None else (self.taken_at_ms - since.taken_at_ms) / MILLI
        if since is None or seconds <= 0:
            return list(self.loads)
        before = {_whose(load): load.total_consumed_milli for load in since.loads}
        rated = []
        for load in self.loads:
            start = before.get(_whose(load), 0 if since.complete else None)
            spent = None if start is None else (load.total_consumed_milli - start) / MILLI / seconds
            rated.append(replace(load, consumed_per_second=spent))
        return rated


class SurveyOperations(NamespaceOperations):
    """Look over the buckets of a whole namespace."""

    async def survey_buckets(self, resource: str | None = None, max_records: int = MAX_RECORDS) -> Survey:
        """What is left in every bucket now, of one resource or of the namespace, from at most ``max_records`` records.

        It reads each of them: on DynamoDB that costs about one read unit per bucket and shard.
        """
        whole("max_records", max_records, 1, _MOST_RECORDS)
        if resource is not None:
            names.resource(resource)
        ns = await self._backend.ns()
        query = buckets_of_namespace(ns) if resource is None else buckets_of_resource(ns, resource)
        rows, complete = await self._surveyed(query, max_records)
        now_ms = self._backend.clock.now_ms()
        buckets = bucket.by_bucket(rows)
        if not complete and not _is_whole(buckets[-1]):
            del buckets[-1]
        loads = (_load(shards, state, now_ms) for shards in buckets for state in bucket.states(shards, now_ms))
        return Survey(now_ms, len(rows), complete, tuple(loads))

    async def _surveyed(self, query: Query, most: int) -> tuple[bucket.Shards, bool]:
        """The first records of a range, and whether these are all."""
        found: bucket.Shards = []
        while True:
            query = query._replace(limit=min(_PAGE, most - len(found)))
            page = await self._backend.store.query(query, timeout=self._backend.timeout)
            found += page.items
            if page.cursor is None or len(found) >= most:
                return found, page.cursor is None
            query = query._replace(after=page.cursor)


def used_pct(capacity: int, left: int) -> float:
    """The share of a capacity that is in use, in percent; above 100 in debt."""
    return round(100 * (capacity - left) / capacity, 2) if capacity else 0.0


def _is_whole(shards: bucket.Shards) -> bool:
    """Whether the records have all of a bucket: a record has the share of one shard of so many."""
    return sum(Fraction(1, image.get(SHARDS, 1)) for _, image in shards) >= 1


def _load(shards: bucket.Shards, state: BucketState, now_ms: int) -> Load:
    pots = bucket.stored_pots(shards, state.limit_name)
    capacity, left = state.capacity_milli // MILLI, balance(pots, now_ms) // MILLI
    return Load(
        entity_id=state.entity_id,
        resource=state.resource,
        limit_name=state.limit_name,
        capacity=capacity,
        available=left,
        utilization_pct=used_pct(capacity, left),
        full_in_seconds=max(0, *(pot.full_at() - now_ms for pot in pots)) / MILLI,
        total_consumed_milli=state.total_consumed_milli,
    )


def _whose(load: Load) -> tuple[str, str, str]:
    return load.entity_id, load.resource, load.limit_name


def _rank(load: Load, by: str) -> tuple[float, float, tuple[str, str, str]]:
    """Smallest first; what is equal goes by the other measure, then by name."""
    rate = 0.0 if load.consumed_per_second is None else load.consumed_per_second
    if by == "left":
        return load.available, -rate, _whose(load)
    first, second = (rate, load.utilization_pct) if by == "rate" else (load.utilization_pct, rate)
    return -first, -second, _whose(load)
