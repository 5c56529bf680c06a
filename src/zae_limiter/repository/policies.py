"""Switches and cascade policies of resources and entities."""

from __future__ import annotations

from collections.abc import Mapping

from ..core import names
from ..core.validation import flag
from ..core.values import Access, AuditAction
from .configs import ACCESS, ConfigOperations, entity_level, resource_level
from .resolving import read_policy

_DISABLED: dict[Access | None, bool | str | None] = {None: None, **{each: given for given, each in ACCESS.items()}}
"""Switches as ``disabled`` of `set_limits` takes them, None for none."""


class PolicyOperations(ConfigOperations):
    """Set, get and clear switches and cascade policies.

    Entity and resource > entity > resource; for a cascade then the entity's own ``cascade``.
    """

    async def disable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Refuse every request of an entity with `ResourceDisabled`, for one ``resource`` or (None) for all.

        It holds for those below it too that charge it. Other processes follow with their next write to one of its
        buckets. ``principal`` says in the audit log who did it.
        """
        await self._switch(entity_level(entity_id, resource), Access.DISABLED, principal)

    async def enable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Let limits decide for an entity, for one ``resource`` or (None) for all, whatever the resource's switch says.

        Processes that have refused it follow when their cached config has expired, after 60 s unless
        ``config_cache_ttl`` of `Repository` says otherwise. ``principal`` says in the audit log who did it.
        """
        await self._switch(entity_level(entity_id, resource), Access.ENABLED, principal)

    async def bypass_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Admit every request of an entity, for one ``resource`` or (None) for all; what it uses is still counted.

        ``principal`` says in the audit log who did it.
        """
        await self._switch(entity_level(entity_id, resource), Access.BYPASSED, principal)

    async def disable_resource(self, resource: str, principal: str | None = None) -> None:
        """Refuse every request for a resource with `ResourceDisabled`, except for entities with a switch of their own.

        Other processes follow when their cached config has expired, after 60 s unless ``config_cache_ttl`` of
        `Repository` says otherwise. ``principal`` says in the audit log who did it.
        """
        await self._switch(resource_level(resource), Access.DISABLED, principal)

    async def enable_resource(self, resource: str, principal: str | None = None) -> None:
        """Let limits decide for a resource. ``principal`` says in the audit log who did it."""
        await self._switch(resource_level(resource), Access.ENABLED, principal)

    async def bypass_resource(self, resource: str, principal: str | None = None) -> None:
        """Admit every request for a resource, but for entities with a switch of their own; usage is still counted.

        ``principal`` says in the audit log who did it.
        """
        await self._switch(resource_level(resource), Access.BYPASSED, principal)

    async def clear_entity_disabled(
        self, entity_id: str, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Remove the switch of an entity, for one ``resource`` or (None) the one for all; a less specific one decides.

        ``principal`` says in the audit log who did it.
        """
        await self._switch(entity_level(entity_id, resource), None, principal)

    async def clear_resource_disabled(self, resource: str, principal: str | None = None) -> None:
        """Remove the switch of a resource. ``principal`` says in the audit log who did it."""
        await self._switch(resource_level(resource), None, principal)

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
        names.entity_id(entity_id)
        names.resource(resource)
        deadline, ns = await self._begin()
        found = (await read_policy(self._backend, ns, entity_id, resource, deadline)).resolved.access
        return (Access.ENABLED, None) if found is None else found

    async def set_entity_cascade(
        self, entity_id: str, cascade: bool, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Decide whether an acquire of an entity charges its parent, for one ``resource`` or (None) for all.

        It counts more than the ``cascade`` of the entity and of the resource. Other processes follow with their next
        write to one of its buckets. ``principal`` says in the audit log who did it.
        """
        await self._set_cascade(entity_level(entity_id, resource), flag("cascade", cascade), principal)

    async def clear_entity_cascade(
        self, entity_id: str, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Remove what `set_entity_cascade` has set for one ``resource`` or (None) for all.

        ``principal`` says in the audit log who did it.
        """
        await self._set_cascade(entity_level(entity_id, resource), None, principal)

    async def get_entity_cascade(self, entity_id: str, resource: str | None = None) -> bool | None:
        """Return what `set_entity_cascade` has set for one ``resource`` or (None) for all; None if it has not."""
        return (await self._read_config(entity_level(entity_id, resource))).cascade

    async def set_resource_cascade(self, resource: str, cascade: bool, principal: str | None = None) -> None:
        """Decide whether an acquire of a resource charges parents, for entities without a policy of their own.

        It counts more than the ``cascade`` of the entity. ``principal`` says in the audit log who did it.
        """
        await self._set_cascade(resource_level(resource), flag("cascade", cascade), principal)

    async def clear_resource_cascade(self, resource: str, principal: str | None = None) -> None:
        """Remove what `set_resource_cascade` has set. ``principal`` says in the audit log who did it."""
        await self._set_cascade(resource_level(resource), None, principal)

    async def get_resource_cascade(self, resource: str) -> bool | None:
        """Return what `set_resource_cascade` has set; None if it has not."""
        return (await self._read_config(resource_level(resource))).cascade

    async def resolve_cascade(self, entity_id: str, resource: str) -> bool:
        """Return whether an acquire of an entity charges its parent on a resource, by the most specific policy."""
        names.entity_id(entity_id)
        names.resource(resource)
        deadline, ns = await self._begin()
        return (await read_policy(self._backend, ns, entity_id, resource, deadline)).cascade

    async def _switch(self, level: Mapping[str, str], access: Access | None, principal: str | None) -> None:
        await self._set(level, AuditAction.ACCESS_CHANGED, principal, access=access)

    async def _set_cascade(self, level: Mapping[str, str], cascade: bool | None, principal: str | None) -> None:
        await self._set(level, AuditAction.CASCADE_CHANGED, principal, cascade=cascade)
