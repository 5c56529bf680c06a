"""Resolving chains: who is charged with an entity, under which limits, in which shards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from ..core import names
from ..core.errors import RateLimiterUnavailable, ValidationError
from ..core.names import MAX_DEPTH
from ..core.production import FOR_EVER, MILLI
from ..core.values import OnUnavailable
from ..forks import after_fork
from ..logs import NOT_CHARGED, log_event
from ..records import bucket, charging, keys
from ..records.algebra import Key
from ..records.level import CONFIG_VERSION
from ..repository.backend import Backend
from ..repository.resolving import Policy, read_policies, read_policy
from ..runtime.deadline import Deadline
from ..runtime.single_flight import SingleFlight
from ..stores.bounded import BoundedMap
from . import shards
from .charge_path import BucketShard, BucketShards, ChargePath
from .coalescer import WriteCoalescer
from .limits_in_force import LimitsInForce, check_priority
from .options import Override, check_known, qualify
from .planning import CommitPlan

Resource: TypeAlias = str | tuple[str, ...]
Name: TypeAlias = tuple[str, Resource, Override | None]


_MOST_WARNED = 1_000
"""How many levels that a cost does not name are remembered, so that each is logged once."""


class ChargePaths:
    """Resolves chains and remembers them while the config they come from is cached."""

    def __init__(self, backend: Backend, ttl_multiplier: int) -> None:
        self._backend = backend
        self._cache = backend.cache
        self._last_seen = backend.last_seen
        self._known: BoundedMap[Name, ChargePath] = BoundedMap(backend.options.max_cached_keys)
        self.get = self._known.get
        self._flights = SingleFlight(backend.runtime)
        self.resolving = self._flights.under_way
        """Who resolves which chain or waits for it, by event loop; empty nearly always."""
        self.is_resolving: Callable[[Name], bool] = self._flights.is_under_way
        """Return whether others of this event loop, who came before, still wait for a chain."""
        self.system_policy: OnUnavailable | None = None
        self.new_chain: Callable[..., ChargePath] = ChargePath
        """Makes the chains of single resources."""
        self._limits = LimitsInForce(backend, ttl_multiplier)
        self._parents: BoundedMap[tuple[str, str], _Resolved] = BoundedMap(backend.options.max_cached_keys)
        """Levels that were resolved for those below them: new keys under a project resolve themselves alone."""
        self._warned: BoundedMap[tuple[str, str, str], bool] = BoundedMap(_MOST_WARNED)
        """Whose limits are in no cost of whom, by resource: each was logged."""
        after_fork(self.forget)  # in a child process nobody waits for limits

    def check_cost(
        self, chain: ChargePath, cost: Mapping[str, int], kept: Mapping[str, Mapping[str, int]] | None
    ) -> None:
        """Raise `ValidationError` if a cost names an unknown limit, or slots are to stay taken if a block raises.

        Log the levels whose limits it does not name: they limit nothing. Once for each level.
        """
        check_known("consume", cost, chain.names)
        for resource, amounts in (kept or {}).items():
            for name, amount in amounts.items():
                if name in chain.slot_names or qualify(name, resource) in chain.slot_names:
                    reason = "is a concurrency limit: its slots are always freed"
                    raise ValidationError(f"on_error[{name!r}]", amount // MILLI, reason)
        chain.checked.add(tuple(cost))
        if len(chain.primary_shards) == 1:  # whose limits the cost names, or it names an unknown one
            return
        entity_id = chain.primary_shards[0].level.entity_id
        for level, _ in chain.primary_shards:
            whose, named = (entity_id, level.resource, level.entity_id), chain.cost_at(level, cost)
            if not named or level.slot_limits or not named.keys().isdisjoint(level.token_limits):
                continue
            if self._warned.get(whose) is None:
                self._warned.put(whose, True)
                message = "no limit of %s on %s is in the cost of %s: it names %s, the limits are %s"
                words = (", ".join(sorted(each)) for each in (named, level.token_limits))
                fields = {"zae_entity_id": level.entity_id, "zae_resource": level.resource, "zae_charged_by": entity_id}
                shown = (level.entity_id, level.resource, entity_id, *words)
                log_event(NOT_CHARGED, message, *shown, **self._backend.log_fields(), **fields)

    def known(self, name: Name) -> ChargePath | None:
        """Return the remembered chain, or None if it may be out of date."""
        cache, now_ms = self._cache, self._backend.clock.now_ms()
        try:
            chain = self.get(name)
        except TypeError:  # not hashable: no name, as `resolve` will say
            return None
        if chain is None or chain.generation != cache.generation or not chain.since_ms <= now_ms < chain.valid_until_ms:
            return None
        cache.hits += 1
        return chain

    async def find(self, name: Name, deadline: Deadline) -> ChargePath:
        """Return the remembered chain, resolved anew if it may be out of date."""
        return self.known(name) or await self.resolve(name, await self.begin(name, deadline))

    async def resolve(self, name: Name, deadline: Deadline) -> ChargePath:
        """Resolve level by level; each costs at most one read, which brings its bucket along. Join several resources.

        The deadline is from `begin`.
        On a store that suspends, those of an event loop who need the same chain at once come one after the other, in
        the order in which they came: the first of them reads, the others find what it has read.
        """
        if isinstance(name[1], tuple):
            work = partial(self._resolve_several, name[0], name[1], name[2], deadline)
        else:
            work = partial(self._resolve, name[0], name[1], name[2], {}, deadline)
        if self._backend.store.capabilities.instant:
            return await work()
        late = f"The limits of {name[0]!r} could not be read within {deadline.seconds:.3g} s."
        return await self._flights.run(name, partial(self.known, name), work, deadline, late)

    async def _resolve_several(
        self, entity_id: str, resources: tuple[str, ...], given: Override | None, deadline: Deadline
    ) -> ChargePath:
        """Join the chains of several resources. The priority has to be known on one of them at least."""
        await self.read_ahead([(entity_id, each) for each in resources], given, deadline)
        chains: list[ChargePath] = []
        unknown: list[ValidationError] = []
        for each in resources:
            try:
                chains.append(await self.find((entity_id, each, given), deadline))
            except ValidationError as error:
                if given is None or error.field != "priority":
                    raise
                unknown.append(error)
                plain = None if given.limits is None else Override(given.limits)
                chains.append(await self.find((entity_id, each, plain), deadline))
        if len(unknown) == len(resources):
            raise unknown.pop(0)
        return self._remember(join(chains, given, {}))

    async def read_ahead(self, wanted: Sequence[tuple[str, str]], given: Override | None, deadline: Deadline) -> None:
        """Read the config and buckets of entities on resources, with those above them: one call for each level.

        Only those are read whose chains are not known. It changes nothing but how many calls `find` needs.
        """
        missing = {pair for pair in wanted if self.known((*pair, given)) is None}
        if len(missing) < 2 or not self._cache.ttl_ms or self._backend.store.capabilities.instant:
            return
        ns = await self._backend.ns(deadline)
        seen: set[tuple[str, str]] = set()
        for _ in range(MAX_DEPTH):
            buckets = [keys.bucket(ns, *pair) for pair in missing]
            unseen = [key for key in buckets if self._last_seen.of(key).image is None]
            seen |= missing
            above, images = await read_policies(self._backend, ns, missing, unseen, deadline)
            for key, image in images.items():
                if image is not None:
                    self._last_seen.of(key).show(bucket.inspect(key, image), self._backend.clock.now_ms())
            missing = above - seen
            if not missing:
                return

    async def begin(self, name: Name, deadline: Deadline) -> Deadline:
        """Return the deadline for `resolve`: all of its time if the store was not prepared for calls until now.

        Raise `ValidationError` for names that nobody can have.
        """
        entity_id, resource, _ = name
        names.entity_id(entity_id)
        if type(resource) is not str or not self._limits.has_met(resource):  # else it was checked for another entity
            for each in resource if isinstance(resource, tuple) else (resource,):
                names.resource(each)
        return deadline if self._backend.unprepared is None else await self._backend.begin(deadline.seconds)

    async def follow(
        self, chain: ChargePath, deadline: Deadline, *, charges: bool = False, now_ms: int | None = None
    ) -> ChargePath:
        """Return the same chain, resolved again if one of its buckets was charged under newer config or was split.

        With ``charges``, also if a bucket must be created under config that was read some time before ``now_ms``, the
        instant of the decision that asks for this: as of an earlier one it would ask again and again.
        """
        now_ms = chain.instant(self._backend.clock.now_ms()) if now_ms is None else now_ms
        if chain.multi_resource:
            chains = [
                await self.follow(each, deadline, charges=charges, now_ms=now_ms) for each in chain.multi_resource
            ]
            return self._join_again(chain, chains)
        name = (*chain.primary_shards[0].level[2:4], chain.given)
        newer: dict[str, int] = {}
        for level, seen in chain.shards:
            image = seen.image  # another thread may replace it
            if image is not None and charging.is_ahead(level, image):
                newer[level.entity_id] = max(image[CONFIG_VERSION], newer.get(level.entity_id, 0))
        if newer:
            self._cache.drop(_config_keys(chain))
            return await self._resolve(*name, newer, deadline)
        unsure = [level.home.level.entity_id for level in chain.levels if charges and level.is_unsure(now_ms)]
        if unsure:
            found = await self._resolve(*name, dict.fromkeys(unsure, 0), deadline)
            return found.with_levels(tuple([level._replace(read_ms=FOR_EVER) for level in found.levels]))
        return self._change(chain, [await shards.find_home(self._backend, level, deadline) for level in chain.levels])

    async def read_all_shards(self, chain: ChargePath, deadline: Deadline) -> ChargePath:
        """Return the chain with every shard of every bucket as it is now."""
        levels = [await shards.read_all_shards(self._backend, level, deadline) for level in chain.levels]
        return self._change(chain, levels)

    async def spread_load(self, chain: ChargePath, done: CommitPlan, now_ms: int, deadline: Deadline) -> ChargePath:
        """Split shards of a chain that are written too often, and return it with the primary shards for the next time.

        ``done`` is what was just committed.
        """
        cost = done.charges[0].cost if done.charges else done.cost
        with contextlib.suppress(RateLimiterUnavailable):  # the grant stands without it
            await shards.split_busy_shards(self._backend, chain, cost, now_ms, deadline)
        if not chain.sharded:
            return chain
        homes = [part.shard for part in done.parts]
        if not done.uses_other_shards:
            with contextlib.suppress(RateLimiterUnavailable):
                chain = await self.read_all_shards(chain, deadline) if shards.is_time_to_look(chain, now_ms) else chain
            homes = [shards.choose_home(level, now_ms) for level in chain.levels]
        return self.use_primary_shards(chain, homes) if len(homes) == len(chain.levels) else chain

    def use_primary_shards(self, chain: ChargePath, primary_shards: list[BucketShard]) -> ChargePath:
        """Return the chain with other primary shards, where there were tokens when the old ones had none."""
        pairs = zip(chain.levels, primary_shards, strict=True)
        return self._change(
            chain, [level if home is level.home else level._replace(home=home) for level, home in pairs]
        )

    def _change(self, chain: ChargePath, levels: list[BucketShards]) -> ChargePath:
        """Return the chain over other shards: itself where they are the same."""
        if all(new is old for new, old in zip(levels, chain.levels, strict=True)):
            return chain
        if chain.multi_resource:
            left = iter(levels)
            chains = [self._change(each, list(islice(left, len(each.levels)))) for each in chain.multi_resource]
            return self._join_again(chain, chains)
        if chain.whole is not None:
            whole, places = chain.whole
            changed = dict(zip(places, levels, strict=True))
            merged = [changed.get(place, level) for place, level in enumerate(whole.levels)]
            return self._remember(whole.with_levels(tuple(merged))).part(places)
        return self._remember(chain.with_levels(tuple(levels)))

    def _join_again(self, chain: ChargePath, chains: list[ChargePath]) -> ChargePath:
        """Return a chain of several resources of what has become of its chains: itself where they are the same."""
        if all(new is old for new, old in zip(chains, chain.multi_resource, strict=True)):
            return chain
        return self._remember(join(chains, chain.given, chain.coalescers))

    def _remember(self, chain: ChargePath) -> ChargePath:
        """Keep a chain for the next time, and return it."""
        first, *others = [each.primary_shards[0].level for each in chain.multi_resource or (chain,)]
        if self._cache.ttl_ms and all(other.entity_id == first.entity_id for other in others):
            several = (first.resource, *(other.resource for other in others))
            self._known.put((first.entity_id, several if chain.multi_resource else first.resource, chain.given), chain)
        return chain

    async def _resolve(
        self, entity_id: str, resource: str, given: Override | None, versions: Mapping[str, int], deadline: Deadline
    ) -> ChargePath:
        """Resolve level by level.

        Of the entities in ``versions`` the config is read even if it is cached, and it has at least that version.
        """
        generation, since_ms = self._cache.generation, self._backend.clock.now_ms()
        ns = await self._backend.ns(deadline)
        levels: list[BucketShards] = []
        policies: dict[str, Policy] = {}
        who: str | None = entity_id
        # Records of 0.17 may hold a cycle of parents: it ends where it would charge an entity twice.
        while who is not None and who not in policies and len(policies) < MAX_DEPTH:
            is_shared = bool(policies) and given is None and not versions
            found = self._parents.get((who, resource)) if is_shared else None
            if found is not None and found.is_good(generation, since_ms):
                self._cache.hits += 2
            else:
                whose = (ns, who, resource)
                found = await self._resolve_level(whose, given, not policies, versions.get(who), deadline)
                if is_shared:
                    self._parents.put((who, resource), found)
            if found.shards is not None:
                levels.append(found.shards)
            elif not policies:
                reason = f"no limits are stored for {entity_id!r} on {resource!r} at any level; "
                reason += "store system, resource or entity limits, or pass limits with the call"
                raise ValidationError("limits", None, reason)
            policies[who] = found.policy
            who = found.policy.parent_id if found.policy.cascade else None
        check_priority(given, levels)
        self.system_policy = policies[entity_id].on_unavailable
        ends_ms = [each.home.level.in_force[1] for each in levels]
        until_ms = min([each.valid_until_ms for each in policies.values()] + ends_ms)
        return self._remember(self.new_chain(tuple(levels), given, since_ms, until_ms, generation))

    async def _resolve_level(
        self,
        whose: tuple[str, str, str],
        given: Override | None,
        decides: bool,
        version: int | None,
        deadline: Deadline,
    ) -> _Resolved:
        """Resolve the level of one entity; ``decides`` says that the limits given are for it.

        The limits given decide for the entity itself, and for those above it that have none of their own. The bucket is
        read with the config if it is not known.
        """
        backend, key, generation = self._backend, keys.bucket(*whose), self._cache.generation
        last = self._last_seen.of(key)
        extra = None if last.image or backend.has_records else key
        policy = await read_policy(backend, *whose, deadline, extra, reread=version is not None)
        if policy.extra is not None:
            last.show(bucket.inspect(key, policy.extra), backend.clock.now_ms())  # the read may have set it
        if given is not None and not decides and policy.resolved.limits is not None:
            given = given._replace(limits=None)
        level = self._limits.make(key, whose, policy, given, version or 0)
        if level is None:
            return _Resolved(None, policy, generation)
        home = BucketShard(last.share(level) if backend.has_records else level, last)
        found = BucketShards(home, (home,), read_ms=policy.read_ms)
        if last.image is not None:
            found = await shards.find_home(backend, found, deadline)
        return _Resolved(found, policy, generation)

    def forget(self) -> None:
        """Forget everything: in a forked child no write of the parent's is in flight."""
        self._known.clear()
        self._limits.forget()
        self._parents.clear()
        self.resolving.clear()


class _Resolved(NamedTuple):
    """A level as it was resolved, None of an entity without limits."""

    shards: BucketShards | None
    policy: Policy
    generation: int

    def is_good(self, generation: int, now_ms: int) -> bool:
        """Return whether it would be resolved to the same now."""
        policy, home = self.policy, None if self.shards is None else self.shards.home
        if generation != self.generation or not policy.read_ms <= now_ms < policy.valid_until_ms:
            return False
        return home is None or (home.level.is_in_force(now_ms) and not home.is_outgrown)


def join(
    chains: Sequence[ChargePath], given: Override | None, coalescers: dict[object, WriteCoalescer[Any]]
) -> ChargePath:
    """Return one chain of all levels of several: it is good as long as each of them is."""
    generations = {chain.generation for chain in chains}
    return ChargePath(
        tuple([level for chain in chains for level in chain.levels]),
        given,
        max(chain.since_ms for chain in chains),
        min(chain.valid_until_ms for chain in chains),
        generations.pop() if len(generations) == 1 else _OUTDATED,
        coalescers,
        tuple(chains),
    )


_OUTDATED = -1
"""The generation of a chain that is good for one use only."""


def _config_keys(chain: ChargePath) -> list[Key]:
    first = chain.primary_shards[0].level
    found = [keys.system_config(first.namespace_id), keys.resource_config(first.namespace_id, first.resource)]
    for level, _ in chain.primary_shards:
        ns, who = level.namespace_id, level.entity_id
        found.append(keys.meta(ns, who))
        found += (keys.entity_config(ns, who, name) for name in (level.resource, names.DEFAULT_RESOURCE))
    return found
