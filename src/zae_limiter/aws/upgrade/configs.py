"""Convert stored limits of the three levels to one record per level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...core import names
from ...core.values import OnUnavailable
from ...records import config, keys
from ...records.algebra import TTL, Key, Write
from . import composite, per_limit
from .items import NESTED, Move, Old, plan_move

if TYPE_CHECKING:
    from ...core.limit import Limit

KIND = "config"


class Scope(NamedTuple):
    """One level of a namespace: the key of its record, its identifying attributes and its registry."""

    namespace_id: str
    key: Key
    identity: dict[str, str]
    registry: Key | None = None

    @classmethod
    def system(cls, ns: str) -> Scope:
        """Return the scope of the system defaults."""
        return cls(ns, keys.system_config(ns), {})

    @classmethod
    def resource(cls, ns: str, resource: str) -> Scope:
        """Return the scope of a resource's defaults."""
        names.resource(resource)
        return cls(ns, keys.resource_config(ns, resource), {"resource": resource}, keys.resources(ns))

    @classmethod
    def entity(cls, ns: str, entity_id: str, resource: str) -> Scope:
        """Return the scope of an entity's own limits."""
        names.entity_id(entity_id)
        names.config_resource(resource)
        identity = {"entity_id": entity_id, "resource": resource}
        return cls(ns, keys.entity_config(ns, entity_id, resource), identity, keys.entity_config_resources(ns))


def convert(scope: Scope, whole: Old | None, parts: dict[str, Old], now_ms: int) -> Move | None:
    """Return the move of a composite item and of items per limit to one record; the composite item wins.

    A record that is already in its place is newer than any items per limit.
    """
    in_place = whole is not None and whole.key == scope.key
    limits: dict[str, Limit] = (
        {} if in_place else {name: per_limit.read_limit(name, old) for name, old in parts.items()}
    )
    if whole is not None:
        limits |= {limit.name: limit for limit in composite.read_limits(whole)}
    olds = [*parts.values(), *([] if whole is None else [whole])]
    image = _build_image(scope, whole, tuple(limits.values()))
    beside = []
    if scope.registry is not None and limits and not in_place:
        entry = {"GSI4PK": scope.namespace_id, "GSI4SK": scope.registry.pk}
        beside.append(Write(scope.registry, (), entry, {f"r_{scope.identity['resource']}": 1}))
    return plan_move(KIND, olds, scope.key, image, now_ms, beside)


def _build_image(scope: Scope, whole: Old | None, limits: tuple[Limit, ...]) -> dict[str, Any]:
    fields = {} if whole is None else whole.fields
    image = {name: value for name, value in fields.items() if not _is_rewritten(name)}
    version = fields.get(config.VERSION)
    policy = fields.get("on_unavailable")
    image |= scope.identity | {"GSI4PK": scope.namespace_id, "GSI4SK": scope.key.pk}
    image[config.VERSION] = version if isinstance(version, int) and version > 0 else 1
    if policy is not None:
        image["on_unavailable"] = OnUnavailable(policy).value
    if limits and "entity_id" in scope.identity:
        resource = scope.identity["resource"]
        image["GSI3PK"] = keys.gsi3_pk_entity_config(scope.namespace_id, resource)
        image["GSI3SK"] = scope.identity["entity_id"]
    return image | config.encode(limits)


def _is_rewritten(name: str) -> bool:
    return name.startswith(("l_", "GSI")) or name in (NESTED, TTL, "on_unavailable")
