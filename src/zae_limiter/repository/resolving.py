"""Read and resolve the config of entities on resources, from the cache where it is there, and stamp buckets with it.

A bucket that is stamped with a newer version makes each process that charges it read the config again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..core import names
from ..core.config import Config, Resolved, resolve
from ..core.errors import CorruptRecordError
from ..core.names import DEFAULT_RESOURCE
from ..core.values import OnUnavailable
from ..records import bucket, config, entity, keys, migration
from ..records.algebra import Committed, Image, Key
from ..runtime.deadline import Deadline
from ..runtime.retries import tries
from .backend import Backend
from .cache import Defaults

_MOST_RECORDS = 64
"""How many records of one entity are remembered together, before all of them are read again."""


class Policy(NamedTuple):
    """The config of an entity on a resource, as an acquire needs it, and the record ``extra`` that was read with it."""

    cascade: bool
    parent_id: str | None
    resolved: Resolved
    on_unavailable: OnUnavailable | None
    valid_until_ms: int
    extra: Image | None
    is_default: bool = False
    """Whether the entity has nothing of its own: ``resolved`` is then one object for all such entities."""
    read_ms: int = 0
    """When the records of the entity were read."""


async def read_policy(
    backend: Backend,
    ns: str,
    entity_id: str,
    resource: str,
    deadline: Deadline,
    extra: Key | None = None,
    *,
    reread: bool = False,
) -> Policy:
    """Resolve the limits of an entity. What is not cached is read in one call, together with ``extra``.

    The entity's own records are all read if one of them is missing: a resource that it has not used yet must not be
    charged under a switch or limits of a minute ago. ``reread``: read them even if they are cached.
    """
    cache, generation, now_ms = backend.cache, backend.cache.generation, backend.clock.now_ms()
    pk, sks = keys.pk_entity(ns, entity_id), _entity_records(resource)
    own, defaults = cache.get(pk, resource, now_ms)
    if own is None and defaults is not None and backend.has_records is not None and not backend.has_records(pk):
        return _by_default(defaults, defaults.read_ms + cache.ttl_ms, now_ms)
    missing = sks if own is None or reread or any(sk not in own[0] for sk in sks) else ()
    own = None if own is not None and missing and len(own[0]) >= _MOST_RECORDS else own
    shared = [] if defaults is not None else [keys.resource_config(ns, resource), keys.system_config(ns)]
    beside: Image | None = None
    if missing or shared:
        wanted = [Key(pk, sk) for sk in missing] + shared + ([] if extra is None else [extra])
        images = await backend.store.read(wanted, timeout=deadline.left())
        beside = None if extra is None else images.pop()
        if defaults is None:
            defaults = _decode_defaults(shared, images[len(missing) :], now_ms)
            cache.put_defaults(resource, defaults, generation)
        if missing:
            found = images[: len(missing)]
            if own is None and not any(found):
                own = _absent_records(sks), now_ms
            else:
                known, oldest_ms = own or ({}, now_ms)
                own = {**known, **dict(zip(missing, found, strict=True))}, oldest_ms
            cache.put(pk, own, generation)
    assert own is not None  # whatever was missing was read
    assert defaults is not None
    records, read_ms = own
    read_ms, oldest_ms = backend.clock.now_ms() if missing else read_ms, min(read_ms, defaults.read_ms)
    return _make_policy(pk, sks, records, defaults, (oldest_ms + cache.ttl_ms, read_ms, beside))


def _make_policy(
    pk: str,
    sks: tuple[str, ...],
    records: Mapping[str, Image | None],
    defaults: Defaults,
    read: tuple[int, int, Image | None],
) -> Policy:
    """Return the config of an entity; ``read`` is until when it holds, when it was read, and what was read besides."""
    valid_until_ms, read_ms, beside = read
    if not any(records.values()):
        return _by_default(defaults, valid_until_ms, read_ms, beside)
    meta = entity.inspect(records[sks[0]] or {})
    configs = [config.decode(Key(pk, sk), records[sk]) for sk in sks[1:]]
    resolved = resolve(configs, defaults.resolved, meta.get("version", 0))
    cascade = bool(meta.get("cascade")) if resolved.cascade is None else resolved.cascade
    whose = (cascade, meta.get("parent_id"), resolved, defaults.on_unavailable, valid_until_ms, beside)
    return Policy(*whose, read_ms=read_ms)


async def read_policies(
    backend: Backend, ns: str, wanted: Collection[tuple[str, str]], extra: Sequence[Key], deadline: Deadline
) -> tuple[set[tuple[str, str]], dict[Key, Image | None]]:
    """Read into the cache, in one call, what is not there of the config of entities on resources, with ``extra``.

    Return whom they charge besides, on which resource, and the images of ``extra``.
    """
    cache, generation, now_ms = backend.cache, backend.cache.generation, backend.clock.now_ms()
    records = [(keys.pk_entity(ns, who), resource, _entity_records(resource)) for who, resource in wanted]
    missing = list(extra)
    for pk, resource, sks in records:
        own, defaults = cache.get(pk, resource, now_ms)
        missing += [Key(pk, sk) for sk in sks if own is None or any(each not in own[0] for each in sks)]
        missing += [] if defaults else [keys.resource_config(ns, resource), keys.system_config(ns)]
    missing = list(dict.fromkeys(missing))
    images = dict(
        zip(missing, await backend.store.read(missing, timeout=deadline.left()) if missing else [], strict=True)
    )
    above = set()
    for pk, resource, sks in records:
        own, defaults = cache.get(pk, resource, now_ms)
        if defaults is None:
            shared = [keys.resource_config(ns, resource), keys.system_config(ns)]
            cache.put_defaults(resource, _decode_defaults(shared, [images[key] for key in shared], now_ms), generation)
        known, oldest_ms = own or ({}, now_ms)
        found = {sk: images[Key(pk, sk)] for sk in sks if Key(pk, sk) in images}
        cache.put(pk, ({**known, **found}, oldest_ms), generation)
        meta = entity.inspect(found.get(sks[0], known.get(sks[0])) or {})
        if meta.get("cascade") and meta.get("parent_id"):
            above.add((meta["parent_id"], resource))
    return above, {key: images[key] for key in extra}


def _by_default(defaults: Defaults, valid_until_ms: int, read_ms: int, extra: Image | None = None) -> Policy:
    """Return the config of an entity that has none of its own."""
    return Policy(False, None, defaults.resolved, defaults.on_unavailable, valid_until_ms, extra, True, read_ms)


@lru_cache(maxsize=1024)
def _absent_records(sks: tuple[str, ...]) -> Mapping[str, Image | None]:
    """Return the records of an entity that has none of these: one object for all such entities."""
    return dict.fromkeys(sks)


@lru_cache(maxsize=1024)
def _entity_records(resource: str) -> tuple[str, ...]:
    """Return the sort keys of an entity's records: itself, and its limits for one and for all resources."""
    return keys.META, keys.sk_config(resource), keys.sk_config(DEFAULT_RESOURCE)


def _decode_defaults(shared: Sequence[Key], images: Sequence[Image | None], now_ms: int) -> Defaults:
    """Return the resolved config records of a resource and of the system."""
    of_resource, of_system = map(config.decode, shared, images)
    return Defaults(resolve([Config(), Config(), of_resource, of_system]), of_system.on_unavailable, now_ms)


def resource_level(resource: str) -> dict[str, str]:
    """Return the level of a resource."""
    return {"resource": names.resource(resource)}


def entity_level(entity_id: str, resource: str | None) -> dict[str, str]:
    """Return the level of an entity, for one resource or (None) for all."""
    chosen = DEFAULT_RESOURCE if resource is None else names.config_resource(resource)
    return {"entity_id": names.entity_id(entity_id), "resource": chosen}


def list_configs(ns: str, entity_id: str, resource: str) -> list[Key]:
    """Return the keys of the config records that may decide for an entity on a resource, the most specific first."""
    own = [keys.entity_config(ns, entity_id, each) for each in dict.fromkeys((resource, DEFAULT_RESOURCE))]
    shared = [] if resource == DEFAULT_RESOURCE else [keys.resource_config(ns, resource)]
    return [*own, *shared, keys.system_config(ns)]


def locate(ns: str, level: Mapping[str, str]) -> tuple[Key, str, Key | None, dict[str, str]]:
    """Return where the limits of a level are: of an entity and a resource, of a resource, or (empty) of the system.

    It is the key, the subject of its audit events, the registry of its resource, and the index attributes that the
    record has while it holds limits.
    """
    if not level:
        return keys.system_config(ns), keys.AUDIT_SYSTEM, None, {}
    entity_id, resource = level.get("entity_id"), level["resource"]
    if entity_id is None:
        return keys.resource_config(ns, resource), keys.audit_resource(resource), keys.resources(ns), {}
    index_keys = {"GSI3PK": keys.gsi3_pk_entity_config(ns, resource), "GSI3SK": entity_id}
    return keys.entity_config(ns, entity_id, resource), entity_id, keys.entity_config_resources(ns), index_keys


async def stamp_buckets(backend: Backend, ns: str, entity_id: str, resource: str | None, deadline: Deadline) -> None:
    """Stamp the buckets of an entity, for one resource or (None) for all, after a change of its config.

    A process with the old config then loses the race for its next write, and the image tells it why. Damaged buckets
    are skipped: they grant nothing.
    """
    steps = deadline.for_each_step()
    versions: dict[str, int] = {}
    for key, image in await backend.collect(keys.buckets_of_entity(ns, entity_id, resource), steps):
        with contextlib.suppress(CorruptRecordError):
            whose = keys.parse_bucket_pk(key.pk)
            if whose.resource not in versions:
                versions[whose.resource] = await _read_version(backend, ns, entity_id, whose.resource, steps)
            await _stamp(backend, key, image, versions[whose.resource], steps)


async def _read_version(backend: Backend, ns: str, entity_id: str, resource: str, deadline: Deadline) -> int:
    """Return the version of the config of an entity on a resource, as it is stored now."""
    configs = list_configs(ns, entity_id, resource)
    meta, *images = await backend.read([keys.meta(ns, entity_id), *configs], deadline)
    version: int = (meta or {}).get("version", 0)
    return version + sum(config.decode(key, image).version for key, image in zip(configs, images, strict=True))


async def _stamp(backend: Backend, key: Key, image: Image | None, version: int, deadline: Deadline) -> None:
    """Stamp one record of a bucket, unless it is gone or was charged under this config already."""
    for _ in tries(key.pk):
        write = None if image is None else migration.stamp(key, bucket.inspect(key, image), version)
        if write is None:
            return
        outcome = await backend.store.commit([write], timeout=deadline.left())
        if isinstance(outcome, Committed):
            backend.last_seen.of(key).show(outcome.images[0], backend.clock.now_ms())
            return
        image = outcome.images[key]
