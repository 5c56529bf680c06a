"""Decide for a resource, or for an entity on it, whether parents are charged; remove switches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import names
from ..core.values import AuditAction
from .configs import ConfigOperations, entity_level
from .resolving import read_policy
from .switches import DISABLED, check_cascade

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..records.config import Config


class PolicyOperations(ConfigOperations):
    """Set, get and clear cascade policies, clear switches.

    Entity and resource > entity > resource > the entity's own ``cascade``.
    """

    async def set_entity_cascade(
        self, entity_id: str, cascade: bool, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Decide whether an acquire of an entity charges its parent, for one ``resource`` or (None) for all.

        It counts more than the ``cascade`` of the entity and of the resource. Other processes follow with their next
        write to one of its buckets. ``principal`` says in the audit log who did it.
        """
        await self._set_cascade(entity_level(entity_id, resource), check_cascade(cascade), principal)

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
        await self._set_cascade({"resource": names.resource(resource)}, check_cascade(cascade), principal)

    async def clear_resource_cascade(self, resource: str, principal: str | None = None) -> None:
        """Remove what `set_resource_cascade` has set. ``principal`` says in the audit log who did it."""
        await self._set_cascade({"resource": names.resource(resource)}, None, principal)

    async def get_resource_cascade(self, resource: str) -> bool | None:
        """Return what `set_resource_cascade` has set; None if it has not."""
        return (await self._read_config({"resource": names.resource(resource)})).cascade

    async def resolve_cascade(self, entity_id: str, resource: str) -> bool:
        """Return whether an acquire of an entity charges its parent on a resource, by the most specific policy."""
        names.entity_id(entity_id)
        names.resource(resource)
        deadline, ns = await self._begin()
        return (await read_policy(self._backend, ns, entity_id, resource, deadline)).cascade

    async def clear_entity_disabled(
        self, entity_id: str, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Remove the switch of an entity, for one ``resource`` or (None) the one for all; a less specific one decides.

        ``principal`` says in the audit log who did it.
        """
        await self._switch(entity_level(entity_id, resource), None, principal)

    async def clear_resource_disabled(self, resource: str, principal: str | None = None) -> None:
        """Remove the switch of a resource. ``principal`` says in the audit log who did it."""
        await self._switch({"resource": names.resource(resource)}, None, principal)

    async def get_entity_disabled(self, entity_id: str, resource: str | None = None) -> bool | str | None:
        """Return the switch of an entity for one ``resource`` or (None) the one for all, not that in force.

        True if it is disabled, False if enabled, ``"bypass"`` if bypassed, None without one.
        """
        return DISABLED[(await self._read_config(entity_level(entity_id, resource))).access]

    async def get_resource_disabled(self, resource: str) -> bool | str | None:
        """Return the switch of a resource: True, False or ``"bypass"``; None without one."""
        return DISABLED[(await self._read_config({"resource": names.resource(resource)})).access]

    async def _set_cascade(self, level: Mapping[str, str], cascade: bool | None, principal: str | None) -> None:
        def change(seen: Config) -> Config | None:
            return None if seen.cascade is cascade else seen._replace(cascade=cascade)

        await self._change(level, change, AuditAction.CASCADE_CHANGED, {"cascade": cascade}, principal)
