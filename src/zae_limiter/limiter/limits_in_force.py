"""The limits in force for one entity on one resource, and how its bucket is kept."""

from __future__ import annotations

from ..core import names
from ..core.config import CUSTOM, Resolved
from ..core.errors import ResourceDisabled, ValidationError
from ..core.limit import Limit
from ..core.values import Access
from ..records import ledger
from ..records.algebra import Key
from ..records.level import BucketLimits, slot_limits_for, token_limits_for
from ..repository.backend import Backend
from ..repository.resolving import Policy
from ..stores.bounded import BoundedMap
from .charge_path import BucketShards
from .options import Override

_NO_OVERRIDE = Override()


class LimitsInForce:
    """Makes `BucketLimits` of resolved config."""

    def __init__(self, backend: Backend, ttl_multiplier: int) -> None:
        self._backend = backend
        self._ttl_multiplier = ttl_multiplier
        self._templates: BoundedMap[tuple[str, bool], tuple[Resolved, BucketLimits]] = BoundedMap(
            backend.options.max_cached_keys
        )
        """Limits that many entities share, by resource and whether these have records of their own."""
        self.forget = self._templates.clear

    def has_met(self, resource: str) -> bool:
        """Return whether a resource was resolved before, so that its name is valid."""
        return bool(self._templates.get((resource, True)) or self._templates.get((resource, False)))

    def make(
        self, key: Key, whose: tuple[str, str, str], policy: Policy, given: Override | None, least_version: int
    ) -> BucketLimits | None:
        """Return the limits of an entity, None if it has none. Raise `ResourceDisabled` if it is switched off."""
        _, entity_id, resource = whose
        is_address, kind = names.is_address(entity_id), (resource, policy.is_default)
        is_shared = given is None and not (least_version or is_address) and policy.resolved.source not in CUSTOM
        if is_shared and (template := self._templates.get(kind)) and template[0] == policy.resolved:
            return template[1].for_entity(entity_id, key, policy.cascade, policy.parent_id)
        limits, source, version, access, _, since = policy.resolved
        if access is not None and access[0] is Access.DISABLED:
            raise ResourceDisabled(entity_id, resource, access[1])
        chosen, priority = given or _NO_OVERRIDE
        limits, source = (limits, source) if chosen is None else (chosen, "override")
        if limits is None or source is None:
            return None
        bypassed, version = access is not None and access[0] is Access.BYPASSED, max(version, least_version)
        able = self._backend.store.capabilities
        made = BucketLimits(
            key,
            *whose,
            limits,
            token_limits_for(limits, priority, bypassed),
            source,
            version=version if chosen is None else None,
            lifetime_ms=self._lifetime_ms(entity_id, limits, source),
            cascade=policy.cascade,
            parent_id=policy.parent_id,
            partition_writes=able.partition_writes,
            usage_days=0 if is_address and source not in CUSTOM else able.usage_retention_days,
            priority=priority,
            bypassed=bypassed,
            slot_limits=slot_limits_for(limits, priority, bypassed),
            since=since if chosen is None else {},
            known_version=version,
        )
        if any(limit.schedule for limit in limits):
            return apply_schedules(made, self._backend.clock.now_ms())
        if is_shared:
            self._templates.put(kind, (policy.resolved, made))
        return made

    def _lifetime_ms(self, entity_id: str, limits: tuple[Limit, ...], source: str) -> int:
        """Return how long an untouched bucket is kept: 0, for ever, under an entity's own limits.

        Others are kept as long as their usage; that of an address only until it is full: anybody can make addresses.
        """
        if source in CUSTOM:
            return 0
        states = [state for limit in limits for state in (limit.states() if limit.schedule else (limit,))]
        fill_ms = max([state.time_to_fill_ms for state in states])
        if names.is_address(entity_id):
            return fill_ms
        lifetime_ms = self._ttl_multiplier * fill_ms
        kept_ms = ledger.kept_ms(self._backend.store.capabilities.usage_retention_days)
        return lifetime_ms and max(lifetime_ms, kept_ms)


def apply_schedules(level: BucketLimits, now_ms: int) -> BucketLimits:
    """Return the level with the limits that its schedules put in force at an instant."""
    from ..core.borders import find_interval, find_scheduled

    limits = tuple([limit.in_force(now_ms) for limit in level.limits])
    return level._replace(
        limits=limits,
        token_limits=token_limits_for(limits, level.priority, level.bypassed),
        slot_limits=slot_limits_for(limits, level.priority, level.bypassed),
        scheduled=find_scheduled(level.limits, level.priority),
        in_force=find_interval(level.limits, now_ms),
    )


def check_priority(given: Override | None, levels: list[BucketShards]) -> None:
    """Raise `ValidationError` for a priority that no limit has a floor for."""
    if given is None or given.priority is None:
        return
    known = sorted({name for level in levels for limit in level.home.level.limits for name, _ in limit.floors})
    if given.priority not in known:
        reason = f"is not a priority of these limits; there are {', '.join(known)}" if known else "no limit has floors"
        raise ValidationError("priority", given.priority, reason)
