"""Switches, cascade policies and resets as they are shown to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.names import DEFAULT_RESOURCE

if TYPE_CHECKING:
    from ..core.values import Entity, LimitStatus
    from ..sync import SyncRateLimiter, SyncRepository

_ACCESS = {None: None, True: "disabled", False: "enabled", "bypass": "bypassed"}


def read_policies(repository: SyncRepository, resource: str | None, entity_id: str | None = None) -> dict[str, object]:
    """Return the stored ``access`` and ``cascade_policy`` of an entity, on a resource or for all; or of a resource."""
    where = None if resource == DEFAULT_RESOURCE else resource
    if entity_id is None:
        assert where is not None  # it is about one of both
        access, cascade = repository.get_resource_disabled(where), repository.get_resource_cascade(where)
    else:
        access = repository.get_entity_disabled(entity_id, where)
        cascade = repository.get_entity_cascade(entity_id, where)
    return {"access": _ACCESS[access], "cascade_policy": cascade}


def spell_policies(whose: str, policies: Mapping[str, object]) -> list[str]:
    """Return a sentence for each policy that is set."""
    sentences = [] if policies["access"] is None else [f"{whose} is {policies['access']}."]
    if policies["cascade_policy"] is not None:
        sentences.append(f"{whose} {spell_cascade(bool(policies['cascade_policy']))} by its cascade policy.")
    return sentences


def spell_cascade(cascade: bool) -> str:
    """Return what a cascade policy does, with a verb."""
    return "charges parents" if cascade else "does not charge parents"


def explain_cascade(limiter: SyncRateLimiter, entity: Entity, resource: str) -> str | None:
    """Return why the parent of an entity is charged or not; None where nothing but its ``cascade`` says that it is."""
    for who, where, cascade in (
        (entity.id, f" on {resource}", limiter.get_entity_cascade(entity.id, resource)),
        (entity.id, "", limiter.get_entity_cascade(entity.id)),
        (resource, "", limiter.get_resource_cascade(resource)),
    ):
        if cascade is not None:
            return f"{who} {spell_cascade(cascade)}{where} by its cascade policy"
    return None if entity.cascade else f"{entity.id} does not cascade"


def find_unknown(repository: SyncRepository, entity_id: str) -> list[str]:
    """Return a note if there is no such entity: nothing requires it to exist, but its id may be misspelt."""
    known = repository.get_entity(entity_id) is not None
    return [] if known else [f"no entity {entity_id!r} exists; this holds for whoever uses that id."]


def spell_reset(status: LimitStatus) -> str | None:
    """Return when the next window of a quota begins, by the clocks of its zone; None for a rate."""
    moment, calendar = status.resets_at, status.limit.calendar
    if moment is None or calendar is None:
        return None
    return f"{moment:%Y-%m-%d %H:%M}{f':{moment:%S}' if moment.second else ''} {calendar.tz}"
