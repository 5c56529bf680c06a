"""Warn of settings that are stored, but have no effect as things stand. They may have one later."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ..core.config import share_no_name
from ..core.errors import ZAELimiterError
from ..core.names import DEFAULT_RESOURCE
from ..logs import CONFIG_INEFFECTIVE, log_event
from ..records import config, entity, keys
from ..records.algebra import Query
from ..records.config import Config
from ..runtime.deadline import Deadline
from .backend import Backend
from .resolving import list_configs

_MOST_CHILDREN = 5
"""How many children of an entity are compared with its limits."""


def warn_ineffective(backend: Backend, message: str, *args: object) -> None:
    """Log a setting that has no effect."""
    log_event(CONFIG_INEFFECTIVE, message, *args, **backend.log_fields())


async def warn_of_config(
    backend: Backend, ns: str, level: Mapping[str, str], seen: Config, new: Config, deadline: Deadline
) -> None:
    """Log what a change of the config of a level has set without effect. Failures to look are ignored."""
    for limit in (new.limits or ()) if new.limits != seen.limits else ():
        if limit.soft and limit.floors:
            warn_ineffective(backend, "the floors of %s have no effect while it is soft", limit.name)
    with contextlib.suppress(ZAELimiterError):
        if new.access is not None and new.access is not seen.access:
            await _warn_of_switch(backend, ns, level, deadline)
        if new.cascade and not seen.cascade and "entity_id" in level:
            who = level["entity_id"]
            (image,) = await backend.read([keys.meta(ns, who)], deadline)
            if entity.inspect(image or {}).get("parent_id") is None:
                warn_of_lone_cascade(backend, who)
            else:
                await _compare_with_parent(backend, ns, who, level["resource"], deadline)


def warn_of_lone_cascade(backend: Backend, entity_id: str) -> None:
    """Log an entity that is to charge its parent and has none."""
    warn_ineffective(backend, "cascade has no effect on %s until it has a parent", entity_id)


async def warn_of_names(backend: Backend, ns: str, entity_id: str, resource: str, deadline: Deadline) -> None:
    """Log where an entity and its parent, or a child of it, have no limit of the same name.

    The setting is stored already, so failures to look are ignored.
    """
    with contextlib.suppress(ZAELimiterError):
        await _compare_with_parent(backend, ns, entity_id, resource, deadline)
        query = Query(keys.gsi1_pk_parent(ns, entity_id), gsi="GSI1", limit=_MOST_CHILDREN)
        for _, image in (await backend.query(query, deadline)).items:
            await _compare_with_parent(backend, ns, entity.decode(image).id, resource, deadline)


async def _compare_with_parent(backend: Backend, ns: str, child: str, resource: str, deadline: Deadline) -> None:
    (image,) = await backend.read([keys.meta(ns, child)], deadline)
    meta = entity.inspect(image or {})
    parent = meta.get("parent_id")
    if parent is None:
        return
    wanted = [list_configs(ns, who, resource) for who in (child, parent)]
    every = list(dict.fromkeys(key for each in wanted for key in each))
    found = dict(zip(every, await backend.read(every, deadline), strict=True))
    own, above = ([config.decode(key, found[key]) for key in each] for each in wanted)
    cascade = next((each.cascade for each in own if each.cascade is not None), bool(meta.get("cascade")))
    limits = [next((each.limits for each in levels if each.limits), ()) for levels in (own, above)]
    if cascade and share_no_name(*limits):
        where = "" if resource == DEFAULT_RESOURCE else f" on {resource}"
        warn_ineffective(backend, "%s and its parent %s have no limit of the same name%s", child, parent, where)


async def _warn_of_switch(backend: Backend, ns: str, level: Mapping[str, str], deadline: Deadline) -> None:
    """Log a switch for an entity or a resource that nothing is stored about."""
    who, resource = level.get("entity_id"), level["resource"]
    unknown = "the switch is for the %s %s, of which nothing is known"
    if who is not None:
        partition = Query(keys.pk_entity(ns, who), limit=3)
        known = any(
            not key.sk.startswith(f"{keys.CONFIG}#") or config.decode(key, image).limits
            for key, image in (await backend.query(partition, deadline)).items
        )  # by a record that says more than a switch does
        if not known and not await _has_buckets(backend, keys.buckets_of_entity(ns, who), deadline):
            warn_ineffective(backend, unknown, "entity", who)
            return
    if resource != DEFAULT_RESOURCE:
        registries = [keys.resources(ns), keys.entity_config_resources(ns)]
        images = await backend.read(registries, deadline)
        known = any((image or {}).get(config.registered(resource), 0) > 0 for image in images)
        if not known and not await _has_buckets(backend, keys.buckets_of_resource(ns, resource), deadline):
            warn_ineffective(backend, unknown, "resource", resource)


async def _has_buckets(backend: Backend, query: Query, deadline: Deadline) -> bool:
    return bool((await backend.query(query._replace(limit=1), deadline)).items)
