"""Set, read and resolve stored limits."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core import names
from ..core.config import Resolved, resolve
from ..core.errors import ValidationError
from ..core.limit import Limit, check_limits, whole
from ..core.values import AuditAction, OnUnavailable
from ..records import config, keys
from ..records.algebra import Image, Key, Query, Write
from . import cursors
from .base import MAX_PAGE, Operations
from .cache import Defaults, Known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..runtime.deadline import Deadline
    from .backend import Backend


class Policy(NamedTuple):
    """The config of an entity on a resource, as an acquire needs it, and the record ``extra`` that was read with it."""

    cascade: bool
    parent_id: str | None
    resolved: Resolved
    on_unavailable: OnUnavailable | None
    valid_until_ms: int
    extra: Image | None
    is_default: bool = False
    """Whether the entity has nothing of its own: ``resolved`` is then one object for all such entities."""


async def read_policy(
    backend: Backend, ns: str, entity_id: str, resource: str, deadline: Deadline, extra: Key | None = None
) -> Policy:
    """Resolve the limits of an entity. What is not cached is read in one call, together with ``extra``."""
    cache, generation, now_ms = backend.cache, backend.cache.generation, backend.clock.now_ms()
    whose, sks = keys.pk_entity(ns, entity_id), _entity_records(resource)
    own, defaults = cache.get(whose, now_ms), cache.get_defaults(resource, now_ms)
    missing = [Key(whose, sk) for sk in sks if own is None or sk not in own.images]
    shared = [] if defaults is not None else [keys.resource_config(ns, resource), keys.system_config(ns)]
    beside: Image | None = None
    if missing or shared:
        wanted = [*missing, *shared] if extra is None else [*missing, *shared, extra]
        images = await backend.store.read(wanted, timeout=deadline.left())
        beside = None if extra is None else images.pop()
        if defaults is None:
            defaults = _decode_defaults(shared, images[len(missing) :], now_ms)
            cache.put_defaults(resource, defaults, generation)
        if own is None or missing:
            own = _add_records(own, [key.sk for key in missing], images, now_ms)
            cache.put(whose, own, generation)
    assert own is not None  # whatever was missing was read
    assert defaults is not None
    valid_until_ms = min(own.read_ms, defaults.read_ms) + cache.ttl_ms
    if own.images is _absent_records(sks):
        return Policy(False, None, defaults.resolved, defaults.on_unavailable, valid_until_ms, beside, True)
    meta = own.images[sks[0]] or {}
    levels = [config.decode(Key(whose, sk), own.images[sk]) for sk in sks[1:]]
    resolved = resolve([(each.limits, each.version) for each in levels], defaults.resolved, meta.get("version", 0))
    cascade, parent_id = bool(meta.get("cascade")), meta.get("parent_id")
    return Policy(cascade, parent_id, resolved, defaults.on_unavailable, valid_until_ms, beside)


def _add_records(known: Known | None, sks: Sequence[str], images: Sequence[Image | None], now_ms: int) -> Known:
    """Return the known records of an entity with those that were just read, as old as the oldest of them."""
    added = images[: len(sks)]
    found = dict(zip(sks, added, strict=True)) if any(added) else _absent_records(tuple(sks))
    if known is not None and len(known.images) < _MOST_RECORDS:
        return Known({**known.images, **found}, known.read_ms)
    return Known(found, now_ms)


@lru_cache(maxsize=1024)
def _absent_records(sks: tuple[str, ...]) -> Mapping[str, Image | None]:
    """Return the records of an entity that has none of these: one object for all such entities."""
    return dict.fromkeys(sks)


@lru_cache(maxsize=1024)
def _entity_records(resource: str) -> tuple[str, str, str]:
    """Return the sort keys of an entity's records: itself, and its limits for one and for all resources."""
    return keys.META, keys.sk_config(resource), keys.sk_config(names.DEFAULT_RESOURCE)


def _decode_defaults(shared: Sequence[Key], images: Sequence[Image | None], now_ms: int) -> Defaults:
    """Return the resolved config records of a resource and of the system."""
    of_resource, of_system = map(config.decode, shared, images)
    levels = [(each.limits, each.version) for each in (of_resource, of_system)]
    return Defaults(resolve([_NOTHING, _NOTHING, *levels]), of_system.on_unavailable, now_ms)


_NOTHING = (None, 0)
_MOST_RECORDS = 64
"""How many records of one entity are remembered together, before the older ones are forgotten."""


class ConfigOperations(Operations):
    """Set, get, delete and list stored limits."""

    async def set_system_defaults(
        self, limits: Sequence[Limit], on_unavailable: OnUnavailable | str | None = None, principal: str | None = None
    ) -> None:
        """Set the ``limits`` that apply where nothing more specific is stored.

        ``on_unavailable`` is what an acquire does when the store is unavailable; None keeps the stored value.
        ``principal`` says in the audit log who did it.
        """
        names.principal(principal)
        checked = check_limits(limits)
        policy = None if on_unavailable is None else check_policy(on_unavailable)
        await self._replace(_system_record, checked, principal, policy)

    async def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        """Return the system limits and what an acquire does when the store is unavailable."""
        found = await self._read_config(_system_record)
        return list(found.limits or ()), found.on_unavailable

    async def delete_system_defaults(self, principal: str | None = None) -> None:
        """Delete the system limits, if there are any. ``principal`` is who did it, for the audit log."""
        names.principal(principal)
        await self._replace(_system_record, None, principal)

    async def set_resource_defaults(self, resource: str, limits: Sequence[Limit], principal: str | None = None) -> None:
        """Set the ``limits`` of a resource for all entities that have none of their own.

        ``principal`` says in the audit log who did it.
        """
        names.principal(principal)
        names.resource(resource)
        await self._replace(lambda ns: _resource_record(ns, resource), check_limits(limits), principal)

    async def get_resource_defaults(self, resource: str) -> list[Limit]:
        """Return the limits stored for a resource."""
        names.resource(resource)
        found = await self._read_config(lambda ns: _resource_record(ns, resource))
        return list(found.limits or ())

    async def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        """Delete the limits of a resource, if it has any. ``principal`` is who did it, for the audit log."""
        names.principal(principal)
        names.resource(resource)
        await self._replace(lambda ns: _resource_record(ns, resource), None, principal)

    async def list_resources_with_defaults(self) -> list[str]:
        """Return the names of resources that have limits of their own, sorted."""
        deadline, ns = await self._begin()
        return await self._read_registry(keys.resources(ns), deadline)

    async def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = names.DEFAULT_RESOURCE,
        principal: str | None = None,
    ) -> None:
        """Set the ``limits`` of one entity, created or not, for a resource or (``_default_``) for all.

        ``principal`` says in the audit log who did it.
        """
        names.principal(principal)
        names.entity_id(entity_id)
        names.config_resource(resource)
        await self._replace(lambda ns: _entity_record(ns, entity_id, resource), check_limits(limits), principal)

    async def get_limits(self, entity_id: str, resource: str = names.DEFAULT_RESOURCE) -> list[Limit]:
        """Return the limits of the entity itself for a resource, or (``_default_``) for all resources."""
        names.entity_id(entity_id)
        names.config_resource(resource)
        found = await self._read_config(lambda ns: _entity_record(ns, entity_id, resource))
        return list(found.limits or ())

    async def delete_limits(
        self, entity_id: str, resource: str = names.DEFAULT_RESOURCE, principal: str | None = None
    ) -> None:
        """Delete the limits of the entity itself for a resource, or (``_default_``) those for all.

        ``principal`` says in the audit log who did it.
        """
        names.principal(principal)
        names.entity_id(entity_id)
        names.config_resource(resource)
        await self._replace(lambda ns: _entity_record(ns, entity_id, resource), None, principal)

    async def list_entities_with_custom_limits(
        self, resource: str = names.DEFAULT_RESOURCE, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Return one page of entities with limits of their own, and a cursor.

        ``resource`` is the resource of the limits, ``_default_`` for those for all resources; ``limit`` is the size of
        a page; ``cursor`` is that of the previous page. The last page has none.
        """
        names.config_resource(resource)
        limit = whole("limit", limit, 1, MAX_PAGE, "entities")
        after = cursors.decode("cursor", cursor)
        deadline, ns = await self._begin()
        query = Query(keys.gsi3_pk_entity_config(ns, resource), gsi="GSI3", limit=limit, after=after)
        page = await self._backend.query(query, deadline)
        return [image["entity_id"] for _, image in page.items], cursors.encode(page.cursor)

    async def list_resources_with_entity_configs(self) -> list[str]:
        """Return the resources for which some entity has limits of its own."""
        deadline, ns = await self._begin()
        return await self._read_registry(keys.entity_config_resources(ns), deadline)

    async def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, str | None]:
        """Return the limits in force for an entity on a resource, the policy, and their level.

        The policy is what an acquire does when the store is unavailable, as stored; the level is one of `SOURCES`.
        """
        names.entity_id(entity_id)
        names.resource(resource)
        deadline = self._deadline()
        policy = await read_policy(self._backend, await self._backend.ns(deadline), entity_id, resource, deadline)
        limits = policy.resolved.limits
        return None if limits is None else list(limits), policy.on_unavailable, policy.resolved.source

    async def _read_config(self, record: Callable[[str], _ConfigRecord]) -> config.Config:
        deadline, ns = await self._begin()
        key = record(ns).key
        return config.decode(key, (await self._backend.read([key], deadline))[0])

    async def _read_registry(self, key: Key, deadline: Deadline) -> list[str]:
        image = (await self._backend.read([key], deadline))[0] or {}
        return sorted(attr[2:] for attr, count in image.items() if attr.startswith("r_") and count > 0)

    async def _replace(
        self,
        record: Callable[[str], _ConfigRecord],
        limits: tuple[Limit, ...] | None,
        principal: str | None,
        on_unavailable: OnUnavailable | None = None,
    ) -> None:
        """Change the limits of one level, its registry entry and the audit log in one commit."""
        deadline, ns = await self._begin()
        key, subject, identity, registry, index_keys = record(ns)
        own = {**identity, **(index_keys if limits and index_keys else {}), "GSI4PK": ns, "GSI4SK": key.pk}
        resource = identity.get("resource")
        action = AuditAction.LIMITS_SET if limits else AuditAction.LIMITS_DELETED
        details: dict[str, Any] = {"limits": [limit.to_dict() for limit in limits or ()]}
        if on_unavailable is not None:
            details["on_unavailable"] = on_unavailable.value

        def plan(images: list[Image | None]) -> list[Write]:
            seen = config.decode_or_damaged(key, images[0])
            if not limits and not seen.limits and seen.on_unavailable is None:
                return []
            policy = on_unavailable or (seen.on_unavailable if limits else None)
            writes = [config.replace(key, images[0], limits, own, policy)]
            writes.append(self._backend.event(ns, action, subject, principal, resource, details))
            step = bool(limits) - bool(seen.limits)
            if registry is not None and step:
                entry = {"GSI4PK": ns, "GSI4SK": registry.pk}
                writes.append(Write(registry, (), entry, {f"r_{resource}": step}))
            return writes

        await self._backend.change([key], plan, deadline)
        self._backend.cache.drop([key])


class _ConfigRecord(NamedTuple):
    """The record of one level of limits, where its changes are audited, and the registry of its resource."""

    key: Key
    subject: str
    identity: dict[str, str]
    registry: Key | None = None
    index_keys: dict[str, str] | None = None
    """The index attributes of a record that holds limits."""


def _system_record(ns: str) -> _ConfigRecord:
    return _ConfigRecord(keys.system_config(ns), keys.AUDIT_SYSTEM, {})


def _resource_record(ns: str, resource: str) -> _ConfigRecord:
    key, subject = keys.resource_config(ns, resource), keys.audit_resource(resource)
    return _ConfigRecord(key, subject, {"resource": resource}, keys.resources(ns))


def _entity_record(ns: str, entity_id: str, resource: str) -> _ConfigRecord:
    identity = {"entity_id": entity_id, "resource": resource}
    index_keys = {"GSI3PK": keys.gsi3_pk_entity_config(ns, resource), "GSI3SK": entity_id}
    key, registry = keys.entity_config(ns, entity_id, resource), keys.entity_config_resources(ns)
    return _ConfigRecord(key, entity_id, identity, registry, index_keys)


def check_policy(value: OnUnavailable | str, field: str = "on_unavailable") -> OnUnavailable:
    """Return an unavailability policy given as a value or a word. Raise `ValidationError` for anything else."""
    try:
        return OnUnavailable(value)
    except ValueError:
        raise ValidationError(field, value, "must be 'allow' or 'block'") from None
