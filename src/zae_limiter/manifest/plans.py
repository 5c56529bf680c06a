"""A plan as JSON, to be reviewed and applied later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core import names
from ..core.limit import Limit
from ..core.validation import ValidationError
from ..core.values import Access, OnUnavailable
from .states import Change, Plan, Subject

_VERSION = 1
_FIELDS = {"limits", "on_unavailable", "access", "name", "parent_id", "cascade"}


def encode_plan(plan: Plan, namespace: str) -> dict[str, Any]:
    """Return a plan for a namespace as JSON types."""
    changes = [
        {
            "kind": change.kind,
            "entity_id": change.subject.entity_id,
            "resource": change.subject.resource,
            "before": None if change.before is None else _encode(change.before),
            "after": _encode(change.after),
        }
        for change in plan.changes
    ]
    summary = {kind: plan.count(kind) for kind in ("add", "change", "remove")}
    return {"version": _VERSION, "namespace": namespace, "summary": summary, "changes": changes}


def decode_plan(data: Any, namespace: str) -> Plan:
    """Return the plan of `encode_plan`. Raise `ValidationError` for anything else, and for another namespace."""
    try:
        version, made_for = data["version"], data["namespace"]
        changes = [_decode_change(each) for each in data["changes"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValidationError("plan", data, f"is not a plan of this version: {error}") from None
    if version != _VERSION:
        raise ValidationError("plan", version, f"has another version than {_VERSION}; make a new plan")
    if made_for != namespace:
        raise ValidationError("plan", made_for, f"was made for another namespace than {namespace!r}")
    return Plan(tuple(changes))


def _decode_change(data: Mapping[str, Any]) -> Change:
    before = None if data["before"] is None else _decode(data["before"])
    return Change(_check_subject(data["entity_id"], data["resource"]), before, _decode(data["after"]))


def _check_subject(entity_id: object, resource: object) -> Subject:
    """Return the subject of a change. Raise `ValidationError` for what could not be stored under its names."""
    check = names.resource if entity_id is None else names.config_resource
    return Subject(
        None if entity_id is None else names.entity_id(entity_id), None if resource is None else check(resource)
    )


def _encode(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [limit.to_dict() for limit in value] if name == "limits" else value for name, value in fields.items()}


def _decode(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not fields.keys() <= _FIELDS:
        raise ValueError(f"{sorted(fields.keys() - _FIELDS)} are no fields")
    made = dict(fields)
    if "limits" in made:
        made["limits"] = tuple([Limit.from_dict(each) for each in made["limits"]])
    for name, kind in (("access", Access), ("on_unavailable", OnUnavailable)):
        if made.get(name) is not None:
            made[name] = kind(made[name])
    if not isinstance(made.get("cascade"), bool | None):
        raise ValueError("cascade is not true or false")
    return made
