"""Looking without taking: what is left, when something fits, where a limit comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, overload

from ..core import names
from ..core.balances import balance
from ..core.decide import Reading, refusal, statuses, wait_for
from ..core.errors import CapacityExceeded, InfrastructureError, ResourceDisabled, ValidationError, VersionError
from ..core.limit import Limit, seconds
from ..core.production import MILLI
from ..records import bucket, keys
from ..records.keys import buckets_of_resource
from ..records.level import BucketLimits
from ..records.slot_states import taken_states
from ..repository.backend import Operations
from ..repository.repository import Repository
from ..runtime.deadline import Deadline
from .charge_path import ChargePath
from .charge_paths import ChargePaths, join
from .engine import Engine
from .options import Override, check_amounts, check_known, check_override, warn_stored_limits

if TYPE_CHECKING:
    from ..core.reports import Availability, LevelStatus, ResourceCapacity, Status


_READ_AHEAD = 25
"""Number of entities looked up in one store call."""


class QueryOperations(Operations):
    """Questions that take nothing."""

    repository: Repository
    _chains: ChargePaths
    _engine: Engine

    async def available(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
        *,
        use_stored_limits: bool = False,
    ) -> dict[str, int]:
        """Return the whole tokens left by limit, the least over all levels that an acquire charges; may be negative.

        ``limits`` are counted by instead of the stored ones; nothing is written. What the floors of a ``priority`` keep
        for others is not counted as left. ``use_stored_limits`` has no effect.
        """
        from ..core.reports import Availability

        warn_stored_limits(use_stored_limits)
        chain, now_ms = await self._read_chain(entity_id, resource, limits, priority)
        now_ms = chain.instant(now_ms)
        return Availability(entity_id, resource, now_ms, tuple(statuses(chain.readings(now_ms), {}, now_ms))).available

    async def time_until_available(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
        *,
        use_stored_limits: bool = False,
    ) -> float:
        """Return the seconds until ``needed`` fits at every level. Raise `CapacityExceeded` if it never does.

        ``needed`` are tokens by limit name, and a slot of every concurrency limit even if it does not name it: of
        these it is the latest moment. With ``limits`` it is counted as if the bucket had them, instead of the stored
        ones, from now on; nothing is written. ``priority`` is that of the request. ``use_stored_limits`` has no effect.
        """
        warn_stored_limits(use_stored_limits)
        cost = check_amounts("needed", needed)
        readings, whole, now_ms = _readings_for(*await self._read_chain(entity_id, resource, limits, priority), cost)
        error = refusal(readings, whole, now_ms)
        if isinstance(error, CapacityExceeded):
            raise error
        return wait_for(readings, whole, now_ms) / MILLI

    @overload
    async def get_status(self) -> Status: ...

    @overload
    async def get_status(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None = None,
        needed: Mapping[str, int] | None = None,
        priority: str | None = None,
    ) -> list[LevelStatus]: ...

    async def get_status(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        limits: Sequence[Limit] | None = None,
        needed: Mapping[str, int] | None = None,
        priority: str | None = None,
    ) -> Status | list[LevelStatus]:
        """Return the status of every limit of every level, the entity itself first, and where the limit comes from.

        Without ``entity_id`` and ``resource`` it is the status of the store, as `Repository.status` returns it.
        ``limits`` are counted by instead of the stored ones; nothing is written. ``needed`` are the tokens by limit
        name that ``retry_after_seconds`` waits for; one of each limit if None. ``priority`` is that of the request.
        """
        from ..core.reports import LevelStatus

        if entity_id is None and resource is None:
            return await self.repository.status()
        cost = None if needed is None else check_amounts("needed", needed)
        whose = (names.entity_id(entity_id), names.resource(resource))
        chain, now_ms = await self._read_chain(*whose, limits, priority)
        cost = dict.fromkeys(chain.names, MILLI) if cost is None else cost
        readings, whole, now_ms = _readings_for(chain, now_ms, cost)
        return [
            LevelStatus(
                **{field.name: getattr(seen, field.name) for field in fields(seen)},
                source=level.home.level.source,
                slots=taken_states(level.images, seen.limit_name, now_ms) if seen.limit.is_concurrency else (),
            )
            for level, reading in zip(chain.levels, readings, strict=True)
            for seen in statuses([reading], whole, now_ms)
        ]

    @overload
    async def check_availability(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> Availability: ...

    @overload
    async def check_availability(
        self,
        entity_id: list[str] | tuple[str, ...],
        resource: str | list[str] | tuple[str, ...] | Mapping[str, Mapping[str, int] | None],
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> list[Availability]: ...

    @overload
    async def check_availability(
        self,
        entity_id: str,
        resource: list[str] | tuple[str, ...] | Mapping[str, Mapping[str, int] | None],
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> list[Availability]: ...

    async def check_availability(
        self,
        entity_id: str | list[str] | tuple[str, ...],
        resource: str | list[str] | tuple[str, ...] | Mapping[str, Mapping[str, int] | None],
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        priority: str | None = None,
    ) -> Availability | list[Availability]:
        """Return whether ``needed`` would be granted, when it would be, and what is left; nothing is taken.

        ``needed`` are tokens by limit name; None asks for nothing. A slot of every concurrency limit is needed as well,
        as an acquire takes one. ``limits`` are counted by instead of the stored ones. With a list of ``entity_id``, of
        ``resource`` or of both it answers for each entity on each resource, in that order, reading all of them at once;
        a mapping says what is needed of each resource. ``priority`` is that of the requests.
        """
        costs = _check_needs(resource, needed)
        entities = entity_id if isinstance(entity_id, list | tuple) else [entity_id]
        given = check_override(limits, priority)
        deadline = await self._deadline()
        found = await self._read_chains(
            [(names.entity_id(who), what) for who in entities for what in costs], given, deadline
        )
        answers = [await self._check_chain(*pair, chain, costs[pair[1]], deadline) for pair, chain in found.items()]
        return answers[0] if isinstance(entity_id, str) and isinstance(resource, str) else answers

    async def get_resource_capacity(
        self, resource: str, limit_name: str, parents_only: bool = False
    ) -> ResourceCapacity:
        """Return one limit of a resource over all entities with a bucket for it; ``parents_only``: without a parent.

        Capacities are those in force; for entities without stored limits those of the last charge.
        """
        from ..core.reports import EntityCapacity, ResourceCapacity
        from ..core.usage import used_pct

        names.resource(resource)
        names.limit_name(limit_name, "limit_name")
        deadline, ns = await self._begin_steps()
        rows = await self._backend.collect(buckets_of_resource(ns, resource), deadline)
        groups = bucket.group_by_bucket(rows)
        owners = [keys.parse_bucket_pk(shards[0][0].pk).entity_id for shards in groups]
        levels = await self._find_levels(owners, resource, deadline)
        now_ms = self._backend.clock.now_ms()
        entities = []
        for entity_id, shards in zip(owners, groups, strict=True):
            if (level := levels.get(entity_id)) is None:
                balances = bucket.held_balances(shards, limit_name, now_ms)
            else:
                balances = bucket.balances_under(level, shards, limit_name, now_ms)
            if balances and not (parents_only and bucket.has_parent(shards[0][1])):
                left = balance(balances, now_ms) // MILLI
                capacity = sum(shard.rule.capacity for shard in balances) // MILLI
                entities.append(EntityCapacity(entity_id, capacity, left, used_pct(capacity, left)))
        total = sum(each.capacity for each in entities)
        left = sum(each.available for each in entities)
        return ResourceCapacity(resource, limit_name, total, left, used_pct(total, left), tuple(entities))

    async def _find_levels(
        self, entity_ids: Sequence[str], resource: str, deadline: Deadline
    ) -> dict[str, BucketLimits]:
        """Return the level of each entity on a resource under the limits in force, of those that have stored limits."""
        found = {}
        for start in range(0, len(entity_ids), _READ_AHEAD):
            several = entity_ids[start : start + _READ_AHEAD]
            await self._chains.read_ahead([(entity_id, resource) for entity_id in several], None, deadline)
            for entity_id in several:
                with contextlib.suppress(ValidationError, ResourceDisabled):
                    chain = await self._chains.find((entity_id, resource, None), deadline)
                    found[entity_id] = chain.primary_shards[0].level
        return found

    async def is_available(self, timeout: float = 1.0) -> bool:
        """Return whether the store can be used and answers within ``timeout`` seconds."""
        limit = seconds("timeout", timeout, zero=False)
        self._backend.runtime.check_running()
        try:
            await self._backend.read([keys.namespace(self._backend.namespace_name)], await self._backend.begin(limit))
        except (InfrastructureError, VersionError):
            return False
        return True

    async def _read_chain(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, priority: str | None
    ) -> tuple[ChargePath, int]:
        """Return the chain with its buckets read, and now."""
        given = check_override(limits, priority)
        names.resource(resource)  # several are asked about one by one
        deadline = await self._deadline()
        chain = await self._engine.look(await self._chains.find((entity_id, resource, given), deadline), deadline)
        return await self._follow(chain, deadline)

    async def _read_chains(
        self, wanted: list[tuple[str, str]], given: Override | None, deadline: Deadline
    ) -> dict[tuple[str, str], ChargePath | None]:
        """Return chains with their buckets read, all that are not split in one call; None for one that is disabled."""
        found: dict[tuple[str, str], ChargePath | None] = {}
        await self._chains.read_ahead(wanted, given, deadline)
        for pair in wanted:
            try:
                found[pair] = await self._chains.find((*pair, given), deadline)
            except ResourceDisabled:
                found[pair] = None
        whole = [chain for chain in found.values() if chain is not None and not chain.sharded]
        if whole:
            await self._engine.look(join(whole, given, {}), deadline)
        for pair, chain in found.items():
            if chain is not None and chain.sharded:
                found[pair] = await self._engine.look(chain, deadline)
        return found

    async def _check_chain(
        self, entity_id: str, resource: str, chain: ChargePath | None, cost: Mapping[str, int], deadline: Deadline
    ) -> Availability:
        """Return what a chain that was read has for a cost."""
        from ..core.reports import Availability

        try:
            if chain is not None:
                chain, now_ms = await self._follow(chain, deadline)
                readings, whole, now_ms = _readings_for(chain, now_ms, cost)
                bypassed = any(home.level.bypassed for home in chain.primary_shards)
                return Availability(entity_id, resource, now_ms, tuple(statuses(readings, whole, now_ms)), bypassed)
        except ResourceDisabled:  # since a moment ago
            pass
        return Availability(entity_id, resource, self._backend.clock.now_ms(), (), disabled=True)

    async def _follow(self, chain: ChargePath, deadline: Deadline) -> tuple[ChargePath, int]:
        """Return a chain that was read under the config in force, with all of its shards, and now."""
        chain = await self._chains.follow(chain, deadline)
        if not all(level.complete for level in chain.levels):
            chain = await self._engine.look(chain, deadline)
        return chain, self._backend.clock.now_ms()


def _readings_for(
    chain: ChargePath, now_ms: int, cost: Mapping[str, int]
) -> tuple[list[Reading], Mapping[str, int], int]:
    """Return what a chain holds, a cost with a slot of each concurrency limit, and the instant the answer counts from.

    Raise `ValidationError` for a limit that the chain does not have.
    """
    check_known("needed", cost, chain.names)
    whole = chain.complete(cost)
    now_ms = chain.instant_for(whole, now_ms)
    return chain.readings(now_ms), whole, now_ms


def _check_needs(resource: object, needed: Mapping[str, int] | None) -> dict[str, dict[str, int]]:
    """Return what is needed of each resource, in millitokens. Raise `ValidationError` for anything else."""
    if isinstance(resource, Mapping):
        if needed is not None:
            raise ValidationError("needed", needed, "cannot be combined with a mapping of resources")
        wanted = dict(resource)
    else:
        several = resource if isinstance(resource, list | tuple) else [resource]
        wanted = dict.fromkeys(map(names.resource, several), needed)
    return {
        names.resource(name): {} if needs is None else check_amounts("needed", needs) for name, needs in wanted.items()
    }
