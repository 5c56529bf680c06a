"""Chains: an entity and those above it that are charged with it, with the limits in force at each level."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..core import names
from ..core.chain import MAX_DEPTH
from ..core.config import CUSTOM
from ..core.errors import ValidationError
from ..records import bucket, keys
from ..records.bucket import Level
from ..repository.configs import Policy, read_policy
from .lane import Lane
from .sights import Sight, Sights

if TYPE_CHECKING:
    from ..core.limit import Limit
    from ..core.values import OnUnavailable
    from ..records.algebra import Image, Key
    from ..repository.backend import Backend


class Chain:
    """The levels of one acquire, the entity itself first, and the lane in which its acquires are merged."""

    __slots__ = ("generation", "given", "lane", "levels", "on_unavailable", "valid_until_ms")

    def __init__(
        self,
        levels: tuple[Level, ...],
        given: tuple[Limit, ...] | None,
        on_unavailable: OnUnavailable | None,
        valid_until_ms: int,
        generation: int,
    ) -> None:
        self.levels = levels
        self.given = given
        self.on_unavailable = on_unavailable
        self.valid_until_ms = valid_until_ms
        self.generation = generation
        self.lane = Lane()


class Chains:
    """Resolves chains and remembers them while the config they come from is cached."""

    def __init__(self, backend: Backend, sights: Sights, ttl_multiplier: int, max_entries: int = 20_000) -> None:
        self._backend = backend
        self._sights = sights
        self._ttl_multiplier = ttl_multiplier
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, tuple[Limit, ...] | None], Chain] = {}
        self.system_policy: OnUnavailable | None = None

    def known(self, entity_id: str, resource: str, given: tuple[Limit, ...] | None, now_ms: int) -> Chain | None:
        """The remembered chain, if nothing says that it is out of date."""
        chain = self._known.get((entity_id, resource, given))
        cache = self._backend.cache
        if chain is None or chain.generation != cache.generation or now_ms >= chain.valid_until_ms:
            return None
        cache.hit()
        return chain

    async def resolve(self, entity_id: str, resource: str, given: tuple[Limit, ...] | None) -> Chain:
        """Resolve level by level; each costs at most one read, which brings its bucket along."""
        names.entity_id(entity_id)
        names.resource(resource)
        return await self._resolve(entity_id, resource, given, {})

    async def follow(self, chain: Chain, seen: dict[Key, int]) -> Chain:
        """Resolve again after buckets were met that had been charged under newer config (``seen``)."""
        first = chain.levels[0]
        stale = [
            keys.system_config(first.namespace_id),
            keys.resource_config(first.namespace_id, first.resource),
        ]
        for level in chain.levels:
            ns, who = level.namespace_id, level.entity_id
            stale += [
                keys.meta(ns, who),
                keys.entity_config(ns, who, level.resource),
                keys.entity_config(ns, who, names.DEFAULT_RESOURCE),
            ]
        self._backend.cache.drop(stale)
        return await self._resolve(first.entity_id, first.resource, chain.given, seen)

    async def _resolve(
        self, entity_id: str, resource: str, given: tuple[Limit, ...] | None, seen: dict[Key, int]
    ) -> Chain:
        ns = await self._backend.ns()
        generation = self._backend.cache.generation
        levels: list[Level] = []
        valid_until_ms: int | None = None
        policy: Policy | None = None
        who: str | None = entity_id
        for _ in range(MAX_DEPTH):
            if who is None:
                break
            key = keys.bucket(ns, who, resource)
            policy = await read_policy(self._backend, who, resource, None if key in self._sights.known else key)
            self._witness(key, policy.extra)
            if valid_until_ms is None or policy.valid_until_ms < valid_until_ms:
                valid_until_ms = policy.valid_until_ms
            level = self._level(ns, who, resource, policy, given, own=not levels, seen=seen.get(key, 0))
            if level is not None:
                levels.append(level)
            who = policy.parent_id if policy.cascade else None
        assert policy is not None  # the loop ran: MAX_DEPTH >= 1
        assert valid_until_ms is not None
        self.system_policy = policy.on_unavailable
        chain = Chain(tuple(levels), given, policy.on_unavailable, valid_until_ms, generation)
        self._remember((entity_id, resource, given), chain)
        return chain

    def _level(
        self,
        ns: str,
        entity_id: str,
        resource: str,
        policy: Policy,
        given: tuple[Limit, ...] | None,
        *,
        own: bool,
        seen: int,
    ) -> Level | None:
        """The limits given decide for the entity itself, stored ones for those above it, if they have any."""
        limits, source, version = policy.resolved
        stamp: int | None = max(version, seen)
        if given is not None and (own or limits is None):
            limits, source, stamp = given, "override", None
        if limits is None or source is None:
            if own:
                raise ValidationError(
                    "limits",
                    None,
                    f"no limits are stored for {entity_id!r} on {resource!r} at any level; set some with "
                    "set_system_defaults(), set_resource_defaults() or set_limits(), or pass limits=[...]",
                )
            return None
        return Level(
            ns,
            entity_id,
            resource,
            limits,
            source=source,
            version=stamp,
            lifetime_ms=self._lifetime_ms(limits, source),
            cascade=policy.cascade,
            parent_id=policy.parent_id,
        )

    def _lifetime_ms(self, limits: tuple[Limit, ...], source: str) -> int:
        """How long an untouched bucket is kept: for ever (0) under an entity's own limits."""
        if source in CUSTOM:
            return 0
        return self._ttl_multiplier * max(limit.time_to_fill_ms for limit in limits)

    def _witness(self, key: Key, image: Image | None) -> None:
        if image is not None:
            sight = Sight(bucket.inspect(key, image), self._backend.clock.now_ms())
            self._sights.remember(key, sight)

    def _remember(self, name: tuple[str, str, tuple[Limit, ...] | None], chain: Chain) -> None:
        if self._backend.cache.ttl_ms == 0:
            return
        with self._lock:
            self._known.pop(name, None)
            while len(self._known) >= self._max_entries:
                del self._known[next(iter(self._known))]
            self._known[name] = chain
