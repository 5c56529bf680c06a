"""Read, delete and survey buckets, with all their shards and the usage that they still hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import lcm
from typing import TYPE_CHECKING

from ..core import names
from ..core.balances import balance
from ..core.errors import CorruptRecordError, EntityError
from ..core.limit import Limit, check_limits, whole
from ..core.production import MILLI
from ..records import bucket, keys, ledger
from ..records.algebra import Committed, Guard, Image, Key, Query, Write
from ..records.keys import buckets_of_entity, buckets_of_namespace, buckets_of_resource
from ..records.level import SHARDS
from ..records.splitting import MAX_SHARDS
from ..runtime.deadline import Deadline
from ..runtime.retries import tries
from ..stores.damage import read_each
from .backend import MAX_COMMIT, Backend, Operations
from .resolving import read_policy

if TYPE_CHECKING:
    from ..core.reports import BucketState, Credit
    from ..core.usage import Load, Survey

TRIES = 100
MAX_RECORDS = 10_000
"""Most records that a survey reads, unless told otherwise."""


def try_often(entity_id: str) -> Iterator[int]:
    """Iterate over the numbers of the tries to change an entity. Raise `EntityError` after the last lost race."""
    return tries(entity_id, TRIES, EntityError(f"Too much contention on entity {entity_id!r}; try again later."))


async def book(backend: Backend, key: Key, image: Image | None, deadline: Deadline) -> None:
    """Book the open usage of one bucket, last seen as ``image``, into the usage records.

    Raise `RateLimiterUnavailable` after too many lost races.
    """
    for _ in tries(key.pk, TRIES):
        if image is None or not ledger.is_open(bucket.inspect(key, image)):
            return
        write, accruals = ledger.book_seen(key, image, backend.store.capabilities.usage_retention_days)
        outcome = await backend.store.commit([write, *accruals], timeout=deadline.left())
        if isinstance(outcome, Committed):
            return
        image = outcome.images[key]


async def plan_forgetting(backend: Backend, key: Key, deadline: Deadline) -> list[Write]:
    """Return the writes that delete a bucket as it is now and book its usage; a damaged one is only deleted."""
    try:
        (image,) = await backend.read([key], deadline)
        if image is None:
            return []
        bucket.inspect(key, image)
    except CorruptRecordError:
        return [Write(key, delete=True)]
    booked, accruals = ledger.book(key, image, backend.store.capabilities.usage_retention_days)
    return [Write(key, booked.guards, delete=True), *accruals]


class BucketOperations(Operations):
    """Read and delete buckets."""

    async def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        """Return the stored buckets of an entity, for one resource or all, as they were last written.

        They are not refilled to now, and have the limits of their last charge; `available` and `get_status` show
        balances under the limits in force.
        A limit that has credit and was never charged is full, under the config; without config its numbers are 0.
        """
        names.entity_id(entity_id)
        if resource is not None:
            names.resource(resource)
        deadline, ns = await self._begin_steps()
        return await self._read_states(ns, buckets_of_entity(ns, entity_id, resource), deadline)

    async def _read_states(self, ns: str, query: Query, deadline: Deadline) -> list[BucketState]:
        rows = await self._backend.collect(query, deadline)
        now_ms = self._backend.clock.now_ms()
        found = []
        for shards in bucket.group_by_bucket(rows):
            states = bucket.states(shards, now_ms)
            uncharged = bucket.live_credits(shards, now_ms)
            for state in states:
                uncharged.pop(state.limit_name, None)
            if uncharged:
                states += await self._describe_uncharged(ns, shards[0][0], uncharged, now_ms, deadline)
            found += sorted(states, key=lambda state: state.limit_name)
        return found

    async def _describe_uncharged(
        self, ns: str, key: Key, credit: Mapping[str, tuple[Credit, ...]], now_ms: int, deadline: Deadline
    ) -> list[BucketState]:
        """Return the states of limits of a bucket that have credit and were never charged."""
        from ..core.reports import BucketState

        whose = keys.parse_bucket_pk(key.pk)
        policy = await read_policy(self._backend, ns, whose.entity_id, whose.resource, deadline)
        limits = {limit.name: limit.in_force(now_ms) for limit in policy.resolved.limits or ()}
        found = []
        for name, lots in credit.items():
            state = BucketState(whose.entity_id, whose.resource, name, 0, now_ms, 0, 0, 1)
            if name in limits:
                state = BucketState.from_limit(whose.entity_id, whose.resource, limits[name], now_ms)
            found.append(replace(state, credits=lots))
        return found

    async def get_bucket(self, entity_id: str, resource: str, limit_name: str) -> BucketState | None:
        """Return one limit of a stored bucket, not refilled to now; None if it was never used."""
        names.limit_name(limit_name, "limit_name")
        names.resource(resource)
        states = await self.get_buckets(entity_id, resource)
        return next((state for state in states if state.limit_name == limit_name), None)

    async def get_or_create_bucket(self, entity_id: str, resource: str, limit: Limit) -> BucketState:
        """Return one limit of a stored bucket, or a full one if it was never used, which need not be stored."""
        from ..core.reports import BucketState

        check_limits([limit])
        found = await self.get_bucket(entity_id, resource, limit.name)
        if found is not None:
            return found
        return BucketState.from_limit(entity_id, resource, limit, self._backend.clock.now_ms())

    async def get_resource_buckets(self, resource: str, limit_name: str | None = None) -> list[BucketState]:
        """Return the stored buckets of all entities for a resource, not refilled to now.

        ``limit_name`` is the one limit to return; None for all.
        """
        names.resource(resource)
        if limit_name is not None:
            names.limit_name(limit_name, "limit_name")
        deadline, ns = await self._begin_steps()
        states = await self._read_states(ns, buckets_of_resource(ns, resource), deadline)
        return [state for state in states if limit_name in (None, state.limit_name)]

    async def _commit_forgetting(
        self, writes: Sequence[Write], buckets: Sequence[Key], deadline: Deadline, *, exact: bool
    ) -> bool:
        """Commit writes together with as many deletions of buckets as fit, first shards last.

        Return False if a race was lost. If buckets hold usage, ``exact`` books it to the token, but loses the race to
        every concurrent consumer.
        """
        able = self._backend.store.capabilities
        if able.usage_retention_days and exact and able.wide_commits:
            return await self._commit_booking(writes, list(dict.fromkeys(buckets)), deadline)
        if able.usage_retention_days:
            await self._book_readable(buckets, deadline)
        roots, shards = await self._plan_deletions(buckets, deadline)
        deletions = [*shards, *roots]
        room = MAX_COMMIT - len(writes)
        early = min(len(shards), max(0, len(deletions) - room))
        await self._delete(deletions[:early], deadline)
        if not await self._backend.commit([*writes, *deletions[early : early + room]], deadline):
            return False
        await self._delete(deletions[early + room :], deadline)
        for write in deletions:
            self._backend.last_seen.forget(write.key)
        return True

    async def _commit_booking(self, writes: Sequence[Write], buckets: Sequence[Key], deadline: Deadline) -> bool:
        """Commit writes and delete buckets, each together with the booking of its usage.

        Buckets that do not fit into the commit are deleted after it. Return False if a race was lost.
        """
        forgotten = [await plan_forgetting(self._backend, key, deadline) for key in buckets]
        room, fit = MAX_COMMIT - len(writes), 0
        while fit < len(forgotten) and len(forgotten[fit]) <= room:
            room -= len(forgotten[fit])
            fit += 1
        booked = [write for group in forgotten[:fit] for write in group]
        if not await self._backend.commit([*writes, *booked], deadline):
            return False
        for key in buckets[fit:]:
            for _ in range(TRIES):
                alone = await plan_forgetting(self._backend, key, deadline)
                if not alone or await self._backend.commit(alone, deadline):
                    break
            else:
                await self._book_readable([key], deadline)
                await self._delete([Write(key, delete=True)], deadline)
        for key in buckets:
            self._backend.last_seen.forget(key)
        return True

    async def _book_readable(self, buckets: Sequence[Key], deadline: Deadline) -> None:
        for key in buckets:
            with contextlib.suppress(CorruptRecordError):
                (image,) = await self._backend.read([key], deadline)
                await book(self._backend, key, image, deadline)

    async def _delete(self, deletions: Sequence[Write], deadline: Deadline) -> None:
        for start in range(0, len(deletions), MAX_COMMIT):
            await self._backend.commit(deletions[start : start + MAX_COMMIT], deadline)

    async def _plan_deletions(self, buckets: Sequence[Key], deadline: Deadline) -> tuple[list[Write], list[Write]]:
        """Return the deletions of first shards, and of the others in the order of their splitting.

        A first shard stores the number of shards and is deleted last, guarded by that number: a shard that is left over
        would go on granting beside the next bucket.
        """
        owners = dict.fromkeys(keys.parse_bucket_pk(key.pk)._replace(shard_id=0) for key in buckets)
        first = {keys.bucket(*owner): Write(keys.bucket(*owner), delete=True) for owner in owners}
        others = [key for key in buckets if key not in first]
        splits = self._backend.store.capabilities.partition_writes > 0
        read = partial(self._backend.read, deadline=deadline)
        images = await read_each(read, list(first)) if splits else {}
        for owner, (root, image) in zip(owners, images.items(), strict=False):
            if isinstance(image, CorruptRecordError):  # it does not say how many shards there are
                others += (keys.bucket(*owner._replace(shard_id=shard)) for shard in range(1, MAX_SHARDS))
                continue
            count = None if image is None else image.get(SHARDS)
            if type(count) is int and 1 <= count <= MAX_SHARDS:
                first[root] = Write(root, (Guard(SHARDS, "=", count),), delete=True)
                others += (keys.bucket(*owner._replace(shard_id=shard)) for shard in range(1, count))
        ordered = sorted(dict.fromkeys(others), key=lambda key: keys.parse_bucket_pk(key.pk).shard_id)
        return list(first.values()), [Write(key, delete=True) for key in ordered]


class SurveyOperations(Operations):
    """Read the buckets of a whole namespace."""

    async def survey_buckets(self, resource: str | None = None, max_records: int = MAX_RECORDS) -> Survey:
        """Return the present load of every bucket of a resource, or of the namespace.

        A bucket is shown under the limits of its last charge: no config is read.
        At most ``max_records`` records are read: on DynamoDB about one read unit per bucket and shard.
        """
        from ..core.usage import MOST_RECORDS, Survey

        max_records = whole("max_records", max_records, 1, MOST_RECORDS, "records")
        if resource is not None:
            names.resource(resource)
        deadline, ns = await self._begin_steps()
        query = buckets_of_namespace(ns) if resource is None else buckets_of_resource(ns, resource)
        rows, complete = await self._backend.collect_some(query._replace(limit=1000), max_records, deadline)
        now_ms = self._backend.clock.now_ms()
        buckets = bucket.group_by_bucket(rows)
        if not complete and not _is_whole(buckets[-1]):
            del buckets[-1]
        loads = (_load(shards, state, now_ms) for shards in buckets for state in bucket.states(shards, now_ms))
        return Survey(now_ms, len(rows), complete, tuple(loads))


def _is_whole(shards: bucket.Shards) -> bool:
    """Return whether these shards make up the whole bucket; each record says of how many it is one."""
    counts: list[int] = [image.get(SHARDS, 1) for _, image in shards]
    unit = lcm(*counts)
    return sum(unit // count for count in counts) >= unit


def _load(shards: bucket.Shards, state: BucketState, now_ms: int) -> Load:
    from ..core.usage import Load, used_pct

    balances = bucket.held_balances(shards, state.limit_name, now_ms)
    capacity, left = state.capacity_milli // MILLI, balance(balances, now_ms) // MILLI
    full_in_seconds = max(0, *(shard.full_at() - now_ms for shard in balances)) / MILLI
    whose, used = (state.entity_id, state.resource, state.limit_name), used_pct(capacity, left)
    return Load(*whose, capacity, left, used, full_in_seconds, state.total_consumed_milli, in_flight=state.in_flight)
