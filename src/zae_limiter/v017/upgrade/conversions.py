"""Convert entities, limits, audit events, usage snapshots, namespaces and lists of resources.

Stored limits of systems, resources and entities become one record each:

    per limit    SYSTEM#, RESOURCE#{name}   #LIMIT#{limit}              capacity, burst, refill_amount, ...
                 ENTITY#{id}                #LIMIT#{resource}#{limit}   the same
    composite    SYSTEM#, RESOURCE#{name}   #CONFIG                     l_{limit}_cp|bx|ra|rp, config_version
                 ENTITY#{id}                #CONFIG#{resource}          the same
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...core import names
from ...core.limit import Limit
from ...core.production import MILLI
from ...core.values import AuditAction, OnUnavailable
from ...records import audit, config, entity, keys, once, usage, version
from ...records.algebra import TTL, Key, Write, is_live
from ...records.namespace import ACTIVE
from . import policies
from .buckets import read_rule
from .moves import NESTED, Move, Old, delete_if_unchanged, plan_move, whole_number

OPERATION_PREFIX = "#OP#"
"""The sort keys of idempotency keys of version 0.17 begin with it, under the bucket."""
_OPERATIONS = {"top_up": AuditAction.BUCKET_TOPPED_UP, "reset": AuditAction.BUCKET_RESET}
_OWN_IDS = "1"
"""Ids of ours begin with the time in ms, and so do not sort before this."""
_OVERDRAWN = "#od"
"""The names of counters of what was taken beyond a soft limit end with it."""


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

    A record that is already in its place is newer than any items per limit. Raise `CorruptRecordError` for one that
    no client could read.
    """
    key, registry = scope.locate()
    fields = {} if whole is None else whole.fields
    in_place = whole is not None and whole.key == key
    if whole and in_place and not parts and policies.is_present_config(whole.image, scope.namespace_id):
        config.decode(key, whole.image)
        return None
    found: dict[str, Limit] = {}
    if not in_place:
        attributes = ("capacity", "burst", "refill_amount", "refill_period_seconds")
        found = {name: Limit(name, *read_rule(old.fields, *attributes)[:3]) for name, old in parts.items()}
    limits = tuple((found | {limit.name: limit for limit in policies.read_limits(fields)}).values())
    image = _config_identity(scope, key, fields) | config.encode(limits)
    if limits and scope.entity_id is not None and scope.resource is not None:
        image["GSI3PK"] = keys.gsi3_pk_entity_config(scope.namespace_id, scope.resource)
        image["GSI3SK"] = scope.entity_id
    beside = []
    step = bool(limits) - in_place  # version 0.17 counts records with a switch alone too
    if registry is not None and step:
        entry = {"GSI4PK": scope.namespace_id, "GSI4SK": registry.pk}
        beside.append(Write(registry, (), entry, {f"r_{scope.resource}": step}))
    olds = [*parts.values(), *([] if whole is None else [whole])]
    return plan_move("config", olds, key, image, now_ms, beside)


def _config_identity(scope: Scope, key: Key, fields: dict[str, Any]) -> dict[str, Any]:
    """Return all attributes of a config record but the limits and what depends on them."""
    rewritten = (NESTED, TTL, "on_unavailable", "cascade", policies.DISABLED, policies.ZONE)
    image = {
        name: value
        for name, value in fields.items()
        if not name.startswith(("l_", "w_", "GSI")) and name not in rewritten
    }
    whose = {"entity_id": scope.entity_id, "resource": scope.resource}
    image |= {name: value for name, value in whose.items() if value is not None}
    stated = fields.get(config.VERSION)
    image[config.VERSION] = stated if isinstance(stated, int) and stated > 0 else 1
    policy = fields.get("on_unavailable")
    if policy is not None:
        image["on_unavailable"] = OnUnavailable(policy).value
    if policies.DISABLED in fields:
        image["access"] = policies.convert_access(fields[policies.DISABLED]).value
    if fields.get("cascade") is not None:
        if not isinstance(fields["cascade"], bool):
            raise ValueError(f"cascade is {fields['cascade']!r}, not true or false")
        image["cascade"] = fields["cascade"]
    return image | {"GSI4PK": scope.namespace_id, "GSI4SK": key.pk}


def convert_entity(ns: str, entity_id: str, old: Old, now_ms: int) -> Move | None:
    """Return the move of an entity to its present form, which counts children, or None if it has it.

    An entity without that count was never counted by its own parent either.
    """
    names.entity_id(entity_id)
    key = keys.meta(ns, entity_id)
    if old.key == key and entity.CHILDREN in old.image:
        return None
    stated = old.fields.get("version")
    version = stated if type(stated) is int and stated > 0 else 1
    found = entity.decode({**old.fields, "entity_id": entity_id, "version": version})
    found = replace(found, parent_id=found.parent_id or None)
    move = plan_move("entity", (old,), key, {**entity.encode(ns, found), entity.CHILDREN: 0}, now_ms)
    if move is None or found.parent_id is None:
        return move
    names.entity_id(found.parent_id, "parent_id")
    return move._replace(parent=keys.meta(ns, found.parent_id))


def convert_event(ns: str, subject: str, old: Old, now_ms: int) -> Move | None:
    """Return the move of an audit event. An id that would sort among later events is prefixed with its time."""
    names.audit_subject(subject)
    fields = old.fields
    found_id = old.key.sk.removeprefix(keys.AUDIT_PREFIX)
    stamp = str(fields.get("timestamp") or found_id)
    if found_id >= _OWN_IDS and not found_id[:13].isdigit():
        found_id = audit.event_id(_instant_ms(stamp), found_id)
    details = fields.get("details") or {}
    known = {"event_id": found_id, "timestamp": stamp, "entity_id": subject}
    known_details = {"details": details if isinstance(details, dict) else {"details": details}}
    event = audit.decode({"action": "", **fields, **known, **known_details})
    made = audit.record(ns, event, None)
    return plan_move("audit event", (old,), made.key, made.put, now_ms)


def convert_snapshot(ns: str, entity_id: str, resource: str, old: Old, now_ms: int) -> Move:
    """Return the move that adds old usage to what the present aggregator has counted of the window."""
    names.entity_id(entity_id)
    names.resource(resource)
    fields = old.fields
    window_type = fields.get("window")
    if window_type not in usage.WINDOWS:
        raise ValueError(f"window is {window_type!r}, not one of {', '.join(usage.WINDOWS)}")
    start = str(fields.get("window_start") or old.key.sk.rpartition("#")[2])
    ttl = fields.get(TTL)
    write = usage.accrue(
        usage.Subject(ns, entity_id, resource),
        usage.window_of(window_type, _instant_ms(start)),
        {_counter(name): whole_number(fields, name) * MILLI for name in fields if name not in usage.OWN},
        whole_number(fields, usage.EVENTS, default=0),
        expires_at_ms=ttl * MILLI if isinstance(ttl, int) else None,
    )
    return Move("usage snapshot", (old,), (write, delete_if_unchanged(old, now_ms)))


def _counter(name: str) -> str:
    """Return the name of a counter of version 0.17, which counts apart what was taken beyond a soft limit."""
    return usage.overdrawn(name.removesuffix(_OVERDRAWN)) if name.endswith(_OVERDRAWN) else name


def _instant_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * MILLI)


def convert_namespace(old: Old, now_ms: int) -> Move | None:
    """Return the move that adds our fields to a namespace record, by name or by id. Refuse a name that is invalid."""
    image = old.image
    name = image.get("name") or image.get("namespace_name") or old.key.sk.removeprefix(keys.NAMESPACE_PREFIX)
    names.namespace(name)
    wanted = {"status": ACTIVE, "created_at": "", **image, "name": name}
    return plan_move("namespace", (old,), old.key, wanted, now_ms)


def convert_resources(ns: str | None, old: Old, now_ms: int) -> Move | None:
    """Return the move that turns a list of resources into counters, or deletes it if it has no namespace."""
    if ns is None:  # the moved configs recreate it
        return Move("registry", (old,), (delete_if_unchanged(old, now_ms),))
    fields = old.fields
    counts = {f"r_{name}": 1 for name in fields.get("resources") or () if isinstance(name, str)}
    for name, value in fields.items():
        if type(value) is int and not name.startswith(("r_", "GSI")) and name != TTL:
            counts[f"r_{name}"] = value
    kept = {name: value for name, value in old.image.items() if name.startswith("r_")}
    move = plan_move("registry", (old,), old.key, {**kept, "GSI4PK": ns, "GSI4SK": old.key.pk}, now_ms)
    if move is None:
        return None
    first = move.writes[0]._replace(add=counts)  # configs add to the same counters, before or after
    return move._replace(writes=(first, *move.writes[1:]))


def convert_provisioner(old: Old, now_ms: int) -> Move:
    """Return the move that deletes what version 0.17 notes beside a limits file.

    It lists what the file manages, which ``--prune`` does not need, and buckets that have yet to be told of a change,
    which here follow the config by themselves.
    """
    return Move("note on a limits file", (old,), (delete_if_unchanged(old, now_ms),))


def convert_operation(old: Old, now_ms: int) -> Move | None:
    """Return the move of the record of a top-up or reset, by which a repeated one is recognised until it expires.

    It does not say what was asked for, so whatever is asked for with its key gets its result.
    """
    if not is_live(old.image, now_ms):
        return Move("idempotency key", (old,), (delete_if_unchanged(old, now_ms),))
    whose, fields = keys.parse_bucket_pk(old.key.pk), old.fields
    action = _OPERATIONS.get(str(fields.get("operation")))
    if action is None:
        raise ValueError(f"operation is {fields.get('operation')!r}, not one of {', '.join(_OPERATIONS)}")
    key = once.key_of(whose.namespace_id, whose.entity_id, old.key.sk.removeprefix(OPERATION_PREFIX))
    amounts = {name: whole_number(fields["amounts"], name) for name in fields["amounts"]}
    result = {"shards": whole_number(fields, "shards", 0), "amounts": amounts}
    asked = {"action": action.value, "resource": whose.resource}
    image = once.record(key, whose.namespace_id, asked, result, {}, now_ms).put
    return plan_move("idempotency key", (old,), key, image, now_ms)


def convert_schema(old: Old, now_ms: int) -> Move | None:
    """Return the move of a namespace's version record to the present version, or None."""
    stated = old.fields.get("schema_version")
    if isinstance(stated, str) and version.major(stated) >= version.major(version.SCHEMA_VERSION):
        return None
    kept = {name: value for name, value in old.image.items() if name.startswith("GSI")}
    return plan_move("version", (old,), old.key, {**kept, "schema_version": version.SCHEMA_VERSION}, now_ms)
