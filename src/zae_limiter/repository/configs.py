"""Set, get, delete and list stored limits, switches and cascade policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import Limit, check_limits, whole
from ..core.names import DEFAULT_RESOURCE
from ..core.validation import UNSET, Unset, flag
from ..core.values import Access, AuditAction, OnUnavailable
from ..records import config, keys
from ..records.algebra import Image, Key, Page, Query, Write
from ..records.fields import read_fields
from ..stores.opaque import decode_cursor, encode_cursor
from .backend import MAX_PAGE, Operations
from .ineffective import warn_of_config, warn_of_names
from .resolving import Policy, entity_level, locate, read_policy, resource_level, stamp_buckets


class ConfigOperations(Operations):
    """Set, get, delete and list stored limits."""

    async def set_system_defaults(
        self, limits: Sequence[Limit], on_unavailable: OnUnavailable | str | None = None, principal: str | None = None
    ) -> None:
        """Set the ``limits`` that apply where nothing more specific is stored.

        ``on_unavailable`` is what an acquire does when the store is unavailable; None keeps the stored value.
        """
        checked = check_limits(limits)
        given = {} if on_unavailable is None else {"on_unavailable": check_policy(on_unavailable)}
        await self._replace({}, checked, principal, **given)

    async def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        """Return the system limits and what an acquire does when the store is unavailable."""
        found = await self._read_config({})
        return list(found.limits or ()), found.on_unavailable

    async def get_system_limits(self) -> list[Limit]:
        """Return the system limits."""
        return (await self.get_system_defaults())[0]

    async def resolve_on_unavailable(self) -> OnUnavailable:
        """Return what acquires do when the store is unavailable, as stored, else that they block.

        It is read once per cache time, as all config that acquires need.
        """
        deadline, ns = await self._begin()
        cache, generation, now_ms = self._backend.cache, self._backend.cache.generation, self._backend.clock.now_ms()
        key = keys.system_config(ns)
        known = cache.get_partition(key.pk, now_ms)
        if known is None:
            known = {key.sk: (await self._backend.read([key], deadline))[0]}, now_ms
            cache.put(key.pk, known, generation)
        return config.decode(key, known[0][key.sk]).on_unavailable or OnUnavailable.BLOCK

    async def delete_system_defaults(self, principal: str | None = None) -> None:
        """Delete the system limits, if there are any, and what is stored with them for an unavailable store."""
        await self._replace({}, None, principal)

    async def set_resource_defaults(
        self,
        resource: str,
        limits: Sequence[Limit],
        principal: str | None = None,
        *,
        disabled: bool | str | Unset | None = UNSET,
        cascade: bool | Unset | None = UNSET,
    ) -> None:
        """Set the ``limits`` of a resource for entities without their own.

        ``disabled`` (True, False, ``"bypass"``) and ``cascade`` set its switch and its cascade policy in the same step;
        None removes them, and without them they stay.
        """
        policies = check_policies(disabled, cascade)
        await self._replace(resource_level(resource), check_limits(limits), principal, **policies)

    async def get_resource_defaults(self, resource: str) -> list[Limit]:
        """Return the limits stored for a resource."""
        return list((await self._read_config(resource_level(resource))).limits or ())

    async def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        """Delete the limits of a resource, if it has any."""
        await self._replace(resource_level(resource), None, principal)

    async def list_resources_with_defaults(self) -> list[str]:
        """Return the names of resources that have limits of their own, sorted."""
        return await self._read_registry(keys.resources)

    async def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = DEFAULT_RESOURCE,
        principal: str | None = None,
        *,
        disabled: bool | str | Unset | None = UNSET,
        cascade: bool | Unset | None = UNSET,
    ) -> None:
        """Set the ``limits`` of one entity, created or not, for a resource or (``_default_``) for all.

        ``disabled`` (True, False, ``"bypass"``) and ``cascade`` set the switch and the cascade policy of this level in
        the same step; None removes them, and without them they stay.
        """
        level = entity_level(entity_id, names.config_resource(resource))
        await self._replace(level, check_limits(limits), principal, **check_policies(disabled, cascade))
        deadline, ns = await self._begin()
        await warn_of_names(self._backend, ns, entity_id, resource, deadline)

    async def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        """Return the limits of the entity itself for a resource, or (``_default_``) for all resources."""
        level = entity_level(entity_id, names.config_resource(resource))
        return list((await self._read_config(level)).limits or ())

    async def delete_limits(
        self, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None
    ) -> None:
        """Delete the limits of the entity itself for a resource, or (``_default_``) those for all."""
        level = entity_level(entity_id, names.config_resource(resource))
        await self._replace(level, None, principal)

    async def list_entities_with_custom_limits(
        self, resource: str = DEFAULT_RESOURCE, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Return entities with limits of their own, and a cursor where there are more than ``limit``.

        ``resource`` is the resource of the limits, ``_default_`` for those for all resources; ``limit`` is the size of
        a page, None for all of them at once; ``cursor`` is that of the previous page. The last page has none.
        """
        names.config_resource(resource)
        size = MAX_PAGE if limit is None else whole("limit", limit, 1, MAX_PAGE, "entities")
        after = decode_cursor("cursor", cursor)
        deadline, ns = await (self._begin_steps() if limit is None else self._begin())
        query = Query(keys.gsi3_pk_entity_config(ns, resource), gsi="GSI3", limit=size, after=after)
        if limit is None:
            page = Page(tuple(await self._backend.collect(query, deadline)), None)
        else:
            page = await self._backend.query(query, deadline)
        owners = [str(read_fields("config", image, {"entity_id": str})["entity_id"]) for _, image in page.items]
        return owners, encode_cursor(page.cursor)

    async def list_resources_with_entity_configs(self) -> list[str]:
        """Return the resources for which some entity has limits of its own."""
        return await self._read_registry(keys.entity_config_resources)

    async def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, str | None]:
        """Return the limits in force for an entity on a resource, the policy, and their level.

        The policy is what an acquire does when the store is unavailable, as stored; the level is one of `SOURCES`.
        """
        policy = await self._resolve(entity_id, resource)
        limits = policy.resolved.limits
        return None if limits is None else list(limits), policy.on_unavailable, policy.resolved.source

    async def _resolve(self, entity_id: str, resource: str) -> Policy:
        names.entity_id(entity_id)
        names.resource(resource)
        deadline, ns = await self._begin()
        return await read_policy(self._backend, ns, entity_id, resource, deadline)

    async def _read_config(self, level: Mapping[str, str]) -> config.Config:
        deadline, ns = await self._begin()
        key = locate(ns, level)[0]
        return config.decode(key, (await self._backend.read([key], deadline))[0])

    async def _read_registry(self, registry: Callable[[str], Key]) -> list[str]:
        deadline, ns = await self._begin()
        image = (await self._backend.read([registry(ns)], deadline))[0] or {}
        return config.list_registered(image)

    async def _replace(
        self, level: Mapping[str, str], limits: tuple[Limit, ...] | None, principal: str | None, **given: Any
    ) -> None:
        """Replace the limits of one level, and set the fields of its config that are ``given`` besides."""
        action = AuditAction.LIMITS_SET if limits else AuditAction.LIMITS_DELETED
        fields = {"limits": limits, **given}

        def change(seen: config.Config) -> config.Config | None:
            if not limits and not seen.limits and seen.on_unavailable is None:
                return None
            kept = {"on_unavailable": seen.on_unavailable if limits else None}
            return seen._replace(**{**kept, **fields})

        await self._change(level, change, action, spell_fields(fields), principal, config.decode_or_damaged)

    async def _set(self, level: Mapping[str, str], principal: str | None, **fields: Any) -> None:
        """Set fields of the config of one level; None removes what is stored."""

        def change(seen: config.Config) -> config.Config | None:
            new = seen._replace(**fields)
            return None if new == seen else new

        await self._change(level, change, find_action(fields), spell_fields(fields), principal)

    async def _change(
        self,
        level: Mapping[str, str],
        change: Callable[[config.Config], config.Config | None],
        action: AuditAction,
        details: dict[str, Any],
        principal: str | None,
        decode: Callable[[Key, Image | None], config.Config] = config.decode,
    ) -> None:
        """Change what one level says, its registry entry and the audit log in one commit; None changes nothing.

        The buckets of an entity are stamped with the change, even if an earlier call made it, which may have failed
        midway. What has no effect as things stand is logged.
        """
        deadline, ns, who = await self._begin_change(principal)
        key, subject, registry, index_keys = locate(ns, level)
        resource = level.get("resource")
        states = (config.Config(), config.Config())

        def plan(images: list[Image | None]) -> list[Write]:
            nonlocal states
            seen = decode(key, images[0])
            new = change(seen)
            states = (config.Config(), seen) if new is None else (seen, new)
            if new is None:
                return []
            own = {**level, **(index_keys if new.limits else {}), "GSI4PK": ns, "GSI4SK": key.pk}
            new = seen.replaced_by(new, self._backend.clock.now_ms())
            event = self._backend.event(ns, action, subject, who, resource, details)
            writes = [config.replace(key, images[0], new, own), event]
            step = bool(new.limits) - bool(seen.limits)
            if registry is not None and step:
                counts = {config.registered(level["resource"]): step}
                writes.append(Write(registry, (), {"GSI4PK": ns, "GSI4SK": registry.pk}, counts))
            return writes

        try:
            await self._backend.change([key], plan, deadline)
        finally:  # even if it is unknown whether it took effect
            self._backend.cache.drop([key])
        if "entity_id" in level:
            only = None if resource == DEFAULT_RESOURCE else resource
            await stamp_buckets(self._backend, ns, level["entity_id"], only, deadline)
        await warn_of_config(self._backend, ns, level, *states, deadline)


class PolicyOperations(ConfigOperations):
    """Set, get and clear switches and cascade policies.

    Entity and resource > entity > resource; for a cascade then the entity's own ``cascade``.
    """

    async def disable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Refuse every request of an entity with `ResourceDisabled`, for one ``resource`` or (None) for all.

        It holds for those below it too that charge it. Other processes follow with their next write to one of its
        buckets.
        """
        await self._set(entity_level(entity_id, resource), principal, access=Access.DISABLED)

    async def enable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Let limits decide for an entity, for one ``resource`` or (None) for all, whatever the resource's switch says.

        Processes that have refused it follow when their cached config has expired, after 60 s unless
        ``config_cache_ttl`` of `Repository` says otherwise.
        """
        await self._set(entity_level(entity_id, resource), principal, access=Access.ENABLED)

    async def bypass_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Admit every request of an entity, for one ``resource`` or (None) for all; what it uses is still counted."""
        await self._set(entity_level(entity_id, resource), principal, access=Access.BYPASSED)

    async def disable_resource(self, resource: str, principal: str | None = None) -> None:
        """Refuse every request for a resource with `ResourceDisabled`, except for entities with a switch of their own.

        Other processes follow when their cached config has expired, after 60 s unless ``config_cache_ttl`` of
        `Repository` says otherwise.
        """
        await self._set(resource_level(resource), principal, access=Access.DISABLED)

    async def enable_resource(self, resource: str, principal: str | None = None) -> None:
        """Let limits decide for a resource."""
        await self._set(resource_level(resource), principal, access=Access.ENABLED)

    async def bypass_resource(self, resource: str, principal: str | None = None) -> None:
        """Admit every request for a resource, except of entities with a switch of their own; usage is still counted."""
        await self._set(resource_level(resource), principal, access=Access.BYPASSED)

    async def clear_entity_disabled(
        self, entity_id: str, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Remove an entity's switch, for one ``resource`` or (None) the one for all; a less specific one decides."""
        await self._set(entity_level(entity_id, resource), principal, access=None)

    async def clear_resource_disabled(self, resource: str, principal: str | None = None) -> None:
        """Remove the switch of a resource."""
        await self._set(resource_level(resource), principal, access=None)

    async def get_entity_disabled(self, entity_id: str, resource: str | None = None) -> bool | str | None:
        """Return the switch of an entity for one ``resource`` or (None) the one for all, not that in force.

        True if it is disabled, False if enabled, ``"bypass"`` if bypassed, None without one.
        """
        return _DISABLED[(await self._read_config(entity_level(entity_id, resource))).access]

    async def get_resource_disabled(self, resource: str) -> bool | str | None:
        """Return the switch of a resource: True, False or ``"bypass"``; None without one."""
        return _DISABLED[(await self._read_config(resource_level(resource))).access]

    async def resolve_access(self, entity_id: str, resource: str) -> tuple[Access, str | None]:
        """Return the switch in force for an entity on a resource, and its level, one of `SOURCES` (None: none is set).

        Switches of entities above it are theirs: they count for it where it cascades to them.
        """
        found = (await self._resolve(entity_id, resource)).resolved.access
        return (Access.ENABLED, None) if found is None else found

    async def set_entity_cascade(
        self, entity_id: str, cascade: bool, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Decide whether an acquire of an entity charges its parent, for one ``resource`` or (None) for all.

        It counts more than the ``cascade`` of the entity and of the resource. Other processes follow with their next
        write to one of its buckets.
        """
        await self._set(entity_level(entity_id, resource), principal, cascade=flag("cascade", cascade))

    async def clear_entity_cascade(
        self, entity_id: str, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Remove what `set_entity_cascade` has set for one ``resource`` or (None) for all."""
        await self._set(entity_level(entity_id, resource), principal, cascade=None)

    async def get_entity_cascade(self, entity_id: str, resource: str | None = None) -> bool | None:
        """Return what `set_entity_cascade` has set for one ``resource`` or (None) for all; None if it has not."""
        return (await self._read_config(entity_level(entity_id, resource))).cascade

    async def set_resource_cascade(self, resource: str, cascade: bool, principal: str | None = None) -> None:
        """Decide whether an acquire of a resource charges parents, for entities without a policy of their own.

        It counts more than the ``cascade`` of the entity.
        """
        await self._set(resource_level(resource), principal, cascade=flag("cascade", cascade))

    async def clear_resource_cascade(self, resource: str, principal: str | None = None) -> None:
        """Remove what `set_resource_cascade` has set."""
        await self._set(resource_level(resource), principal, cascade=None)

    async def get_resource_cascade(self, resource: str) -> bool | None:
        """Return what `set_resource_cascade` has set; None if it has not."""
        return (await self._read_config(resource_level(resource))).cascade

    async def resolve_cascade(self, entity_id: str, resource: str) -> bool:
        """Return whether an acquire of an entity charges its parent on a resource, by the most specific policy."""
        return (await self._resolve(entity_id, resource)).cascade


def find_action(fields: Mapping[str, Any]) -> AuditAction:
    """Return the audit action of a change of some fields of a config: its limits, its switch or its cascade policy."""
    if "access" in fields:
        return AuditAction.ACCESS_CHANGED
    if "cascade" in fields:
        return AuditAction.CASCADE_CHANGED
    return AuditAction.LIMITS_SET if any(fields.values()) else AuditAction.LIMITS_DELETED


def spell_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a config as the audit log has them."""
    found = {name: str(value) if isinstance(value, str) else value for name, value in fields.items()}
    return found | ({"limits": [limit.to_dict() for limit in fields["limits"] or ()]} if "limits" in fields else {})


def check_policy(value: OnUnavailable | str) -> OnUnavailable:
    """Return an unavailability policy given as a value or a word. Raise `ValidationError` for anything else."""
    try:
        return OnUnavailable(value)
    except ValueError:
        raise ValidationError("on_unavailable", value, "must be 'allow' or 'block'") from None


ACCESS: dict[bool | str, Access] = {True: Access.DISABLED, False: Access.ENABLED, "bypass": Access.BYPASSED}
"""Switches as ``disabled`` of `set_limits` takes them."""
_DISABLED: dict[Access | None, bool | str | None] = {None: None, **{each: given for given, each in ACCESS.items()}}


def check_policies(disabled: bool | str | Unset | None, cascade: bool | Unset | None) -> dict[str, Any]:
    """Return the fields of a config that are given: ``access`` and ``cascade``, with None for those to be removed."""
    found: dict[str, Any] = {}
    if disabled is not UNSET:
        if disabled is not None and (not isinstance(disabled, bool | str) or disabled not in ACCESS):
            raise ValidationError("disabled", disabled, "must be True, False, 'bypass' or None")
        found["access"] = None if disabled is None else ACCESS[disabled]
    if cascade is not UNSET:
        found["cascade"] = None if cascade is None else flag("cascade", cascade)
    return found
