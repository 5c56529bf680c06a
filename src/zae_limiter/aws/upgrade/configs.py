"""Convert the stored limits of systems, resources and entities to one record each.

per limit    SYSTEM#, RESOURCE#{name}   #LIMIT#{limit}              capacity, burst, refill_amount, ...
             ENTITY#{id}                #LIMIT#{resource}#{limit}   the same
composite    SYSTEM#, RESOURCE#{name}   #CONFIG                     l_{limit}_cp|bx|ra|rp, config_version
             ENTITY#{id}                #CONFIG#{resource}          the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...core import names
from ...core.limit import Limit
from ...core.values import OnUnavailable
from ...records import config, keys
from ...records.algebra import TTL, Key, Write
from .buckets import read_rule
from .moves import NESTED, Move, Old, plan_move

if TYPE_CHECKING:
    from ...records.algebra import Image


class Scope(NamedTuple):
    """Whose limits they are: of a resource of an entity, of a resource, or of the system."""

    namespace_id: str
    resource: str | None = None
    entity_id: str | None = None

    def locate(self) -> tuple[Key, Key | None]:
        """Return the keys of the record and of its registry. Raise `ValidationError` for invalid names."""
        ns = self.namespace_id
        if self.resource is None:
            return keys.system_config(ns), None
        if self.entity_id is None:
            names.resource(self.resource)
            return keys.resource_config(ns, self.resource), keys.resources(ns)
        names.entity_id(self.entity_id)
        names.config_resource(self.resource)
        return keys.entity_config(ns, self.entity_id, self.resource), keys.entity_config_resources(ns)


def convert_config(scope: Scope, whole: Old | None, parts: dict[str, Old], now_ms: int) -> Move | None:
    """Return the move of a composite item and of items per limit to one record; the composite item wins.

    A record that is already in its place is newer than any items per limit.
    """
    key, registry = scope.locate()
    in_place = whole is not None and whole.key == key
    limits = {} if in_place else {name: _read_part(name, old.fields) for name, old in parts.items()}
    if whole is not None:
        limits |= _read_whole(whole.fields)
    olds = [*parts.values(), *([] if whole is None else [whole])]
    image = _build_image(scope, key, {} if whole is None else whole.fields, tuple(limits.values()))
    beside = []
    if registry is not None and limits and not in_place:
        entry = {"GSI4PK": scope.namespace_id, "GSI4SK": registry.pk}
        beside.append(Write(registry, (), entry, {f"r_{scope.resource}": 1}))
    return plan_move("config", olds, key, image, now_ms, beside)


def _read_part(name: str, fields: Image) -> Limit:
    return Limit(name, *read_rule(fields, "capacity", "burst", "refill_amount", "refill_period_seconds")[:3])


def _read_whole(fields: Image) -> dict[str, Limit]:
    found = {}
    for name in sorted(name[2:-3] for name in fields if name.startswith("l_") and name.endswith("_cp")):
        cp, bx, ra, rp = (config.attribute(name, field) for field in ("cp", "bx", "ra", "rp"))
        found[name] = Limit(name, *read_rule(fields, cp, bx, ra, rp)[:3])
    return found


def _build_image(scope: Scope, key: Key, fields: Image, limits: tuple[Limit, ...]) -> dict[str, Any]:
    rewritten = (NESTED, TTL, "on_unavailable")
    image = {
        name: value for name, value in fields.items() if not name.startswith(("l_", "GSI")) and name not in rewritten
    }
    if scope.entity_id is not None:
        image["entity_id"] = scope.entity_id
    if scope.resource is not None:
        image["resource"] = scope.resource
    image |= {"GSI4PK": scope.namespace_id, "GSI4SK": key.pk}
    version = fields.get(config.VERSION)
    image[config.VERSION] = version if isinstance(version, int) and version > 0 else 1
    policy = fields.get("on_unavailable")
    if policy is not None:
        image["on_unavailable"] = OnUnavailable(policy).value
    if limits and scope.entity_id is not None and scope.resource is not None:
        image["GSI3PK"] = keys.gsi3_pk_entity_config(scope.namespace_id, scope.resource)
        image["GSI3SK"] = scope.entity_id
    return image | config.encode(limits)
