"""The blocking form of `ConfigOperations`, `PolicyOperations`.

Written by ``python -m tools.faces``: change the async classes, not this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.names import DEFAULT_RESOURCE
from ..core.validation import UNSET
from ..runtime.blocking import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.limit import Limit
    from ..core.validation import Unset
    from ..core.values import Access, OnUnavailable
    from ..repository.configs import ConfigOperations, PolicyOperations


class SyncConfigOperations:
    """Set, get, delete and list stored limits."""

    _inner: ConfigOperations

    def set_system_defaults(
        self, limits: Sequence[Limit], on_unavailable: OnUnavailable | str | None = None, principal: str | None = None
    ) -> None:
        """Set the ``limits`` that apply where nothing more specific is stored.

        ``on_unavailable`` is what an acquire does when the store is unavailable; None keeps the stored value.
        """
        run(self._inner.set_system_defaults(limits, on_unavailable, principal))

    def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        """Return the system limits and what an acquire does when the store is unavailable."""
        return run(self._inner.get_system_defaults())

    def get_system_limits(self) -> list[Limit]:
        """Return the system limits."""
        return run(self._inner.get_system_limits())

    def resolve_on_unavailable(self) -> OnUnavailable:
        """Return what acquires do when the store is unavailable, as stored, else that they block.

        It is read once per cache time, as all config that acquires need.
        """
        return run(self._inner.resolve_on_unavailable())

    def delete_system_defaults(self, principal: str | None = None) -> None:
        """Delete the system limits, if there are any, and what is stored with them for an unavailable store."""
        run(self._inner.delete_system_defaults(principal))

    def set_resource_defaults(
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
        run(self._inner.set_resource_defaults(resource, limits, principal, disabled=disabled, cascade=cascade))

    def get_resource_defaults(self, resource: str) -> list[Limit]:
        """Return the limits stored for a resource."""
        return run(self._inner.get_resource_defaults(resource))

    def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        """Delete the limits of a resource, if it has any."""
        run(self._inner.delete_resource_defaults(resource, principal))

    def list_resources_with_defaults(self) -> list[str]:
        """Return the names of resources that have limits of their own, sorted."""
        return run(self._inner.list_resources_with_defaults())

    def set_limits(
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
        run(self._inner.set_limits(entity_id, limits, resource, principal, disabled=disabled, cascade=cascade))

    def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        """Return the limits of the entity itself for a resource, or (``_default_``) for all resources."""
        return run(self._inner.get_limits(entity_id, resource))

    def delete_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None) -> None:
        """Delete the limits of the entity itself for a resource, or (``_default_``) those for all."""
        run(self._inner.delete_limits(entity_id, resource, principal))

    def list_entities_with_custom_limits(
        self, resource: str = DEFAULT_RESOURCE, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Return entities with limits of their own, and a cursor where there are more than ``limit``.

        ``resource`` is the resource of the limits, ``_default_`` for those for all resources; ``limit`` is the size of
        a page, None for all of them at once; ``cursor`` is that of the previous page. The last page has none.
        """
        return run(self._inner.list_entities_with_custom_limits(resource, limit, cursor))

    def list_resources_with_entity_configs(self) -> list[str]:
        """Return the resources for which some entity has limits of its own."""
        return run(self._inner.list_resources_with_entity_configs())

    def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, str | None]:
        """Return the limits in force for an entity on a resource, the policy, and their level.

        The policy is what an acquire does when the store is unavailable, as stored; the level is one of `SOURCES`.
        """
        return run(self._inner.resolve_limits(entity_id, resource))


class SyncPolicyOperations(SyncConfigOperations):
    """Set, get and clear switches and cascade policies.

    Entity and resource > entity > resource; for a cascade then the entity's own ``cascade``.
    """

    _inner: PolicyOperations

    def disable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Refuse every request of an entity with `ResourceDisabled`, for one ``resource`` or (None) for all.

        It holds for those below it too that charge it. Other processes follow with their next write to one of its
        buckets.
        """
        run(self._inner.disable_entity(entity_id, resource, principal))

    def enable_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Let limits decide for an entity, for one ``resource`` or (None) for all, whatever the resource's switch says.

        Processes that have refused it follow when their cached config has expired, after 60 s unless
        ``config_cache_ttl`` of `SyncRepository` says otherwise.
        """
        run(self._inner.enable_entity(entity_id, resource, principal))

    def bypass_entity(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Admit every request of an entity, for one ``resource`` or (None) for all; what it uses is still counted."""
        run(self._inner.bypass_entity(entity_id, resource, principal))

    def disable_resource(self, resource: str, principal: str | None = None) -> None:
        """Refuse every request for a resource with `ResourceDisabled`, except for entities with a switch of their own.

        Other processes follow when their cached config has expired, after 60 s unless ``config_cache_ttl`` of
        `SyncRepository` says otherwise.
        """
        run(self._inner.disable_resource(resource, principal))

    def enable_resource(self, resource: str, principal: str | None = None) -> None:
        """Let limits decide for a resource."""
        run(self._inner.enable_resource(resource, principal))

    def bypass_resource(self, resource: str, principal: str | None = None) -> None:
        """Admit every request for a resource, except of entities with a switch of their own; usage is still counted."""
        run(self._inner.bypass_resource(resource, principal))

    def clear_entity_disabled(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Remove an entity's switch, for one ``resource`` or (None) the one for all; a less specific one decides."""
        run(self._inner.clear_entity_disabled(entity_id, resource, principal))

    def clear_resource_disabled(self, resource: str, principal: str | None = None) -> None:
        """Remove the switch of a resource."""
        run(self._inner.clear_resource_disabled(resource, principal))

    def get_entity_disabled(self, entity_id: str, resource: str | None = None) -> bool | str | None:
        """Return the switch of an entity for one ``resource`` or (None) the one for all, not that in force.

        True if it is disabled, False if enabled, ``"bypass"`` if bypassed, None without one.
        """
        return run(self._inner.get_entity_disabled(entity_id, resource))

    def get_resource_disabled(self, resource: str) -> bool | str | None:
        """Return the switch of a resource: True, False or ``"bypass"``; None without one."""
        return run(self._inner.get_resource_disabled(resource))

    def resolve_access(self, entity_id: str, resource: str) -> tuple[Access, str | None]:
        """Return the switch in force for an entity on a resource, and its level, one of `SOURCES` (None: none is set).

        Switches of entities above it are theirs: they count for it where it cascades to them.
        """
        return run(self._inner.resolve_access(entity_id, resource))

    def set_entity_cascade(
        self, entity_id: str, cascade: bool, resource: str | None = None, principal: str | None = None
    ) -> None:
        """Decide whether an acquire of an entity charges its parent, for one ``resource`` or (None) for all.

        It counts more than the ``cascade`` of the entity and of the resource. Other processes follow with their next
        write to one of its buckets.
        """
        run(self._inner.set_entity_cascade(entity_id, cascade, resource, principal))

    def clear_entity_cascade(self, entity_id: str, resource: str | None = None, principal: str | None = None) -> None:
        """Remove what `set_entity_cascade` has set for one ``resource`` or (None) for all."""
        run(self._inner.clear_entity_cascade(entity_id, resource, principal))

    def get_entity_cascade(self, entity_id: str, resource: str | None = None) -> bool | None:
        """Return what `set_entity_cascade` has set for one ``resource`` or (None) for all; None if it has not."""
        return run(self._inner.get_entity_cascade(entity_id, resource))

    def set_resource_cascade(self, resource: str, cascade: bool, principal: str | None = None) -> None:
        """Decide whether an acquire of a resource charges parents, for entities without a policy of their own.

        It counts more than the ``cascade`` of the entity.
        """
        run(self._inner.set_resource_cascade(resource, cascade, principal))

    def clear_resource_cascade(self, resource: str, principal: str | None = None) -> None:
        """Remove what `set_resource_cascade` has set."""
        run(self._inner.clear_resource_cascade(resource, principal))

    def get_resource_cascade(self, resource: str) -> bool | None:
        """Return what `set_resource_cascade` has set; None if it has not."""
        return run(self._inner.get_resource_cascade(resource))

    def resolve_cascade(self, entity_id: str, resource: str) -> bool:
        """Return whether an acquire of an entity charges its parent on a resource, by the most specific policy."""
        return run(self._inner.resolve_cascade(entity_id, resource))
