"""Surveys of all buckets of a resource or of the namespace."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from ..core import names
from ..core.bucket import MILLI, balance
from ..core.limit import whole
from ..core.survey import MOST_RECORDS, Load, Survey, used_pct
from ..records import bucket
from ..records.level import SHARDS
from ..records.listing import buckets_of_namespace, buckets_of_resource
from .backend import Operations

if TYPE_CHECKING:
    from ..core.values import BucketState
    from ..records.algebra import Query
    from ..runtime.deadline import Deadline

MAX_RECORDS = 10_000
_PAGE = 1_000


class SurveyOperations(Operations):
    """Read the buckets of a whole namespace."""

    async def survey_buckets(self, resource: str | None = None, max_records: int = MAX_RECORDS) -> Survey:
        """Return the present load of every bucket of a resource, or of the namespace.

        At most ``max_records`` records are read: on DynamoDB about one read unit per bucket and shard.
        """
        max_records = whole("max_records", max_records, 1, MOST_RECORDS, "records")
        if resource is not None:
            names.resource(resource)
        deadline, ns = await self._begin_steps()
        query = buckets_of_namespace(ns) if resource is None else buckets_of_resource(ns, resource)
        rows, complete = await self._read_records(query, max_records, deadline)
        now_ms = self._backend.clock.now_ms()
        buckets = bucket.group_by_bucket(rows)
        if not complete and not _is_whole(buckets[-1]):
            del buckets[-1]
        loads = (_load(shards, state, now_ms) for shards in buckets for state in bucket.states(shards, now_ms))
        return Survey(now_ms, len(rows), complete, tuple(loads))

    async def _read_records(self, query: Query, most: int, deadline: Deadline) -> tuple[bucket.Shards, bool]:
        """Return the first ``most`` records of a range, and whether these are all."""
        found: bucket.Shards = []
        while True:
            query = query._replace(limit=min(_PAGE, most - len(found)))
            page = await self._backend.query(query, deadline)
            found += page.items
            if page.cursor is None or len(found) >= most:
                return found, page.cursor is None
            query = query._replace(after=page.cursor)


def _is_whole(shards: bucket.Shards) -> bool:
    """Return whether these shards make up the whole bucket; each record says of how many it is one."""
    counts: list[int] = [image.get(SHARDS, 1) for _, image in shards]
    unit = lcm(*counts)
    return sum(unit // count for count in counts) >= unit


def _load(shards: bucket.Shards, state: BucketState, now_ms: int) -> Load:
    balances = bucket.stored_balances(shards, state.limit_name)
    capacity, left = state.capacity_milli // MILLI, balance(balances, now_ms) // MILLI
    return Load(
        entity_id=state.entity_id,
        resource=state.resource,
        limit_name=state.limit_name,
        capacity=capacity,
        available=left,
        utilization_pct=used_pct(capacity, left),
        full_in_seconds=max(0, *(shard.full_at() - now_ms for shard in balances)) / MILLI,
        total_consumed_milli=state.total_consumed_milli,
    )
